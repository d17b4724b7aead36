"""Elementwise operators and dropouts of com.microsoft against the CPU EP, or NumPy for what it lacks."""

import math

import numpy as np
import pytest
from encore_session import EAGER, Bound, assert_all_on_encore, needs_graphs
from harness import FLOATS, Case, Const, _Model, _round, check, floats, session
from refusal import fails

MICROSOFT = "com.microsoft"
HALVES_AND_FLOAT = ["float32", "float16", "bfloat16"]
FLOAT_AND_HALF = ["float32", "float16"]
SHAPES = [(2, 3, 64), (3, 7, 10), (1, 1, 1), (0, 4, 6), (4, 1000, 30)]


def case(op, inputs, attrs=None, dtype="float32", **more):
    return Case(op, inputs, attrs or {}, dtype=dtype, domain=MICROSOFT, family="biased", **more)


@pytest.mark.parametrize("dtype", FLOAT_AND_HALF)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bias_add(shape, dtype):
    def reference(x, bias, skip):
        return [x + bias + skip]

    check(case("BiasAdd", [floats(*shape), floats(shape[-1]), floats(*shape)], dtype=dtype, reference=reference))


erf = np.vectorize(math.erf, otypes=[np.float64])


@pytest.mark.parametrize("dtype", FLOAT_AND_HALF)
@pytest.mark.parametrize("shape", [*SHAPES[:2], (2, 5, 2560), (2, 3, 2), (0, 4, 6)], ids=str)
def test_bias_split_gelu(shape, dtype):
    def reference(x, bias):
        left, right = np.split(x.astype(np.float64) + bias, 2, axis=-1)
        return [(left * right * 0.5 * (1 + erf(right / math.sqrt(2)))).astype(np.float32)]

    for misaligned in (False, True):
        inputs = [floats(*shape), floats(shape[-1])]
        check(case("BiasSplitGelu", inputs, dtype=dtype, reference=reference, misaligned=misaligned))


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gated_add(shape, dtype):
    def reference(x, y, gate):
        return [x + _round(y * gate, dtype)]

    check(case("GatedAdd", [floats(*shape), floats(*shape), floats(*shape[:-1], 1)], dtype=dtype, reference=reference))


def test_gated_add_against_the_cpu():
    check(case("GatedAdd", [floats(3, 40), floats(3, 40), floats(3, 1)]))


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
@pytest.mark.parametrize("shape", [(2, 3, 64), (), (33,), (0, 3), (70001,)], ids=str)
def test_scaled_silu(shape, dtype):
    x = floats(*shape).reshape(shape)
    check(case("ScaledSiLU", [x], dtype=dtype))
    check(case("ScaledSiLU", [x], {"alpha": 0.25}, dtype=dtype))
    check(case("ScaledSiLU", [x, floats(1).reshape(())], {"alpha": 9.0}, dtype=dtype))
    if dtype == "float16":
        check(case("ScaledSiLU", [x, Const(floats(1).reshape(()), fixed=True)], dtype=dtype))


def test_special_values():
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 88, -88, 1e-7], np.float32)
    check(case("ScaledSiLU", [special]))
    check(case("GatedAdd", [special.reshape(2, 4), special.reshape(2, 4), floats(2, 1)]))


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
@pytest.mark.parametrize("heads", [32, 3, 1, 40])
@pytest.mark.parametrize("beta", [True, False])
def test_linear_attention_gate(beta, heads, dtype):
    vectors = [Const(floats(heads), fixed=True), Const(floats(heads, low=-2, high=-0.1), fixed=True)]
    for rows in (7, 129, 0):
        inputs = [floats(2, rows, heads, low=-30, high=30), *vectors] + [floats(2, rows, heads)] * beta
        check(case("LinearAttentionGate", inputs, dtype=dtype, outputs=1 + beta))
    check(case("LinearAttentionGate", [floats(2, 5, heads), *vectors], dtype=dtype, misaligned=True))


def test_what_does_not_fit():
    x = floats(2, 3, 8)
    fails("BiasAdd", [x, floats(7), x], {}, "bias has shape", domain=MICROSOFT)
    fails("BiasAdd", [x, floats(8), floats(3, 8)], {}, "skip .* must have the shape of X", domain=MICROSOFT)
    fails("BiasSplitGelu", [floats(2, 3, 7), floats(7)], {}, "even", domain=MICROSOFT)
    fails("BiasSplitGelu", [x, floats(4)], {}, "bias has shape", domain=MICROSOFT)
    fails("GatedAdd", [x, x, floats(2, 3, 8)], {}, "gate .* last dimension of 1", domain=MICROSOFT)
    fails("ScaledSiLU", [x, floats(2)], {}, "scale .* must be a scalar", domain=MICROSOFT)
    fails("LinearAttentionGate", [x, floats(8), floats(3)], {}, "decay_scale has shape", domain=MICROSOFT)
    fails("BiasDropout", [x, floats(3)], {}, "bias .* must have the shape of data", domain=MICROSOFT)
    ratio = np.array(1, np.float32)
    fails("BitmaskDropout", [x, ratio, np.array(True)], {}, "ratio is .* less than 1", domain=MICROSOFT)


# Dropouts


