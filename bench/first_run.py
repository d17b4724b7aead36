#!/usr/bin/env python3
"""Times what a fresh process waits for: the session, the first result, the first replay; and replays.

    bench/first_run.py [--models resnet50_f16,mobilenet_v3_f16] [--ways plain,cold,warm,heuristic] [--batch 1]
                       [--repeat 3] [--seconds 1] [--options enable_cudnn=1] [--json FILE] [--report]

Each figure is of a process of its own, the median of --repeat of them, and all but the last in milliseconds:
  start      importing onnxruntime, registering the library and making tensors on the device
  create     making the session
  first      the first run, its end included
  result     until the first result: create + first
  at_replay  from the beginning of create until the first replay is done: warm-ups and the capture included
  replay     µs: the median of many replays, the wait included
and the ways are
  plain      as the options have it
  cold       with a tuning_cache whose file is not there yet
  warm       with the file that the one before has left
  heuristic  cudnn_conv_algo_search=HEURISTIC
--report prints what each search of convolutions did (ENCORE_CONV_SEARCH=report=1 in the environment does so, too).
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

STARTED = time.perf_counter()
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import models  # noqa: E402

DEFAULT = ["resnet50_f32", "resnet50_f16", "mobilenet_v3_f32", "mobilenet_v3_f16", "vit_b16_f16"]
WAYS = {"plain": {}, "cold": {}, "warm": {}, "heuristic": {"cudnn_conv_algo_search": "HEURISTIC"}}
FIGURES = ["start", "create", "first", "result", "at_replay", "replay"]


def measure(model, feeds_file, options, seconds):
    """In a process of its own: the figures as JSON."""
    import encore_session as es
    import numpy as np

    def now():
        return (time.perf_counter() - STARTED) * 1e3

    feeds = dict(np.load(feeds_file))
    es.registered()
    tensors = {name: es.on_device(value) for name, value in feeds.items()}
    ready = now()
    session = es.make_session(model, **{"enable_cuda_graph": 1, "use_tf32": 1, **options})
    created = now()
    binding = session.io_binding()
    for name, tensor in tensors.items():
        binding.bind_ortvalue_input(name, tensor)
    for item in session.get_outputs():
        tensors[item.name] = es.empty_on_device(item.shape, models.NUMPY[item.type])
        binding.bind_ortvalue_output(item.name, tensors[item.name])
    bound = now()
    waits = es.run_options(0)
    session.run_with_iobinding(binding, es.run_options(es.EAGER))  # else it would go on until there is a graph
    first = now()
    while not replays(session):
        session.run_with_iobinding(binding, waits)
    replayed = now()
    replay = models.median_us(lambda: session.run_with_iobinding(binding, waits), seconds)
    figures = {"start": ready, "create": created - ready, "first": first - bound, "replay": replay}
    figures |= {"result": figures["create"] + figures["first"], "at_replay": replayed - ready - (bound - created)}
    print("figures: " + json.dumps(figures))


def replays(session):
    """Whether the graph has been replayed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report"
        session.set_ep_dynamic_options({"ep.cuda.report_graphs": str(file)})
        return any(graph["replays"] > 0 for graph in json.loads(file.read_text()))


def in_new_process(arguments, report):
    env = dict(os.environ)
    if report:
        env["ENCORE_CONV_SEARCH"] = ",".join(filter(None, [env.get("ENCORE_CONV_SEARCH"), "report=1"]))
    figures, said = models.figures_of_process(__file__, *arguments, env=env)
    if report:
        print(said, end="", file=sys.stderr, flush=True)
    return figures


def rows(args):
    import numpy as np
    import zoo

    with tempfile.TemporaryDirectory() as folder:
        for name in args.models.split(","):
            model, feeds = zoo.path(name, batch=args.batch), Path(folder) / f"{name}.npz"
            np.savez(feeds, **zoo.inputs(name, batch=args.batch))
            cache = Path(folder) / f"{name}.tuning"
            for way in args.ways.split(","):
                options = {**WAYS[way], **models.provider_options(args)}
                if way in ("cold", "warm"):
                    options["tuning_cache"] = str(cache)
                measured = []
                for _ in range(args.repeat):
                    if way == "cold":
                        cache.unlink(missing_ok=True)
                    given = [str(model), str(feeds), json.dumps(options), str(args.seconds)]
                    measured.append(in_new_process(given, args.report))
                row = {"model": name, "way": way}
                row |= {figure: statistics.median(one[figure] for one in measured) for figure in FIGURES}
                row["file_MB"] = cache.stat().st_size / 1e6 if way in ("cold", "warm") and cache.exists() else None
                yield row


def main():
    if sys.argv[1:2] == ["--measure"]:
        model, feeds, options, seconds = sys.argv[2:]
        return measure(model, feeds, json.loads(options), float(seconds))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(DEFAULT))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--options", default="", help="of the provider: key=value,...")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    models.print_table(["model", "way", *FIGURES, "file_MB"], rows(args), args.json)


if __name__ == "__main__":
    main()
