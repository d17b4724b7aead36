"""Normalisations of com.microsoft against the CPU EP, or NumPy for what it lacks: images whose channels are neighbours,
embeddings that are picked."""

import functools
import math

import numpy as np
import pytest
from encore_session import on_virtual_gpu, only_if
from harness import Case, Const, check, floats, integers, kernels_of
from refusal import declined, fails

MICROSOFT = "com.microsoft"
HALVES_AND_FLOAT = ["float32", "float16", "bfloat16"]
FLOAT_AND_HALF = ["float32", "float16"]
case = functools.partial(Case, domain=MICROSOFT, family="reduce")


def fixed(*shape, **more):
    return Const(floats(*shape, **more), fixed=True)


# GroupNorm, SkipGroupNorm


def grouped(x, gamma, beta, groups, silu, epsilon):
    images, channels = x.shape[0], x.shape[-1]
    x = x.astype(np.float64).reshape(images, math.prod(x.shape[1:-1]), groups, channels // groups)
    mean, variance = x.mean((1, 3), keepdims=True), x.var((1, 3), keepdims=True)
    y = ((x - mean) / np.sqrt(variance + epsilon)).reshape(images, x.shape[1], channels) * gamma + beta
    with np.errstate(over="ignore"):
        return y / (1 + np.exp(-y)) if silu else y


def group_norm(shape, groups, silu=0, dtype="float32", wide=True, epsilon=1e-5, x=None, **more):
    vector = (lambda: fixed(shape[-1])) if wide else (lambda: floats(shape[-1]))

    def reference(x, gamma, beta):
        return [grouped(x, gamma, beta, groups, silu, epsilon).reshape(x.shape).astype(np.float32)]

    inputs = [floats(*shape) if x is None else x, vector(), vector()]
    attrs = {"groups": groups, "activation": silu, "epsilon": epsilon}
    return case("GroupNorm", inputs, attrs, dtype=dtype, reference=reference, **more)


# Channels of diffusion models, one that fills no pack, groups wider than a block, more channels than a block has, many
# pixels, one; more pixels than a cluster of blocks can keep, and as many as just fit.
SHAPES = [
    ((2, 8, 8, 320), 32),
    ((1, 33, 31, 128), 32),
    ((2, 1, 1, 64), 4),
    ((3, 5, 7, 30), 6),
    ((1, 3, 3, 20), 1),
    ((1, 9, 5, 5120), 8),
    ((1, 2, 3, 9000), 2),
    ((1, 2, 2, 1030), 1),
    ((1, 2, 3, 4104), 513),
    ((5, 4, 4, 8), 8),
    ((1, 150, 70, 16), 2),
    ((1, 28, 28, 64), 1),
    ((2, 7, 7, 320), 1),
    ((2, 7, 9, 96), 3),
    ((1, 210, 200, 16), 2),
    ((2, 128, 64, 32), 8),
    ((1, 3, 3, 2048), 2),
]


@pytest.mark.parametrize("dtype", FLOAT_AND_HALF)
@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize("shape, groups", SHAPES, ids=str)
def test_group_norm(shape, groups, silu, dtype):
    check(group_norm(shape, groups, silu, dtype))


@only_if(on_virtual_gpu())  # which lists its kernels
@pytest.mark.parametrize(
    "shape, groups, together",
    [((1, 8, 8, 64), 16, True), ((2, 8, 8, 320), 32, True), ((1, 210, 200, 16), 2, False), ((1, 3, 3, 20), 1, False)],
    ids=str,
)
def test_group_norm_is_one_launch_where_few_blocks_keep_all(shape, groups, together):
    kernels = kernels_of(group_norm(shape, groups, dtype="float16"))
    assert any("GroupNormTogether" in kernel for kernel in kernels) == together, kernels
    assert any("TakeGroupSums" in kernel for kernel in kernels) != together, kernels


@pytest.mark.parametrize("dtype", FLOAT_AND_HALF)
def test_group_norm_with_parameters_of_the_same_type(dtype):
    check(group_norm((2, 4, 4, 32), 8, 1, dtype, wide=False))


@pytest.mark.parametrize("dtype", FLOAT_AND_HALF)
def test_group_norm_misaligned(dtype):
    check(group_norm((2, 6, 6, 64), 8, dtype=dtype, misaligned=True))


def test_group_norm_far_from_zero():
    x = floats(2, 16, 16, 64, low=-1, high=1) + np.linspace(-3000, 3000, 64, dtype=np.float32)
    check(group_norm((2, 16, 16, 64), 64, x=x, capture=False, tolerance=(2e-3, 2e-3)))


def test_group_norm_of_nothing_and_of_what_is_no_number():
    check(group_norm((0, 4, 4, 8), 2))
    x = floats(2, 3, 3, 8)
    x[1, 1, 1, 1] = np.nan
    check(group_norm(x.shape, 2, x=x))


def skip_group_norm(shape, groups, skip, silu=1, bias=True, sum=True, dtype="float32", **more):
    def reference(x, gamma, beta, skip, bias=None):
        total = x.astype(np.float64) + skip.reshape(skip.shape if skip.ndim == 4 else (x.shape[0], 1, 1, x.shape[3]))
        total = total if bias is None else total + bias
        y = grouped(total, gamma, beta, groups, silu, 1e-5).reshape(x.shape)
        return [y.astype(np.float32), total.astype(np.float32)][: 1 + sum]

    inputs = [floats(*shape), fixed(shape[-1]), fixed(shape[-1]), floats(*skip)] + [floats(shape[-1])] * bias
    attrs = {"groups": groups, "activation": silu}
    return case("SkipGroupNorm", inputs, attrs, dtype=dtype, reference=reference, outputs=1 + sum, **more)


@pytest.mark.parametrize("dtype", FLOAT_AND_HALF)
@pytest.mark.parametrize("bias, sum", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("skip", [(2, 4, 6, 40), (2, 1, 1, 40), (2, 40)], ids=str)
def test_skip_group_norm(skip, bias, sum, dtype):
    check(skip_group_norm((2, 4, 6, 40), 4, skip, bias=bias, sum=sum, dtype=dtype))


def test_skip_group_norm_of_odd_sizes():
    check(skip_group_norm((1, 37, 29, 320), 32, (1, 320), dtype="float16"))
    check(skip_group_norm((2, 3, 3, 30), 5, (2, 30), silu=0))
    check(skip_group_norm((2, 3, 3, 32), 4, (2, 3, 3, 32), misaligned=True))
    check(skip_group_norm((0, 3, 3, 32), 4, (0, 32)))


def test_group_norm_that_does_not_fit():
    inputs = [floats(2, 3, 3, 8), floats(8), floats(8), floats(2, 8)]
    more = {"domain": MICROSOFT}
    fails("GroupNorm", inputs[:3], {"groups": 3, "activation": 0}, "cannot be divided by groups 3", **more)
    fails("GroupNorm", [floats(2, 3, 3, 8), floats(7), floats(8)], {"groups": 2, "activation": 0}, "gamma", **more)
    skip = [*inputs[:3], floats(2, 3, 1, 8)]
    fails("SkipGroupNorm", skip, {"groups": 2, "activation": 0}, "skip .* does not fit X", **more)
    for attrs in [{"groups": 0}, {"groups": 2, "activation": 2}, {"groups": 2, "channels_last": 0}]:
        declined("GroupNorm", inputs[:3], {"activation": 0, **attrs}, **more)


# SkipLayerNormalization's statistics


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
@pytest.mark.parametrize("centred", [True, False])
def test_skip_layer_norm_statistics(centred, dtype):
    def reference(x, skip, gamma):
        total = x.astype(np.float64) + skip
        mean = total.mean(-1, keepdims=True) * centred
        deviation = 1 / np.sqrt(((total - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
        return [y.astype(np.float32) for y in ((total - mean) * deviation * gamma, mean, deviation)]

    op = "SkipLayerNormalization" if centred else "SkipSimplifiedLayerNormalization"
    inputs = [floats(2, 5, 48), floats(2, 5, 48), floats(48)]
    check(case(op, inputs, {"epsilon": 1e-5}, dtype=dtype, outputs=3, reference=reference))


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("rows", [2, 600])
def test_an_epsilon_below_the_normal_numbers(rows, op, dtype):
    x = floats(rows, 3, 64)
    inputs = [x, -x, floats(64)] + [floats(64)] * (op == "SkipLayerNormalization")
    made = case(op, inputs, {"epsilon": 1e-38}, dtype=dtype)
    made.replays = ([-x, x, *inputs[2:]],)
    check(made)


@pytest.mark.parametrize("wanted", [[True, True], [True, False, True]], ids=str)
def test_rows_of_no_values_have_no_statistics(wanted):
    inputs = [floats(2, 3, 0), floats(2, 3, 0), floats(0)]
    words = "no mean and no deviation"
    fails("SkipLayerNormalization", inputs, {}, words, outputs=wanted, domain="com.microsoft")


# EmbedLayerNormalization


def embedding(width, batch=2, length=5, segments=True, mask=True, places=None, sum=True, dtype="float32", **more):
    def reference(ids, segment, words, place, kinds, gamma, beta, mask=None, at=None):
        total = words[ids].astype(np.float64) + (place[: ids.shape[1]] if at is None else place[at])
        if segment is not None:
            total = total + kinds[segment]
        mean = total.mean(-1, keepdims=True)
        y = (total - mean) / np.sqrt(total.var(-1, keepdims=True) + 1e-12) * gamma + beta
        ends = np.zeros(len(ids), np.int32)
        if mask is not None:
            ends = np.where((mask == 0).any(1), (mask == 0).argmax(1), mask.shape[1]).astype(np.int32)
        return [y.astype(np.float32), ends, total.astype(np.float32)][: 2 + sum]

    inputs = [
        integers("int32", batch, length, low=0, high=30),
        integers("int32", batch, length, low=0, high=1) if segments else None,
        *(floats(31, width), floats(length + 3, width), floats(2, width) if segments else None),
        *(floats(width), floats(width)),
        integers("int32", batch, length, low=0, high=1) if mask else None,
        integers("int32", *places, low=0, high=length + 2) if places else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"epsilon": 1e-12}
    return case("EmbedLayerNormalization", inputs, attrs, dtype=dtype, outputs=2 + sum, reference=reference, **more)


@pytest.mark.parametrize("dtype", FLOAT_AND_HALF)
@pytest.mark.parametrize("width", [8, 768, 1024, 9, 5000, 40000])
def test_embeddings(width, dtype):
    check(embedding(width, dtype=dtype))


@pytest.mark.parametrize("places", [None, (1, 5), (2, 5)])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("segments", [True, False])
def test_embeddings_with_optional_parts(segments, mask, places):
    check(embedding(32, segments=segments, mask=mask, places=places, sum=mask))


def test_embeddings_of_other_sizes():
    check(embedding(64, length=129, batch=3))
    check(embedding(64, length=700, batch=1))
    check(embedding(64, batch=0))
    check(embedding(64, length=1, misaligned=True))


def test_embeddings_against_the_cpu():
    c = embedding(64, mask=False)
    c.reference = None
    check(c)


@pytest.mark.parametrize("id", [31, -1])
def test_words_out_of_range(id):
    inputs = embedding(16, mask=False).inputs
    inputs[0][1, 2] = id
    inputs[2:7] = map(Const, inputs[2:7])  # onnxruntime wants to know their shapes
    fails("EmbedLayerNormalization", inputs, {}, f"{id}.*31", domain=MICROSOFT, outputs=2)


def test_embeddings_that_do_not_fit():
    def broken(at, value, words):
        inputs = embedding(16).inputs
        inputs[at] = value
        inputs[2:7] = map(Const, inputs[2:7])
        fails("EmbedLayerNormalization", inputs, {}, words, domain=MICROSOFT, outputs=2)

    broken(3, floats(4, 16), "sequences of 5 exceed position_embedding")
    broken(7, integers("int32", 2, 4, low=0, high=1), "mask .* must have the shape of input_ids")


# GatedRMSNorm, BranchwiseRMSNorm

WIDTHS = [8, 40, 64, 80, 96, 128, 256, 5, 33, 1000, 2048, 5000, 20000, 40000]


def gated(x, scale, gate, silu=True, epsilon=1e-5):
    groups = x.astype(np.float64).reshape(*x.shape[:-1], -1, len(scale))
    y = (groups / np.sqrt((groups**2).mean(-1, keepdims=True) + epsilon) * scale).reshape(x.shape)
    gate = gate.astype(np.float64)
    return [(y * (gate if silu else 1) / (1 + np.exp(-gate))).astype(np.float32)]


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
@pytest.mark.parametrize("width", WIDTHS)
def test_gated_rms_norm(width, dtype):
    inputs = [floats(2, 3, 2 * width), floats(width), floats(2, 3, 2 * width)]
    check(case("GatedRMSNorm", inputs, dtype=dtype, reference=gated))


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
def test_gated_rms_norm_of_zeros(dtype):
    """Whose root is that of an epsilon below the normal numbers."""
    inputs = [np.zeros((2, 3, 64), np.float32), floats(64), floats(2, 3, 64)]
    reference = lambda x, scale, gate: [np.zeros_like(gate, np.float32)]
    check(case("GatedRMSNorm", inputs, {"epsilon": 1e-38}, dtype=dtype, reference=reference))


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
def test_activations(activation):
    inputs = [floats(600, 4, 64), floats(64), floats(600, 4, 64)]
    attrs = {"activation": activation, "epsilon": 0.1}
    check(case("GatedRMSNorm", inputs, attrs))
    check(case("GatedRMSNorm", inputs, attrs, misaligned=True))
    check(case("GatedRMSNorm", [floats(0, 64), floats(32), floats(0, 64)], attrs))


def test_gated_rms_norm_that_does_not_fit():
    inputs = [floats(2, 16), floats(8), floats(2, 16)]
    declined("GatedRMSNorm", inputs, {"activation": "tanh"}, domain=MICROSOFT)
    fails("GatedRMSNorm", [floats(2, 16), floats(5), floats(2, 16)], {}, "groups of 5", domain=MICROSOFT)


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("scale", [None, (4, 72), (288,), (72,)], ids=str)
def test_branchwise_rms_norm(scale, flat, dtype):
    x = floats(2, 3, 288) if flat else floats(2, 3, 4, 72)
    attrs = {"num_branches": 4} if flat else {}
    check(case("BranchwiseRMSNorm", [x] + ([floats(*scale)] if scale else []), attrs, dtype=dtype))
    if scale and dtype == "float16":
        check(case("BranchwiseRMSNorm", [x, fixed(*scale)], attrs, dtype=dtype))


def test_branchwise_rms_norm_of_other_types_and_sizes():
    check(case("BranchwiseRMSNorm", [floats(2, 4, 72), floats(4, 72).astype(np.float16)]))
    check(case("BranchwiseRMSNorm", [floats(2, 4, 7), floats(28)]))
    check(case("BranchwiseRMSNorm", [floats(0, 4, 7), floats(28)]))
    more = {"domain": MICROSOFT}
    fails("BranchwiseRMSNorm", [floats(2, 30)], {"num_branches": 4}, "divided by num_branches 4", **more)
    fails("BranchwiseRMSNorm", [floats(2, 4, 7), floats(4)], {}, "scale .* does not fit", **more)
    none = np.zeros((2**59, 0), np.float32)  # times the branches that is no number of 64 bits
    check(Case("BranchwiseRMSNorm", [none], {"num_branches": 16}, reference=lambda x: [x], **more))
    declined("BranchwiseRMSNorm", [floats(2, 30)], {"num_branches": -1}, **more)


# HyperConnectionPreMix, HyperConnectionPostMix


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
@pytest.mark.parametrize("branches, width", [(4, 256), (2, 40), (4, 33), (1, 8), (7, 64)])
@pytest.mark.parametrize("gate", ["branch", "column", "full", "flat"])
def test_pre_mix(gate, branches, width, dtype):
    flat = gate == "flat"
    x = floats(2, 3, branches * width) if flat else floats(2, 3, branches, width)
    shape = {"branch": (branches,), "column": (branches, 1), "full": (branches, width), "flat": (branches * width,)}
    attrs = {"reduction_scale": 0.25, **({"num_branches": branches} if flat else {})}
    check(case("HyperConnectionPreMix", [x, floats(2, 3, *shape[gate])], attrs, dtype=dtype))
    if dtype == "float16":
        check(case("HyperConnectionPreMix", [x, fixed(2, 3, *shape[gate])], attrs, dtype=dtype))


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize("branches, width", [(4, 256), (2, 40), (4, 33), (1, 8), (7, 64)])
@pytest.mark.parametrize("gate", ["branch", "column", "full"])
def test_post_mix(gate, branches, width, mixes, dtype):
    flat = gate == "branch"
    x = floats(2, 3, branches * width) if flat else floats(2, 3, branches, width)
    shape = {"branch": (branches,), "column": (branches, 1), "full": (branches, width)}[gate]
    attrs = {"num_branches": branches} if flat else {}
    for make in [floats] + [fixed] * (dtype == "float16"):
        inputs = [x, floats(2, 3, width), make(2, 3, *shape)] + [make(2, 3, branches, branches)] * mixes
        check(case("HyperConnectionPostMix", inputs, attrs, dtype=dtype))


def test_branches_that_do_not_fit():
    more = {"domain": MICROSOFT}
    fails("HyperConnectionPreMix", [floats(2, 4, 8), floats(2, 3)], {}, "pre_mix .* does not fit", **more)
    fails("HyperConnectionPreMix", [floats(2, 30), floats(2, 4)], {"num_branches": 4}, "num_branches 4", **more)
    inputs = [floats(2, 4, 8), floats(2, 8), floats(2, 4), floats(2, 4, 3)]
    fails("HyperConnectionPostMix", inputs, {}, "stream_mix .* does not fit", **more)
    check(case("HyperConnectionPreMix", [floats(0, 4, 8), floats(0, 4)]))
    check(case("HyperConnectionPostMix", [floats(2, 4, 8), floats(2, 8), floats(2, 4)], misaligned=True))


# EngramGate


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 64), (1, 7, 2, 33), (1, 1, 4, 1024), (2, 2, 1, 5000), (0, 2, 2, 8)], ids=str
)
def test_engram_gate(shape, normed, dtype):
    batch, length, branches, width = shape
    inputs = [floats(*shape), floats(*shape), floats(batch, length, width)]
    inputs += [floats(branches, width) for _ in range(2 + normed)]

    def reference(key, query, value, key_scale, query_scale, scale=None):
        def over_root(x):
            x = x.astype(np.float64)
            return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

        dot = (over_root(key) * key_scale * over_root(query) * query_scale).sum(-1, keepdims=True) / np.sqrt(width)
        gate = 1 / (1 + np.exp(-np.sign(dot) * np.sqrt(np.maximum(abs(dot), 1e-6))))
        y = gate * value[:, :, None]
        return [each.astype(np.float32) for each in ([y, over_root(y) * scale] if normed else [y])]

    check(case("EngramGate", inputs, dtype=dtype, outputs=1 + normed, reference=reference, family="engram"))


def test_engram_gate_against_the_cpu():
    inputs = [floats(2, 3, 4, 64), floats(2, 3, 4, 64), floats(2, 3, 64), *(floats(4, 64) for _ in range(3))]
    check(case("EngramGate", inputs, {"epsilon": 0.01}, outputs=2, family="engram"))
    check(case("EngramGate", inputs, outputs=2, misaligned=True, family="engram"))
    inputs[2] = floats(2, 3, 63)
    fails("EngramGate", inputs, {}, "value .* does not fit key", domain=MICROSOFT)
