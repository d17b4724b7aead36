"""The operators of docs/operators.md, which is made from the table in the code."""

import dataclasses
import re
from pathlib import Path

from element_types import DRAWN

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
CHANNELS_LAST = "com.ms.internal.nhwc"
FOLLOWING = 10**6  # the last index of a rule for all that follow


@dataclasses.dataclass
class Row:
    since: int
    until: int
    rules: list  # (direction, first index, last index, names of types)
    on_host: set  # places in host memory, such as ("in", 1)

    def is_variadic(self):
        return any(way == "in" and (first, last) == (0, FOLLOWING) for way, first, last, _ in self.rules)

    def types(self, index, direction="in"):
        """What the row takes there; nothing if it does not say."""
        return next(
            (types for way, first, last, types in self.rules if way == direction and first <= index <= last), []
        )


def read(page=PAGE):
    """{(domain, operator): [Row, ...]}; ai.onnx's domain is ""."""
    found = {}
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 5 or not (versions := re.fullmatch(r"(\d+)(?:–(\d+))?", cells[2])):
            continue
        domain = "" if cells[0] == "ai.onnx" else cells[0]
        on_host = {(way, int(index)) for way, index in re.findall(r"(in|out) (\d+)", cells[4])}
        row = Row(int(versions[1]), int(versions[2] or versions[1]), list(_rules(cells[3])), on_host)
        found.setdefault((domain, cells[1]), []).append(row)
    assert found, f"{page} lists no operators"
    return found


def _rules(cell):
    for rule in cell.split(";"):
        places, types = rule.split(":")
        for place in places.split(","):
            way, first, following = re.fullmatch(r"\s*(in|out) (\d+)(…?)\s*", place).groups()
            known = [name for name in map(str.strip, types.split(",")) if name in DRAWN]
            yield way, int(first), FOLLOWING if following else int(first), known
