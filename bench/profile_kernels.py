#!/usr/bin/env python3
"""Says what holds the kernels of bench/kernels.py up, as NVIDIA's profiler ncu counts it.

    PYTHONPATH=python bench/profile_kernels.py 'ArgMax|Softmax.*1501' [--mib 64] [--csv FILE]

Each row runs once, eagerly. For each kernel: its time; registers of a thread, threads of a block and blocks; of what
there is, the warps that were there, the slots in which one was given an instruction, and memory's bandwidth; thousands
of a warp's instructions; megabytes read from and written to memory; and for what a warp mostly waited, in cycles an
instruction.
"""

import argparse
import csv
import math
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
METRICS = {
    "µs": ("gpu__time_duration.sum", 1e-3),
    "registers": ("launch__registers_per_thread", 1),
    "threads": ("launch__block_size", 1),
    "blocks": ("launch__grid_size", 1),
    "warps %": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
    "slots %": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1),
    "memory %": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "k instructions": ("smsp__inst_executed.sum", 1e-3),
    "MB read": ("dram__bytes_read.sum", 1e-6),
    "MB written": ("dram__bytes_write.sum", 1e-6),
}
WAITS = {
    "memory": "long_scoreboard",
    "shared memory": "short_scoreboard",
    "others of the block": "barrier",
    "a queue to memory": "lg_throttle",
    "a queue to shared memory": "mio_throttle",
    "a busy unit": "math_pipe_throttle",
    "the instruction before": "wait",
    "its turn": "not_selected",
    "code": "no_instruction",
}


def waiting(name):
    return f"smsp__average_warps_issue_stalled_{WAITS[name]}_per_issue_active.ratio"


def run_rows(pattern, mib):
    sys.path[:0] = [str(ROOT / each) for each in ("python", "tests", "tests/models", "bench")]
    import kernels
    import numpy as np
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    for kernel in kernels.KERNELS:
        shape = kernel.shape(int(mib * (1 << 20)) // np.dtype(kernel.dtype).itemsize)
        if not re.search(pattern, kernel.name(shape)):
            continue
        print(kernel.name(shape), flush=True)
        session, binding, _keep = kernels.bound(kernels.model_of(kernel, shape, 1))
        session.run_with_iobinding(binding)


def short(name):
    name = re.sub(r"encore::|device::|ops::|cuda::|unnamed>::", "", name)  # ncu leaves the < of <unnamed> out
    return re.sub(r"^void |\(.*\)$", "", name)[:110]


def told(value):
    return f"{value:.0f}" if value >= 100 or math.isclose(value, round(value)) else f"{value:.1f}"


def tell(file):
    lines = [line for line in file.read_text().splitlines() if not line.startswith("==")]
    for row in list(csv.DictReader(lines))[1:]:  # the first has the units
        number = lambda metric, row=row: float((row.get(metric) or "0").replace(",", ""))
        waits = sorted(((number(waiting(name)), name) for name in WAITS), reverse=True)[:3]
        print(short(row["Kernel Name"]))
        print("    " + ", ".join(f"{name} {told(number(metric) * by)}" for name, (metric, by) in METRICS.items()))
        print("    waits for " + ", ".join(f"{name} {cycles:.1f}" for cycles, name in waits))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", help="a regular expression for names of rows")
    parser.add_argument("--mib", type=float, default=64, help="of the first input")
    parser.add_argument("--csv", type=Path, help="all that ncu counted goes there")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return run_rows(args.rows, args.mib)
    if not shutil.which("ncu"):
        sys.exit("ncu is not in PATH; it comes with CUDA, or as Nsight Compute")
    with tempfile.TemporaryDirectory() as folder:
        file = args.csv or Path(folder) / "counts.csv"
        metrics = [metric for metric, _ in METRICS.values()] + [waiting(name) for name in WAITS]
        command = ["ncu", "--clock-control", "none", "--metrics", ",".join(metrics), "--csv", "--page", "raw"]
        command += ["--print-units", "base", "--log-file", file, sys.executable, __file__, args.rows]
        done = subprocess.run([*command, "--mib", str(args.mib), "--inside"])
        if done.returncode:
            sys.exit(f"ncu ended with {done.returncode}")
        tell(file)


if __name__ == "__main__":
    main()
