#!/usr/bin/env python3
"""Lists the kernels of a replayed model by the time they take, libraries' kernels too.

    PYTHONPATH=python bench/kernel_times.py mobilenet_v3_f16 [model.onnx ...] [--batch 1] [--options prefer_nhwc=1]

torch's profiler sees every kernel of the process, so torch has to be there. For each name: how often a replay launches
it, how long one launch is there, what it adds, and what all of them add. A kernel that begins early is there while
those ahead of it still run, and adds what there is from their end to its own.
"""

import argparse
import collections
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import encore_session as es  # noqa: E402
import models  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402

REPLAYS = 10
IDLE = 5.0  # µs without a kernel, which is more than there is between two of a replay


def feeds_of(session):
    """For a model that comes without: ones where it wants integers, else normal numbers."""
    rng, feeds = np.random.default_rng(0), {}
    for item in session.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in item.shape]
        dtype = models.NUMPY[item.type]
        is_float = np.dtype(dtype).kind == "f"
        feeds[item.name] = rng.standard_normal(shape).astype(dtype) if is_float else np.ones(shape, dtype)
    return feeds


def kernels_of(replay):
    """By name of each kernel of a replay its launches, how long they are there and what they add, in microseconds; and
    what a replay takes from the first to the last."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(20):
        replay()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(REPLAYS):
            replay()
        torch.cuda.synchronize()
    events = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    totals = collections.defaultdict(lambda: np.zeros(3))
    before = -math.inf
    for event in sorted(events, key=lambda event: event.time_range.end):
        begin, end = event.time_range.start, event.time_range.end
        totals[event.name] += 1, end - begin, end - (begin if begin - before > IDLE else before)
        before = end
    span = before - min(event.time_range.start for event in events)
    return {name: tuple(total / REPLAYS) for name, total in totals.items()}, span / REPLAYS


def print_kernels(title, kernels, span, most):
    """What kernels_of() has found."""
    launches, _, busy = map(sum, zip(*kernels.values(), strict=True))
    print(f"\n{title}: {launches:.0f} kernels, busy {busy:.0f} µs of {span:.0f} a replay\n")
    print("| launches | µs each | adds, each | µs | kernel |\n|---|---|---|---|---|")
    for kernel, (count, us, added) in sorted(kernels.items(), key=lambda item: -item[1][2])[:most]:
        print(f"| {count:.0f} | {us / count:.2f} | {added / count:.2f} | {added:.1f} | `{kernel[:120]}` |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="names that bench/models.py knows, or files")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--options", default="", help="of the provider: key=value,...")
    parser.add_argument("--most", type=int, default=20, help="names to list")
    args = parser.parse_args()
    options = {"enable_cuda_graph": 1, "use_tf32": 1, **models.provider_options(args)}
    ort.set_default_logger_severity(3)
    for name in args.models:
        model, feeds = (name, None) if name.endswith(".onnx") else models.make(name, args.batch)
        session = es.make_session(model, **options)
        binding, keep = models.bind(session, feeds or feeds_of(session))
        replays = es.run_options(0)
        replay = lambda s=session, b=binding, r=replays: s.run_with_iobinding(b, r)
        print_kernels(f"{name}, batch {args.batch}", *kernels_of(replay), args.most)
        del keep


if __name__ == "__main__":
    main()
