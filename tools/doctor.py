"""./encore doctor: what is here, what is missing, and the way out."""

import argparse
import subprocess
import sys

import environment as env

sys.path.insert(0, str(env.ROOT / "python"))

from onnxruntime_ep_encore.commands import environment as machine  # noqa: E402


def main():
    argparse.ArgumentParser(prog="./encore doctor", description=__doc__.split(": ", 1)[1]).parse_args()
    works = machine.tell(build="`./encore build` builds for the device that is here", compiler=tell_compiler)
    return 0 if works else 1


def tell_compiler():
    nvcc = env.nvcc()
    if nvcc:
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
        release = next(
            (line.split("release ")[1].split(",")[0] for line in text.splitlines() if "release" in line), "?"
        )
        machine.good(f"nvcc {release}: {nvcc}")
    else:
        machine.bad("nvcc, which building for a GPU needs", "install the CUDA toolkit 13, or name its nvcc in CUDACXX.")


if __name__ == "__main__":
    sys.exit(main())
