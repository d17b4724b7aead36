"""The table of what proposes a node of each operator, and how its results compare with the reference's."""

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path

PROPOSALS = {}  # (domain, operator) -> Proposal
MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"


@dataclasses.dataclass
class Proposal:
    propose: Callable  # of a Sketch, makes a Node
    family: str = "elementwise"  # as in tolerance.py
    tolerance: dict = dataclasses.field(default_factory=dict)  # (relative, absolute) by type, where the family's is not
    own_types: bool = False  # the reference is computed in the types themselves: they are what it is about
    steady: bool = True  # small differences of inputs make small differences of outputs
    # Errors grow with the magnitude of what is added up, not with that of the result: of all inputs, or of these.
    sums: bool | set = False
    blends: bool = False  # neighbours, with weights: zero is one, and NaN with infinity
    mild: bool = False  # of large numbers no digit is left to compare
    ordered: bool = True  # a GPU adds up in the same order each time


def proposes(*operators, domain="", **more):
    def keep(function):
        for operator in operators:
            PROPOSALS[domain, operator] = Proposal(function, **more)
        return function

    return keep


# The modules fill the table.
for path in sorted(Path(__file__).parent.glob("propose_*.py")):
    importlib.import_module(path.stem)
