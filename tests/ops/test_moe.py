"""MoE and QMoE, beside a reference of their own. Where the CPU EP has the operator, it is asked, too."""

import dataclasses

import numpy as np
import pytest
from encore_session import ORT_VERSION
from experts import DOMAIN, HALVES, NORMAL, PRODUCT_LIMITED, SWIGLU, TYPES, mixed, moe, qmoe
from harness import Const, check, floats
from refusal import declined, fails


@pytest.mark.parametrize(
    "case",
    [
        case
        for t in TYPES
        for case in [
            moe(1, 64, 96, 8, t, k=2, normalize_routing_weights=1, **SWIGLU, swiglu_fusion=1),
            moe(5, 72, 40, 4, t, k=4, **SWIGLU, swiglu_fusion=2),
            moe(3, 64, 32, 4, t, k=2, activation_type="silu", third=True, normalize_routing_weights=1),
            moe(3, 40, 24, 4, t, k=2, activation_type="swiglu", third=True),
            moe(7, 33, 21, 5, t, k=3, activation_type="gelu"),
            moe(130, 48, 72, 3, t, k=2, activation_type="relu", batch=2),
            moe(150, 64, 80, 2, t, k=1, activation_type="silu", bias=False),
            moe(140, 64, 72, 2, t, k=2, **SWIGLU),
            *[moe(5, 64, 40, 4, t, k=2, **PRODUCT_LIMITED, swiglu_fusion=fusion) for fusion in (0, 1, 2)],
            moe(6, 16, 8, 1, t, activation_type="identity"),
            moe(5, 40, 24, 4, t, k=2, activation_type="relu2"),
            moe(80, 64, 72, 2, t, k=2, activation_type="relu2", third=True),
            *[moe(5, 64, 40, 4, t, k=2, activation_type="geglu", swiglu_fusion=fusion) for fusion in (1, 2)],
            moe(4, 24, 16, 8, t, k=2, use_sparse_mixer=1),
            moe(70, 8, 8, 40, t, k=7),
            moe(9, 8, 8, 1100, t, k=33, normalize_routing_weights=1),
        ]
    ],
    ids=str,
)
def test_moe(case):
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        case
        for t in TYPES
        for bits in (4, 8)
        for case in [
            qmoe(1, 64, 96, 4, t, bits, 32, **NORMAL, **SWIGLU, swiglu_fusion=1),
            qmoe(6, 128, 64, 4, t, bits, 16, zeros=True, **NORMAL, activation_type="silu"),
            qmoe(3, 64, 32, 4, t, bits, 0, **NORMAL, activation_type="gelu"),
            qmoe(3, 66, 34, 3, t, bits, 0, zeros=True, bias=False, k=3),
            qmoe(5, 100, 36, 3, t, bits, 64, zeros=True, **SWIGLU, swiglu_fusion=2),
            qmoe(5, 64, 96, 3, t, bits, 32, **PRODUCT_LIMITED, swiglu_fusion=1),
            qmoe(4, 64, 32, 4, t, bits, 32, third=True, activation_type="silu", **NORMAL),
            qmoe(4, 64, 32, 4, t, bits, 32, zeros=True, third=True, activation_type="swiglu"),
            qmoe(100, 64, 96, 2, t, bits, 32, zeros=True, **NORMAL, **SWIGLU, swiglu_fusion=1),
            qmoe(70, 66, 34, 2, t, bits, 0, k=2, activation_type="relu"),
            qmoe(70, 66, 34, 2, t, bits, 0, k=2, activation_type="relu2"),
            qmoe(4, 64, 96, 3, t, bits, 32, **NORMAL, activation_type="geglu", swiglu_fusion=1, swiglu_limit=0.1),
            qmoe(4, 64, 32, 4, t, bits, 32, gates=True, **NORMAL),
            qmoe(4, 64, 32, 4, t, bits, 32, gates=True, k=3),
            qmoe(3, 64, 64, 4, t, bits, 32, bits2=12 - bits, **NORMAL),
            qmoe(3, 64, 64, 4, t, bits, 32, scale_type="float32", **NORMAL),
        ]
    ]
    + [
        case
        for t in HALVES
        for bits in (4, 8)
        for case in [
            qmoe(2, 128, 64, 4, t, bits, 32, packed=-1, **NORMAL, **SWIGLU, swiglu_fusion=1),
            qmoe(2, 64, 192, 4, t, bits, 64, packed=1, zeros=True, **NORMAL),
            qmoe(80, 64, 64, 2, t, bits, 0, packed=-1, **NORMAL),
        ]
    ],
    ids=str,
)
def test_qmoe(case):
    check(case)


