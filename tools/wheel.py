"""./encore wheel: the package with the libraries of both devices, as a wheel that PyPI takes."""

import argparse
import contextlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import environment as env
from scikit_build_core.build import build_wheel

PACKAGE = "onnxruntime_ep_encore"
LARGEST_BYTES = 80_000_000  # PyPI takes 100 MB
TARGET = "onnxruntime_providers_cuda_plugin"


def main():
    parser = argparse.ArgumentParser(prog="./encore wheel", description=__doc__.split(": ", 1)[1])
    parser.add_argument(
        "--architectures",
        default="all",
        metavar="WHICH",
        help="the GPUs that it is for: all (default), here (those of `./encore build cuda`), or as CMake has them, "
        'such as "80-real;120"',
    )
    parser.add_argument("--output", type=Path, default=env.ROOT / "dist", help="the folder for it; default: dist")
    arguments = parser.parse_args()
    try:
        wheel = pack(build(arguments.architectures), arguments.output.resolve())
    except env.Failed as failure:
        print(f"encore: {failure}", file=sys.stderr)
        return 1
    env.say(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


def build(architectures):
    """The libraries by device."""
    preset = {"all": "cuda-all", "here": "cuda"}.get(architectures)
    given = None if preset else architectures
    env.build("virtual", TARGET)
    env.build(preset or "cuda", TARGET, architectures=given)
    return {"cuda": env.library(preset or "cuda", given), "virtual": env.library("virtual")}


def pack(libraries, output):
    """The wheel of these libraries, by device; the same bytes for the same files and commit."""
    settings = {
        "wheel.cmake": "false",
        "wheel.platlib": "true",
        "wheel.reproducible": "true",
        "wheel.tags": f"py3-none-linux_{platform.machine()}",
    }
    for device, library in libraries.items():
        settings[f"wheel.force-include.{library}"] = f"{PACKAGE}/{device}/{env.LIBRARY}"
    os.environ.setdefault("SOURCE_DATE_EPOCH", _date_of_commit())
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(env.ROOT):
        with contextlib.redirect_stdout(io.StringIO()):
            made = Path(scratch) / build_wheel(scratch, settings)
        made = _tag(made)
        size = made.stat().st_size
        if size > LARGEST_BYTES:
            raise env.Failed(
                f"the wheel has {size / 1e6:.1f} MB; {LARGEST_BYTES / 1e6:.0f} are allowed: "
                "build it for fewer GPUs (--architectures)"
            )
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(made, output / made.name))


def _tag(wheel):
    """Names it after the oldest glibc that it runs with, or fails if it needs what the system may not have."""
    output = wheel.parent / "tagged"
    command = [sys.executable, "-m", "auditwheel", "repair", "--patcher", "none", "--wheel-dir", output, wheel]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    tagged = list(output.glob("*.whl"))
    if done.returncode or not tagged:
        raise env.Failed(f"auditwheel refuses the wheel:\n{done.stdout}{done.stderr}")
    return tagged[0]


def _date_of_commit():
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=env.ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
