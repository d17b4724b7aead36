import numpy as np
import pytest
from harness import FLOATS, INTEGERS, Case, Const, check, floats, integers
from refusal import fails


def topk(x, k, attrs=None, **rest):
    return Case("TopK", [x, Const(np.array([k]))], attrs or {}, outputs=2, family="exact", **rest)


def by_numpy(x, k, largest=1):
    """NaN counts as the largest; of equal ones the first comes first. The CPU EP has no order for NaN."""
    k = int(np.reshape(k, -1)[0])
    find = first_floats if x.dtype == np.float32 else first_sorted
    places = find(x, k, -1 if largest else 1)
    return [np.take_along_axis(x, places, -1), places]


def first_floats(x, k, sign):
    """By their bits as integers that are in the same order, each with its place behind."""
    bits = (x + np.float32(0)).view(np.int32).astype(np.int64)  # both zeros are one
    key = np.where(np.isnan(x), 1 << 31, np.where(bits < 0, bits ^ 0x7FFFFFFF, bits))
    both = (sign * key << 31) | np.arange(x.shape[-1])
    return np.sort(np.partition(both, k - 1)[..., :k]) & 0x7FFFFFFF


def first_sorted(x, k, sign):
    rank = np.isnan(x).astype(int) if x.dtype.kind == "f" else np.zeros(x.shape, int)
    key = np.where(rank, 0, x)
    key = key.astype(np.float64) if x.dtype.kind not in "iu" else key.astype(object)
    places = np.empty((*x.shape[:-1], k), np.int64)
    for at in np.ndindex(x.shape[:-1]):
        places[at] = sorted_places(sign * key[at], sign * rank[at])[:k]
    return places


def sorted_places(key, rank):
    if key.dtype == object:
        return np.array(sorted(range(len(key)), key=lambda i: key[i]))
    return np.lexsort((key, rank))  # both sorts leave equal ones in their order


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
    # Of 1.30.0 the CPU EP divides by the number of rows.
    topk(floats(0, 5), 2, name="empty", capture=False, reference=by_numpy),
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


# At the borders of a pack, of what a warp keeps and of what a block keeps; of how many are wanted from which way.
BORDERS = [
    *[((3, n), k) for n in (31, 33, 64, 255, 257, 1017, 1023, 1024, 1025) for k in (1, 8, 16, 17) if k <= n],
    *[((2, 4096), k) for k in (1, 64, 65, 128, 129, 512, 513, 1024)],
    *[((1, n), k) for n in (8191, 32760, 32761, 32768, 33001) for k in (1, 50, 500)],
    *[((2, 1000), 100), ((2, 1000), 1000), ((300, 300), 5), ((1, 128256), 50), ((2, 70000), 1000)],
]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape, k", BORDERS)
def test_borders(shape, k, dtype):
    check(topk(floats(*shape), k, dtype=dtype, opset=24, reference=by_numpy))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("columns, k", [(99, 8), (200, 3), (900, 16), (900, 40), (1500, 30)])
def test_each_type_in_packs(columns, k, dtype):
    x = floats(3, columns) if dtype in FLOATS else integers(dtype, 3, columns)
    for largest in (0, 1):
        by = lambda x, k, largest=largest: by_numpy(x, k, largest=largest)  # noqa: E731
        for misaligned in (False, True):
            check(topk(x, k, {"largest": largest}, dtype=dtype if dtype in FLOATS else "float32", opset=24,
                       misaligned=misaligned, reference=by))  # fmt: skip


