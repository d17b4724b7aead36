import numpy as np
import pytest
from harness import FLOATS, INTEGERS, Case, Const, bools, check, floats, integers, seeded
from refusal import fails

REDUCTIONS = ["add", "mul", "max", "min"]
NAN = np.float32(np.nan)


def exact(op, inputs, attrs=None, **rest):
    return Case(op, inputs, attrs or {}, family="exact", **rest)


def distinct(low, high, shape):
    """Indices without duplicates, of which ONNX leaves open what they do."""
    return seeded("distinct", low, high, shape).permutation(np.arange(low, high))[: np.prod(shape)].reshape(shape)


def by_numpy(data, indices, updates, reduce):
    out = data.copy()
    for at in np.ndindex(indices.shape[:-1]):
        place = tuple(indices[at])
        out[place] = reduce(out[place], updates[at])
    return [out]


ND = [
    *[exact("ScatterND", [floats(7, 5), distinct(-7, 0, (3, 1)), floats(3, 5)], dtype=t) for t in FLOATS],
    *[exact("ScatterND", [integers(t, 6, 3), distinct(0, 6, (4, 1)), integers(t, 4, 3)], name=t) for t in INTEGERS],
    exact("ScatterND", [bools(9), distinct(0, 9, (4, 1)), bools(4)]),
    exact("ScatterND", [floats(4, 5, 6), Const(np.array([[0, 1], [3, -1], [2, 2]])), floats(3, 6)]),
    exact("ScatterND", [floats(3, 3), Const(np.array([[[0, 1], [2, 2]]])), floats(1, 2)], name="single"),
    exact("ScatterND", [floats(3, 4), np.zeros((0, 1), np.int64), floats(0, 4)], name="no-indices"),
    exact("ScatterND", [floats(1, 512, 8), Const(distinct(0, 512, (1, 300, 1)) * [0, 1]), floats(1, 300, 8)]),
    exact("ScatterND", [floats(1000, 65), distinct(0, 1000, (700, 1)), floats(700, 65)], dtype="float16", name="large"),
    exact("ScatterND", [floats(64, 32), distinct(0, 64, (20, 1)), floats(20, 32)], dtype="float16", misaligned=True),
    exact("ScatterND", [floats(7, 5), distinct(0, 7, (3, 1)), floats(3, 5)], opset=11),
    exact("ScatterND", [floats(7, 5), distinct(0, 7, (3, 1)), floats(3, 5)], opset=13),
    exact("ScatterND", [floats(7, 5), distinct(0, 7, (3, 1)), floats(3, 5)], {"reduction": "add"}, opset=16),
    *[
        Case(
            "ScatterND",
            [floats(5, 3), integers("int64", 9, 1, low=-5, high=4), floats(9, 3)],
            {"reduction": r},
            dtype=t,
            family="reduce",
            opset=18,
            name=r,
        )
        for r in REDUCTIONS
        for t in FLOATS
    ],
    *[
        exact(
            "ScatterND",
            [integers(t, 5, 3), integers("int64", 9, 1, low=-5, high=4), integers(t, 9, 3)],
            {"reduction": r},
            opset=18,
            name=f"{r}-{t}",
        )
        for r in REDUCTIONS
        for t in INTEGERS
    ],
    *[
        exact(
            "ScatterND",
            [bools(5), integers("int64", 9, 1, low=-5, high=4), bools(9)],
            {"reduction": r},
            opset=18,
            name=r,
            reference=lambda d, i, u, f=f: by_numpy(d, i, u, f),
        )  # the CPU EP has neither extreme
        for r, f in [("add", np.logical_or), ("mul", np.logical_and), ("max", np.logical_or), ("min", np.logical_and)]
    ],
    *[
        # The CPU EP hands NaN on or not, as its place is.
        exact(
            "ScatterND",
            [
                np.array([1, NAN, 3, 4], np.float32),
                np.array([[0], [1], [2], [2], [3]]),
                np.array([NAN, 1, 2, NAN, 9], np.float32),
            ],
            {"reduction": r},
            opset=18,
            name=f"{r}-nan",
            dtype=t,
            reference=lambda d, i, u, f=f: by_numpy(d, i, u, f),
            capture=False,
        )
        for r, f in [("max", np.maximum), ("min", np.minimum)]
        for t in FLOATS
    ],
    Case(
        "ScatterND",
        [floats(10), integers("int64", 5000, 1, low=0, high=9), floats(5000)],
        {"reduction": "add"},
        family="reduce",
        opset=18,
        name="crowded",
        tolerance=(1e-4, 1e-4),
    ),  # 500 terms in any order
]

