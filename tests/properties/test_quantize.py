"""Scales and zero points of a tensor, an axis or blocks, and products of bytes."""

import ml_dtypes
import numpy as np
import pytest
from element_types import NUMPY, carrier, onnx_type, rounded
from hypothesis import given
from hypothesis import strategies as st

from properties.drawn import Drawn

pytestmark = pytest.mark.newest

BYTES = ["int8", "uint8"]
FLOAT8 = ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"]
# Since which opset.
TYPES = {10: BYTES, 19: FLOAT8, 21: ["int16", "uint16", "int4", "uint4"], 23: ["float4e2m1"], 25: ["int2", "uint2"]}
SCALES = {10: ["float"], 19: ["float16", "bfloat16"], 24: ["float8e8m0"]}
PLAIN = [*BYTES, "int16", "uint16"]  # of which the CPU EP has every kind of scale


def known(table, it):
    return [name for opset, names in table.items() if it.opset >= opset for name in names]


def is_whole(kind):
    return "float" not in kind


def grid(it, shape):
    """The shape of the scale, and attributes that say what it is."""
    ways = ["tensor"] + ["axis"] * (it.opset >= 13 and shape != []) + ["block"] * (it.opset >= 21 and shape != [])
    way = it.pick(*ways)
    if way == "tensor":
        return it.pick([], [], [1]), {}
    axis = it.axis(len(shape))
    attrs = {"axis": axis}
    if not -len(shape) <= axis < len(shape):
        return it.pick([3], shape), attrs | ({"block_size": 2} if way == "block" else {})
    if way == "axis":
        return [shape[axis]], attrs
    block = it(st.integers(1, max(1, shape[axis]) + 1))
    return [-(-size // block) if i == axis % len(shape) else size for i, size in enumerate(shape)], attrs | {
        "block_size": block
    }


def spread(values, x, axis=1, block_size=0):
    """One for each element."""
    if values is None:
        return np.float32(0)
    if block_size:
        np.zeros(x.ndim)[axis]  # refuses an axis that there is not
        return np.repeat(values, block_size, axis).take(range(x.shape[axis]), axis)
    if values.size == 1 and values.ndim <= 1:
        return values.reshape(())
    sizes = [1] * x.ndim
    sizes[axis] = x.shape[axis]
    return values.reshape(sizes)


def scale_of(it, shape, kind):
    """Powers of two in a type that has nothing else; else such as divide with a rest."""
    if kind == "int32":
        return it.tensor_of(it.sketch.draw.numpy.integers(1, 9, shape), kind)
    powers = 2.0 ** it.sketch.draw.numpy.integers(-6, 2, shape)
    return it.tensor_of(powers if kind == "float8e8m0" else powers * 1.25, kind)


def zero_of(it, shape, kind):
    if not is_whole(kind) or kind == "int32":
        return it.tensor_of(np.zeros(shape), kind)
    info = ml_dtypes.iinfo(NUMPY[kind])
    low, high = max(info.min, -100), min(info.max, 100)
    return it.tensor_of(it.sketch.draw.numpy.integers(low, high, shape, endpoint=True), kind)


def values_of(it, kind, shape):
    """Of the whole type."""
    if not is_whole(kind):
        return it.tensor(kind, shape)
    info = ml_dtypes.iinfo(NUMPY[kind])
    return it.tensor_of(it.sketch.draw.numpy.integers(int(info.min), int(info.max), shape, endpoint=True), kind)


def quantized(kind, precision="float"):
    info = ml_dtypes.iinfo(NUMPY[kind]) if is_whole(kind) else None

    def compute(x, scale, zero=None, **grid):
        scale, zero = spread(scale, x, **grid), spread(zero, x, **grid).astype(np.float32)
        narrow = lambda array: rounded(array, precision).astype(np.float32)
        made = narrow(narrow(x) / narrow(scale))
        if info is None:
            return [np.asarray(made + zero, np.float32)]
        whole = np.rint(made)
        whole = np.where(whole > info.min - zero, whole, np.float32(info.min) - zero)  # of NaN, too
        return [(np.minimum(whole, np.float32(info.max) - zero) + zero).astype(carrier(kind))]

    return compute


@given(st.data())
def test_quantize_linear(data):
    it = Drawn(data, "QuantizeLinear")
    kind = it.pick(*known({10: ["float"], 19: ["float16", "bfloat16"]}, it), "int32")
    to = it.pick(*known(TYPES, it))
    shape = it.shape(high=4)
    scale_shape, attrs = grid(it, shape)
    scale_kind = it.pick(*known(SCALES, it), "int32") if it.opset >= 23 else kind if it.opset >= 19 else "float"
    has_zero = it.opset < 21 or it.pick(True, False)
    zero = zero_of(it, scale_shape, to) if has_zero and (to != "uint8" or it.pick(True, False)) else None
    options = {"axis": attrs.get("axis", 1), "block_size": attrs.get("block_size", 0)}
    if zero is None and to != "uint8":
        attrs["output_dtype"] = onnx_type(to)
    if it.opset >= 19 and to in FLOAT8:
        attrs["saturate"] = it.maybe(0, 1)
    precision = it.maybe("float", "float16", "bfloat16") if it.opset >= 23 and is_whole(to) else None
    if precision:
        attrs["precision"] = onnx_type(precision)
    # Nor is it asked of blocks of nothing, by which it divides.
    asks_cpu = to in PLAIN + FLOAT8 and scale_kind == kind and kind in ("float", "float16") and not precision
    asks_cpu &= 0 not in shape

    by_default = scale_kind if it.opset >= 23 and scale_kind in ("float16", "bfloat16") else "float"

    def by_numpy(*arrays):
        return quantized(to, precision or by_default)(*arrays, **options)

    # What becomes of numbers beyond float8, the CPU EP says of floats and halves.
    x = it.tensor(kind, shape, mild=it.pick(True, False) or (to in FLOAT8 and not asks_cpu))
    it.agrees(
        x, scale_of(it, scale_shape, scale_kind), zero, types=[to], reference=None if asks_cpu else by_numpy, **attrs
    )


@given(st.data())
def test_dequantize_linear(data):
    it = Drawn(data, "DequantizeLinear")
    kind = it.pick(*known(TYPES, it), "int32")
    shape = it.shape(high=4)
    scale_shape, attrs = grid(it, shape)
    scale_kind = it.pick(*known(SCALES, it))
    zero = it.pick(True, False) and zero_of(it, scale_shape, kind) or None
    to = it.maybe("float", "float16", "bfloat16") if it.opset >= 23 else None
    if to is None and scale_kind == "float8e8m0":
        to = "float"
    if to:
        attrs["output_dtype"] = onnx_type(to)
    options = {"axis": attrs.get("axis", 1), "block_size": attrs.get("block_size", 0)}

    def by_numpy(x, scale, zero=None):
        made = x.astype(np.float32) - spread(zero, x, **options).astype(np.float32)
        return [made * spread(scale, x, **options).astype(np.float32)]

    asks_cpu = kind in PLAIN and scale_kind == "float" and to in (None, "float") and 0 not in shape
    x = values_of(it, kind, shape)
    scale = scale_of(it, scale_shape, scale_kind)
    it.agrees(x, scale, zero, types=[to or scale_kind], reference=None if asks_cpu else by_numpy, **attrs)


@given(st.data())
def test_dynamic_quantize_linear(data):
    it = Drawn(data, "DynamicQuantizeLinear")
    shape = it.shape()
    nothing = lambda x: [np.zeros(x.shape, np.uint8), np.float32(1), np.uint8(0)]
    # Of nothing the CPU EP makes what it finds in memory.
    reference = nothing if 0 in shape else None
    it.agrees(it.tensor("float", shape), types=["uint8", "float", "uint8"], wanted=3, reference=reference)


# ---- products


def factors(it):
    """Shapes of two factors, which may be vectors, and of the zero points or scales of each."""
    rows, depth, columns = (it.pick(2, 1, 3, 5, 17, 33, 0) for _ in range(3))
    batch = it(st.lists(st.sampled_from([2, 1, 3, 0]), max_size=3))
    left = it.pick([*it.operand_of(batch), rows, depth], [depth])
    right = it.pick([*it.operand_of(batch), depth, columns], [depth])
    each = [], [1]
    of_rows = it.pick(*each, *([left[-2:-1], [*left[:-1], 1]] if len(left) > 1 else []))
    of_columns = it.pick(*each, *([right[-1:], [*right[:-2], 1, right[-1]]] if len(right) > 1 else []))
    return left, right, of_rows, of_columns


def of_each_row(values):
    if values.size == 1:
        return values.reshape(())
    return values[:, None] if values.ndim == 1 else values


def of_each_column(values):
    return values.reshape(()) if values.size == 1 else values


def shifted(x, zero, is_left):
    x = x.astype(np.int64)
    if zero is None:
        return x
    return x - (of_each_row(zero) if is_left else of_each_column(zero)).astype(np.int64)


@given(st.data())
def test_matmul_integer(data):
    it = Drawn(data, "MatMulInteger")
    left, right, left_zero, right_zero = factors(it)
    kinds = it.pick(*BYTES), it.pick(*BYTES)
    a, b = (values_of(it, kind, shape) for kind, shape in zip(kinds, (left, right)))
    zeros = [zero_of(it, shape, kind) for kind, shape in zip(kinds, (left_zero, right_zero))]
    if it.pick(False, True):
        zeros[it.pick(0, 1)] = None

    # The CPU EP has one zero point for all rows, and may saturate sums of pairs.
    def by_numpy(a, b, a_zero=None, b_zero=None):
        return [np.asarray(np.matmul(shifted(a, a_zero, True), shifted(b, b_zero, False)).astype(np.int32))]

    it.agrees(a, b, *zeros, types=["int32"], reference=by_numpy)


@given(st.data())
def test_qlinear_matmul(data):
    it = Drawn(data, "QLinearMatMul")
    left, right, of_left, of_right = factors(it)
    kinds = [it.pick(*BYTES, *(FLOAT8 if it.opset >= 21 else [])) for _ in range(3)]
    scale_kind = it.pick("float", *(["float16", "bfloat16"] if it.opset >= 21 else []))
    inputs = []
    for kind, shape, each in zip(kinds, (left, right), (of_left, of_right)):
        values = it.tensor(kind, shape, mild=True) if kind in FLOAT8 else values_of(it, kind, shape)
        inputs += [values, scale_of(it, each, scale_kind), zero_of(it, each, kind)]
    inputs += [scale_of(it, [], scale_kind), zero_of(it, [], kinds[2])]

    def by_numpy(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
        a, is_row = (a[None], True) if a.ndim == 1 else (a, False)
        b, is_column = (b[:, None], True) if b.ndim == 1 else (b, False)
        sums = np.matmul(shifted(a, a_zero, True), shifted(b, b_zero, False)).astype(np.float32)
        left, right = of_each_row(a_scale), of_each_column(b_scale)
        scale = left.astype(np.float32) * right.astype(np.float32) / y_scale.astype(np.float32)
        info = np.iinfo(y_zero.dtype)
        made = np.clip(np.rint(sums * scale) + y_zero, info.min, info.max).astype(y_zero.dtype)
        return [np.squeeze(made, (-2,) * is_row + (-1,) * is_column)]

    def of_floats(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
        a, is_row = (a[None], True) if a.ndim == 1 else (a, False)
        b, is_column = (b[:, None], True) if b.ndim == 1 else (b, False)
        left = (a.astype(float) - of_each_row(a_zero)) * of_each_row(a_scale)
        right = (b.astype(float) - of_each_column(b_zero)) * of_each_column(b_scale)
        made = np.matmul(left, right).astype(np.float32) / y_scale.astype(np.float32)
        if kinds[2] not in FLOAT8:
            info = np.iinfo(kinds[2])
            made = np.clip(np.rint(made) + y_zero, info.min, info.max).astype(kinds[2])
        else:  # which saturates
            most = float(ml_dtypes.finfo(NUMPY[kinds[2]]).max)
            made = np.clip(made, -most, most)
        return [np.squeeze(made, (-2,) * is_row + (-1,) * is_column)]

    it.agrees(*inputs, types=[kinds[2]], reference=of_floats if set(kinds) & set(FLOAT8) else by_numpy)