# Sorted by a few lanes, listed by a warp in one piece and in several, and sorted by a warp.
WARPS = [
    *[((37, n), k) for n in (33, 64, 100, 121, 127, 128) for k in (1, 5, 8)],
    *[((5, n), k) for n in (1017, 1501, 2041, 2048) for k in (1, 8, 15)],
    ((12, 2500), 16),
    *[((3, n), k) for n in (700, 1017, 1024) for k in (17, 50, 64, 65, 128, 129, 256, 257, 500, 512)],
    *[((rows, 1024), k) for rows in (1, 8, 9, 14) for k in (31, 100, 200, 401)],
    *[((300, n), k) for n in (257, 519, 1024) for k in (17, 33, 50, 56)],  # most rows' first guess is good, or the next
    *[((20, n), k) for n in (259, 1024) for k in (55, 57, 63, 99)],
    ((65, 513), 512),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape, k", WARPS)
def test_rows_of_warps(shape, k, dtype):
    for misaligned in (False, True):
        check(topk(floats(*shape), k, dtype=dtype, opset=24, misaligned=misaligned, reference=by_numpy))


# A block for each row: of one warp, of several and of all that there may be; at the borders of what threads keep. Many
# rows that warps of a block have.
WIDE = [
    *[((3, n), k) for n in (761, 768, 769, 1017, 1025, 1500, 1501, 1537, 2041, 2042, 2048, 2049) for k in (1, 8, 16)],
    *[((2, n), k) for n in (3000, 4096, 4100, 6001, 8192, 8193, 16384, 16385, 32761, 32768) for k in (2, 5, 16)],
    *[
        ((1061, n), k)
        for n, k in [(703, 8), (761, 3), (762, 3), (1025, 1), (1501, 8), (1529, 16), (1530, 4), (1536, 5)]
    ],
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, k", WIDE)
def test_wide_rows(shape, k, dtype):
    for largest, misaligned in ((0, False), (1, True)):
        by = lambda x, k, largest=largest: by_numpy(x, k, largest=largest)  # noqa: E731
        check(topk(floats(*shape), k, {"largest": largest}, dtype=dtype, opset=24, misaligned=misaligned,
                   reference=by))  # fmt: skip


# A block for each row, or several and another round or two: at the borders of one block, of groups of a thread and of
# what is listed as a whole; and rows that are too wide for a warp of a block.
BLOCKS = [
    *[((2, n), k) for n in (300, 301) for k in (149, 150, 151, 300)],
    *[((2, n), k) for n in (2049, 4096) for k in (17, 32, 33, 255, 257, 1024, 1025, 2048)],
    *[((1, n), k) for n in (8400, 16383, 16384, 16385, 16411) for k in (17, 300, 512, 513, 2047)],
    *[((1, n), k) for n in (20001, 40000) for k in (1, 17, 1000, 2048)],
    *[((rows, 33000), 60) for rows in (2, 5, 40)],
    *[((1, 300000), k) for k in (1, 2000)],
    *[((1061, n), 8) for n in (1537, 1600, 2041, 2048)],
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, k", BLOCKS)
def test_rows_of_blocks(shape, k, dtype):
    for largest, misaligned in ((0, True), (1, False)):
        by = lambda x, k, largest=largest: by_numpy(x, k, largest=largest)  # noqa: E731
        check(topk(floats(*shape), k, {"largest": largest}, dtype=dtype, opset=24, misaligned=misaligned,
                   reference=by))  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "shape, k", [((3, 90), 8), ((3, 300), 8), ((5, 900), 40), ((2, 3000), 1600), ((1, 20000), 600)]
)
def test_ends_of_integers(shape, k, dtype):
    ends = np.iinfo(dtype)
    values = np.array([ends.min, ends.min + 1, 1, ends.max - 1, ends.max], dtype)
    for of in (values, values[:2], values[-2:]):
        x = np.random.default_rng(k).choice(of, shape)
        for largest in (0, 1):
            by = lambda x, k, largest=largest: by_numpy(x, k, largest=largest)  # noqa: E731
            check(topk(x, k, {"largest": largest}, opset=24, reference=by))


def in_order(rows, columns):
    return np.tile(np.arange(columns, dtype=np.float32), (rows, 1))


def in_few_threads(rows, columns):
    """Of every 64 packs of 8 the first 15 have all that is good."""
    x = floats(rows, columns)
    return x + 10 * (np.arange(columns) // 8 % 32 < 15)


def in_few_warps(rows, columns):
    """All that is good lies in a few lanes of every warp, the same ones."""
    x = floats(rows, columns)
    return x + 10 * (np.arange(columns) // 8 % 32 < 3)


def in_few_groups(rows, columns):
    """Few threads of a block have all that is good."""
    x = floats(rows, columns)
    return x + 10 * (np.arange(columns) % 4096 < 360)


UNLIKE_NOISE = {
    "ascending": in_order,
    "descending": lambda *shape: -in_order(*shape),
    "equal": lambda *shape: np.ones(shape, np.float32),
    "two-values": lambda *shape: (floats(*shape) > 0).astype(np.float32),
    "in-few-threads": in_few_threads,
    "in-few-warps": in_few_warps,
    "in-few-groups": in_few_groups,
    "few-values": lambda *shape: np.round(3 * floats(*shape)),
    "hardly-any": lambda *shape: np.maximum(floats(*shape) - 2.99, 0),
    "infinite": lambda *shape: np.where(floats(*shape) > 0, np.inf, -np.inf).astype(np.float32),
    "mostly-nan": lambda *shape: np.where(floats(*shape) > -0.8, np.nan, floats(*shape)).astype(np.float32),
    "all-nan": lambda *shape: np.full(shape, np.nan, np.float32),
    "one-good": lambda *shape: np.where(np.arange(shape[1]) == shape[1] - 1, 1, -np.inf) + np.zeros(shape, np.float32),
    "spread": lambda *shape: np.exp(3 * floats(*shape)),
    "some-nan": lambda *shape: np.where(np.arange(shape[1]) % 97 == 5, np.nan, floats(*shape)).astype(np.float32),
    "zeros": lambda *shape: np.where(floats(*shape) > 0, 0.0, -0.0).astype(np.float32),
}


ROWS_UNLIKE_NOISE = [
    *[((9, 100), 7), ((9, 128), 8), ((5, 1024), 16), *[((5, 1024), k) for k in (17, 50, 56, 57, 64)], ((4, 261), 50)],
    *[((5, 1024), k) for k in (140, 200, 500, 512)],
    *[((3, 1003), 400), ((2, 1801), 40), ((1, 20000), 300), ((1, 70001), 20), ((9, 2100), 5)],
    *[((5, 1501), 8), ((5, 2048), 16), ((3, 3001), 8), ((3, 8192), 8), ((2, 8190), 16), ((2, 30001), 3)],
    *[((1, 16384), 100), ((1, 40000), 700), ((2, 3000), 1400)],
    ((1059, 703), 5),
]


@pytest.mark.parametrize(
    "dtype, largest, shape, k",
    [
        *[("float16", 1, *each) for each in ROWS_UNLIKE_NOISE],
        *[("float32", 0, *each) for each in ROWS_UNLIKE_NOISE],
        ("float16", 1, (1059, 1501), 8),  # of floats a block has each such row, as of few
    ],
)
@pytest.mark.parametrize("kind", UNLIKE_NOISE)
def test_rows_unlike_noise(kind, shape, k, dtype, largest):
    by = lambda x, k: by_numpy(x, k, largest=largest)  # noqa: E731
    x = UNLIKE_NOISE[kind](*shape).astype(np.float32)
    check(topk(x, k, {"largest": largest}, dtype=dtype, opset=24, reference=by))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int16", "uint16"])
@pytest.mark.parametrize("columns", [33, 40, 96, 127, 128])
def test_groups_of_narrow_rows(dtype, columns):
    """Ties within groups of four and between them, and groups of which some are beyond the row."""
    is_float = dtype in FLOATS
    low = 0 if dtype == "uint16" else -3
    few = np.random.default_rng(columns).integers(low, 4, (40, columns))
    last = np.full((3, columns), -np.inf if is_float else np.iinfo(dtype).min)
    some = np.concatenate([few, last, np.where(np.arange(columns) % 5 == 0, few[:7], last[0])])
    some[40, 9::4][:5] = some[41, 30:] = 1  # and the first of the others is one of the worst
    if is_float:
        some[5:20:3] = np.nan
        some[20:30][few[20:30] == 2] = np.nan
    x = some.astype(np.float32 if is_float else dtype)
    for largest in (0, 1):
        by = lambda x, k, largest=largest: by_numpy(x, k, largest=largest)  # noqa: E731
        for misaligned in (False, True):
            check(topk(x, 8, {"largest": largest}, dtype=dtype if is_float else "float32", opset=24,
                       misaligned=misaligned, reference=by))  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns, k", [(9, 9), (77, 8), (700, 16), (700, 30), (700, 300), (3000, 2500)])
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
