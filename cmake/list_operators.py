#!/usr/bin/env python3
"""Writes operators.h, the list of the functions that return rows of the table of operators, and of their files.

    list_operators.py operators.h ROOT SOURCE...

A source says `std::vector<OpRow> NAME_rows() {` at the beginning of a line. The header is left alone if it would not
change, so that what includes it is not compiled anew.
"""

import re
import sys
from pathlib import Path

DEFINITION = re.compile(r"^std::vector<OpRow>\s+(\w+)\(\)\s*\{", re.MULTILINE)
HEADER = """\
// Made by cmake/list_operators.py.
#pragma once
#include <vector>

#include "ops/registry.h"

namespace encore::ops {{

{declarations}

struct OperatorFile {{
  const char* path;  // from src on
  std::vector<OpRow> (*rows)();
}};
inline constexpr OperatorFile kOperators[] = {{
{names}
}};

}}  // namespace encore::ops
"""


class ListError(Exception):
    pass


def find_lists(root, sources):
    """The file of each function, by name; in the order of the files."""
    found = {}
    for source in sorted(source.relative_to(root).as_posix() for source in sources):
        for name in DEFINITION.findall((root / source).read_text()):
            if not name.endswith("_rows"):
                raise ListError(f"{source} defines {name}(); a function that returns rows is called ..._rows")
            if name in found:
                raise ListError(f"{source} defines {name}(), as {found[name]} does; each needs a name of its own")
            found[name] = source
    if not found:
        raise ListError(f"no source in {root} defines rows")
    return found


def header(lists):
    declarations = [f"std::vector<OpRow> {name}();" for name in lists]
    names = [f'    {{"{source}", {name}}},' for name, source in lists.items()]
    return HEADER.format(declarations="\n".join(declarations), names="\n".join(names))


def main(output, root, *sources):
    output = Path(output)
    try:
        text = header(find_lists(Path(root), map(Path, sources)))
    except ListError as error:
        sys.exit(f"list_operators.py: {error}")
    if not output.exists() or output.read_text() != text:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
