"""Softmax, LogSoftmax, BiasSoftmax and Hardmax against the CPU EP."""

import numpy as np
import pytest
from harness import FLOATS, Case, check, floats
from refusal import fails
from widths import NARROW, WIDTHS

AXES = [((2, 5, 3), 1), ((7, 4), 0), ((2, 3, 1, 5), -4), ((3, 1000, 2), 1), ((4, 21, 33, 17), 1), ((600, 2), 0)]


def softmax(op, x, dtype="float32", **attrs):
    opset = attrs.pop("opset", 21)
    misaligned = attrs.pop("misaligned", False)
    family = "log softmax" if op == "LogSoftmax" else "softmax"
    return Case(op, [x], attrs, dtype=dtype, opset=opset, misaligned=misaligned, family=family)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", WIDTHS, ids=str)
def test_softmax_rows(shape, dtype):
    check(softmax("Softmax", floats(*shape), dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", NARROW)
def test_softmax_narrow_rows(width, dtype):
    check(softmax("Softmax", floats(70, width), dtype))
    check(softmax("LogSoftmax", floats(3, width), dtype))


# So many short rows of halves that a block takes more of them.
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(33857, 7), (33793, 49), (33800, 62)], ids=str)
def test_softmax_of_many_narrow_rows(shape, dtype):
    for op in ["Softmax", "LogSoftmax"]:
        check(softmax(op, floats(*shape), dtype))
    check(softmax("Softmax", floats(*shape), dtype, misaligned=True))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3, 7), (4, 128), (530, 512), (2, 3072), (1, 70000), (9, 1501)], ids=str)
def test_log_softmax_rows(shape, dtype):
    check(softmax("LogSoftmax", floats(*shape), dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape,axis", AXES, ids=str)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_along_an_axis(op, shape, axis, dtype):
    check(softmax(op, floats(*shape), dtype, axis=axis))


# Values of a row that are apart: as many as threads keep and one more, in packs and one by one.
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("inner", [2, 7, 8, 24, 33, 272])
@pytest.mark.parametrize("axis", [1, 3, 4, 5, 31, 129, 257, 513, 1030])
def test_softmax_apart(axis, inner, dtype):
    outer = 1 if axis > 300 else 3
    for op in ["Softmax", "LogSoftmax"]:
        check(softmax(op, floats(outer, axis, inner), dtype, axis=1))
    check(softmax("Softmax", floats(outer, axis, inner), dtype, axis=1, misaligned=True))


# Of many values; the logarithm does not depend on the type.
SOFTMAXES = {dtype: ["Softmax", "LogSoftmax"] if dtype == "float16" else ["Softmax"] for dtype in FLOATS}


# A short axis of so many columns that a thread has some to itself.
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 5, 135172), (2, 24, 67588), (3, 4, 45060), (270340, 2, 1, 2)], ids=str)
def test_softmax_of_many_columns(shape, dtype):
    if dtype == "float64":
        shape = (shape[0], min(shape[1], 11), *shape[2:])
    for op in SOFTMAXES[dtype]:
        check(softmax(op, floats(*shape), dtype, axis=1))


# A long axis of so many columns that each multiprocessor has some, of which halves are kept as they are: as few values
# as that is worth it for, and as many as there is room for.
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 513, 712), (1, 521, 2120), (267, 2048, 8)], ids=str)
def test_softmax_of_a_long_axis(shape, dtype):
    for op in SOFTMAXES[dtype]:
        check(softmax(op, floats(*shape), dtype, axis=1))


# A longer one, of which each block of a cluster keeps a part: of many columns, in clusters of four, of floats, and of
# eight, of halves; and of few: as long as there is room for, and one more; columns that fill no block.
@pytest.mark.parametrize(
    "shape, dtype",
    [
        ((267, 1025, 8), "float32"),
        ((267, 2049, 8), "float16"),
        ((267, 4096, 8), "bfloat16"),
        *[
            (shape, dtype)
            for shape in [(1, 1025, 16), (3, 1091, 8), (2, 4096, 40), (1, 4097, 24)]
            for dtype in ("float32", "float16", "bfloat16")
        ],
    ],
    ids=str,
)
def test_softmax_of_a_longer_axis(shape, dtype):
    for op in SOFTMAXES[dtype]:
        check(softmax(op, floats(*shape), dtype, axis=1))


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis,inner", [(6, 16), (40, 16), (40, 3), (3000, 16), (3000, 3), (7, 135168), (601, 2120)])
def test_special_values_apart(axis, inner, op):
    x = floats(axis, inner)
    x[:, 0] = -np.inf
    x[: axis // 2, 1] = -np.inf
    x[axis // 3, 2] = np.nan
    if inner > 3:
        x[0, 3], x[-1, 4], x[:-1, 5], x[:, 6] = np.inf, np.nan, -np.inf, 1e4
        x[:-1, 7], x[-1, 7] = -np.inf, np.nan

    def reference(x):
        with np.errstate(invalid="ignore", divide="ignore"):
            below = x.astype(np.float64) - x.max(0, keepdims=True)
            sum = np.exp(below).sum(0, keepdims=True)
            return [(below - np.log(sum) if op == "LogSoftmax" else np.exp(below) / sum).astype(np.float32)]

    for dtype in ("float32", "float16", "bfloat16"):
        c = softmax(op, x, dtype, axis=0)
        c.reference = reference
        check(c)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (1,), (1, 1, 1), (6,)], ids=str)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_of_little(op, shape):
    check(softmax(op, floats(*shape)))


