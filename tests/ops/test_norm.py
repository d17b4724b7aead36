"""Softmax, LogSoftmax and layer normalisation against the CPU EP."""

import numpy as np
import pytest
from harness import FLOATS, SPECIAL, Case, check, floats
from refusal import fails

# Every way in which rows are spread over threads: few values, a warp's, a block's, more than registers hold; with packs
# of 16 bytes and without.
WIDTHS = [
    (5, 1), (3, 7), (9, 32), (4, 128), (3, 129), (530, 512), (531, 1000), (530, 97), (2, 1021), (2, 3072), (2, 9001),
    (1, 40000), (2, 70001), (70, 49), (530, 197), (30, 1500), (530, 1501), (3, 2041), (3, 3001), (3, 8193),
]  # fmt: skip
# Rows that are staged: as many as fill a block, and some of the next one's.
NARROW = [*range(1, 21), 31, 32, 33, 49, *range(55, 68), 100, 129, *range(195, 203), 248, 249, 250, 255, 257]
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


# A short axis of so many columns that a thread has some to itself.
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 21, 135172), (2, 24, 67588), (3, 4, 45060), (270340, 2, 1, 2)], ids=str)
def test_softmax_of_many_columns(shape, dtype):
    if dtype == "float64":
        shape = (shape[0], min(shape[1], 11), *shape[2:])
    for op in ["Softmax", "LogSoftmax"]:
        check(softmax(op, floats(*shape), dtype, axis=1))


# A long axis of so many columns that each multiprocessor has some, of which halves are kept as they are: as few values
# as that is worth it for, and as many as there is room for.
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 513, 712), (1, 1501, 2120), (267, 2048, 8)], ids=str)
def test_softmax_of_a_long_axis(shape, dtype):
    for op in ["Softmax", "LogSoftmax"]:
        check(softmax(op, floats(*shape), dtype, axis=1))


# A longer one, of which each block of a cluster keeps a part: of many columns, in clusters of four, of floats, and of
# eight, and of few; as long as there is room for, and one more; columns that fill no block.
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "shape",
    [(267, 1025, 8), (267, 2049, 8), (2, 4096, 1056), (1, 1025, 16), (3, 1091, 8), (2, 4096, 16), (1, 4097, 24)],
    ids=str,
)
def test_softmax_of_a_longer_axis(shape, dtype):
    for op in ["Softmax", "LogSoftmax"]:
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


def exact_layer_norm(x, scale, bias):
    x = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        centred = x - x.mean(-1, keepdims=True)
        return [centred / np.sqrt((centred**2).mean(-1, keepdims=True) + float(np.float32(1e-5))) * scale + bias]


# Few rows have kernels of their own, for one pack a thread and for two; those of more rows, and of wider ones.
FEW = [(1, 2048), (15, 4096), (2, 16384), (1, 8)]
MANY = [(530, 2056), (2, 12000), (2, 20000)]


def layer_norm(shape, axis, dtype="float32", bias=True, outputs=1, **more):
    width = shape[axis:]
    inputs = [floats(*shape), floats(*width)] + ([floats(*width)] if bias else [])
    attrs = {"axis": axis, **more.pop("attrs", {})}
    return Case(
        more.pop("op", "LayerNormalization"), inputs, attrs, dtype=dtype, outputs=outputs, family="reduce", **more
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", ""])
@pytest.mark.parametrize("shape", [*WIDTHS[1:], (2, 197, 768), *FEW, *MANY], ids=str)
def test_layer_norm_rows(shape, bias, dtype):
    check(layer_norm(shape, -1, dtype, bias))


# Blocks take rows that are aligned alike, one for each warp or several of many. The narrowest and the widest there are;
# of 16 bytes times something, too, where the first row lies elsewhere.
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(2113, 262), (2200, 257), (2117, 1020), (2114, 989), (9, 2041), (41, 2034), (13, 1017), (3, 776)], ids=str
)
def test_layer_norm_of_many_odd_rows(shape, dtype):
    exact = {"reference": exact_layer_norm} if dtype == "float32" else {}
    check(layer_norm(shape, -1, dtype, **exact))
    check(layer_norm(shape, -1, dtype, bias=False, misaligned=True))


def test_layer_norm_of_very_many_odd_rows():
    check(layer_norm((67601, 261), -1, "float16", reference=exact_layer_norm))


