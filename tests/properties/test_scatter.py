"""Scattering to places counted from either end, which may be the same for several updates that are reduced."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.drawn import Drawn
from properties.test_gather import size_of

pytestmark = pytest.mark.newest

REDUCTIONS = {16: ["none", "add", "mul"], 18: ["none", "add", "mul", "max", "min"]}
OF_BOOLEANS = {"add": np.logical_or, "max": np.logical_or, "mul": np.logical_and, "min": np.logical_and}


def reduction(it):
    known = [None, *next((names for opset, names in reversed(REDUCTIONS.items()) if it.opset >= opset), [])]
    return it.pick(*known)


def replaces(how):
    return how in (None, "none")


def data_and_updates(it, how, shape, count):
    kind = it.type()
    mild = how in ("add", "mul")
    return it.tensor(kind, shape, mild), it.tensor(kind, count, mild)


def places_of(it, sizes, shape, distinct):
    """Indices into dimensions of these sizes, an array for each; ONNX leaves open what stays where two replace."""
    numbers, count = it.sketch.draw.numpy, int(np.prod(sizes))
    some = numbers.permutation(count)[: np.prod(shape, dtype=int)] if distinct else numbers.integers(0, count, shape)
    columns = np.unravel_index(some.reshape(shape), sizes)
    return [np.where(numbers.random(shape) < 0.3, column - size, column) for column, size in zip(columns, sizes)]


@pytest.mark.parametrize("op", ["ScatterElements", "Scatter"])
@given(st.data())
def test_scatter_elements(op, data):
    it = Drawn(data, op)
    shape = it.shape(low=1)
    axis = it.axis(len(shape))
    how = reduction(it) if op == "ScatterElements" else None
    count = [it(st.integers(0, size)) for size in shape]
    size = size_of(shape, axis)
    if -len(shape) <= axis < len(shape):
        most = size if replaces(how) else 7
        count[axis] = it(st.integers(0, most if size else 0))
    along = it.sketch.draw.numpy.random(count)
    if replaces(how):
        order = it.sketch.draw.numpy.random([*count[: axis % len(shape)], size, *count[axis % len(shape) + 1 :]])
        along = np.argsort(order, axis).take(range(count[axis]), axis) if -len(shape) <= axis < len(shape) else along
    else:
        along *= size
    indices = along.astype(np.int64)
    if it.opset >= 11:
        indices -= size * (it.sketch.draw.numpy.random(count) < 0.3)
    x, updates = data_and_updates(it, how, shape, count)
    function = None if x.type != "bool" or replaces(how) else OF_BOOLEANS[how]

    def of_booleans(x, indices, updates):  # which the CPU EP does not reduce
        made = x.copy()
        at = list(np.indices(indices.shape))
        at[axis] = indices
        function.at(made, tuple(at), updates)
        return [made]

    reference = function and of_booleans
    # Which of two updates of one place stays is anybody's guess.
    where = it.tensor_of(indices, it.type(1), fixed=replaces(how))
    it.agrees(x, where, updates, axis=axis, reduction=how, reference=reference)


@given(st.data())
def test_scatter_nd(data):
    it = Drawn(data, "ScatterND")
    shape = it.shape(low=1)
    how = reduction(it)
    depth = it(st.integers(1, len(shape)))
    sizes = shape[:depth]
    outer = it.shape(high=2)
    room = int(np.prod(sizes))
    if replaces(how) and np.prod(outer) > room or not room:
        outer = [min(room, 3)]
    columns = places_of(it, sizes, outer, replaces(how)) if room else [np.zeros(outer, np.int64)] * depth
    x, updates = data_and_updates(it, how, shape, [*outer, *shape[depth:]])

    def of_booleans(x, indices, updates):
        made = x.copy()
        OF_BOOLEANS[how].at(made, tuple(np.moveaxis(indices, -1, 0)), updates)
        return [made]

    reference = of_booleans if x.type == "bool" and not replaces(how) else None
    it.agrees(
        x,
        it.tensor_of(np.stack(columns, -1), "int64", fixed=replaces(how)),
        updates,
        reduction=how,
        reference=reference,
    )
