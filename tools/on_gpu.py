#!/usr/bin/env python3
"""Runs the suites on a machine with a GPU: prebuilt libraries, the machine's own Python, onnxruntime and pytest.

    tools/on_gpu.py FOLDER [--only native,memcheck,racecheck,python,sanitized,fuzz,soak,bench,figures] [--logs FOLDER]
                           [--jobs 8] [--files tests/ops/test_norm.py ...] [--seconds 120]

    tools/on_gpu.py ARCHIVE --pack          after ./encore build cuda --target all --target cpp_tests

FOLDER holds libonnxruntime_providers_cuda_plugin.so and the *_tests programs of the cuda preset, or is an archive of
them, which --pack makes. Prints a line a stage and exits with 1 if one failed. Stages:
  native     the C++ suites
  memcheck   the seam's kernels under compute-sanitizer's memcheck, racecheck the same for races in shared memory
  python     operator cases, end-to-end tests and models; first those alone that measure the device
  sanitized  operator cases under memcheck, file by file: takes minutes each, --files names some
  fuzz       random nodes and chains of them beside the CPU EP, for --seconds, each time others: the log has the seed
  soak       16 threads at random over a few sessions, for --seconds in each of three mixes
  bench      bench/models.py beside torch
  figures    most of what else docs/benchmarks.md tells, only if asked for
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "libonnxruntime_providers_cuda_plugin.so"
SOAKS = [
    [],
    ["--mix", "graph=8,release=4", "--sessions", "graphs,graphs,eager,unified"],
    ["--mix", "graph=8,release=4,open=3", "--sessions", "graphs,graphs"],
]
FIGURES = [
    ["first_run.py"],
    ["automatic.py"],
    ["eager_host.py"],
    ["changing.py"],
    ["pieces.py"],
    ["threads.py"],
    ["streams.py"],
    ["attention.py", "--peer", "torch"],
    ["cached_attention.py"],
    ["cached_attention.py", "--pages", "16"],
    ["language.py"],
    ["products.py"],
    ["recurrent.py", "--peer", "torch"],
    ["kernels.py"],
    ["copies.py"],
]
KERNELS = "--gtest_filter=Launch*:Block*:Half*:Fault*:Divid*:ForEach*:Collective*:Transform*"


def pack(build, archive):
    """Without what a debugger wants."""
    programs = [*sorted((build / "tests").glob("*_tests")), *build.glob("launches_bench")]
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive, "w:xz", preset=1) as tar:
        for file in [build / LIBRARY, *programs]:
            stripped = Path(folder) / file.name
            subprocess.run(["strip", "-o", stripped, file], check=True)
            tar.add(stripped, file.name)


def unpack(archive, folder):
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return Path(folder)


def pytest(jobs, *arguments):
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(jobs), *arguments]


def stages(folder, jobs, files, seconds):
    native = sorted(folder.glob("*_tests"))
    sanitizer = ["compute-sanitizer", "--error-exitcode", "1", "--print-limit", "20"]
    yield "native", [[str(program), "--gtest_brief=1"] for program in native]
    yield "memcheck", [[*sanitizer, "--tool", "memcheck", str(folder / "device_tests"), KERNELS]]
    yield "racecheck", [[*sanitizer, "--tool", "racecheck", str(folder / "device_tests"), KERNELS]]
    tests = ["tests/ops", "tests/python", "tests/models", "tests/properties"]
    yield "python", [pytest(0, "-m", "alone", *tests), pytest(jobs, "-m", "not alone", *tests)]
    memcheck = [*sanitizer, "--tool", "memcheck", "--target-processes", "all"]
    yield "sanitized", [[*memcheck, *pytest(jobs, file, "-x")] for file in files]
    lasting = ["--seconds", str(seconds)]
    yield "fuzz", [[sys.executable, "tests/fuzz/fuzz.py", "--jobs", str(jobs), *lasting]]
    yield "soak", [[sys.executable, "tests/soak/soak.py", "--threads", "16", *lasting, *mix] for mix in SOAKS]
    yield "bench", [[sys.executable, "bench/models.py", "--peer", "torch"]]
    yield "figures", [[sys.executable, f"bench/{program}", *options] for program, *options in FIGURES]


def run(commands, log, environment):
    failed = 0
    with open(log, "w") as out:
        for command in commands:
            print("+", " ".join(command), file=out, flush=True)
            start = time.monotonic()
            done = subprocess.run(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
            failed += done.returncode != 0
            print(f"= {done.returncode} after {time.monotonic() - start:.1f} s", file=out, flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="or an archive")
    parser.add_argument("--pack", action="store_true", help="make the archive of build/cuda, and run nothing")
    parser.add_argument("--only", default="native,memcheck,racecheck,python,sanitized,fuzz,soak,bench")
    parser.add_argument("--logs", type=Path, default=Path("."))
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--files", nargs="+", default=sorted(ROOT.glob("tests/ops/test_*.py")))
    parser.add_argument("--seconds", type=float, default=120, help="of fuzz, and of each soak")
    args = parser.parse_args()
    if args.pack:
        pack(ROOT / "build" / "cuda", args.folder)
        return 0
    with tempfile.TemporaryDirectory() as unpacked:
        return run_stages(args, args.folder.resolve() if args.folder.is_dir() else unpack(args.folder, unpacked))


def run_stages(args, folder):
    environment = dict(os.environ, ENCORE_LIBRARY=str(folder / LIBRARY), CI="true")
    environment.setdefault("CUDA_MODULE_LOADING", "EAGER")  # else a kernel that is loaded late waits for a closed gate
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    args.logs.mkdir(parents=True, exist_ok=True)
    wanted, failures = args.only.split(","), 0
    for name, commands in stages(folder, args.jobs, args.files, args.seconds):
        if name not in wanted:
            continue
        start, log = time.monotonic(), args.logs / f"{name}.log"
        failed = run(commands, log, environment)
        failures += failed
        last = [line for line in log.read_text(errors="replace").splitlines() if line.strip() and line[:2] != "= "]
        print(
            f"{name:10} {'FAILED' if failed else 'passed':7} {time.monotonic() - start:6.1f} s  {last[-1][:120]}",
            flush=True,
        )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
