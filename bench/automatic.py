#!/usr/bin/env python3
"""Times programs that keep no protocol: automatic graphs beside eager runs and beside replays that were asked for.

    bench/automatic.py [--models bert_base_f16,small_20] [--batch 1] [--seconds 0.5] [--options enable_cudnn=1]
                       [--json FILE]

Medians in microseconds, the wait included but in the last column; small_20 is twenty nodes on [8, 256]:
  replay    under enable_cuda_graph, bound
  bound     automatic, the same buffers each time
  fresh     automatic, 64 sets of buffers in turn
  host      automatic, bound, what a run costs the calling thread when it need not wait
  numpy     automatic, run(None, feeds)
and of run(None, feeds) without graphs
  eager     by regions, as the options have it
  apart     node by node, but for groups that are one (regions=0)
In milliseconds, of the automatic session: create, and first, its first run.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import models  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import zoo  # noqa: E402
from models import es  # noqa: E402  (which have named the provider)

DEFAULT = [*models.DEFAULT, "small_20"]
SETS = 64


def make(name, batch):
    """The model's bytes or file, and feeds."""
    if name == "small_20":
        model, feeds = zoo.chain(7, batch=8), {"x": np.random.default_rng(0).standard_normal((8, 256))}
        return model.SerializeToString(), {"x": feeds["x"].astype(np.float32)}
    if name == "chain_f32":
        return zoo.chain(batch=8).SerializeToString(), models.make(name, batch)[1]
    return str(zoo.path(name, batch=batch)), zoo.inputs(name, batch=batch)


def replay_us(model, feeds, options, seconds):
    session = es.make_session(model, enable_cuda_graph=1, **options)
    binding, keep = models.bind(session, feeds)
    told = es.run_options(0)
    return models.median_us(lambda: session.run_with_iobinding(binding, told), seconds)


def host_us(session, binding):
    # With an id, which means nothing here: some versions look for one with an exception if there are options at all.
    told, times = es.run_options(0, disable_synchronize_execution_providers=1), []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(20):  # so that the device's queue never fills
            session.run_with_iobinding(binding, told)
        times.append((time.perf_counter() - start) / 20)
        binding.synchronize_outputs()
    return statistics.median(times) * 1e6


def automatic_bound(model, feeds, options, seconds):
    session = es.make_session(model, auto_graph=1, **options)
    binding, keep = models.bind(session, feeds)
    out = {"bound": models.median_us(lambda: session.run_with_iobinding(binding), seconds)}
    out["host"] = host_us(session, binding)
    sets, at = [models.bind(session, feeds) for _ in range(SETS)], 0

    def fresh():
        nonlocal at
        session.run_with_iobinding(sets[at % SETS][0])
        at += 1

    out["fresh"] = models.median_us(fresh, seconds, warm=2 * SETS)
    return out


def automatic_arrays(model, feeds, options, seconds):
    start = time.perf_counter()
    session = es.make_session(model, auto_graph=1, **options)
    created = time.perf_counter()
    session.run(None, feeds)
    first = time.perf_counter()
    return {
        "create": (created - start) * 1e3,
        "first": (first - created) * 1e3,
        "numpy": models.median_us(lambda: session.run(None, feeds), seconds, warm=50),
    }


def eager_us(model, feeds, options, seconds):
    session = es.make_session(model, **{"auto_graph": 0, **options})
    return models.median_us(lambda: session.run(None, feeds), seconds)


def row(name, batch, seconds, options):
    model, feeds = make(name, batch)
    options = {"use_tf32": 1, **options}
    return {
        "model": name,
        "replay": replay_us(model, feeds, options, seconds),
        **automatic_bound(model, feeds, options, seconds),
        **automatic_arrays(model, feeds, options, seconds),
        "eager": eager_us(model, feeds, options, seconds),
        "apart": eager_us(model, feeds, {"regions": 0, **options}, seconds),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(DEFAULT))
    models.add_arguments(parser)
    args = parser.parse_args()
    ort.set_default_logger_severity(3)
    header = ["model", "replay", "bound", "fresh", "host", "numpy", "eager", "apart", "create", "first"]
    options = models.provider_options(args)
    models.print_table(
        header, (row(name, args.batch, args.seconds, options) for name in args.models.split(",")), args.json
    )


if __name__ == "__main__":
    main()