@pytest.mark.parametrize("shape", [(2120, 259), (7, 1003)], ids=str)
def test_statistics_of_many_odd_rows(shape):
    def reference(x, scale, bias):
        x = x.astype(np.float64)
        mean = x.mean(-1, keepdims=True)
        inverse = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + float(np.float32(1e-5)))
        return [v.astype(np.float32) for v in [(x - mean) * inverse * scale + bias, mean, inverse]]

    check(layer_norm(shape, -1, outputs=3, reference=reference, tolerance=(2e-5, 2e-5)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_root_mean_square_of_many_odd_rows(dtype):
    def reference(x, scale):
        x = x.astype(np.float64)
        return [(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale).astype(np.float32)]

    inputs = [floats(2115, 301), floats(301)]
    check(Case("RMSNormalization", inputs, {"axis": -1}, dtype=dtype, opset=23, reference=reference, family="reduce"))


def test_special_values_at_the_ends_of_many_odd_rows():
    """Packs at the ends are a neighbour's, too."""
    x = floats(2120, 259)
    x[::5, 0], x[3::7, -1], x[2::11] = np.nan, np.inf, 4096
    for dtype in ("float32", "float16"):
        c = layer_norm(x.shape, -1, dtype, reference=exact_layer_norm)
        c.inputs[0] = x
        check(c)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("outputs", [2, 3, [True, False, True]], ids=str)
def test_layer_norm_statistics(outputs, dtype):
    # onnx says that the statistics are float; the CPU EP's are of the input's type.
    def reference(x, scale, bias):
        x = x.astype(np.float64)
        mean = x.mean((1, 2), keepdims=True)
        inverse = 1 / np.sqrt(((x - mean) ** 2).mean((1, 2), keepdims=True) + 0.5)
        y = (x - mean) * inverse * scale + bias
        wanted = outputs if isinstance(outputs, list) else [True] * outputs
        types = [dtype, np.float32, np.float32]
        return [v.astype(t) for v, t, w in zip([y, mean, inverse], types, wanted) if w]

    c = layer_norm((3, 4, 10), 1, dtype, outputs=outputs, attrs={"epsilon": 0.5}, reference=reference)
    c.inputs = [x.astype(dtype) for x in c.inputs]
    c.tolerance = (2e-5, 2e-5)
    check(c)


@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_layer_norm_axes(axis):
    check(layer_norm((3, 4, 10), axis))


@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (2, 3, 1)], ids=str)
def test_layer_norm_of_little(shape):
    check(layer_norm(shape, -1))


def test_layer_norm_before_opset_17():
    check(layer_norm((5, 64), -1, opset=13))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", NARROW[1::3])
def test_layer_norm_narrow_rows(width, dtype):
    # Older CPU EPs subtract squares to get the variance, which falsifies that of two numbers close together.
    check(layer_norm((70, width), -1, dtype, reference=exact_layer_norm))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [8, 49, 768, 1501])
def test_layer_norm_misaligned(width, dtype):
    check(layer_norm((6, width), -1, dtype, misaligned=True))


def test_layer_norm_far_from_zero():
    """The mean of squares less the square of the mean would have no digit left."""
    for shape in [(4, 256), (2, 8192), (530, 256), (2130, 259), (5, 1019)]:
        # A mean of 4096 in single precision may be wrong by 2^-12, of a deviation of 14.
        c = layer_norm(shape, -1, reference=exact_layer_norm, tolerance=(1e-4, 1e-4))
        c.inputs[0] = (4096 + np.round(c.inputs[0] * 8)).astype(np.float32)
        check(c)


def test_layer_norm_special_values():
    x = np.stack([SPECIAL, np.zeros(16, np.float32)])
    check(Case("LayerNormalization", [x, floats(16), floats(16)], family="reduce"))