# The CPU EP's QMoE normalizes the weights of what is chosen in any case, and has no third matrix.
@pytest.mark.parametrize(
    "case",
    [
        *[
            dataclasses.replace(moe(tokens, 32, 48, 4, t, **attrs), reference=None, name=f"cpu-{attrs}")
            for t in ("float32", "float16")
            for tokens in (3, 40)
            for attrs in (
                {"k": 2, "normalize_routing_weights": 1, "activation_type": "gelu"},
                {"k": 3, "activation_type": "silu"},
                {"k": 1, "activation_type": "identity"},
                {"k": 2, **SWIGLU, "swiglu_fusion": 1},
            )
        ],
        *[
            qmoe(5, 64, 32, 4, t, bits, block, by_cpu=True, **NORMAL, **attrs)
            for t in ("float32", "float16")
            for bits, block in ((4, 32), (4, 0), (8, 0))
            for attrs in ({"activation_type": "silu"}, {**SWIGLU, "swiglu_fusion": 1})
        ],
        qmoe(5, 64, 64, 4, "float32", 4, 32, zeros=True, by_cpu=True, **NORMAL),
        # Of an odd number of zero points in a row the CPU EP took those of other rows up to 1.30.
        *[
            qmoe(5, 64, 32, 4, "float32", 4, 32, zeros=True, by_cpu=by_cpu, **NORMAL)
            for by_cpu in sorted({False, ORT_VERSION >= (1, 31)})
        ],
        qmoe(5, 64, 32, 4, "float32", 4, 32, gates=True, by_cpu=True, **NORMAL),
        qmoe(5, 64, 32, 4, "float32", 4, 32, gates=True, by_cpu=True, k=2),
        qmoe(5, 64, 32, 4, "float32", 4, 32, by_cpu=True, packed=-1, **NORMAL),
    ],
    ids=str,
)
def test_as_cpu(case):
    check(case)


def test_what_is_no_number():
    """A token with a NaN or infinity among its logits has no weights; one with a NaN among its values is NaN."""
    case = moe(6, 32, 24, 5, k=2)
    case.inputs[1][0, 1] = np.nan
    case.inputs[1][1, :] = np.nan
    case.inputs[1][2, 3] = np.inf
    case.inputs[1][3, 2] = -np.inf
    case.inputs[0][4, 7] = np.nan
    case.inputs[0][5, 7] = np.inf
    case.capture = False  # which would put them elsewhere
    check(dataclasses.replace(case, attrs={**case.attrs, "activation_type": "identity"}, reference=_identity(2)))


def _identity(k):
    attrs = {"k": k, "activation_type": "identity"}

    def reference(x, logits, *rest):
        with np.errstate(invalid="ignore"):
            return mixed(x, logits, *rest, attrs)

    return reference


@pytest.mark.parametrize(
    "case",
    [
        case
        for t in HALVES
        for case in [
            moe(3, 1096, 520, 3, t, k=2, **SWIGLU, swiglu_fusion=1, normalize_routing_weights=1),
            moe(100, 1096, 264, 2, t, k=2, activation_type="silu", normalize_routing_weights=1),
            qmoe(3, 1088, 544, 3, t, 4, 32, zeros=True, **NORMAL, **SWIGLU, swiglu_fusion=1),
            qmoe(3, 1088, 544, 3, t, 8, 64, **NORMAL, **SWIGLU, swiglu_fusion=1),
            qmoe(100, 1088, 288, 2, t, 4, 32, **NORMAL, activation_type="silu"),
        ]
    ],
    ids=str,
)
def test_deep(case):
    """Many steps along the depth, the last of them in part."""
    check(dataclasses.replace(case, capture=False))


def test_equal_logits():
    """The first of equals are chosen."""
    case = moe(4, 16, 8, 12, k=3)
    case.inputs[1][:] = np.array([0.0, -0.0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0], np.float32)
    case.capture = False
    check(case)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(0, 16), (2, 0, 16), (3, 0)])
def test_empty(dtype, shape):
    case = moe(3, shape[-1], 8, 4, dtype)
    case.inputs[0] = floats(*shape)
    case.inputs[1] = floats(int(np.prod(shape[:-1])), 4)
    case.reference = lambda x, *rest: [np.zeros(shape, np.float32)]
    check(case)


def test_misaligned():
    check(dataclasses.replace(moe(3, 64, 32, 4, "float16", k=2), misaligned=True))
    check(dataclasses.replace(moe(90, 64, 32, 2, "float16", k=2), misaligned=True))
    check(dataclasses.replace(qmoe(3, 64, 32, 4, constant=False, **NORMAL), misaligned=True))


def test_no_inner_values():
    """What is left is the second bias."""
    check(moe(5, 16, 0, 3, k=2))
    check(moe(5, 16, 0, 3, "float16", k=2))


def shapes(**given):
    """Inputs of a MoE, some of other shapes."""
    own = {"x": (3, 8), "logits": (3, 4), "up": (4, 6, 8), "up_bias": (4, 6), "down": (4, 8, 6), "down_bias": (4, 8)}
    return [floats(*shape) for shape in {**own, **given}.values()]


