#!/usr/bin/env python3
"""Times programs whose shapes change from run to run, through run(None, feeds): eagerly, with automatic graphs, and
with batches that are padded to a power of two.

    bench/changing.py [--models chain_f32,mobilenet_v3_f16] [--most 32] [--runs 10000] [--in-turn 200]
                      [--options enable_cudnn=1] [--json FILE]

  eager, automatic, padded   batches of 1 to --most at random, --runs of them: microseconds a run, the mean; the first
                             tenth of the runs is not counted
  in turn                    --in-turn batches one after the other, more than are kept, eagerly and automatic, likewise
  MiB                        of the automatic session's memory on the device, after the first tenth and at the end
  host MiB                   what the process has grown by from then on
"""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import models  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import onnxruntime_ep_encore  # noqa: E402
import zoo  # noqa: E402
from models import es  # noqa: E402  (which have named the provider)


def feeds_of(name, most):
    """By batch."""
    if name == "chain_f32":
        rows = np.random.default_rng(0).standard_normal((most, 256)).astype(np.float32)
        return {batch: {"x": rows[:batch]} for batch in range(1, most + 1)}
    whole = zoo.inputs(name, batch=most)
    return {batch: {key: value[:batch] for key, value in whole.items()} for batch in range(1, most + 1)}


def resident_mib():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def held_mib(session):
    return onnxruntime_ep_encore.memory_report(session)["arena"]["held_bytes"] / 2**20


def measure(session, feeds, batches):
    """Microseconds a run; what was held, and resident, after the first tenth and at the end."""
    warm = len(batches) // 10
    for batch in batches[:warm]:
        session.run(None, feeds[batch])
    held, resident, start = held_mib(session), resident_mib(), time.perf_counter()
    for batch in batches[warm:]:
        session.run(None, feeds[batch])
    mean = (time.perf_counter() - start) / (len(batches) - warm) * 1e6
    return mean, (held, held_mib(session)), resident_mib() - resident


def row(name, args, options):
    model, feeds = zoo.load(name).SerializeToString(), feeds_of(name, max(args.most, args.in_turn))
    batches = np.random.default_rng(0).integers(1, args.most + 1, args.runs)
    in_turn = [batch % args.in_turn + 1 for batch in range(min(args.runs, 10 * args.in_turn))]
    powers = ",".join(str(1 << n) for n in range(args.most.bit_length()) if 1 << n <= args.most)
    out = {"model": name}

    def session(**chosen):
        return es.make_session(model, **{"use_tf32": 1, **chosen, **options})

    out["eager"], _, _ = measure(session(auto_graph=0), feeds, batches)
    out["automatic"], held, out["host MiB"] = measure(session(auto_graph=1), feeds, batches)
    out["MiB"] = " to ".join(f"{mib:.1f}" for mib in held)
    out["padded"], _, _ = measure(session(auto_graph=1, pad=f"batch:{powers}"), feeds, batches)
    for way, chosen in {"in turn, eager": {"auto_graph": 0}, "in turn, automatic": {"auto_graph": 1}}.items():
        out[way], _, _ = measure(session(**chosen), feeds, in_turn)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="chain_f32,mobilenet_v3_f16")
    parser.add_argument("--most", type=int, default=32)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--in-turn", type=int, default=200)
    models.add_arguments(parser)
    args = parser.parse_args()
    ort.set_default_logger_severity(3)
    options = models.provider_options(args)
    header = ["model", "eager", "automatic", "padded", "in turn, eager", "in turn, automatic", "MiB", "host MiB"]
    models.print_table(header, (row(name, args, options) for name in args.models.split(",")), args.json)


if __name__ == "__main__":
    main()
