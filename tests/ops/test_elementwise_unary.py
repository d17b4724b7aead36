"""Operators of one tensor against the CPU EP."""

import numpy as np
import pytest
from encore_session import assert_all_on_encore
from harness import FLOATS, INTEGERS, SPECIAL, Case, Const, bools, check, floats, integers, session
from onnx import TensorProto, helper
from refusal import fails

SIGNED = [t for t in INTEGERS if t[0] == "i"]
LARGE = (1 << 20) + 3  # does not divide into packs

# op -> the least and greatest operand of its random contents
FLOAT_OPS = {
    **dict.fromkeys(["Abs", "Neg", "Sign", "Erf", "Relu", "LeakyRelu", "Elu", "Selu", "Clip"], (-3, 3)),
    **dict.fromkeys(["HardSigmoid", "HardSwish", "Tanh", "Gelu"], (-5, 5)),
    **dict.fromkeys(["Exp", "Ceil", "Floor", "Round", "Sigmoid", "Softplus"], (-9, 9)),
    **{"Log": (0.1, 9), "Sqrt": (0, 9), "Reciprocal": (0.2, 9)},
}
ATTRIBUTES = [
    ("LeakyRelu", {"alpha": 0.2}),
    ("Elu", {"alpha": 1.7}),
    ("Selu", {"alpha": 1.5, "gamma": 2.0}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("Gelu", {"approximate": "tanh"}),
]
# The versions that brought bfloat16 to these are newer than the opset of the other cases.
NEWEST = {"Elu": 22, "Selu": 22, "HardSigmoid": 22, "HardSwish": 22, "Softplus": 22, "Round": 22}
# exp and tanh of the CPU EP are polynomials; its erf is one of single precision, near whose zero 1 + erf loses all
# digits; and onnx has HardSwish's 1/6 as a float, in double too.
ROUGH = {
    **dict.fromkeys(["Gelu", "Erf", "Tanh"], (2e-5, 1e-6)),
    **dict.fromkeys(["Sigmoid", "Elu", "Selu"], (1e-5, 1e-6)),
    **{"Exp": (4e-6, 1e-7), "Softplus": (5e-6, 1e-6), "HardSwish": (2e-6, 2e-7)},
}


def case(op, x, dtype="float32", attrs=None, **more):
    more.setdefault("opset", NEWEST.get(op, 21))
    tolerance = ROUGH.get(op) if dtype in ("float32", "float64") else None
    return Case(op, [x], attrs or {}, dtype=dtype, tolerance=more.pop("tolerance", tolerance), **more)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_floats(op, dtype):
    low, high = FLOAT_OPS[op]
    check(case(op, floats(3, 37, low=low, high=high), dtype))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (4,), (1, 2, 1, 3, 1, 2, 1, 5), (LARGE,)], ids=str)
