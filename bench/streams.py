#!/usr/bin/env python3
"""Times replays beside streams on which the process has launched kernels before.

    python bench/streams.py [--models resnet50_f16,bert_base_f16] [--streams 0,2,24] [--launches 5000] [--seconds 1]

A process whose kernels have been launched on several streams takes longer from one kernel of a graph to the next, also
when these streams do nothing any more. Each figure is of a process of its own, in which torch has launched so many
kernels on each of so many streams before the session is made; medians in microseconds, the wait for a run's end
included:
  replay   a replayed run
  row      one of a hundred replays, which wait for one another on the device alone
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import models  # noqa: E402


def launch_on(streams, launches):
    import torch

    x = torch.zeros(1024, device="cuda")
    for stream in [torch.cuda.Stream() for _ in range(streams)]:
        with torch.cuda.stream(stream):
            for _ in range(launches):
                x.add_(1)
        stream.synchronize()


def measure(name, streams, launches, seconds):
    """In a process of its own: the figures as JSON."""
    import encore_session as es
    import zoo

    if streams:
        launch_on(streams, launches)
    session = es.make_session(str(zoo.path(name, batch=1)), enable_cuda_graph=1, use_tf32=1)
    binding, _keep = models.bind(session, zoo.inputs(name))
    session.run_with_iobinding(binding, es.run_options(es.EAGER))
    waits, goes_on = es.run_options(0), es.run_options(0, disable_synchronize_execution_providers=1)
    session.run_with_iobinding(binding, waits)  # captures

    def row(count=100):
        start = time.perf_counter()
        for _ in range(count):
            session.run_with_iobinding(binding, goes_on)
        binding.synchronize_outputs()
        return (time.perf_counter() - start) * 1e6 / count

    replay = models.median_us(lambda: session.run_with_iobinding(binding, waits), seconds)
    print("figures: " + json.dumps({"replay": replay, "row": statistics.median(row() for _ in range(9))}))


def main():
    if sys.argv[1:2] == ["--measure"]:
        name, streams, launches, seconds = sys.argv[2:]
        return measure(name, int(streams), int(launches), float(seconds))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50_f16,mobilenet_v3_f16,vit_b16_f16,bert_base_f16,chain_f32")
    parser.add_argument("--streams", default="0,2,24")
    parser.add_argument("--launches", type=int, default=5000, help="on each stream")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    def rows():
        for name in args.models.split(","):
            for streams in args.streams.split(","):
                figures, _ = models.figures_of_process(__file__, name, streams, args.launches, args.seconds)
                yield {"model": name, "streams": streams} | figures

    models.print_table(["model", "streams", "replay", "row"], rows(), args.json)


if __name__ == "__main__":
    main()
