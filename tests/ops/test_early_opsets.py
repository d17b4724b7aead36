"""Schemas older than the CPU EP's, of which NumPy says what they mean, and the operators that ONNX dropped."""

import numpy as np
import pytest
from encore_session import assert_all_on_encore
from harness import SPECIAL, Case, Const, bools, check, floats, integers, session
from onnx import TensorProto, helper
from refusal import declined, fails

BINARY = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power,
    "Equal": np.equal, "Greater": np.greater, "Less": np.less,
    "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor,
}  # fmt: skip
FITS = [  # shapes, and the axis from which on they fit
    ((2, 3, 4, 5), (), None),
    ((2, 3, 4, 5), (1, 1), None),
    ((2, 3, 4, 5), (5,), None),
    ((2, 3, 4, 5), (4, 5), None),
    ((2, 3, 4, 5), (3, 4), 1),
    ((2, 3, 4, 5), (2,), 0),
    ((2, 3, 4, 5), (3,), -3),
    ((3, 3), (3,), 0),
]


def operand(op, *shape):
    if op in ("And", "Or", "Xor"):
        return np.asarray(bools(*shape)).reshape(shape)
    if op == "Equal":
        return np.asarray(integers("int32", *shape, low=0, high=2)).reshape(shape)
    return np.asarray(floats(*shape, low=0.5, high=3)).reshape(shape)


def aligned(a, b, axis):
    if b.size == 1:
        return b.reshape(())
    axis = a.ndim - b.ndim if axis is None else axis % a.ndim
    return b.reshape(b.shape + (1,) * (a.ndim - axis - b.ndim))


@pytest.mark.parametrize("a,b,axis", FITS, ids=str)
@pytest.mark.parametrize("op", BINARY)
def test_broadcast_by_attributes(op, a, b, axis):
    attrs = {"broadcast": 1} | ({} if axis is None else {"axis": axis})
    check(
        Case(
            op,
            [operand(op, *a), operand(op, *b)],
            attrs,
            opset=6,
            dtype="float32" if op not in ("And", "Or", "Xor", "Equal") else "bool",
            reference=lambda a, b: [BINARY[op](a, aligned(a, b, axis))],
        )
    )


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_first_opset(op):
    inputs = [operand(op, 3, 5), operand(op, 3, 5)]
    check(Case(op, inputs, {"consumed_inputs": [0, 0]}, opset=1, reference=lambda a, b: [BINARY[op](a, b)]))


def test_broadcast_that_nobody_asked_for():
    fails("Add", [floats(2, 3), floats(3)], {}, r"\[2,3\] and \[3\] differ, and attribute broadcast is not 1", opset=6)


@pytest.mark.parametrize("a,b,attrs", [((2, 3), (2,), {}), ((2, 3), (3,), {"axis": 0}), ((3,), (2, 3), {}),
                                       ((2, 3), (1, 3), {}), ((2, 3), (3, 1), {"axis": 1})], ids=str)  # fmt: skip
def test_broadcast_that_does_not_fit(a, b, attrs):
    fails("Mul", [floats(*a), floats(*b)], {"broadcast": 1, **attrs}, "does not fit A", opset=6)


def test_broadcast_along_an_axis_that_there_is_not():
    fails("Mul", [floats(2, 3), floats(3)], {"broadcast": 1, "axis": 2}, r"axis.* 2", opset=6)


