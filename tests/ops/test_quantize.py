"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear, against the CPU EP where it has the types."""

import ml_dtypes
import numpy as np
import pytest
from encore_session import assert_all_on_encore
from harness import Case, Const, check, floats, integers, session
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from refusal import declined, fails

PLAIN = ["int8", "uint8", "int16", "uint16"]
FLOAT8 = {
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "FLOAT8E5M2": ml_dtypes.float8_e5m2,
    "FLOAT8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
PACKED = {"INT4": ml_dtypes.int4, "UINT4": ml_dtypes.uint4, "INT2": ml_dtypes.int2, "UINT2": ml_dtypes.uint2}
LARGE = (1 << 18) + 3


def scales(*shape):
    return floats(*shape, low=0.01, high=0.7)


def zeros(dtype, *shape):
    return Const(integers(dtype, *shape, low=0, high=100))


# ---- types that numpy has


@pytest.mark.parametrize("shape", [(), (0,), (5,), (8,), (3, 37), (2, 3, 4, 5), (LARGE,)], ids=str)
@pytest.mark.parametrize("to", PLAIN)
def test_quantize_per_tensor(to, shape):
    x = np.asarray(floats(*shape, low=-60, high=60)).reshape(shape)
    check(Case("QuantizeLinear", [x, scales(), zeros(to)], name=to, family="exact"))


@pytest.mark.parametrize("shape,axis", [((3, 37), 1), ((3, 37), 0), ((2, 5, 4, 3), 1), ((2, 5, 4, 3), -1), ((2, 0), 1)])
@pytest.mark.parametrize("to", ["int8", "uint8"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_quantize_per_axis(dtype, to, shape, axis):
    x, n = floats(*shape, low=-60, high=60), shape[axis]
    check(Case("QuantizeLinear", [x, scales(n), zeros(to, n)], {"axis": axis}, dtype=dtype, name=to, family="exact"))


@pytest.mark.parametrize("shape,axis,block", [((3, 37), 1, 5), ((6, 37), 0, 4), ((2, 9, 4), 1, 3), ((2, 70), -1, 64)])
@pytest.mark.parametrize("to", PLAIN)
def test_quantize_blocks(to, shape, axis, block):
    scale = list(shape)
    scale[axis] = -(-shape[axis] // block)
    attrs = {"axis": axis, "block_size": block}
    x = floats(*shape, low=-60, high=60)
    check(Case("QuantizeLinear", [x, scales(*scale), zeros(to, *scale)], attrs, name=to, family="exact"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("to", ["int8", "uint8"])
def test_quantize_rounds_and_saturates(to, dtype):
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1e4, -1e4, np.inf, -np.inf, 127.5, -128.5, 255.5, 0.49], np.float32)
    zero = np.array(0 if to == "int8" else 3, to)

    def reference(x, scale, zero):
        info = np.iinfo(to)
        return [np.clip(np.rint(x / scale) + zero, info.min, info.max).astype(to)]

    check(
        Case(
            "QuantizeLinear", [x, np.float32(1), Const(zero)], dtype=dtype, name=to, family="exact", reference=reference
        )
    )


def test_nan_becomes_the_least():
    for to, least in (("int8", -128), ("uint8", 0)):
        wanted = np.array([least, 1], to)
        x = np.array([np.nan, 1], np.float32)
        check(
            Case(
                "QuantizeLinear",
                [x, np.float32(1), Const(np.zeros((), to))],
                name=to,
                family="exact",
                capture=False,
                reference=lambda *_, wanted=wanted: [wanted],
            )
        )


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 24, 25])
def test_versions(opset):
    check(Case("QuantizeLinear", [floats(3, 37), scales(), zeros("uint8")], opset=opset, family="exact"))
    check(Case("QuantizeLinear", [floats(3, 37), scales()], opset=opset, family="exact"))
    check(Case("DequantizeLinear", [integers("int8", 3, 37), scales(), zeros("int8")], opset=opset, family="exact"))
    check(Case("DequantizeLinear", [integers("int32", 3, 37), scales()], opset=opset, family="exact"))


@pytest.mark.parametrize("misaligned", [False, True])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 37), (LARGE,)], ids=str)
@pytest.mark.parametrize("source", [*PLAIN, "int32"])
def test_dequantize_per_tensor(source, shape, misaligned):
    x = np.asarray(integers(source, *shape)).reshape(shape)
    zero = [] if source == "int32" else [zeros(source)]
    check(Case("DequantizeLinear", [x, scales(), *zero], name=source, family="exact", misaligned=misaligned))


