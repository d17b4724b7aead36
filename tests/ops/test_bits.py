"""Operators that see integers as bits, and BitCast, against NumPy: the CPU EP lacks some types."""

import numpy as np
import pytest
from encore_session import NEWEST_OPSET, ORT_VERSION, only_if
from harness import INTEGERS, Case, _onnx_type, bools, check, floats, integers
from onnx import TensorProto
from refusal import declined, fails

LOGIC = {"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor}
UNSIGNED = [t for t in INTEGERS if t[0] == "u"]
SIGNED = [t for t in INTEGERS if t[0] != "u"]
LARGE = (1 << 18) + 3  # does not divide into packs


def any_bits(dtype, *shape):
    kind = np.dtype(dtype)
    return integers("uint8", *shape, kind.itemsize, low=0, high=255).view(kind).reshape(shape)


def logic(op, a, b, dtype, **more):
    check(Case(op, [a, b], dtype=dtype, reference=lambda a, b: [LOGIC[op](a, b)], **more))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", LOGIC)
def test_logic(op, dtype):
    logic(op, any_bits(dtype, 5, 37), any_bits(dtype, 37), dtype)


@pytest.mark.parametrize("a,b", [((), ()), ((0, 3), (3,)), ((2, 1, 4), (3, 1)), ((LARGE,), (LARGE,))], ids=str)
def test_logic_of_shapes(a, b):
    logic("BitwiseXor", any_bits("int32", *a), any_bits("int32", *b), "int32")


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_logic_misaligned(dtype):
    logic("BitwiseAnd", any_bits(dtype, 1001), any_bits(dtype, 1001), dtype, misaligned=True)


@pytest.mark.parametrize("shape", [(), (0,), (5, 37), (LARGE,)], ids=str)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_not(dtype, shape):
    check(Case("BitwiseNot", [any_bits(dtype, *shape)], dtype=dtype, reference=lambda x: [np.asarray(~x)]))


def shifted(x, bits, left):
    """As many zeros, or signs, as there are bits, at most; NumPy's own shift leaves larger ones open."""
    bits = bits.astype(np.uint64)
    width = np.uint64(8 * x.itemsize)
    by = np.minimum(bits, width - np.uint64(1)).astype(x.dtype)
    sign = np.zeros_like(x) if left else np.where(x < 0, ~np.zeros_like(x), np.zeros_like(x))
    return np.where(bits < width, np.left_shift(x, by) if left else np.right_shift(x, by), sign).astype(x.dtype)


def shift(x, bits, direction, **more):
    reference = lambda x, bits: [shifted(x, bits, direction == "LEFT")]
    check(Case("BitShift", [x, bits], {"direction": direction}, dtype=x.dtype.name, name=direction,
               reference=reference, **more))  # fmt: skip


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_shift(dtype, direction):
    x, bits = any_bits(dtype, 5, 80), integers(dtype, 5, 80, low=0, high=70)
    bits[0, :4] = np.iinfo(dtype).max
    shift(x, bits, direction)


@only_if(NEWEST_OPSET >= 28)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", SIGNED)
def test_signed_shift(dtype, direction):
    """By less than nothing is by more than there is."""
    x, bits = any_bits(dtype, 5, 80), integers(dtype, 5, 80, low=-4, high=70)
    x[0, :4] = bits[0, 2:6] = np.iinfo(dtype).min
    shift(x, bits, direction, opset=28)
    shift(any_bits(dtype, LARGE), any_bits(dtype, 1), direction, opset=28)
    shift(any_bits(dtype, 7, 1001), bits[0, :7].reshape(7, 1), direction, opset=28, misaligned=True)


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64"])
def test_shift_as_the_cpu_does(dtype):
    x, bits = any_bits(dtype, 4, 33), integers(dtype, 33, low=0, high=7)
    check(Case("BitShift", [x, bits], {"direction": "LEFT"}, dtype=dtype, opset=11))


def test_shift_elsewhere_is_declined():
    declined("BitShift", [any_bits("uint8", 3), any_bits("uint8", 3)], {"direction": "UP"})


def test_shapes_that_do_not_fit():
    fails("BitwiseOr", [any_bits("int8", 2, 3), any_bits("int8", 4)], {}, r"\[2,3\] and \[4\] cannot be broadcast")


CASTS = [
    ("float32", "int32"), ("uint32", "float32"), ("float64", "uint64"), ("int64", "float64"), ("float16", "int16"),
    ("uint16", "float16"), ("int8", "uint8"), ("bool", "uint8"), ("float32", "float32"),
]  # fmt: skip


@only_if(ORT_VERSION >= (1, 26))
@pytest.mark.parametrize("shape", [(5, 37), (), (0, 3)], ids=str)
@pytest.mark.parametrize("source,target", CASTS)
def test_bit_cast(source, target, shape):
    made = {"b": bools, "f": floats}.get(source[0])
    x = np.asarray(made(*shape) if made else any_bits(source, *shape)).reshape(shape)
    attrs = {"to": _onnx_type(target)}

    def reference(x):
        return [np.asarray(x).astype(source).view(target)]  # a half comes as a float that has been rounded

    check(Case("BitCast", [x], attrs, dtype=source, opset=26, name=target, reference=reference))


@only_if(ORT_VERSION >= (1, 26))
def test_bit_cast_to_bfloat16_and_back():
    x = any_bits("int16", 33)
    made = (x.astype(np.int32) << 16).view(np.float32)
    x, made = x[np.isfinite(made)], made[np.isfinite(made)]
    attrs = {"to": TensorProto.BFLOAT16}
    check(Case("BitCast", [x], attrs, dtype="bfloat16", opset=26, capture=False, reference=lambda x: [made]))


@only_if(ORT_VERSION >= (1, 26))
def test_bit_cast_to_another_size_is_declined():
    declined("BitCast", [floats(3)], {"to": TensorProto.DOUBLE}, opset=26)
