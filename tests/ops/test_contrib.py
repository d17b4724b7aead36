"""Operators of com.microsoft against the CPU EP, or NumPy in the types that it lacks."""

import math

import encore_session
import numpy as np
import onnx
import pytest
from harness import FLOATS, SPECIAL, Case, check, floats
from onnx import helper
from refusal import fails

MICROSOFT = "com.microsoft"
ALPHA = float(np.float32(1.702))
erf = np.vectorize(math.erf, otypes=[np.float64])


def exact(x, bias=0):
    x = x.astype(np.float64) + bias
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def fast(x, bias=0):
    x = x.astype(np.float64) + bias
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick(x, alpha=ALPHA):
    x = x.astype(np.float64)
    return x / (1 + np.exp(-alpha * x))


def gelu(op, numpy_op, inputs, dtype, **attrs):
    misaligned = attrs.pop("misaligned", False)

    def reference(*arrays):
        return [numpy_op(*arrays, **attrs).astype(np.float64 if dtype == "float64" else np.float32)]

    more = {"domain": MICROSOFT, "reference": reference, "family": "gelu", "misaligned": misaligned}
    return Case(op, inputs, attrs, dtype=dtype, **more)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 64), (0, 4), (1,), ((1 << 16) + 3,)], ids=str)
def test_gelu(shape, dtype):
    check(gelu("Gelu", exact, [floats(*shape)], dtype))
    check(gelu("QuickGelu", quick, [floats(*shape)], dtype))
    check(gelu("FastGelu", fast, [floats(*shape)], dtype))
    check(gelu("BiasGelu", exact, [floats(*shape), floats(shape[-1])], dtype))
    check(gelu("FastGelu", fast, [floats(*shape), floats(shape[-1])], dtype))


@pytest.mark.parametrize(
    "op,inputs", [("Gelu", 1), ("QuickGelu", 1), ("FastGelu", 1), ("FastGelu", 2), ("BiasGelu", 2)]
)
def test_against_the_cpu(op, inputs):
    check(Case(op, [floats(4, 33), floats(33)][:inputs], domain=MICROSOFT, tolerance=(2e-5, 1e-6)))


def test_quick_gelu_alpha():
    check(gelu("QuickGelu", quick, [floats(4, 33)], "float32", alpha=1.0))


def test_gelu_misaligned():
    check(gelu("FastGelu", fast, [floats(4, 32), floats(32)], "float32", misaligned=True))
    check(gelu("Gelu", exact, [floats(4, 32)], "float32", misaligned=True))


@pytest.mark.parametrize("op,numpy_op", [("Gelu", exact), ("FastGelu", fast)])
def test_gelu_special_values(op, numpy_op):
    with np.errstate(invalid="ignore"):
        check(gelu(op, numpy_op, [SPECIAL], "float32"))


def skip_layer_norm(shape, skip_shape=None, dtype="float32", beta=True, bias=True, sum=True, centred=True, **more):
    width = shape[-1]
    inputs = [floats(*shape), floats(*(skip_shape or shape)), floats(width)]
    if centred:
        inputs.append(floats(width) if beta else None)
    inputs.append(floats(width) if bias else None)

    def reference(x, skip, gamma, *rest):
        beta, bias = rest if centred else (None, *rest)
        total = x.astype(np.float64) + skip + (0 if bias is None else bias)
        mean = total.mean(-1, keepdims=True) if centred else 0
        variance = ((total - mean) ** 2).mean(-1, keepdims=True)
        y = (total - mean) / np.sqrt(variance + more["attrs"]["epsilon"]) * gamma
        y = y + (0 if beta is None else beta)
        return [y.astype(np.float32), total.astype(np.float32)][: 1 + sum]

    more.setdefault("attrs", {"epsilon": 1e-5})
    op = "SkipLayerNormalization" if centred else "SkipSimplifiedLayerNormalization"
    outputs = [True, False, False, True] if sum else 1
    return Case(
        op, inputs, dtype=dtype, domain=MICROSOFT, outputs=outputs, family="reduce", reference=reference, **more
    )


HALVES_AND_FLOAT = ["float32", "float16", "bfloat16"]
SKIPPED = [
    (2, 3, 8), (2, 5, 768), (3, 9), (600, 64), (2, 1, 5000), (1, 40000), (1, 1, 2048), (15, 4096), (1, 16384),
    (530, 2056),
]  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
@pytest.mark.parametrize("shape", SKIPPED, ids=str)
@pytest.mark.parametrize("centred", [True, False], ids=["", "simplified"])
def test_skip_layer_norm(centred, shape, dtype):
    check(skip_layer_norm(shape, dtype=dtype, centred=centred))


@pytest.mark.parametrize("sum", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("beta", [True, False])
def test_optional_parts(beta, bias, sum):
    check(skip_layer_norm((2, 3, 16), beta=beta, bias=bias, sum=sum))


@pytest.mark.parametrize("skip_shape", [(3, 16), (1, 3, 16)], ids=str)
def test_skip_without_its_batch(skip_shape):
    check(skip_layer_norm((4, 3, 16), skip_shape))


@pytest.mark.parametrize("input,what", enumerate(["gamma", "beta", "bias"], 2))
@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (1,), ()], ids=str)
def test_skip_layer_norm_with_vectors_that_do_not_fit(input, what, shape):
    inputs = [floats(2, 3, 6), floats(2, 3, 6), floats(6), floats(6), floats(6)]
    inputs[input] = floats(*shape).reshape(shape)
    words = what + r" has shape \[" + ",".join(map(str, shape)) + r"\]; input \[2,3,6\] wants \[6\]"
    fails("SkipLayerNormalization", inputs, {}, words, domain=MICROSOFT)


@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (1,), ()], ids=str)
def test_gelu_with_a_bias_that_does_not_fit(op, shape):
    words = r"bias has shape \[" + ",".join(map(str, shape)) + r"\]; input \[2,6\] wants \[6\]"
    fails(op, [floats(2, 6), floats(*shape).reshape(shape)], {}, words, domain=MICROSOFT)


def test_skip_layer_norm_against_the_cpu():
    c = skip_layer_norm((2, 3, 40))
    c.reference = None
    check(c)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_skip_layer_norm_misaligned(dtype):
    check(skip_layer_norm((4, 32), dtype=dtype, misaligned=True))


def test_skip_layer_norm_of_nothing():
    check(skip_layer_norm((0, 3, 16)))


def test_strict_skip_layer_norm_is_closer_to_the_truth():
    """Far from zero floats lose what the normalisation needs; in strict mode double keeps it."""
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((8, 4096)) + 3000).astype(np.float32)
    skip = np.zeros_like(x)
    gamma = np.ones(4096, np.float32)
    node = helper.make_node(
        "SkipLayerNormalization", ["x", "skip", "gamma"], ["y"], domain="com.microsoft", epsilon=0.0
    )
    inputs = [helper.make_tensor_value_info(name, 1, value.shape) for name, value in zip(("x", "skip"), (x, skip))]
    graph = helper.make_graph(
        [node],
        "strict",
        inputs,
        [helper.make_tensor_value_info("y", 1, x.shape)],
        [onnx.numpy_helper.from_array(gamma, "gamma")],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    wide = x.astype(np.float64)
    truth = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    errors = []
    for strict in (0, 1):
        session = encore_session.make_session(model, enable_skip_layer_norm_strict_mode=strict)
        encore_session.assert_all_on_encore(session)
        errors.append(np.abs(session.run(None, {"x": x, "skip": skip})[0] - truth).max())
    assert errors[1] < errors[0] / 10, errors
    assert errors[1] < 1e-6, errors