@pytest.mark.parametrize("op", ["Relu", "Sigmoid", "Clip"])
def test_shapes(op, shape):
    check(case(op, np.asarray(floats(*shape), np.float32).reshape(shape)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_special_values(op, dtype):
    x = SPECIAL
    if op == "Clip" and dtype in ("float16", "bfloat16"):
        x = x[np.isfinite(x)]  # the reference is in float, whose default bounds are wider
    if op in ("Reciprocal", "HardSwish"):
        x = x[~np.isinf(x) & (x != 0)]  # the sign of an infinity or a zero: below
    if op == "Selu" or op == "Elu":
        x = x[~np.isneginf(x)]
    check(case(op, x, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_ends_of_the_range(dtype):
    """Where the CPU EP's own answers differ from one version to another, ONNX's formulas decide."""
    inf = np.array([np.inf, -np.inf], np.float32)
    ends = np.array([np.inf, -np.inf, 0], np.float32)
    check(case("Reciprocal", ends, dtype, reference=lambda x: [np.where(x == 0, np.float32(np.inf), np.float32(0))]))
    check(case("HardSwish", inf[:1], dtype, reference=lambda x: [x]))
    check(case("Elu", inf, dtype, {"alpha": 2.0}, reference=lambda x: [np.where(x > 0, x, np.float32(-2))]))


@pytest.mark.parametrize("op", ["Relu", "LeakyRelu", "HardSigmoid", "HardSwish", "Clip", "Sigmoid", "Gelu", "Softplus"])
def test_nan_stays(op):
    check(case(op, np.full(5, np.nan, np.float32), reference=lambda x: [x]))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op,attrs", ATTRIBUTES, ids=lambda v: str(v) if isinstance(v, str) else "")
def test_attributes(op, attrs, dtype):
    check(case(op, floats(5, 9), dtype, attrs))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["Abs", "Sign"])
def test_integers(op, dtype):
    check(case(op, integers(dtype, 3, 37), dtype))


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("op", ["Neg", "Relu"])
def test_signed_integers(op, dtype):
    check(case(op, integers(dtype, 3, 37), dtype))


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("op", ["Abs", "Neg"])
def test_least_integer_is_its_own_negative(op, dtype):
    x = np.array([np.iinfo(dtype).min, -1, 0, 1], dtype)
    f = {"Abs": np.abs, "Neg": np.negative}[op]
    check(case(op, x, dtype, reference=lambda x: [f(x)]))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_clip_by_tensors(dtype):
    is_float = dtype in FLOATS
    x = floats(7, 9) if is_float else integers(dtype, 7, 9)
    low, high = (np.array(bound, np.float32 if is_float else dtype) for bound in ((-1.5, 2.0) if is_float else (3, 40)))
    check(Case("Clip", [x, low, high], dtype=dtype, name="both"))
    check(Case("Clip", [x, None, high], dtype=dtype, name="upper"))
    check(Case("Clip", [x, low], dtype=dtype, name="lower"))
    check(Case("Clip", [x, Const(low), Const(high)], dtype=dtype, name="constant"))


def test_clip_by_a_matrix():
    fails("Clip", [floats(2, 3), np.ones((1, 1), np.float32)], {}, r"min has shape \[1,1\]; it must be a scalar")
    check(Case("Clip", [floats(2, 3), np.ones(1, np.float32)], name="vector of one"))


def test_clip_with_crossed_bounds_gives_the_greater():
    x, low, high = floats(9), np.float32(1), np.float32(-1)
    check(
        Case(
            "Clip",
            [x, np.asarray(low), np.asarray(high)],
            reference=lambda x, low, high: [np.minimum(np.maximum(x, low), high)],
        )
    )


@pytest.mark.parametrize("opset,attrs", [(10, {}), (10, {"min": -1.0}), (10, {"min": -0.5, "max": 1.5})], ids=str)
def test_clip_by_attributes(opset, attrs):
    check(Case("Clip", [floats(7, 9)], attrs, opset=opset))


@pytest.mark.parametrize("opset", [7, 13, 21])
@pytest.mark.parametrize("op", ["Abs", "Exp", "Sigmoid", "Relu", "Softplus"])
def test_opsets(op, opset):
    check(case(op, floats(3, 5), opset=opset))


def test_not():
    check(Case("Not", [bools(3, 37)]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_is_nan(dtype):
    check(Case("IsNaN", [SPECIAL], dtype=dtype))


NANS = {  # patterns of an 8-bit float type that are NaN
    TensorProto.FLOAT8E4M3FN: [0x7F, 0xFF], TensorProto.FLOAT8E5M2: [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF],
    TensorProto.FLOAT8E4M3FNUZ: [0x80], TensorProto.FLOAT8E5M2FNUZ: [0x80],
}  # fmt: skip


@pytest.mark.parametrize("kind", NANS)
def test_is_nan_of_float8(kind):
    patterns = helper.make_tensor("x", kind, [256], bytes(range(256)), raw=True)
    output = helper.make_tensor_value_info("y", TensorProto.BOOL, [256])
    graph = helper.make_graph([helper.make_node("IsNaN", ["x"], ["y"])], "nan", [], [output], [patterns])
    sess = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    assert_all_on_encore(sess)
    assert np.flatnonzero(sess.run(None, {})[0]).tolist() == NANS[kind]


@pytest.mark.parametrize("op,dtype", [("Relu", "float32"), ("Tanh", "float16"), ("Abs", "int8"), ("Neg", "float64")])
def test_misaligned(op, dtype):
    x = floats(1001) if dtype in FLOATS else integers(dtype, 1001)
    check(case(op, x, dtype, misaligned=True))
