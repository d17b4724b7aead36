#!/usr/bin/env python3
"""Lists kernels by what their machine code waits for. No GPU is needed, but CUDA's cuobjdump.

    tools/machine_code.py [build/cuda/…/norm.cu.o] [--kernels 'NormalizeRows<Half'] [--code] [--most 40]

For each kernel: bytes, loads from global memory, round trips to it, calls, barriers. A round trip is a group of loads
after which something reads what one of them brings, in the order of the code, whatever the branches. More of them than
the work needs, one behind the other, is what most often makes a short kernel slow.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

LIBRARY = Path(__file__).resolve().parent.parent / "build/cuda/libonnxruntime_providers_cuda_plugin.so"
FUNCTION = re.compile(r"^\s*Function : (\S+)$", re.MULTILINE)
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)\s*([^;]*);")
TOLD = re.compile(r"LDG|LD\.|LDS|ST[GS]|BRA|BRX|CALL|SHFL|BAR|ACQBULK|MUFU|MMA|EXIT")
BYTES_EACH = 16


@dataclass
class Kernel:
    name: str
    instructions: list  # address, operation, operands
    trips: list = field(default_factory=list)  # loads in each

    def __post_init__(self):
        on_their_way, loads = set(), 0
        for _, operation, operands in self.instructions:
            registers = [int(number) for number in re.findall(r"\bR(\d+)", operands)]
            brings = operation.startswith(("LDG", "LD."))
            writes = brings or not operation.startswith(("ST", "RED", "ATOM"))
            if on_their_way & set(registers[writes:]):
                self.trips.append(loads)
                on_their_way, loads = set(), 0
            if brings and registers:
                width = 4 if ".128" in operation else 2 if ".64" in operation else 1
                on_their_way |= set(range(registers[0], registers[0] + width))
                loads += 1
        if loads:
            self.trips.append(loads)

    def count(self, *operations):
        return sum(operation.startswith(operations) for _, operation, _ in self.instructions)

    def row(self):
        figures = len(self.instructions) * BYTES_EACH, sum(self.trips), len(self.trips), self.count("CALL")
        return "".join(f"{figure:9}" for figure in (*figures, self.count("BAR", "UCGABAR"))) + f"  {self.name}"


def kernels_of(text, names=list):
    """Of what cuobjdump prints. `names` makes plain names of all mangled ones at once."""
    parts = FUNCTION.split(text)
    return [Kernel(name, INSTRUCTION.findall(code)) for name, code in zip(names(parts[1::2]), parts[2::2])]


def plain_names(mangled):
    done = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True)
    without = r"\(anonymous namespace\)::|encore::(ops|device)::(cuda::)?|^void "
    return [re.sub(r"\(.*$", "", re.sub(without, "", name)) for name in done.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=LIBRARY, help="an object or a library; default: the cuda preset's")
    parser.add_argument("--kernels", default="", help="a regular expression of names")
    parser.add_argument("--code", action="store_true", help="loads, stores, branches and their like, in order")
    parser.add_argument("--most", type=int, default=40, help="how many kernels, those of most round trips first")
    arguments = parser.parse_args()
    done = subprocess.run(["cuobjdump", "-sass", arguments.file], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"cuobjdump says of {arguments.file}: {done.stderr.strip()}")
    found = [kernel for kernel in kernels_of(done.stdout, plain_names) if re.search(arguments.kernels, kernel.name)]
    found.sort(key=lambda kernel: len(kernel.trips), reverse=True)
    print("".join(f"{title:>9}" for title in ("bytes", "loads", "trips", "calls", "barriers")), " kernel")
    for kernel in found[: arguments.most]:
        print(kernel.row())
        for address, operation, operands in kernel.instructions if arguments.code else ():
            if TOLD.match(operation):
                print(f"    {address}  {operation} {operands}")


if __name__ == "__main__":
    main()
