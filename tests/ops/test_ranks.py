"""Tensors of more dimensions than anybody draws: whatever the CPU EP serves, Encore does."""

import numpy as np
import pytest
from harness import Case, Const, bools, check, floats, integers
from refusal import declined, fails


def ints(*values):
    return Const(np.array(values, np.int64))


def exact(op, inputs, attrs=None, **rest):
    return Case(op, inputs, attrs or {}, family="exact", **rest)


NINE, TWELVE, TWENTY = (2, 1, 3, 2, 1, 2, 2, 3, 2), (2,) * 12, (1, 2) * 10


def moves(shape):
    """Whatever moves elements or gives them another shape."""
    rank, x = len(shape), floats(*shape)
    return [
        exact("Identity", [x]),
        exact("Reshape", [x, ints(*reversed(shape))]),
        exact("Flatten", [x], {"axis": rank - 2}),
        exact("Squeeze", [floats(*[1, 2] * (rank // 2)), ints(*range(0, rank - 1, 2))]),
        exact("Unsqueeze", [floats(2, 3), ints(*range(rank))]),
        exact("Transpose", [x]),
        exact("Transpose", [x], {"perm": [*range(1, rank), 0]}, name="rotated"),
        exact("Slice", [x, ints(-1, 0, -1), ints(-9, 2, -9), ints(0, 2, rank - 1), ints(-1, 2, -1)]),
        exact("Expand", [floats(*[1, 2] * (rank // 2)), ints(*[2, 1] * (rank // 2))], capture=rank < 20),
        exact("Tile", [x, ints(*[1 + (i % 3 == 0) for i in range(rank)])]),
        exact("Concat", [x, x[..., :1, :], x], {"axis": rank - 2}),
        exact("Split", [x], {"axis": rank - 1, "num_outputs": 2}, outputs=2),
        exact("Pad", [x, ints(*[i % 4 == 0 for i in range(rank)], *[i % 4 == 3 for i in range(rank)])]),
        exact("Pad", [x, ints(0, 1, 1, 2), None, ints(2, rank - 1)], {"mode": "wrap"}, name="wrap"),
        exact("Gather", [x, integers("int64", 2, 1, 2, low=-2, high=1)], {"axis": rank - 1}),
        exact("GatherElements", [x, integers("int64", *shape, low=-1, high=0)], {"axis": rank - 3}),
        exact("GatherND", [x, integers("int64", 3, 9, low=-1, high=0)]),
        exact("Where", [bools(*shape[1:]), x, floats(*[1] * (rank - 1), 2)]),
        exact("Shape", [x], {"start": 1, "end": -1}, capture=False),
        exact("Size", [x], capture=False),
    ]


def arithmetic(shape):
    rank, x = len(shape), floats(*shape)
    half = [d if i % 2 else 1 for i, d in enumerate(shape)]
    other = [1 if i % 2 else d for i, d in enumerate(shape)]
    return [
        Case("Relu", [x]),
        Case("Cast", [x], {"to": 11}),
        Case("Clip", [x, Const(np.float32(-1))]),
        Case("Add", [floats(*half), floats(*other)], name="crossed"),
        Case("Mul", [x, floats(*half)]),
        Case("Pow", [np.abs(x), Const(np.array(3, np.int64))]),
        Case("Less", [x, floats(*other)]),
        Case("Max", [x, floats(*half), floats(*other), x[..., :1], floats(2)]),
        Case("ReduceSum", [x, ints(*range(0, rank, 2))], family="reduce"),
        Case("ReduceMax", [x, ints(*range(1, rank, 2))], {"keepdims": 0}, family="reduce"),
        Case("ReduceMean", [x, ints(-1)], family="reduce"),
        Case("ArgMax", [x], {"axis": rank - 2}),
        Case("Softmax", [x], {"axis": rank - 2}),
        Case("BatchNormalization", [x, *[floats(shape[1], low=0.5) for _ in range(4)]], opset=15, family="reduce"),
        Case("MatMul", [floats(*half[2:], 3, 2), floats(*other[2:], 2, 3)], family="matmul", name="crossed"),
    ]


@pytest.mark.parametrize("case", [c for s in (NINE, TWELVE, TWENTY) for c in moves(s) + arithmetic(s)], ids=str)
def test_ranks(case):
    check(case)


# More dimensions that cannot be joined to others than one launch takes.
CROSSED = [1, 2] * 9
MANY = [
    exact("Transpose", [floats(*[2] * 18)]),
    Case("Add", [floats(*CROSSED), floats(*reversed(CROSSED))]),
    Case("ReduceSum", [np.rint(floats(*[2] * 18)), ints(*range(0, 18, 2))], family="exact"),
    Case("ReduceMax", [floats(*[2] * 18), ints(*range(1, 18, 2))], {"keepdims": 0}, family="reduce"),
    exact("GatherElements", [floats(*[3] * 11), integers("int64", *[2] * 11, low=-3, high=2)], {"axis": 4}),
    exact("GatherElements", [floats(*[3] * 11), integers("int64", *[2] * 11, low=-3, high=2)], {"axis": 0}),
    exact("Pad", [floats(*[2] * 13), ints(*[i % 2 for i in range(13)], *[0] * 13)]),
    exact("Resize", [floats(*[2] * 9), None, Const(np.float32([2] * 9), True)], {"mode": "nearest"}),
]


@pytest.mark.parametrize("case", MANY, ids=str)
def test_more_than_a_kernel_walks(case):
    check(case)


def test_what_is_too_much():
    every_second = [(i + 1) % 2 for i in range(33)]
    declined("Pad", [floats(*[1] * 33), ints(*every_second, *[0] * 33)], {})
    fails("Pad", [floats(*[1] * 33), np.array([*every_second, *[0] * 33])], {}, "17 dimensions")
    deep = integers("int64", 1, 17, low=0, high=0)
    fails("GatherND", [floats(*[1] * 17), deep], {}, "depth 17")
    declined("Resize", [floats(*[1] * 13), None, Const(np.float32([2] * 13))], {})
    fails("Resize", [floats(*[2] * 18), None, np.float32([2, 1] * 9)], {}, "18 dimensions")