UNARY = {
    "Abs": np.abs, "Ceil": np.ceil, "Exp": np.exp, "Floor": np.floor, "Log": np.log, "Neg": np.negative,
    "Reciprocal": lambda x: 1 / x, "Relu": lambda x: np.maximum(x, 0), "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Sqrt": np.sqrt, "Tanh": np.tanh, "Elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "Selu": lambda x: np.float32(1.0507) * np.where(x > 0, x, np.float32(1.6732) * np.expm1(x)),
    "LeakyRelu": lambda x: np.where(x < 0, x * np.float32(0.01), x),
    "HardSigmoid": lambda x: np.clip(x * np.float32(0.2) + np.float32(0.5), 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_unary_of_the_first_opset(op):
    x = floats(5, 33, low=0.1 if op in ("Log", "Sqrt", "Reciprocal") else -3)
    check(Case(op, [x], {"consumed_inputs": [0]}, opset=1, reference=lambda x: [UNARY[op](x)]))


def test_clip_of_the_first_opset():
    check(Case("Clip", [floats(5, 33)], {"min": -1.0, "max": 0.5}, opset=1,
               reference=lambda x: [np.clip(x, np.float32(-1), np.float32(0.5))]))  # fmt: skip


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_variadic_of_the_first_opset(op):
    f = {"Max": np.max, "Min": np.min, "Sum": np.sum, "Mean": np.mean}[op]
    check(Case(op, [floats(3, 5) for _ in range(3)], opset=1, reference=lambda *x: [f(np.stack(x), axis=0)]))


FIRST_FLOATS = ["float32", "float16", "float64"]
TILES = [((2, 3, 4), 1, 3), ((2, 3), -1, 2), ((5,), 0, 1), ((2, 0, 3), 0, 4), ((2, 3), 1, 0), ((70, 500), 0, 9)]


@pytest.mark.parametrize("dtype", FIRST_FLOATS)
@pytest.mark.parametrize("shape,axis,tiles", TILES, ids=str)
def test_tile_along_an_axis(shape, axis, tiles, dtype):
    told = [Const(np.float32(tiles)), Const(np.float32(axis))]
    repeats = [tiles if d == axis % len(shape) else 1 for d in range(len(shape))]
    reference = lambda x, *_: [np.tile(x, repeats)]
    check(Case("Tile", [floats(*shape), *told], dtype=dtype, opset=5, family="exact", reference=reference))


@pytest.mark.parametrize("tiles,axis", [(-1, 0), (1.5, 0), (np.nan, 0), (np.inf, 0), (2, 2), (2, 0.5)])
def test_tiles_that_are_none(tiles, axis):
    told = [np.array(value, np.float32) for value in (tiles, axis)]
    fails("Tile", [floats(2, 3), *told], {}, "(tiles|axis) is |axis 2", opset=5)


@pytest.mark.parametrize("dtype", FIRST_FLOATS)
@pytest.mark.parametrize("mode", [None, "nearest", "bilinear"])
def test_upsample_by_height_and_width(mode, dtype):
    scales = {"height_scale": 2.0, "width_scale": 3.5}

    def upsampled(x):
        for axis, scale in zip((2, 3), scales.values()):
            at = np.arange(int(x.shape[axis] * scale)) / scale
            low = at.astype(int)
            made = x.take(low, axis)
            if mode == "bilinear":
                part = (at - low).reshape([-1 if d == axis else 1 for d in range(4)])
                made = made * (1 - part) + x.take(np.minimum(low + 1, x.shape[axis] - 1), axis) * part
            x = made
        return [x]

    attrs = scales | ({"mode": mode} if mode else {})
    family = "reduce" if mode == "bilinear" else "exact"
    check(Case("Upsample", [floats(2, 3, 5, 7)], attrs, dtype=dtype, opset=6, family=family, reference=upsampled))


def test_upsample_of_what_is_no_image():
    fails("Upsample", [floats(5, 7)], {"height_scale": 2.0, "width_scale": 2.0}, "scales has 4 values", opset=6)


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("slope", [(3,), (1,), (2, 3, 4), (4,)], ids=str)
def test_prelu(slope, opset):
    """Slopes in a vector are those of the channels."""
    x = floats(2, 3, 4) if slope != (4,) else floats(5, 4)

    def reference(x, slope):
        by_channel = slope.reshape((-1,) + (1,) * (x.ndim - 2)) if slope.ndim == 1 and slope.size > 1 else slope
        return [np.where(x < 0, x * by_channel, x)]

    check(Case("PRelu", [x, floats(*slope)], opset=opset, reference=reference))


def test_prelu_with_too_few_slopes():
    fails("PRelu", [floats(2, 3, 4), floats(4)], {}, "4 slopes for the channels of", opset=6)


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("c", [(3, 4), (4,), (1,)], ids=str)
def test_gemm(c, opset):
    attrs = {"broadcast": 1, "alpha": 0.5, "beta": 2.0, "transB": 1}
    check(
        Case(
            "Gemm",
            [floats(3, 5), floats(4, 5), floats(*c)],
            attrs,
            opset=opset,
            family="matmul",
            reference=lambda a, b, c: [np.float32(0.5) * a @ b.T + 2 * c],
        )
    )


@pytest.mark.parametrize("opset", [1, 6])
def test_dropout(opset):
    check(Case("Dropout", [floats(3, 5)], {"is_test": 1}, opset=opset, family="exact", reference=lambda x: [x]))


@pytest.mark.parametrize("opset", [1, 6])
def test_batch_normalization(opset):
    attrs = {"is_test": 1, "epsilon": 1e-3} | ({"consumed_inputs": [0, 0, 0, 1, 1]} if opset == 1 else {})
    parameters = [floats(3), floats(3), floats(3), floats(3, low=0.5)]

    def reference(x, scale, bias, mean, variance):
        scale, bias, mean, variance = (v.reshape(-1, 1, 1) for v in (scale, bias, mean, variance))
        return [(x - mean) / np.sqrt(variance + np.float32(1e-3)) * scale + bias]

    check(Case("BatchNormalization", [floats(2, 3, 4, 4), *parameters], attrs, opset=opset, reference=reference,
               tolerance=(1e-5, 1e-5)))  # fmt: skip


def refused(op, inputs, attrs, words):
    """No other EP takes it, so that the session is refused."""
    with pytest.raises(Exception, match=words):
        fails(op, inputs, attrs, "", opset=6)


def test_training_is_declined():
    refused("Dropout", [floats(3)], {"is_test": 0}, "Dropout")
    refused("BatchNormalization", [floats(2, 3), *[floats(3)] * 4], {"is_test": 0}, "BatchNormalization")


def test_cast_to_a_type_by_its_name():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [5])
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to="INT32")], "cast", [x], [y])
    sess = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)], ir_version=10))
    assert_all_on_encore(sess)
    np.testing.assert_array_equal(sess.run(None, {"x": np.float32([1.5, -2.5, 3, 0, 9])})[0], [1, -2, 3, 0, 9])


