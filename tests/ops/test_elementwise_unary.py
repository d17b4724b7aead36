"""Operators of one tensor against the CPU EP."""

import math

import numpy as np
import pytest
from encore_session import assert_all_on_encore
from harness import FLOATS, INTEGERS, SPECIAL, Case, Const, bools, check, floats, integers, session
from onnx import TensorProto, helper
from refusal import declined, fails

SIGNED = [t for t in INTEGERS if t[0] == "i"]
LARGE = (1 << 18) + 3  # does not divide into packs

# op -> the least and greatest operand of its random contents
FLOAT_OPS = {
    **dict.fromkeys(["Abs", "Neg", "Sign", "Erf", "Relu", "LeakyRelu", "Elu", "Selu", "Clip"], (-3, 3)),
    **dict.fromkeys(["HardSigmoid", "HardSwish", "Tanh", "Gelu"], (-5, 5)),
    **dict.fromkeys(["Exp", "Ceil", "Floor", "Round", "Sigmoid", "Softplus"], (-9, 9)),
    **{"Log": (0.1, 9), "Sqrt": (0, 9), "Reciprocal": (0.2, 9)},
    **dict.fromkeys(["Sin", "Cos", "Atan", "Sinh", "Cosh", "Asinh"], (-5, 5)),
    **dict.fromkeys(["Asin", "Acos", "Atanh"], (-0.95, 0.95)),
    **{"Tan": (-1.4, 1.4), "Acosh": (1.1, 9), "Shrink": (-1, 1)},
    **dict.fromkeys(["Softsign", "Celu", "Mish", "Swish", "ThresholdedRelu"], (-5, 5)),
}
ATTRIBUTES = [
    ("LeakyRelu", {"alpha": 0.2}),
    ("Elu", {"alpha": 1.7}),
    ("Selu", {"alpha": 1.5, "gamma": 2.0}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("Gelu", {"approximate": "tanh"}),
    ("Celu", {"alpha": 2.5}),
    ("Swish", {"alpha": 1.7}),
    ("ThresholdedRelu", {"alpha": -0.3}),
    ("Shrink", {"lambd": 0.8, "bias": 0.3}),
]
# The versions that brought bfloat16 to these are newer than the opset of the other cases.
NEWEST = {"Elu": 22, "Selu": 22, "HardSigmoid": 22, "HardSwish": 22, "Softplus": 22, "Round": 22}
NEWEST |= dict.fromkeys("Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Softsign ThresholdedRelu".split(), 22)
NEWEST |= {"Mish": 22, "Swish": 24}
# Types that an operator does not have in any opset that onnxruntime loads.
WITHOUT = {("Celu", "float16"), ("Celu", "bfloat16"), ("Celu", "float64"), ("Shrink", "bfloat16")}
# exp and tanh of the CPU EP are polynomials; its erf is one of single precision, near whose zero 1 + erf loses all
# digits; and onnx has HardSwish's 1/6 as a float, in double too.
ROUGH = {
    **dict.fromkeys(["Gelu", "Erf", "Tanh"], (2e-5, 1e-6)),
    **dict.fromkeys(["Sigmoid", "Elu", "Selu"], (1e-5, 1e-6)),
    **{"Exp": (4e-6, 1e-7), "Softplus": (5e-6, 1e-6), "HardSwish": (2e-6, 2e-7)},
    **dict.fromkeys(["Mish", "Swish", "Celu"], (1e-5, 1e-6)),
}
# Where the CPU EP has no kernel for doubles, nor onnx's evaluator one that takes them.
BY_NUMPY = {
    "Asinh": np.arcsinh, "Acosh": np.arccosh, "Atanh": np.arctanh, "Asin": np.arcsin, "Acos": np.arccos,
    "Atan": np.arctan, "Sinh": np.sinh, "Cosh": np.cosh, "Tan": np.tan, "Softsign": lambda x: x / (1 + np.abs(x)),
    "ThresholdedRelu": lambda x: np.where(x > 1, x, 0).astype(x.dtype),
}  # fmt: skip


def by_numpy(op):
    def reference(x):
        with np.errstate(all="ignore"):
            return [BY_NUMPY[op](x)]

    return reference


def case(op, x, dtype="float32", attrs=None, **more):
    more.setdefault("opset", NEWEST.get(op, 21))
    tolerance = ROUGH.get(op) if dtype in ("float32", "float64") else None
    if op in BY_NUMPY and dtype == "float64":
        more.setdefault("reference", by_numpy(op))
    return Case(op, [x], attrs or {}, dtype=dtype, tolerance=more.pop("tolerance", tolerance), **more)


def typed(ops):
    return pytest.mark.parametrize("op,dtype", [(op, t) for op in ops for t in FLOATS if (op, t) not in WITHOUT])


@typed(FLOAT_OPS)
def test_floats(op, dtype):
    low, high = FLOAT_OPS[op]
    check(case(op, floats(3, 37, low=low, high=high), dtype))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (4,), (1, 2, 1, 3, 1, 2, 1, 5), (LARGE,)], ids=str)
@pytest.mark.parametrize("op", ["Relu", "Sigmoid", "Clip"])
def test_shapes(op, shape):
    check(case(op, np.asarray(floats(*shape), np.float32).reshape(shape)))


