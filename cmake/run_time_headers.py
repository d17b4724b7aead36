"""Writes the source of run_time_headers(): headers, by the names that they are included by, as text.

run_time_headers.py OUTPUT NAME=FILE...
"""

import hashlib
import sys
from pathlib import Path

PIECE = 16000  # compilers limit how long a literal may be


def literal(text):
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    return "\n".join(f'R"run_time({piece})run_time"' for piece in pieces)


def main():
    output, *headers = sys.argv[1:]
    named = {name: Path(file).read_text() for name, file in (header.split("=", 1) for header in headers)}
    digest = hashlib.sha256(repr(sorted(named.items())).encode()).hexdigest()[:16]
    lines = ['#include "device/compiled_code.h"', "", "namespace encore::device {", ""]
    lines += ["std::span<const RunTimeHeader> run_time_headers() {", "  static constexpr RunTimeHeader kHeaders[] = {"]
    lines += [f'      {{"{name}", {literal(text)}}},' for name, text in named.items()]
    lines += ["  };", "  return kHeaders;", "}", f"uint64_t hash_of_run_time_headers() {{ return 0x{digest}u; }}"]
    lines += ["", "}  // namespace encore::device", ""]
    Path(output).write_text("\n".join(lines))


if __name__ == "__main__":
    main()