# ---- operators that are no more


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("shape", [(5, 33), (), (0,)], ids=str)
def test_affine(shape, dtype):
    x = np.asarray(floats(*shape)).reshape(shape)
    check(Case("Affine", [x], {"alpha": 1.5, "beta": -0.5}, dtype=dtype, opset=1,
               reference=lambda x: [np.asarray(x * x.dtype.type(1.5) - x.dtype.type(0.5))]))  # fmt: skip
    if dtype == "float32":
        check(Case("Affine", [x], {"alpha": 1.5, "beta": -0.5}, opset=1, name="CPU"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_scaled_tanh(dtype):
    attrs = {"alpha": 1.5, "beta": 0.5}
    check(Case("ScaledTanh", [floats(5, 33)], attrs, dtype=dtype, opset=1,
               reference=lambda x: [x.dtype.type(1.5) * np.tanh(x.dtype.type(0.5) * x)]))  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_parametric_softplus(dtype):
    x = np.concatenate([floats(33, low=-9, high=9), SPECIAL[~np.isnan(SPECIAL)]])
    check(Case("ParametricSoftplus", [x], {"alpha": 1.5, "beta": 0.5}, dtype=dtype, opset=1,
               reference=lambda x: [x.dtype.type(1.5) * np.logaddexp(0, x.dtype.type(0.5) * x)]))  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 3, 16, 16), (0, 3, 4, 4)], ids=str)
def test_image_scaler(shape, dtype):
    bias = [0.5, -1.0, 2.0]
    shift = np.array(bias).reshape(3, 1, 1)
    check(Case("ImageScaler", [floats(*shape)], {"scale": 1.5, "bias": bias}, dtype=dtype, opset=1,
               reference=lambda x: [(x * x.dtype.type(1.5) + shift.astype(x.dtype))]))  # fmt: skip


def test_image_scaler_with_too_few_biases():
    fails("ImageScaler", [floats(2, 3, 4, 4)], {"scale": 1.0, "bias": [1.0]}, "bias has 1 values", opset=1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("attrs", [{"border": [1, 2, 3, 0]}, {"border": [1, 2, 0, 0], "scale": [3, 4]},
                                   {"border": [0, 0, 0, 0]}, {"border": [3, 0, 4, 6]}], ids=str)  # fmt: skip
def test_crop(attrs, dtype):
    left, top, right, bottom = attrs["border"]

    def reference(x):
        height, width = attrs.get("scale", (x.shape[2] - top - bottom, x.shape[3] - left - right))
        return [x[:, :, top : top + height, left : left + width]]

    check(Case("Crop", [floats(2, 3, 6, 9)], attrs, dtype=dtype, opset=1, family="exact", reference=reference))


@pytest.mark.parametrize("attrs", [{"border": [-1, 0, 0, 0]}, {"border": [0, 0, 99, 0]}, {"border": [2**62] * 4},
                                   {"border": [0, 1, 0, 0], "scale": [4, 4]},
                                   {"border": [0, 0, 0, 0], "scale": [-1, 4]}], ids=str)  # fmt: skip
def test_crop_beyond_the_image(attrs):
    fails("Crop", [floats(1, 1, 4, 4)], attrs, "does not fit dimension|do not fit dimension", opset=1)


def test_crop_without_borders_is_declined():
    declined("Crop", [floats(1, 1, 4, 4)], {"border": [1, 1]}, opset=1)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("opset", [1, 9])
@pytest.mark.parametrize(
    "starts, ends, axes",
    [([1, 0], [2, 3], [0, 1]), ([0, 1], [-1, 1000], None), ([-2], [-1], [-1]), ([3], [2], [1]), ([], [], [])],
    ids=str,
)
def test_dynamic_slice(starts, ends, axes, opset, index):
    given = [Const(np.array(part, index)) for part in (starts, ends, axes) if part is not None]
    check(Case("DynamicSlice", [floats(4, 5, 3), *given], opset=opset, family="exact"))


def test_dynamic_slice_of_an_axis_twice():
    given = [np.array(part) for part in ([1, 0], [2, 3], [0, 0])]
    fails("DynamicSlice", [floats(4, 5), *given], {}, "twice", opset=1)
