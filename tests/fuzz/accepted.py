"""A difference from the CPU EP that is accepted: of which operators, of what kind, for what reason, and when."""

import dataclasses
from collections.abc import Callable

REFUSED, SERVED, VALUES, SHAPE = "refused", "served", "values", "shape"


@dataclasses.dataclass
class Accepted:
    operators: str
    kind: str
    reason: str
    when: Callable = lambda finding: True
