import numpy as np
import pytest
from harness import FLOATS, INTEGERS, Case, bools, check, floats, integers


def indices(kind, *shape, low, high):
    return integers(kind, *shape, low=low, high=high)


def exact(op, inputs, attrs=None, **rest):
    return Case(op, inputs, attrs or {}, family="exact", **rest)


CASES = [
    *[exact("Gather", [floats(5, 4, 6), indices("int64", 2, 3, low=-4, high=3)], {"axis": 1}, dtype=t) for t in FLOATS],
    *[exact("Gather", [integers(t, 5, 4), indices("int32", 7, low=0, high=4)], name=t) for t in INTEGERS],
    exact("Gather", [bools(5, 3), indices("int64", 2, low=0, high=4)]),
    exact("Gather", [floats(5, 3), np.int64(2)], name="scalar-index"),
    exact("Gather", [floats(5, 3), indices("int64", 4, low=-3, high=2)], {"axis": -1}),
    exact("Gather", [floats(5, 3), np.zeros((0,), np.int64)], name="empty", capture=False),
    exact("Gather", [floats(1000, 768), indices("int64", 4, 128, low=0, high=999)], dtype="float16", name="embedding"),
    exact("Gather", [floats(100, 33), indices("int64", 40, low=0, high=99)], dtype="float16", misaligned=True),
    # Rows that are long but of odd sizes, and single elements of many rows.
    *[exact("Gather", [integers(t, 30, 71), indices("int64", 50, low=-30, high=29)], name=t) for t in INTEGERS[:4]],
    *[
        exact("Gather", [integers(t, rows, dim), indices("int64", count, low=-dim, high=dim - 1)], {"axis": 1}, name=t)
        for t in INTEGERS[:4]
        for rows, dim, count in [(601, 150, 256), (1100, 33, 131)]
    ],
    exact("Gather", [floats(2, 700, 9), indices("int32", 5, 16, low=0, high=8)], {"axis": 2}, dtype="float16"),
    exact(
        "Gather",
        [floats(601, 90), indices("int64", 128, low=0, high=89)],
        {"axis": 1},
        dtype="float16",
        misaligned=True,
    ),
    exact("Gather", [floats(550, 4500), indices("int64", 1200, low=0, high=4499)], {"axis": 1}, dtype="float64"),
    *[
        exact("GatherElements", [floats(4, 5), indices("int64", 4, 3, low=-5, high=4)], {"axis": 1}, dtype=t)
        for t in FLOATS
    ],
    exact("GatherElements", [integers("int64", 4, 5), indices("int32", 2, 5, low=0, high=3)], {"axis": 0}),
    exact("GatherElements", [floats(3, 4, 5), indices("int64", 3, 2, 5, low=0, high=3)], {"axis": -2}),
    *[exact("GatherND", [floats(4, 5, 6), indices("int64", 3, 2, low=-4, high=3)], dtype=t) for t in FLOATS],
    exact("GatherND", [floats(3, 4, 5), indices("int64", 3, 2, 1, low=0, high=3)], {"batch_dims": 1}),
    exact("GatherND", [bools(2, 7), indices("int64", 2, 1, 3, 4, 2, low=0, high=1)], name="mask"),
    exact("GatherND", [floats(4, 5), indices("int64", 3, 2, low=0, high=3)], opset=12, name="old"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gather(case):
    check(case)
