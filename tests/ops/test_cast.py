"""Cast between all types of numbers, against the CPU EP."""

import ml_dtypes
import numpy as np
import pytest
from encore_session import EP_NAME, assert_all_on_encore, nodes_on
from harness import INTEGERS, SPECIAL, Case, check, floats, integers, session
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

NUMPY = ["float32", "float16", "float64", *INTEGERS, "bool"]
FLOAT8 = {
    "float8e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8e5m2": TensorProto.FLOAT8E5M2,
    "float8e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
}
PACKED = {"INT4": ml_dtypes.int4, "UINT4": ml_dtypes.uint4, "INT2": ml_dtypes.int2, "UINT2": ml_dtypes.uint2}
LARGE = (1 << 18) + 3


def onnx_type(dtype):
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def contents(dtype, *shape):
    """Values that every type can hold."""
    if dtype == "bool":
        return np.asarray(integers("int8", *shape, low=0, high=1)).astype(bool)
    if dtype.startswith("float"):
        return np.round(floats(*shape, low=0, high=100) * 4).astype(dtype) / np.dtype(dtype).type(4)
    return integers(dtype, *shape, low=0, high=100)


def case(x, to, source, **more):
    more = {"family": "exact", "reference": lambda x: [x.astype(to)], **more}
    return Case("Cast", [x], {"to": onnx_type(to)}, dtype=source, name=to, **more)


@pytest.mark.parametrize("to", NUMPY)
@pytest.mark.parametrize("source", NUMPY)
def test_all_pairs(source, to):
    x = contents(source, 3, 37)
    check(case(x, to, source))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,), (8,), (LARGE,)], ids=str)
@pytest.mark.parametrize(
    "source,to", [("float32", "float16"), ("float16", "float32"), ("int64", "int32"), ("bool", "float32")]
)
def test_shapes(source, to, shape):
    x = np.asarray(contents(source, *shape)).reshape(shape)
    check(case(x, to, source))


@pytest.mark.parametrize("source", ["int64", "uint64", "int32", "uint32"])
@pytest.mark.parametrize("to", ["int64", "uint64", "int32", "uint32", "int16", "uint8", "float64", "float32"])
def test_integers_are_exact(source, to):
    info = np.iinfo(source)
    x = np.array(
        [info.max, info.max - 1, info.min, info.min + 1, (1 << 53) + 1 if info.bits == 64 else 12345, 77], source
    )
    check(case(x, to, source))


@pytest.mark.parametrize("to", ["float32", "float16", "float64", "bool"])
@pytest.mark.parametrize("source", ["float32", "float16", "float64"])
def test_special_values(source, to):
    x = np.concatenate([SPECIAL, [65504, 65520, 70000, 6e-8, 2e-8, 1e30, 1e-40]]).astype(np.float32)
    check(case(x, to, source, family="elementwise", reference=_narrow(to)))


def _narrow(to):
    def cast(x):
        with np.errstate(over="ignore"):
            return [x.astype(np.float32).astype(to)]

    return cast


@pytest.mark.parametrize("to", [t for t in INTEGERS])
def test_fractions_go_towards_zero(to):
    x = np.array([0.5, 1.5, 2.9999, 99.999, 0.0, *([-0.5, -1.5, -99.9] if to[0] == "i" else [])], np.float32)
    check(case(x, to, "float32"))