@pytest.mark.parametrize("opset", [1, 11])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_flattens_before_opset_13(op, axis, opset):
    if opset == 1 and axis == -1:
        axis = 3  # negative axes came with 11
    check(softmax(op, floats(2, 3, 4, 5), opset=opset, **({} if axis is None else {"axis": axis})))


@pytest.mark.parametrize(
    "shape", [(1, 1), (4, 8), (300, 7), (70, 16), (70, 49), (70, 56), (16, 130), (2, 5000), (9, 1501), (2, 24001)]
)
def test_softmax_misaligned(shape):
    for dtype in FLOATS:
        check(softmax("Softmax", floats(*shape), dtype, misaligned=True))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_special_values(op, axis, dtype):
    inf, nan = np.inf, np.nan
    rows = [[-inf] * 4, [inf, 1, 2, 3], [nan, 1, 2, 3], [-inf, 1, 2, -inf], [1e4, -1e4, 0, 1e4], [-0.0, 0, 0, 1]]
    x = np.array(rows, np.float32)

    def reference(x):  # the CPU's logarithm is one of single precision, even in double
        with np.errstate(invalid="ignore", divide="ignore"):
            below = x.astype(np.float64) - x.max(axis, keepdims=True)
            sum = np.exp(below).sum(axis, keepdims=True)
            y = below - np.log(sum) if op == "LogSoftmax" else np.exp(below) / sum
        return [y.astype(np.float64 if dtype == "float64" else np.float32)]

    c = softmax(op, x if axis == 1 else np.ascontiguousarray(x.T), dtype, axis=axis)
    c.reference = reference
    check(c)
    if dtype == "float32":
        c.reference = None
        check(c)


@pytest.mark.parametrize("dtype,most", [("float32", 3.4028234e38), ("float16", 65504), ("bfloat16", 3.3895314e38)])
@pytest.mark.parametrize("width", [4, 129, 1000])
def test_softmax_of_the_lowest_numbers(width, dtype, most):
    """Masks are made of them: a row that is masked as a whole has the same share for all."""
    x = floats(6, width)
    x[0], x[1], x[2, 1:], x[3, ::2], x[4], x[5, 0] = -most, most, -most, -most, -most / 2, most

    def reference(x):
        along = x.ndim - 1 if x.shape[-1] == width else 0
        powers = np.exp(x.astype(np.float64) - x.max(along, keepdims=True))
        return [(powers / powers.sum(along, keepdims=True)).astype(np.float32)]

    for axis, values in [(1, x), (0, np.ascontiguousarray(x.T))]:
        c = softmax("Softmax", values, dtype, axis=axis)
        c.reference = reference
        check(c)