@typed(FLOAT_OPS)
def test_special_values(op, dtype):
    x = SPECIAL
    if op == "Clip" and dtype in ("float16", "bfloat16"):
        x = x[np.isfinite(x)]  # the reference is in float, whose default bounds are wider
    if op in ("Reciprocal", "HardSwish"):
        x = x[~np.isinf(x) & (x != 0)]  # the sign of an infinity or a zero: below
    if op in ("Selu", "Elu", "Celu", "Mish", "Swish"):
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


NAN_STAYS = "Relu LeakyRelu HardSigmoid HardSwish Clip Sigmoid Gelu Softplus Mish Swish Celu Softsign Sin Acos".split()


@pytest.mark.parametrize("op", NAN_STAYS)
def test_nan_stays(op):
    check(case(op, np.full(5, np.nan, np.float32), reference=lambda x: [x]))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op,attrs", ATTRIBUTES, ids=lambda v: str(v) if isinstance(v, str) else "")
def test_attributes(op, attrs, dtype):
    if (op, dtype) in WITHOUT:
        dtype = "float32"
    check(case(op, floats(5, 9), dtype, attrs))


def _normal(x):  # of x, how much is less
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


# For half types some functions have fewer instructions; here is every half there is.
HALF_FORMULAS = {
    "Gelu": lambda x: x * _normal(x),
    "Erf": lambda x: np.array([math.erf(v) for v in x]),
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Swish": lambda x: x / (1 + np.exp(-x)),
    "Mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
}


@pytest.mark.parametrize("attrs", [{}, {"approximate": "tanh"}], ids=["", "tanh"])
@pytest.mark.parametrize("op", HALF_FORMULAS)
def test_every_half(op, attrs):
    if attrs and op != "Gelu":
        return
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)]

    def reference(x):
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):
            if attrs:
                y = wide / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
            else:
                y = HALF_FORMULAS[op](wide)
        return [y.astype(np.float32)]

    check(case(op, x, "float16", attrs, reference=reference))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["Abs", "Sign"])
def test_integers(op, dtype):
    check(case(op, integers(dtype, 3, 37), dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shrink_of_integers(dtype):
    def shrunk(x, lambd=3.5, bias=1.0):
        wide = x.astype(np.float64)
        return [np.where(wide < -lambd, wide + bias, np.where(wide > lambd, wide - bias, 0)).astype(dtype)]

    check(case("Shrink", integers(dtype, 3, 37), dtype, {"lambd": 3.5, "bias": 1.0}, reference=shrunk))


@pytest.mark.parametrize("dtype", FLOATS)
def test_far_from_zero(dtype):
    """Arguments of sine and cosine are reduced without loss, and a hyperbolic function does not overflow early."""
    x = np.array([1e3, -1e4, 6e4, 2.5e4, -30000.5], np.float32)
    for op, f in [("Sin", np.sin), ("Cos", np.cos), ("Atan", np.arctan), ("Asinh", np.arcsinh)]:
        check(case(op, x, dtype, reference=lambda x, f=f: [f(x.astype(np.float64)).astype(x.dtype)]))
    check(case("Mish", x, dtype, reference=lambda x: [np.maximum(x, 0)]))


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


def float8_found(op, kind, **attrs):
    """Of all patterns of a float8 type those for which a test is true."""
    patterns = helper.make_tensor("x", kind, [256], bytes(range(256)), raw=True)
    output = helper.make_tensor_value_info("y", TensorProto.BOOL, [256])
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attrs)], "float8", [], [output], [patterns])
    sess = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    assert_all_on_encore(sess)
    return np.flatnonzero(sess.run(None, {})[0]).tolist()


@pytest.mark.parametrize("kind", NANS)
def test_is_nan_of_float8(kind):
    assert float8_found("IsNaN", kind) == NANS[kind]


@pytest.mark.parametrize("kind", NANS)
def test_is_inf_of_float8(kind):
    infinite = [0x7C, 0xFC] if kind == TensorProto.FLOAT8E5M2 else []
    assert float8_found("IsInf", kind) == infinite
    assert float8_found("IsInf", kind, detect_positive=0) == infinite[1:]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("negative,positive", [(None, None), (0, 1), (1, 0), (0, 0)])
def test_is_inf(negative, positive, dtype):
    attrs = {} if negative is None else {"detect_negative": negative, "detect_positive": positive}
    check(Case("IsInf", [np.concatenate([SPECIAL, floats(33)])], attrs, dtype=dtype, name=f"{negative}{positive}"))
    if dtype in ("float32", "float64"):
        check(Case("IsInf", [SPECIAL], attrs, dtype=dtype, opset=10))


def test_celu_by_zero_is_declined():
    declined("Celu", [floats(3)], {"alpha": 0.0})


MISALIGNED = [("Relu", "float32"), ("Tanh", "float16"), ("Abs", "int8"), ("Neg", "float64"), ("Cos", "bfloat16")]


@pytest.mark.parametrize("op,dtype", MISALIGNED)
def test_misaligned(op, dtype):
    x = floats(1001) if dtype in FLOATS else integers(dtype, 1001)
    check(case(op, x, dtype, misaligned=True))