@pytest.mark.parametrize("to", ["int32", "int64"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_what_is_too_large_becomes_the_greatest(source, to):
    x = np.array([1e30, -1e30, np.inf, -np.inf, np.nan], np.float32)
    info = np.iinfo(to)
    wanted = np.array([info.max, info.min, info.max, info.min, 0], to)
    check(case(x, to, source, capture=False, reference=lambda x: [wanted]))


def _model(nodes, source, to, shape, opset=21):
    graph = helper.make_graph(
        nodes,
        "casts",
        [helper.make_tensor_value_info("x", source, shape)],
        [helper.make_tensor_value_info("y", to, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("to", FLOAT8)
def test_float8(to, saturate):
    """Against onnx's reference: without saturation the CPU EP rounds 480 to 448, but 479 to NaN."""
    steps = np.arange(0, 0x7F80, 3, dtype=np.uint32) << 16  # every magnitude of float, roughly
    edges = [448, 463.9, 464, 464.1, 480, 61439, 61440, 61441, 1e5, 240, 247.9, 248, 248.1, 57344, 61439]
    edges = np.array(edges, np.float32)
    x = np.concatenate(
        [SPECIAL, edges, -edges, steps.view(np.float32), -steps.view(np.float32), floats(999, low=-500, high=500)]
    )
    there = helper.make_node("Cast", ["x"], ["n"], to=FLOAT8[to], saturate=saturate)
    back = helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT)
    model = _model([there, back], TensorProto.FLOAT, TensorProto.FLOAT, x.shape)
    sess = session(model)
    assert_all_on_encore(sess)
    np.testing.assert_array_equal(sess.run(None, {"x": x})[0], ReferenceEvaluator(model).run(None, {"x": x})[0])


@pytest.mark.parametrize("other", ["float16", "float64", "int8", "int32", "int64", "uint8", "uint64", "bool"])
@pytest.mark.parametrize("to", FLOAT8)
def test_float8_from_and_to_other_types(to, other):
    x = np.arange(17).astype(other)  # most are exact
    there = helper.make_node("Cast", ["x"], ["n"], to=FLOAT8[to])
    back = helper.make_node("Cast", ["n"], ["y"], to=onnx_type(other))
    sess = session(_model([there, back], onnx_type(other), onnx_type(other), x.shape))
    wanted = ReferenceEvaluator(
        _model([there, helper.make_node("Cast", ["n"], ["y"], to=1)], onnx_type(other), 1, x.shape)
    ).run(None, {"x": x})[0]
    assert_all_on_encore(sess)
    np.testing.assert_array_equal(sess.run(None, {"x": x})[0], wanted.astype(other))


def test_strings_stay_on_the_cpu():
    sess = session(
        _model(
            [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)], TensorProto.FLOAT, TensorProto.STRING, (2,)
        )
    )
    assert EP_NAME not in nodes_on(sess)
    assert sess.run(None, {"x": np.array([1, 2], np.float32)})[0].tolist() == ["1", "2"]


@pytest.mark.parametrize("source,to", [("float32", "float16"), ("uint8", "float32"), ("float16", "int64")])
def test_misaligned(source, to):
    x = contents(source, 1001)
    check(case(x, to, source, misaligned=True))


def test_infinity_of_a_float8_stays_when_nothing_is_cast():
    infinite = numpy_helper.from_array(np.array([np.inf, -np.inf, 57344, 1], ml_dtypes.float8_e5m2), "n")
    nodes = [
        helper.make_node("Identity", ["n"], ["x"]),
        helper.make_node("Cast", ["x"], ["same"], to=TensorProto.FLOAT8E5M2),
        helper.make_node("Cast", ["same"], ["y"], to=TensorProto.FLOAT),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    model = helper.make_model(
        helper.make_graph(nodes, "casts", [], [output], [infinite]),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    sess = session(model)
    assert_all_on_encore(sess)
    np.testing.assert_array_equal(sess.run(None, {})[0], [np.inf, -np.inf, 57344, 1])


def test_cast_like():
    check(
        Case(
            "CastLike", [floats(3, 37), np.zeros(1, np.int32)], opset=19, reference=lambda x, like: [x.astype(np.int32)]
        )
    )


# ---- several elements in a byte


def _there_and_back(x, to, opset=25, steps=(), **attrs):
    """Through the type `to`, where `steps` move it, on Encore alone."""
    nodes = [helper.make_node("Cast", ["x"], ["n0"], to=getattr(TensorProto, to), **attrs)]
    for i, (op, more) in enumerate(steps):
        nodes.append(helper.make_node(op, [f"n{i}"], [f"n{i + 1}"], **more))
    nodes.append(helper.make_node("Cast", [f"n{len(steps)}"], ["y"], to=onnx_type(x.dtype)))
    model = _model(nodes, onnx_type(x.dtype), onnx_type(x.dtype), x.shape, opset)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    sess = session(model)
    assert_all_on_encore(sess)
    return sess.run(None, {"x": x})[0]


@pytest.mark.parametrize("source", ["float32", "float16", "float64", "int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("to", PACKED)
def test_packed(to, source):
    info = ml_dtypes.iinfo(PACKED[to])
    for n in (0, 1, 2, 3, 7, 8, 9, 1001):
        x = integers("int8", n, low=max(info.min, 0) if source[0] == "u" else info.min, high=info.max).astype(source)
        np.testing.assert_array_equal(_there_and_back(x, to), x)


@pytest.mark.parametrize("to", PACKED)
def test_packed_takes_the_low_bits(to):
    x = np.arange(-300, 300, dtype=np.int32)
    np.testing.assert_array_equal(_there_and_back(x, to), x.astype(PACKED[to]).astype(np.int32))


def test_packed_is_rounded():
    """Halves away from zero, as the CPU EP does it."""
    x = np.array([0.5, -0.5, 1.49, 1.5, 2.5, -2.5, -7.6, 6.5, 0.49999997, 0, np.nan], np.float32)
    np.testing.assert_array_equal(_there_and_back(x, "INT4"), np.float32([1, -1, 1, 2, 3, -3, -8, 7, 0, 0, 0]))


def test_float4():
    x = np.concatenate([SPECIAL, floats(999, low=-8, high=8), np.arange(-8, 8, 0.125, np.float32)])
    got, wanted = _there_and_back(x, "FLOAT4E2M1"), x.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two(mode, saturate):
    """What is below the least or above the greatest is as the CPU EP has it; ONNX's tables tell a part of that."""
    least, most = 2.0**-127, 2.0**127
    x = np.array([1, 1.25, 1.5, 1.75, 3, 5, 6, 7, 1e-30, 1e30, least, 1.2 * least, 1.5 * least, 2.5 * least, most])
    exponent = np.log2(x)
    up, down = 2.0 ** np.ceil(exponent), 2.0 ** np.floor(exponent)
    wanted = {"up": up, "down": down, "nearest": np.where(x >= 1.5 * down, up, down)}[mode]
    beyond = np.array([0, -0.0, -1, -np.inf, least / 2, 1.1 * most, np.inf, np.nan])
    ends = np.array([least] * 5 + [most] * 2 + [np.nan]) if saturate else np.full(8, np.nan)
    x = np.concatenate([x, beyond]).astype(np.float32)
    got = _there_and_back(x, "FLOAT8E8M0", saturate=saturate, round_mode=mode)
    np.testing.assert_array_equal(got, np.concatenate([wanted, ends]).astype(np.float32))


@pytest.mark.parametrize("to", [*PACKED, "FLOAT4E2M1", "FLOAT8E4M3FNUZ", "FLOAT8E8M0"])
def test_movement_of_the_narrow(to):
    x = np.abs(integers("int8", 3, 5, 2, low=0, high=1)).astype(np.float32)
    x = x + 1 if to == "FLOAT8E8M0" else x
    for steps, wanted in (
        ([("Identity", {})], x),
        ([("Flatten", {"axis": 2})], x.reshape(15, 2)),
        ([("Transpose", {"perm": [2, 0, 1]})], x.transpose(2, 0, 1)),
        ([("Transpose", {"perm": [1, 0, 2]})], x.transpose(1, 0, 2)),
        ([("Transpose", {}), ("Transpose", {}), ("Identity", {})], x),
    ):
        np.testing.assert_array_equal(_there_and_back(x, to, steps=steps), wanted)


@pytest.mark.parametrize("to", ["INT4", "INT2"])
def test_transposed_bytes(to):
    x = integers("int8", 7, 6, 8, low=-2, high=1).astype(np.float32)
    got = _there_and_back(x, to, steps=[("Transpose", {"perm": [1, 0, 2]})])
    np.testing.assert_array_equal(got, x.transpose(1, 0, 2))