ELEMENTS = [
    *[
        exact("ScatterElements", [floats(5, 6), distinct(-6, 0, (1, 4)), floats(1, 4)], {"axis": 1}, dtype=t)
        for t in FLOATS
    ],
    *[
        exact("ScatterElements", [integers(t, 7), distinct(0, 7, (4,)).astype(np.int32), integers(t, 4)], name=t)
        for t in INTEGERS
    ],
    exact("ScatterElements", [bools(3, 3), np.array([[1, 0, 2], [0, 2, 1]]), bools(2, 3)], {"axis": 0}),
    exact("ScatterElements", [floats(3, 4, 5), distinct(0, 4, (1, 3, 1)), floats(1, 3, 1)], {"axis": -2}),
    exact("ScatterElements", [floats(3), np.zeros(0, np.int64), floats(0)], name="no-indices"),
    exact("ScatterElements", [floats(200, 70), distinct(0, 200, (150, 1)), floats(150, 1)], dtype="float16",
          misaligned=True),
    exact("Scatter", [floats(5, 6), distinct(0, 6, (1, 4)), floats(1, 4)], {"axis": 1}, opset=9),
    exact("ScatterElements", [floats(5, 6), distinct(0, 6, (1, 4)), floats(1, 4)], {"axis": 1}, opset=11),
    exact("ScatterElements", [floats(5, 6), distinct(0, 6, (1, 4)), floats(1, 4)], {"axis": 1}, opset=13),
    *[
        Case("ScatterElements", [floats(4, 5), integers("int64", 4, 9, low=-5, high=4), floats(4, 9)],
             {"reduction": r, "axis": 1}, dtype=t, family="reduce", opset=18, name=r)
        for r in REDUCTIONS
        for t in FLOATS
    ],
    *[
        exact("ScatterElements", [integers(t, 5), integers("int32", 9, low=-5, high=4), integers(t, 9)],
              {"reduction": r}, opset=18, name=f"{r}-{t}")
        for r in REDUCTIONS
        for t in ["int8", "uint8", "int16", "uint64"]
    ],
]  # fmt: skip


@pytest.mark.parametrize("case", ND, ids=str)
def test_scatter_nd(case):
    check(case)


@pytest.mark.parametrize("case", ELEMENTS, ids=str)
def test_scatter_elements(case):
    check(case)


@pytest.mark.parametrize(
    "op, inputs, attrs, words",
    [
        ("ScatterND", [floats(3, 2), np.array([[3]]), floats(1, 2)], {}, "index 3 is outside"),
        ("ScatterND", [floats(3, 2), np.array([[-4]]), floats(1, 2)], {"reduction": "max"}, "index -4 is outside"),
        ("ScatterND", [floats(3, 2), np.array([[0]]), floats(1, 3)], {}, "updates have shape"),
        ("ScatterND", [floats(3, 2), np.array([[0, 0, 0]]), floats(1)], {}, "indices of depth 3"),
        ("ScatterElements", [floats(3), np.array([0, 9]), floats(2)], {}, "index 9 is outside"),
        ("ScatterElements", [floats(3), np.array([0, 1]), floats(1)], {}, "updates have shape"),
        ("ScatterElements", [floats(3, 2), np.array([[0, 1, 1]]), floats(1, 3)], {}, "exceed data"),
    ],
)
def test_what_does_not_fit_is_refused(op, inputs, attrs, words):
    fails(op, inputs, attrs, words, ranks=False)
