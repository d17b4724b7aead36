"""Slices, and splits, which are some."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.drawn import Drawn

pytestmark = pytest.mark.newest

ENDS = [2**31 - 1, 2**63 - 1, -(2**63), -(2**31)]


def places(it, sizes):
    return [it(st.integers(-size - 2, size + 2) | st.sampled_from(ENDS)) for size in sizes]


@given(st.data())
def test_slice(data):
    it = Drawn(data, "Slice")
    shape = it.shape(low=1)
    axes = it.axes(len(shape))
    starts, ends = (places(it, [shape[axis] for axis in axes]) for _ in range(2))
    x = it.tensor(it.type(), shape)
    if it.opset < 10:
        return it.agrees(x, starts=starts, ends=ends, axes=axes)
    steps = it.maybe([it(st.sampled_from([1, -1, 2, -2, 3, 40, -(2**63), 2**63 - 1])) for _ in axes])
    given = [it.told(values) for values in (starts, ends, axes)]
    it.agrees(x, *given, None if steps is None else it.told(steps))


@given(st.data())
def test_of_the_first_axes(data):
    it = Drawn(data, "Slice", since=10)
    shape = it.shape(low=1, high=4)
    count = it(st.integers(0, len(shape)))
    starts, ends = (places(it, shape[:count]) for _ in range(2))
    it.agrees(it.tensor("float", shape), it.told(starts), it.told(ends))


@given(st.data())
def test_split(data):
    it = Drawn(data, "Split", since=2)
    shape = it.shape(low=1)
    axis = it.axis(len(shape))
    size = shape[axis] if -len(shape) <= axis < len(shape) else 1
    cuts = sorted(it(st.lists(st.integers(0, size), max_size=3)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size])]
    x = it.tensor(it.type(), shape)
    more = {"axis": axis, "wanted": len(sizes)}
    if it.pick(False, True):
        return it.agrees(x, num_outputs=len(sizes) if it.opset >= 18 else None, **more)
    it.agrees(x, split=sizes, **more) if it.opset < 13 else it.agrees(x, it.told(sizes), **more)
