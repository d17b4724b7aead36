"""Gathering by indices from either end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.drawn import Drawn

pytestmark = pytest.mark.newest


def indices(it, shape, size, kind="int64"):
    """In range, if anything is; negative ones since opset 11."""
    low = -size if it.opset >= 11 else 0
    numbers = it.sketch.draw.numpy
    return it.tensor_of(numbers.integers(low, size, shape) if size else np.zeros(shape, np.int64), kind)


def size_of(shape, axis):
    return shape[axis] if -len(shape) <= axis < len(shape) else 1


@given(st.data())
def test_gather(data):
    it = Drawn(data, "Gather")
    shape = it.shape(low=1)
    axis = it.axis(len(shape))
    x = it.tensor(it.type(), shape)
    it.agrees(x, indices(it, it.shape(high=3), size_of(shape, axis), it.type(1)), axis=axis)


@given(st.data())
def test_gather_elements(data):
    it = Drawn(data, "GatherElements")
    shape = it.shape(low=1)
    axis = it.axis(len(shape))
    taken = [it(st.integers(0, size)) for size in shape]
    if -len(shape) <= axis < len(shape):
        taken[axis] = it.pick(1, 2, 0, 7)
    x = it.tensor(it.type(), shape)
    it.agrees(x, indices(it, taken, size_of(shape, axis), it.type(1)), axis=axis)


@given(st.data())
def test_gather_nd(data):
    it = Drawn(data, "GatherND")
    shape = it.shape(low=1)
    batch = it(st.integers(0, len(shape) - 1)) if it.opset >= 12 else 0
    depth = it(st.integers(1, len(shape) - batch))
    outer = [*shape[:batch], *it.shape(high=2)]
    numbers = it.sketch.draw.numpy
    columns = [
        numbers.integers(-size, size, outer) if size else np.zeros(outer, np.int64)
        for size in shape[batch : batch + depth]
    ]
    x = it.tensor(it.type(), shape)
    it.agrees(x, it.tensor_of(np.stack(columns, -1), "int64"), batch_dims=batch if it.opset >= 12 else None)
