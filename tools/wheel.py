"""./encore wheel: the package with the libraries of both devices, as a wheel that PyPI takes."""

import argparse
import contextlib
import io
import json
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
        with tempfile.TemporaryDirectory() as installed:
            install(arguments.architectures, installed)
            wheel = pack(Path(installed), arguments.output.resolve())
    except env.Failed as failure:
        print(f"encore: {failure}", file=sys.stderr)
        return 1
    env.say(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


def install(architectures, folder):
    """Builds both libraries, and installs there what the package has of them.

    The virtual GPU's is the one that CI tries: -O2 makes no product faster.
    """
    preset = {"all": "cuda-all", "here": "cuda"}.get(architectures)
    given = None if preset else architectures
    for each, of_what in (("virtual", None), (preset or "cuda", given)):
        env.build(each, TARGET, architectures=of_what)
        env.run(
            "cmake", "--install", env.folder(each, of_what), "--strip", "--prefix", folder, stdout=subprocess.DEVNULL
        )


def pack(installed, output):
    """The wheel of the package with what is installed there; the same bytes for the same files and commit."""
    with tempfile.TemporaryDirectory() as scratch:
        untagged = _make(installed, f"linux_{platform.machine()}", scratch)
        made = _make(installed, _oldest_platform(untagged), scratch)
        size = made.stat().st_size
        if size > LARGEST_BYTES:
            raise env.Failed(
                f"the wheel has {size / 1e6:.1f} MB; {LARGEST_BYTES / 1e6:.0f} are allowed: "
                "build it for fewer GPUs (--architectures)"
            )
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(made, output / made.name))


def _make(installed, platform_tag, folder):
    """As pip would make it of the checkout, with what is installed there instead of what it builds."""
    settings = {
        "wheel.cmake": "false",
        "wheel.platlib": "true",
        "wheel.reproducible": "true",
        "wheel.tags": f"py3-none-{platform_tag}",
        f"wheel.force-include.{installed / PACKAGE}": PACKAGE,
    }
    os.environ.setdefault("SOURCE_DATE_EPOCH", _date_of_commit())
    with contextlib.chdir(env.ROOT), contextlib.redirect_stdout(io.StringIO()):
        return Path(folder) / build_wheel(folder, settings)


def _oldest_platform(wheel):
    """The platform tag with the oldest glibc that its libraries run with; they may need what each such system has."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", wheel]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    told = json.loads(done.stdout or "{}")
    if done.returncode or "overall_tag" not in told:
        raise env.Failed(f"auditwheel can't read the wheel: {told.get('error') or done.stderr}")
    if told["external_libs"] or not told["overall_tag"].startswith("manylinux"):
        needed = ", ".join(told["external_libs"]) or f"more than any manylinux has: {told['overall_tag']}"
        raise env.Failed(f"the wheel would not work everywhere, for its libraries need {needed}")
    return told["overall_tag"]


def _date_of_commit():
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=env.ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
