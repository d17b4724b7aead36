"""Grows a graph by nodes of some kind, if it has values for that."""

from properties import grow_between, grow_numbers, grow_patterns, grow_pictures, grow_shapes
from properties.grown import Unfit
from properties.kinds import KINDS

NAMES = [name for name, (_, weight) in KINDS.items() for _ in range(weight)]
# What a graph may have more of: names by module.
MORE = [
    [name for name, (grow, _) in KINDS.items() if grow.__module__ == module.__name__]
    for module in (grow_numbers, grow_shapes, grow_pictures, grow_patterns, grow_between)
]


def grow(graph, more, always=False):
    """By one of `more` half of the time, or always."""
    try:
        name = graph.pick(*more) if more and (always or graph.chance(2)) else graph.pick(*NAMES)
        KINDS[name][0](graph)
    except Unfit:
        pass  # what was made on the way is read by others, or by nobody
