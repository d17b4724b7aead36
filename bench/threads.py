#!/usr/bin/env python3
"""Times one session in several threads, each with tensors of its own in device memory: replays that are asked for
(enable_cuda_graph) beside automatic graphs.

    bench/threads.py [--models bert_base_f16,small_20] [--threads 1,8] [--seconds 1] [--options enable_cudnn=1]
                     [--json FILE]

Microseconds a run, of all threads together.
"""

import argparse
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import models  # noqa: E402
import onnxruntime as ort  # noqa: E402
from models import es  # noqa: E402  (which have named the provider)

import automatic  # noqa: E402

WAYS = {"replay": {"enable_cuda_graph": 1}, "automatic": {"auto_graph": 1}}
WARM = 20


def measure(session, feeds, threads, seconds, told):
    """Microseconds a run."""
    ran, meet = [0] * threads, threading.Barrier(threads + 1)

    def work(i):
        binding, keep = models.bind(session, feeds)
        for _ in range(WARM):
            session.run_with_iobinding(binding, told)
        meet.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            session.run_with_iobinding(binding, told)
            ran[i] += 1

    started = 0

    def start():
        nonlocal started
        meet.wait()
        started = time.perf_counter()

    wrong = es.in_threads(threads, work, meanwhile=start)
    assert not wrong, wrong
    return (time.perf_counter() - started) / sum(ran) * 1e6


def row(name, counts, seconds, options):
    model, feeds = automatic.make(name, 1)
    out = {"model": name}
    for way, chosen in WAYS.items():
        session = es.make_session(model, **{"use_tf32": 1, **chosen, **options})
        for count in counts:
            out[f"{way}, {count}"] = measure(session, feeds, count, seconds, es.run_options(0))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="bert_base_f16,mobilenet_v3_f16,small_20")
    parser.add_argument("--threads", default="1,8")
    models.add_arguments(parser)
    args = parser.parse_args()
    ort.set_default_logger_severity(3)
    counts = [int(count) for count in args.threads.split(",")]
    options = models.provider_options(args)
    header = ["model", *(f"{way}, {count}" for way in WAYS for count in counts)]
    models.print_table(header, (row(name, counts, args.seconds, options) for name in args.models.split(",")), args.json)


if __name__ == "__main__":
    main()
