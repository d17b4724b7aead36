"""Reductions along any axes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.drawn import Drawn

pytestmark = pytest.mark.newest

OPERATORS = "Sum Mean Prod Max Min L1 L2 SumSquare LogSum LogSumExp".split()


@pytest.mark.parametrize("op", [f"Reduce{name}" for name in OPERATORS])
@given(st.data())
def test_reduce(op, data):
    it = Drawn(data, op)
    shape = it.shape()
    axes = it.maybe(it.axes(len(shape)))
    x = it.tensor(it.type(), shape, mild=op not in ("ReduceMax", "ReduceMin"))
    keepdims = it.maybe(0, 1)
    if it.opset < (13 if op == "ReduceSum" else 18):
        return it.agrees(x, axes=axes, keepdims=keepdims)
    noop = it.maybe(0, 1)
    it.agrees(x, None if axes is None else it.told(axes), keepdims=keepdims, noop_with_empty_axes=noop)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@given(st.data())
def test_place_of_an_extreme(op, data):
    it = Drawn(data, op)
    shape = it.shape(low=1)
    last = it.maybe(0, 1) if it.opset >= 12 else None
    more = {"axis": it.axis(len(shape)), "keepdims": it.maybe(0, 1), "select_last_index": last}
    it.agrees(it.tensor(it.type(), shape), types=["int64"], **more)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@given(st.data())
def test_softmax(op, data):
    it = Drawn(data, op)
    shape = it.shape(low=1)
    it.agrees(it.tensor(it.type(), shape), axis=it.axis(len(shape)))
