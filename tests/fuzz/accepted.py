"""A difference from the CPU EP that is accepted: of which operators, of what kind, for what reason, and when."""

import dataclasses
from collections.abc import Callable

REFUSED, SERVED, DECLINED, VALUES, SHAPE = "refused", "served", "declined", "values", "shape"
SIZED_BY_VALUES = "values that are near enough give another size to"


@dataclasses.dataclass
class Accepted:
    operators: str
    kind: str
    reason: str
    # Of values: which elements are excused, an array that broadcasts to the result. Of anything else: whether it is.
    when: Callable = lambda finding: True
    # What the node makes is left to chance, so that no two sessions agree; `when` says whether.
    drawn: bool = dataclasses.field(default=False, kw_only=True)
