#!/usr/bin/env python3
"""Times copies between host and device, and between two devices where there are two, through onnxruntime.copy_tensors.

    PYTHONPATH=python bench/copies.py [--seconds 0.5]

Medians of single copies, the wait included; and of several small ones in one call, as a run has feeds and fetches.
"""

import argparse
import functools
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import encore_session as es  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import onnxruntime_ep_encore as encore  # noqa: E402
from models import median_us  # noqa: E402

SIZES = [1 << 12, 600_000, 1 << 20, 1 << 28]
TOGETHER, SMALL = 8, 1 << 12  # how many of how many bytes


def on_host(size):
    return ort.OrtValue.ortvalue_from_numpy(np.zeros(size, np.uint8))


def on(device):
    return lambda size: es.empty_on_device([size], np.uint8, device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5)
    args = parser.parse_args()
    devices = len(encore.devices(es.registered()))
    ways = {"host to device": (on_host, on(0)), "device to host": (on(0), on_host), "on one device": (on(0), on(0))}
    if devices > 1:
        ways["device 0 to device 1"] = (on(0), on(1))
        ways["device 1 to device 0"] = (on(1), on(0))
    print("| copy | bytes | µs | GB/s |\n|---|---|---|---|")
    for name, (make_source, make_target) in ways.items():
        for size in SIZES:
            source, target = make_source(size), make_target(size)
            us = median_us(functools.partial(ort.copy_tensors, [source], [target]), args.seconds)
            print(f"| {name} | {size} | {us:.1f} | {size / us / 1e3:.1f} |", flush=True)
        sources, targets = [[make(SMALL) for _ in range(TOGETHER)] for make in (make_source, make_target)]
        us = median_us(functools.partial(ort.copy_tensors, sources, targets), args.seconds)
        print(f"| {name} | {TOGETHER} × {SMALL} | {us:.1f} | {TOGETHER * SMALL / us / 1e3:.1f} |", flush=True)


if __name__ == "__main__":
    main()