def test_quantize_misaligned():
    check(Case("QuantizeLinear", [floats(1001), scales(), zeros("int8")], family="exact", misaligned=True))


def dequantized(x, scale, zero, axis, block=None):
    """In float, as the CPU EP has it, whatever the type of the scale."""
    if block:
        scale, zero = (np.repeat(a, block, axis).take(range(x.shape[axis]), axis) for a in (scale, zero))
    elif scale.ndim:
        shape = [1] * x.ndim
        shape[axis] = -1
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return [(x.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "shape,axis,block", [((3, 37), 1, 0), ((5, 8), 0, 0), ((2, 5, 4, 3), 1, 0), ((3, 37), 1, 5), ((2, 9, 4), 1, 3)]
)
@pytest.mark.parametrize("source", ["int8", "uint8", "uint16"])
def test_dequantize_per_axis_and_block(source, shape, axis, block, dtype):
    scale = [shape[axis]]
    if block:
        scale = list(shape)
        scale[axis] = -(-shape[axis] // block)
    attrs = {"axis": axis, **({"block_size": block} if block else {})}
    check(
        Case(
            "DequantizeLinear",
            [integers(source, *shape), scales(*scale), zeros(source, *scale)],
            attrs,
            dtype=dtype,
            name=f"{source}-{block}",
            reference=lambda x, s, z: dequantized(x, s, z, axis, block),
        )
    )


def test_microsofts():
    x = floats(3, 37, low=-60, high=60)
    for dtype in ("float32", "float16"):
        more = {"domain": "com.microsoft", "dtype": dtype}
        check(Case("QuantizeLinear", [x, scales(), zeros("uint8")], family="exact", **more))
        reference = lambda x, s, z: dequantized(x, s, z, 1)
        inputs = [integers("int8", 3, 37), scales(37), zeros("int8", 37)]
        check(Case("DequantizeLinear", inputs, {"axis": 1}, reference=reference, **more))


# ---- types that numpy has not: everything else in the model is a Cast


def run(nodes, feeds, constants=None, output=TensorProto.FLOAT, opset=25):
    """The output 'y' on Encore, which takes all nodes; and the model."""
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [out], **attrs) for op, inputs, out, attrs in nodes],
        "chain",
        values,
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    sess = session(model)
    assert_all_on_encore(sess)
    return sess.run(None, feeds)[0], model


def same_as_reference(nodes, feeds, constants=None, output=TensorProto.FLOAT, opset=25):
    got, model = run(nodes, feeds, constants, output, opset)
    wanted = ReferenceEvaluator(model).run(None, feeds)[0]
    np.testing.assert_array_equal(got, wanted)


TO_FLOAT = ("Cast", ["q"], "y", {"to": TensorProto.FLOAT})
EDGES = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 239, 247.9, 248, 249, 448, 463, 465, 57344, 61439, 61441, 1e9])


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("to", FLOAT8)
def test_quantize_to_float8(to, saturate):
    x = np.concatenate([EDGES, -EDGES, floats(999, low=-600, high=600)]).astype(np.float32)
    constants = {"s": np.float32([0.5]).reshape(()), "z": np.zeros((), FLOAT8[to])}
    same_as_reference([("QuantizeLinear", ["x", "s", "z"], "q", {"saturate": saturate}), TO_FLOAT], {"x": x}, constants)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1001])
