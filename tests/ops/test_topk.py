import numpy as np
import pytest
from harness import FLOATS, INTEGERS, Case, Const, check, floats, integers
from refusal import fails


def topk(x, k, attrs=None, **rest):
    return Case("TopK", [x, Const(np.array([k]))], attrs or {}, outputs=2, family="exact", **rest)


def by_numpy(x, k, axis=-1, largest=1, sorted=1):
    """NaN counts as the largest; of equal ones the first comes first. The CPU EP has no order for NaN."""
    k = int(np.reshape(k, -1)[0])
    rank = np.isnan(x).astype(int) if x.dtype.kind == "f" else np.zeros(x.shape, int)
    key = np.where(rank, 0, x).astype(x.dtype)
    places = np.empty((*x.shape[:-1], k), np.int64)
    for at in np.ndindex(x.shape[:-1]):
        places[at] = sorted_places(key[at], rank[at], -1 if largest else 1)[:k]
    return [np.take_along_axis(x, places, -1), places]


def sorted_places(key, rank, sign):
    numbers = key.astype(np.float64) if key.dtype.kind == "f" else key.astype(object)
    return np.array(sorted(range(len(key)), key=lambda i: (sign * rank[i], sign * numbers[i], i)))


# One row, or many; short, long enough for several parts, and with so many wanted that a sort pays.
SIZES = [((3, 7), 3), ((40, 256), 256), ((2, 257), 9), ((5, 3000), 50), ((1, 30000), 100), ((3, 5000), 2048)]
MANY = [((1, 5000), 2049), ((7, 3000), 2900)]

CASES = [
    *[
        topk(floats(*shape), k, {"largest": largest}, name=f"{k}-{largest}")
        for shape, k in [*SIZES, *MANY]
        for largest in (0, 1)
    ],
    *[topk(floats(4, 900), 33, dtype=t, opset=24) for t in FLOATS],
    *[topk(floats(4, 9), 3, {"largest": 0}, dtype=t, opset=24) for t in FLOATS],
    *[topk(floats(2, 3000), 2500, dtype=t, opset=24, name="sorted") for t in FLOATS],
    *[
        topk(integers(t, 4, n), k, {"largest": largest}, opset=24, name=f"{t}-{k}-{largest}", reference=reference)
        for t in INTEGERS
        for n, k in [(20, 5), (900, 33), (2500, 2300)]
        for largest in (0, 1)
        # The CPU EP lacks some integers.
        for reference in [lambda x, k, largest=largest: by_numpy(x, k, largest=largest)]
    ],
    topk(floats(5, 4, 6), 2, {"axis": 1}),
    topk(floats(300, 20), 200, {"axis": 0, "largest": 0}, dtype="float16"),
    topk(floats(4, 700, 3), 300, {"axis": -2}),
    topk(np.zeros((3, 5000), np.float32), 70, name="all-equal"),
    topk(np.zeros((3, 5000), np.float32), 2100, name="all-equal-sorted"),
    topk(np.repeat(floats(2, 50), 100, 1), 60, name="ties"),
    topk(np.array([[0.0, -0.0, 0.0, -0.0, 1.0]], np.float32), 4, name="zeros"),
    topk(np.array([[np.inf, -np.inf, 1, 0, np.inf]] * 2, np.float32), 5, name="infinite"),
    topk(floats(3, 5), 0, name="none", capture=False),
    topk(floats(0, 5), 2, name="empty", capture=False),
    topk(floats(2, 1025), 17, dtype="float16", misaligned=True),
    topk(floats(3, 600), 40, opset=10),
    topk(floats(3, 600), 40, {"sorted": 1}, opset=11),
    topk(floats(3, 600), 40, opset=24),
    *[
        Case("TopK", [floats(3, 8)], {"k": 5}, outputs=2, family="exact", opset=9, name="attribute"),
        Case("TopK", [floats(3, 8)], {"k": 2, "axis": 0}, outputs=2, family="exact", opset=1, name="attribute"),
    ],
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_topk(case):
    check(case)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns, k", [(9, 9), (700, 30), (3000, 2500)])
@pytest.mark.parametrize("largest", [0, 1])
def test_nan_is_the_largest(dtype, columns, k, largest):
    x = floats(2, columns)
    x[:, ::7] = np.nan
    x[0, 3] = -np.nan
    check(topk(x, k, {"largest": largest}, dtype=dtype, opset=24,
               reference=lambda x, k: by_numpy(x, k, largest=largest)))  # fmt: skip


@pytest.mark.parametrize("k", [-1, 6, 2**40])
def test_a_k_that_is_too_large_is_refused(k):
    fails("TopK", [floats(3, 5), np.array([k])], {}, f"k is {k}", outputs=2, ranks=False)


def test_a_missing_axis_is_refused():
    fails("TopK", [floats(3, 5), np.array([1])], {"axis": 2}, "axis", outputs=2, ranks=False)