@pytest.mark.parametrize(
    "given, attrs, words",
    [
        ({}, {"k": 5}, "k is 5; there are 4 experts"),
        ({"x": (8,)}, {}, "input has shape"),
        ({"logits": (2, 4)}, {}, "must have a row for each"),
        ({"logits": (3, 0)}, {}, "there are 0 experts"),
        ({"logits": (3, 5)}, {}, "fc1_experts_weights has shape"),
        ({"up": (4, 7, 8)}, {}, "fc1_experts_weights has shape"),
        ({"down": (4, 8, 5)}, {}, "fc1_experts_weights has shape"),
        ({"down": (4, 7, 5)}, {}, "do not suit"),
        ({"down": (5, 8, 6)}, {}, "fc2_experts_weights has shape"),
        ({"up_bias": (4, 5)}, {}, "fc1_experts_bias has shape"),
        ({"down_bias": (4, 6)}, {}, "fc2_experts_bias has shape"),
        ({}, {"activation_type": "swiglu"}, "fc1_experts_weights has shape"),
        ({"third": (4, 5, 8)}, {}, "fc3_experts_weights has shape"),
    ],
)
def test_shapes_that_do_not_fit(given, attrs, words):
    fails("MoE", shapes(**given), attrs, words, domain=DOMAIN)


def test_older_shapes():
    """Written with exchanged dimensions, the memory is the same."""
    case = moe(3, 16, 24, 4, k=2)
    inner = case.reference
    up, down = case.inputs[2].shape, case.inputs[4].shape
    case.inputs[2] = case.inputs[2].reshape(4, 16, 24)
    case.inputs[4] = case.inputs[4].reshape(4, 24, 16)
    case.reference = lambda x, logits, a, b, c, *rest: inner(x, logits, a.reshape(up), b, c.reshape(down), *rest)
    check(case)


@pytest.mark.parametrize(
    "attrs",
    [
        {"k": 0},
        {"k": -1},
        {"activation_type": "tanh"},
        {"activation_type": "geglu"},
        {"use_sparse_mixer": 1, "k": 1},
        {"swiglu_fusion": 3},
    ],
    ids=str,
)
def test_declined(attrs):
    declined("MoE", shapes(), attrs, domain=DOMAIN)


def quantized_inputs(**given):
    case = qmoe(3, 64, 32, 4, zeros=True, constant=False, **NORMAL)
    inputs = [i.value if isinstance(i, Const) else i for i in case.inputs]
    inputs = [None if i is None else i.astype(np.float16) if i.dtype == np.float32 else i for i in inputs]
    for place, value in given.items():
        inputs[int(place[1:])] = value
    return inputs


@pytest.mark.parametrize(
    "attrs",
    [
        {"expert_weight_bits": 2},
        {"expert_weight_bits": 3},
        {"fc2_expert_weight_bits": 2},
        {"quant_type": "fp4"},
        {"block_size": 24},
        {"block_size": 8},
        {"weights_prepacked": 2},
    ],
    ids=str,
)
def test_quantized_declined(attrs):
    declined("QMoE", quantized_inputs(), {"block_size": 32, "weights_prepacked": 0, **attrs}, domain=DOMAIN)


@pytest.mark.parametrize(
    "given, attrs, words",
    [
        ({"i2": np.zeros((4, 32, 31), np.uint8)}, {}, "fc1_experts_weights has shape"),
        ({"i3": np.zeros((4, 32, 3), np.float16)}, {}, "fc1_scales has shape"),
        ({"i3": None}, {}, "fc1_scales are missing"),
        ({"i6": np.zeros((4, 64), np.float16)}, {}, "fc2_scales has shape"),
        ({"i11": np.zeros((4, 32, 2), np.uint8)}, {}, "fc1_zero_points has shape"),
        ({}, {"block_size": 16}, "fc1_scales has shape"),
        ({}, {"weights_prepacked": 1}, "weights_prepacked = 0"),
        ({"i14": np.zeros((3, 5), np.float16)}, {}, "router_weights"),
    ],
)
def test_quantized_shapes_that_do_not_fit(given, attrs, words):
    inputs = quantized_inputs()
    inputs += [None] * (15 - len(inputs))
    for place, value in given.items():
        inputs[int(place[1:])] = value
    while inputs[-1] is None:
        inputs.pop()
    fails("QMoE", inputs, {"block_size": 32, "weights_prepacked": 0, **attrs}, words, domain=DOMAIN)


def test_packed_weights_that_are_fed():
    """Not only constants are brought back to rows."""
    for bits in (4, 8):
        check(
            dataclasses.replace(qmoe(2, 128, 64, 4, "float16", bits, packed=1, constant=False, **NORMAL), capture=False)
        )