@pytest.mark.parametrize("to", PACKED)
def test_quantize_to_packed(to, n):
    x = floats(3, n, low=-12, high=12)
    constants = {"s": scales(3), "z": np.array([0, 1, 1]).astype(PACKED[to])}
    nodes = [("QuantizeLinear", ["x", "s", "z"], "q", {"axis": 0}), TO_FLOAT]
    same_as_reference(nodes, {"x": x}, constants)


@pytest.mark.parametrize("to", ["INT4", "UINT4", "INT2", "UINT2", "INT16", "FLOAT8E4M3FNUZ", "FLOAT4E2M1"])
def test_output_dtype_without_a_zero_point(to):
    x = floats(5, 33, low=-12, high=12)
    nodes = [("QuantizeLinear", ["x", "s"], "q", {"output_dtype": getattr(TensorProto, to)}), TO_FLOAT]
    same_as_reference(nodes, {"x": x}, {"s": np.float32(0.5)})


WAYS = [
    ((3, 5), (5, 4), (), ()),
    ((2, 3, 40), (40, 6), (3,), (6,)),
    ((7,), (2, 7, 3), (), (2, 1, 3)),
    ((2, 0), (0, 3), (), ()),
]


@pytest.mark.parametrize("a,b,a_scale,b_scale", WAYS, ids=str)
@pytest.mark.parametrize("to", [*FLOAT8, "INT8"])
@pytest.mark.parametrize("source", FLOAT8)
def test_product_of_float8(source, to, a, b, a_scale, b_scale):
    """Of few digits, so that the sums are exact in any order; the CPU EP has bytes only."""
    kinds = FLOAT8 | {"INT8": np.int8}
    x, y = (np.rint(floats(*shape, low=-4, high=4)) for shape in (a, b))
    steps = lambda shape: np.array(2.0 ** -integers("int8", *shape, low=0, high=2), np.float32).reshape(shape)
    left, right = steps(a_scale), steps(b_scale)
    constants = {
        "as": left,
        "az": np.zeros(a_scale, kinds[source]),
        "bs": right,
        "bz": np.zeros(b_scale, kinds[source]),
    }
    constants |= {"ys": np.array(0.5, np.float32), "yz": np.array(0, kinds[to])}
    nodes = [("Cast", [name], f"{name}q", {"to": getattr(TensorProto, source)}) for name in "ab"]
    nodes.append(("QLinearMatMul", ["aq", "as", "az", "bq", "bs", "bz", "ys", "yz"], "q", {}))
    got, _ = run([*nodes, TO_FLOAT], {"a": x, "b": y}, constants)
    made = np.matmul(x * (left[:, None] if left.ndim == 1 else left), y * right) / 0.5
    if to == "INT8":
        wanted = np.clip(np.rint(made), -128, 127)
    else:
        most = float(ml_dtypes.finfo(kinds[to]).max)
        wanted = np.clip(made, -most, most).astype(kinds[to])
    np.testing.assert_array_equal(got, wanted.astype(np.float32))


@pytest.mark.parametrize("source", [*FLOAT8, *PACKED, "FLOAT4E2M1"])
@pytest.mark.parametrize("block", [0, 4])
def test_dequantize(source, block):
    x = integers("int8", 3, 33, low=-2 if "INT2" in source else -6, high=1 if "INT2" in source else 6)
    x = abs(x) if source[0] == "U" else x
    made = ("Cast", ["x"], "q", {"to": getattr(TensorProto, source)})
    attrs = {"axis": 1, "block_size": block} if block else {"axis": 1}
    constants = {"s": scales(3, 9) if block else scales(33)}
    same_as_reference([made, ("DequantizeLinear", ["q", "s"], "y", attrs)], {"x": x.astype(np.float32)}, constants)


