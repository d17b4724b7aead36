"""Where Encore and the CPU EP may differ, each with the reason: of one operator, and as narrow as can be."""

import dataclasses
from collections.abc import Callable

REFUSED, SERVED, VALUES, SHAPE = "refused", "served", "values", "shape"


@dataclasses.dataclass
class Accepted:
    operators: str
    kind: str
    reason: str
    when: Callable = lambda finding: True


ACCEPTED = []


def reason_for(finding):
    """Why this difference is accepted, or None."""
    for entry in ACCEPTED:
        if finding.node.op in entry.operators.split() and finding.kind == entry.kind and entry.when(finding):
            return entry.reason
    return None