@pytest.mark.parametrize("width", [24, 768, 5000, 9, 12000])
def test_half_rows_with_a_float_scale(width):
    half = np.float16

    def reference(x, scale):
        x = x.astype(np.float64)
        return [(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale).astype(np.float32)]

    x, scale = floats(7, width).astype(half), floats(width)
    op = "SimplifiedLayerNormalization"
    check(Case(op, [x, scale], reference=reference, tolerance=(1e-5, 1e-5)))
    narrow = floats(width).astype(half)
    rounded = lambda x, scale: [reference(x, scale)[0].astype(half)]
    check(Case(op, [floats(7, width), narrow], reference=rounded, tolerance=(1e-3, 1e-3)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op,opset", [("SimplifiedLayerNormalization", 17), ("RMSNormalization", 23)])
def test_root_mean_square(op, opset, dtype):
    for shape in [(6, 96), (2, 3, 77), *FEW]:
        x, scale = floats(*shape), floats(shape[-1])

        def reference(x, scale):
            x = x.astype(np.float64)
            y = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale
            return [y.astype(np.float64 if dtype == "float64" else np.float32)]

        # A numpy reference, since onnx' own rounds in steps.
        check(Case(op, [x, scale], {"axis": -1}, dtype=dtype, opset=opset, reference=reference, family="reduce"))


# Scale and bias broadcast to x: to one row, and to a row of their own each; [batch, 1, width] and the like.
BROADCASTS = [
    ((3, 3), -1, (3, 1), None), ((3, 4), -1, (1,), None), ((3, 4), -1, (), None), ((3, 4), -1, (1, 4), (1, 1)),
    ((2, 3, 4), 2, (2, 3, 4), None), ((2, 3, 4), 2, (2, 1, 4), (3, 1)), ((2, 3, 4), 2, (3, 4), (2, 3, 4)),
    ((2, 3, 4), 1, (3, 4), (4,)), ((2, 3, 4), 1, (3, 1), (3, 4)), ((2, 3, 4), 1, (2, 1, 4), (2, 3, 4)),
    ((2, 3, 4), 0, (2, 3, 4), (3, 1)), ((2, 1, 4), 1, (4,), (1, 4)), ((6, 96), -1, (6, 96), (96,)),
    ((4, 1030), -1, (4, 1), (4, 1030)), ((0, 4), -1, (1, 4), (0, 1)), ((540, 512), -1, (1,), (540, 512)),
]  # fmt: skip


@pytest.mark.parametrize("shape,axis,scale,bias", BROADCASTS, ids=str)
@pytest.mark.parametrize("op", ["LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"])
def test_parameters_broadcast(op, shape, axis, scale, bias):
    inputs = [floats(*shape), floats(*scale).reshape(scale)]
    if bias is not None and op == "LayerNormalization":
        inputs.append(floats(*bias).reshape(bias))
    check(Case(op, inputs, {"axis": axis}, opset=23, family="reduce"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_parameters_broadcast_in_any_type(dtype):
    for scale, bias in [((5, 1), (1,)), ((2, 1, 64), (5, 64)), ((2, 5, 64), (2, 5, 64))]:
        inputs = [floats(2, 5, 64), floats(*scale), floats(*bias)]
        check(Case("LayerNormalization", inputs, {"axis": -1}, dtype=dtype, family="reduce"))


def test_half_rows_with_a_float_scale_for_each():
    x, scale = floats(3, 24).astype(np.float16), floats(3, 24)

    def reference(x, scale):
        x = x.astype(np.float64)
        return [(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale).astype(np.float32)]

    check(Case("SimplifiedLayerNormalization", [x, scale], reference=reference, tolerance=(1e-5, 1e-5)))


@pytest.mark.parametrize("op, outputs", [("LayerNormalization", 3), ("SimplifiedLayerNormalization", 2)])
def test_rows_of_no_values_have_no_statistics(op, outputs):
    """They were left as the memory was."""
    inputs = [floats(2, 3, 0), floats(0)]
    for wanted in ([True, True], [True] * outputs):
        fails(op, inputs, {}, "no mean and no deviation", opset=17, outputs=wanted)
    reference = lambda x, scale: [np.zeros_like(x)]
    check(Case(op, inputs, opset=17, reference=reference))
    check(Case(op, [floats(0, 4), floats(4)], opset=17, outputs=outputs))


@pytest.mark.parametrize(
    "x,axis,scale,bias,words",
    [
        ((2, 3, 4), 1, (12,), None, r"scale \[12\].*\[2,3,4\]"),
        ((2, 3, 4), 1, (4, 3), None, r"scale \[4,3\].*\[2,3,4\]"),
        ((2, 3, 4), 0, (24,), None, r"scale \[24\].*\[2,3,4\]"),
        ((2, 3, 4), 2, (1, 1, 1, 4), None, r"scale \[1,1,1,4\].*\[2,3,4\]"),
        ((1, 4), 1, (3, 4), None, r"scale \[3,4\].*\[1,4\]"),
        ((2, 3, 4), 1, (3, 4), (12,), r"bias \[12\].*\[2,3,4\]"),
        ((2, 3, 4), 1, (3, 4), (4, 3), r"bias \[4,3\].*\[2,3,4\]"),
    ],
)
@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_parameters_that_do_not_fit(op, x, axis, scale, bias, words):
    inputs = [floats(*x), floats(*scale)] + ([] if bias is None else [floats(*bias)])
    if bias is None or op == "LayerNormalization":
        fails(op, inputs, {"axis": axis}, words, opset=23)


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