def test_scales_that_are_powers_of_two():
    x = floats(4, 64, low=-6, high=6)
    powers = np.array([0.25, 0.5, 1.0, 2.0], np.float32).repeat(2).reshape(4, 2).astype(ml_dtypes.float8_e8m0fnu)
    attrs = {"axis": 1, "block_size": 32}
    nodes = [
        ("QuantizeLinear", ["x", "s"], "q", {**attrs, "output_dtype": TensorProto.FLOAT8E4M3FN, "precision": 1}),
        ("DequantizeLinear", ["q", "s"], "y", {**attrs, "output_dtype": TensorProto.FLOAT}),
    ]
    got, _ = run(nodes, {"x": x}, {"s": powers})
    scale = powers.astype(np.float32).repeat(32, 1)
    np.testing.assert_array_equal(got, (x / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale)


def test_precision_of_the_quotient():
    x = floats(3, 333, low=-60, high=60)
    for precision in (TensorProto.FLOAT16, TensorProto.FLOAT):
        nodes = [("QuantizeLinear", ["x", "s", "z"], "y", {"precision": precision})]
        same_as_reference(nodes, {"x": x}, {"s": np.float32(0.011), "z": np.zeros((), np.int16)}, TensorProto.INT16)


@pytest.mark.parametrize("opset", [21, 23, 25])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_quotient_has_the_precision_of_its_scale(dtype, opset):
    """From opset 23 on, before which it has a float's."""
    x, scale = floats(3, 333, low=-60, high=60).astype(dtype).astype(np.float32), np.float32(0.01953125)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        ("Cast", ["x"], "narrow", {"to": kind}),
        ("Cast", ["s"], "scale", {"to": kind}),
        ("QuantizeLinear", ["narrow", "scale", "z"], "y", {}),
    ]
    constants = {"s": scale, "z": np.zeros((), np.int16)}
    got, _ = run(nodes, {"x": x}, constants, TensorProto.INT16, opset=opset)
    quotient = x / scale if opset < 23 else (x / scale).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(got, np.rint(quotient).astype(np.int16))


@pytest.mark.parametrize("precision", [-1, TensorProto.INT64, 999, 2**32, 2**32 + 1])
def test_a_precision_that_is_none_is_declined(precision):
    declined("QuantizeLinear", [floats(3, 4), np.float32(0.1)], {"precision": precision}, opset=25)


# ---- DynamicQuantizeLinear


@pytest.mark.parametrize("shape", [(1,), (3, 37), (LARGE,), (0,)], ids=str)
@pytest.mark.parametrize("low,high", [(-3, 3), (1, 5), (-5, -1)])
def test_dynamic(shape, low, high):
    check(
        Case(
            "DynamicQuantizeLinear",
            [np.asarray(floats(*shape, low=low, high=high))],
            opset=11,
            outputs=3,
            family="exact",
            reference=dynamic if shape == (0,) else None,  # of nothing the CPU EP makes what it finds in memory
        )
    )


def dynamic(x):
    return [np.zeros(x.shape, np.uint8), np.float32(1), np.uint8(0)]


def test_dynamic_of_zeros():
    check(Case("DynamicQuantizeLinear", [np.zeros((3, 5), np.float32)], opset=11, outputs=3, family="exact"))


# ---- refusals


def test_scales_that_do_not_fit():
    x = floats(3, 4)
    fails("QuantizeLinear", [x, scales(3)], {"axis": 1}, r"the scale has shape \[3\]; dimension 1")
    fails("QuantizeLinear", [x, scales(4)], {"axis": 7}, r"axis 7 is outside")
    fails("QuantizeLinear", [x, scales(3, 3)], {"axis": 1, "block_size": 2}, r"blocks of 2 along dimension 1")
    fails("DequantizeLinear", [integers("int8", 3, 4), scales(4), zeros("int8")], {}, "the zero point has shape")