@pytest.mark.parametrize("width", [5, 17, 49, 197, 1501])
def test_softmax_rows_do_not_touch_their_neighbours(width):
    """Rows of a block lie side by side: one that is all -inf, or has a NaN, leaves the others as they are."""
    x = floats(90, width)
    x[::7], x[3::7, width // 2], x[5::7, -1] = -np.inf, np.nan, np.inf
    for dtype in FLOATS:
        c = softmax("Softmax", x, dtype)
        c.reference = lambda x: [_softmax(x)]
        check(c)


def _softmax(x):
    with np.errstate(invalid="ignore"):
        powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
        return (powers / powers.sum(-1, keepdims=True)).astype(np.promote_types(x.dtype, np.float32))


def bias_softmax(data, bias, attrs):
    """The CPU EP has no kernel: the sum's softmax, where neighbouring rows share a row of the bias or take turns."""
    axis = attrs["axis"]
    rows = data.reshape(int(np.prod(data.shape[:axis])), -1).astype(np.float64)
    addends = bias.reshape(-1, rows.shape[1]).astype(np.float64)
    times = len(rows) // len(addends)
    total = rows + (np.repeat(addends, times, axis=0) if attrs["is_inner_broadcast"] else np.tile(addends, (times, 1)))
    powers = np.exp(total - total.max(axis=1, keepdims=True))
    return [
        (powers / powers.sum(axis=1, keepdims=True))
        .reshape(data.shape)
        .astype(np.promote_types(data.dtype, np.float32))
    ]


@pytest.mark.parametrize("dtype", [t for t in FLOATS if t != "bfloat16"])  # which its schema lacks
@pytest.mark.parametrize(
    "inner, bias",
    [(1, (2, 1, 1, 24)), (0, (1, 1, 5, 24)), (0, (2, 3, 5, 24)), (1, (2, 3, 1, 24)), (0, (3, 5, 24)), (1, (24,))],
)
def test_bias_softmax(dtype, inner, bias):
    attrs = {"axis": 3, "is_inner_broadcast": inner}
    case = Case(
        "BiasSoftmax", [floats(2, 3, 5, 24), floats(*bias)], attrs, dtype=dtype, domain="com.microsoft", family="reduce"
    )
    case.reference = lambda data, more: bias_softmax(data, more, attrs)
    check(case)


@pytest.mark.parametrize("dtype", [t for t in FLOATS if t != "bfloat16"])
@pytest.mark.parametrize("inner, bias", [(1, (2, 1, 1, 197)), (0, (1, 1, 5, 197))])
def test_bias_softmax_of_odd_widths(dtype, inner, bias):
    attrs = {"axis": 3, "is_inner_broadcast": inner}
    inputs = [floats(2, 3, 5, 197), floats(*bias)]
    case = Case("BiasSoftmax", inputs, attrs, dtype=dtype, domain="com.microsoft", family="reduce")
    case.reference = lambda data, more: bias_softmax(data, more, attrs)
    check(case)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_special_values_at_the_ends_of_odd_rows(op):
    x = floats(24, 77)
    for i, special in enumerate([np.inf, -np.inf, np.nan]):
        x[i::6, 0], x[i + 3 :: 6, -1] = special, special
    x[5] = -np.inf
    for dtype in ("float32", "float16"):
        check(softmax(op, x, dtype))


@pytest.mark.parametrize(
    "inner,bias",
    [
        (1, (6, 1, 1, 24)),
        (0, (24, 1, 1, 5)),
        (0, (2, 1, 1, 24)),  # rows for each batch, taken in turns
        (1, (1, 1, 5, 24)),
        (0, (1, 3, 1, 24)),
        (1, (1, 3, 1, 24)),
        (1, (2, 24)),
        (0, (1, 1, 1, 5, 24)),
        (0, (1, 1, 5, 1)),
        (0, ()),
    ],
)
def test_bias_softmax_with_a_bias_that_does_not_fit(inner, bias):
    words = r"bias \[" + ",".join(map(str, bias)) + r"\] does not fit data \[2,3,5,24\]"
    attrs = {"axis": 3, "is_inner_broadcast": inner}
    fails("BiasSoftmax", [floats(2, 3, 5, 24), floats(*bias).reshape(bias)], attrs, words, domain="com.microsoft")


def hardmax(axis, flattens=False):
    def reference(x):
        rows = x.reshape(x.shape[:axis] + (-1,)) if flattens else x
        where = np.argmax(rows, axis=-1 if flattens else axis)
        made = np.zeros_like(rows)
        np.put_along_axis(made, np.expand_dims(where, -1 if flattens else axis), 1, -1 if flattens else axis)
        return [made.reshape(x.shape)]

    return reference


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_hardmax(axis, dtype):
    x = floats(7, 33, 5)
    x[:, 3] = x[:, 20] = 4  # of equal values the first
    check(Case("Hardmax", [x], {"axis": axis}, dtype=dtype, family="exact", name=str(axis), reference=hardmax(axis)))


# Columns of one thread and of many, in packs and one by one, and a few long ones.
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3, 5, 16), (2, 300, 24), (140, 70, 9), (9, 1030, 8), (1, 9000, 2)], ids=str)
def test_hardmax_apart(shape, dtype):
    x = np.round(floats(*shape) * 4)  # many are equal
    x[0, :, 0], x[0, 1:, 1], x[0, -1, 1] = -np.inf, -np.inf, 1
    check(Case("Hardmax", [x], {"axis": 1}, dtype=dtype, family="exact", reference=hardmax(1)))
    x[0, 2, 0], x[0, 4, 0], x[0, 1, 1] = np.nan, np.nan, np.inf
    check(Case("Hardmax", [x], {"axis": 1}, dtype=dtype, family="exact", reference=hardmax(1)))


@pytest.mark.parametrize("opset", [1, 11])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_hardmax_of_all_that_follow(axis, opset):
    x = floats(4, 5, 6)
    check(Case("Hardmax", [x], {"axis": axis}, opset=opset, family="exact", name=f"axis{axis}"))
    check(Case("Hardmax", [x], {"axis": axis}, opset=opset, family="exact", reference=hardmax(axis, flattens=True)))


@pytest.mark.parametrize("shape", [(1,), (3, 0), (0, 3), (2, 5000), (3, 2, 1, 2, 3), (100, 1001)], ids=str)
def test_hardmax_of_shapes(shape):
    check(Case("Hardmax", [floats(*shape)], family="exact"))


def test_hardmax_along_an_axis_that_there_is_not():
    fails("Hardmax", [floats(2, 3)], {"axis": 2}, "axis 2", ranks=False)
