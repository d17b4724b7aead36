"""NumPy's broadcasting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.drawn import Drawn

pytestmark = pytest.mark.newest

SAME = ["Add", "Sub", "Mul", "And", "Xor", "PRelu"]
COMPARISONS = ["Equal", "Less", "GreaterOrEqual"]


@pytest.mark.parametrize("op", SAME + COMPARISONS)
@given(st.data())
def test_two(op, data):
    it = Drawn(data, op, since=7)
    kind, shape = it.type(), it.shape()
    x, y = (it.tensor(kind, it.operand_of(shape)) for _ in range(2))
    it.agrees(x, y, types=["bool"] if op in COMPARISONS else None)


@pytest.mark.parametrize("op", ["Max", "Sum"])
@given(st.data())
def test_many(op, data):
    it = Drawn(data, op, since=8)
    kind, shape = it.type(), it.shape()
    it.agrees(*[it.tensor(kind, it.operand_of(shape)) for _ in range(it.pick(2, 1, 3, 5))])


@given(st.data())
def test_where(data):
    it = Drawn(data, "Where")
    kind, shape = it.type(1), it.shape()
    condition, x, y = (it.tensor(k, it.operand_of(shape)) for k in ("bool", kind, kind))
    it.agrees(condition, x, y, like=1)


@given(st.data())
def test_any_two_shapes(data):
    it = Drawn(data, "Add", since=7)
    x, y = (it.tensor("float", it.shape(high=3)) for _ in range(2))
    it.agrees(x, y)


@given(st.data())
def test_expand(data):
    it = Drawn(data, "Expand")
    shape = it.shape()
    x = it.tensor(it.type(), it.operand_of(shape))
    it.agrees(x, it.told(it.pick(shape, it.operand_of(shape))))
