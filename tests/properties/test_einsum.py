"""Equations with labels that are repeated, broadcast, summed, or behind an ellipsis."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_model import FEED

from properties.drawn import Drawn

pytestmark = pytest.mark.newest

LABELS = "ijkabC"


def equation_of(it):
    """The equation, a shape for each of its terms, and whether ellipses stand for several numbers of dimensions."""
    sizes = {label: it.pick(2, 1, 3, 4, 7, 0) for label in LABELS}
    unnamed = it(st.lists(st.sampled_from([2, 1, 3]), max_size=2)) if it.pick(False, True) else None
    terms, shapes, lengths = [], [], set()
    for _ in range(it.pick(2, 1, 3)):
        term = it(st.lists(st.sampled_from(LABELS), max_size=4))
        shape = [[1 if it.pick(*[False] * 5, True) and term.count(label) == 1 else sizes[label]] for label in term]
        if unnamed is not None and it.pick(True, True, False):
            at = it(st.integers(0, len(term)))
            some = unnamed[it.pick(0, 0, 0, 1) :]
            lengths.add(len(some))
            term.insert(at, "...")
            shape.insert(at, [it.pick(size, size, 1) for size in some])
        terms.append("".join(term))
        shapes.append(sum(shape, []))
    equation = it.pick(",", " , ").join(terms)
    if it.pick(True, True, False):
        kept = it(st.permutations(sorted(set("".join(terms)) - {"."})))
        kept = kept[: it(st.integers(0, len(kept)))]
        if "..." in equation:
            kept.insert(it(st.integers(0, len(kept))), "...")
        equation += "->" + "".join(kept)
    return equation, shapes, len(lengths) > 1


@given(st.data())
def test_einsum(data):
    it = Drawn(data, "Einsum")
    equation, shapes, uneven = equation_of(it)
    kind = it.type()
    operands = [it.tensor(kind, shape, mild=True) for shape in shapes]

    def by_numpy(*arrays):
        return [np.asarray(np.einsum(equation, *arrays), arrays[0].dtype)]

    if uneven:  # of shapes that it knows, onnx's inference refuses those, or doesn't survive them
        for operand in operands:
            operand.origin, operand.dims = FEED, None
    # Nor does the CPU EP know them, unsigned integers, or capitals in an output that is not given; and it divides by
    # what is empty.
    capital = "->" not in equation and equation.lower() != equation
    alone = uneven or kind.startswith("u") or capital or any(0 in shape for shape in shapes)
    it.agrees(*operands, equation=equation, reference=by_numpy if alone else None)
