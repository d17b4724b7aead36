"""Layer normalisation against the CPU EP."""

import numpy as np
import pytest
from harness import FLOATS, SPECIAL, Case, check, floats
from refusal import fails
from widths import NARROW, WIDTHS


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
    check(layer_norm((12701, 261), -1, "float16", reference=exact_layer_norm))


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


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("shape", [(5, 1), (3, 129), (530, 512), (2, 70001), *FEW[:2], (2113, 262)], ids=str)
def test_an_epsilon_below_the_normal_numbers(shape, op, dtype):
    """It is all that there is to take the root of where all values are zero."""
    inputs = [np.zeros(shape, np.float32), floats(shape[-1])] + [floats(shape[-1])] * (op == "LayerNormalization")
    check(Case(op, inputs, {"axis": -1, "epsilon": 1e-38}, dtype=dtype, opset=23, family="reduce"))


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