def bits_of(mask, count):
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:count].astype(bool)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bits", [True, False])
@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 64), (0, 4), (1,), (3, 35)], ids=str)
def test_bias_dropout_at_inference(shape, bits, dtype):
    def reference(x, bias, residual=None):
        y = x.astype(np.float64) + bias + (0 if residual is None else residual)
        words = np.full((x.size + 31) // 32, 2**32 - 1, np.uint32)
        y = y.astype(np.float64 if dtype == "float64" else np.float32)
        return [y, words if bits else np.ones(x.shape, bool)][:outputs]

    op = "BitmaskBiasDropout" if bits else "BiasDropout"
    outputs = 1 if dtype == "bfloat16" else 2  # of which the harness takes each for bfloat16, too
    for bias, residual in [(shape[-1:], True), (shape, True), (shape[-1:], False)]:
        inputs = [floats(*shape), floats(*bias)] + [floats(*shape)] * residual
        for misaligned in (False, True):
            check(case(op, inputs, dtype=dtype, outputs=outputs, reference=reference, misaligned=misaligned))
    outputs = 1
    check(case(op, inputs, dtype=dtype, reference=reference))


@pytest.mark.parametrize("dtype", [name for name in FLOATS if name != "bfloat16"])
def test_bitmask_dropout_at_inference(dtype):
    def reference(x, *_):
        return [x, np.full(2, 2**32 - 1, np.uint32)]

    check(case("BitmaskDropout", [floats(5, 7)], dtype=dtype, outputs=2, reference=reference))
    check(case("BitmaskDropout", [floats(5, 7)], dtype=dtype, reference=lambda x: [x]))
    off = [floats(5, 7), Const(np.array(0, np.float32)), Const(np.array(True))]
    check(case("BitmaskDropout", off, dtype=dtype, outputs=2, reference=reference))


def training(op, inputs, ratio=0.5, dtype="float32", outputs=2, **attrs):
    last = [None if ratio is None else Const(np.array(ratio, np.float64)), Const(np.array(True))]
    case = Case(op, inputs + last, attrs, dtype=dtype, outputs=outputs, domain=MICROSOFT)
    model = _Model(case, dtype)
    sess = session(model.model)
    assert_all_on_encore(sess)
    return lambda: sess.run(model.outputs, model.feeds)


ROUNDING = {"float32": 1e-6, "float64": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.mark.parametrize("ratio", [None, 0.1, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("bits", [True, False])
def test_values_with_a_bias_are_kept_or_dropped(bits, dtype, ratio):
    x, bias, residual = floats(1001, 103, low=1, high=3), floats(103, low=1, high=3), floats(1001, 103)
    op = "BitmaskBiasDropout" if bits else "BiasDropout"
    y, mask = training(op, [x, bias, residual], ratio, dtype, seed=1)()  # or one of some thousand would stray further
    if bits:
        assert mask.dtype == np.uint32 and mask.shape == ((x.size + 31) // 32,)
        assert not mask[-1] >> x.size % 32
        mask = bits_of(mask, x.size).reshape(x.shape)
    ratio = 0.5 if ratio is None else ratio
    assert abs(mask.mean() - (1 - ratio)) < 0.006
    assert abs(np.corrcoef(mask.reshape(-1)[1:], mask.reshape(-1)[:-1])[0, 1]) < 0.015
    wanted = mask * (x.astype(np.float64) + bias) / (1 - ratio) + residual
    np.testing.assert_allclose(y.astype(np.float64), wanted, rtol=4 * ROUNDING[dtype], atol=8 * ROUNDING[dtype])


@pytest.mark.parametrize("size", [0, 1, 8, 31, 33, 1025])
def test_masks_of_bits(size):
    y, mask = training("BitmaskDropout", [np.ones(size, np.float32)])()
    assert mask.shape == ((size + 31) // 32,)
    np.testing.assert_array_equal(y, bits_of(mask, size) * np.float32(2))
    assert size % 32 == 0 or not mask[-1] >> size % 32


def test_a_seed_drops_what_dropout_drops():
    x = np.ones(1003, np.float32)
    plain = Case("Dropout", [x, None, Const(np.array(True))], {"seed": 5}, outputs=2)
    model = _Model(plain, "float32")
    kept = session(model.model).run(model.outputs, model.feeds)[1]
    np.testing.assert_array_equal(bits_of(training("BitmaskDropout", [x], seed=5)()[1], 1003), kept)
    np.testing.assert_array_equal(training("BiasDropout", [x, x * 0, None], seed=5)()[1], kept)
    assert (training("BitmaskDropout", [x], seed=6)()[0] != 2 * kept).any()


@needs_graphs
def test_a_replay_drops_others():
    inputs = [np.ones(5000, np.float32), Const(np.float32(0.5)), Const(np.array(True))]
    model = _Model(Case("BitmaskDropout", inputs, outputs=2, domain=MICROSOFT), "float32")
    sess = session(model.model, enable_cuda_graph=1, min_num_runs_before_cuda_graph_capture=1)
    assert_all_on_encore(sess)
    bound = Bound(sess, model.feeds, {"y0": ((5000,), np.float32), "y1": ((157,), np.uint32)})
    masks = [bits_of(bound.run(graph_id=EAGER)["y1"], 5000)]
    for _ in range(4):
        got = bound.run()
        masks.append(bits_of(got["y1"], 5000))
        np.testing.assert_array_equal(got["y0"], masks[-1] * np.float32(2))
        assert abs((masks[-1] != masks[-2]).mean() - 0.5) < 0.05
