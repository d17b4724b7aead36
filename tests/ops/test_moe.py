"""MoE and QMoE. The reference is written here, in double, from what the schemas say: the CPU EP lacks bfloat16, a third
matrix, SwiGLU in halves and the sparse mixer. Where it has the operator, it is asked, too."""

import dataclasses

import numpy as np
import pytest
from harness import Case, Const, check, floats, seeded
from refusal import declined, fails

HALVES = ["float16", "bfloat16"]
TYPES = ["float32", *HALVES]
# Sums are in float; halves round what an expert's first layer makes, what its second makes, and quantized weights.
TOLERANCE = {"float32": (2e-5, 2e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}
DOMAIN = "com.microsoft"


def activated(name, gate, linear, attrs):
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "relu":
            y = np.where(gate < 0, 0, gate)
        elif name == "gelu":
            y = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        elif name == "silu":
            y = gate / (1 + np.exp(-gate))
        elif name == "swiglu":
            limit = attrs.get("swiglu_limit", np.inf)
            gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
            alpha, beta = attrs.get("activation_alpha", 1.0), attrs.get("activation_beta", 0.0)
            return gate / (1 + np.exp(-alpha * gate)) * (linear + beta)
        else:
            y = gate
    return y if linear is None else y * linear


def routed(logits, attrs, gates=None):
    """Which experts each token chooses, the first of equals first, and their weights."""
    tokens, experts = logits.shape
    k = attrs.get("k", 1)
    order = np.argsort(-np.where(np.isnan(logits), -np.inf, logits), axis=1, kind="stable")[:, :k]
    rows = np.arange(tokens)[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        if attrs.get("use_sparse_mixer"):
            weights = np.zeros((tokens, 2))
            for t in range(tokens):
                left = np.ones(experts, bool)
                for i in range(2):
                    best = logits[t, order[t, i]]
                    close = left & ~(best - logits[t] > 0.02 * np.maximum(np.abs(logits[t]), best))
                    weights[t, i] = 1 / np.exp(logits[t] - best)[close].sum()
                    left[order[t, i]] = False
            return order, weights
        powers = np.exp(logits - np.nanmax(logits, 1, keepdims=True, initial=-np.inf))
        total = powers.sum(1, keepdims=True)
        weights = np.where(total > 0, (powers / total)[rows, order], 0)
    if gates is not None:
        weights = gates[rows, order]
    if attrs.get("normalize_routing_weights"):
        total = weights.sum(1, keepdims=True)
        weights = np.where(total > 1e-6, weights / np.where(total > 1e-6, total, 1), weights)
    return order, weights


def mixed(x, logits, up, up_bias, down, down_bias, third, third_bias, attrs, gates=None):
    """Weights are [experts, out, in]."""
    tokens = x.reshape(-1, x.shape[-1]).astype(np.float64)
    order, weights = routed(logits.astype(np.float64), attrs, gates)
    name = attrs.get("activation_type", "relu")
    y = np.zeros(tokens.shape)
    for t, token in enumerate(tokens):
        for e, weight in zip(order[t], weights[t]):
            if weight == 0:
                continue
            made = up[e].astype(np.float64) @ token + (0 if up_bias is None else up_bias[e])
            gate, linear = made, None
            if third is not None:
                linear = third[e].astype(np.float64) @ token + (0 if third_bias is None else third_bias[e])
            elif name == "swiglu":
                half = len(made) // 2
                gate, linear = (
                    (made[:half], made[half:]) if attrs.get("swiglu_fusion") == 2 else (made[::2], made[1::2])
                )
            between = activated(name, gate, linear, attrs)
            y[t] += weight * (down[e].astype(np.float64) @ between + (0 if down_bias is None else down_bias[e]))
    return [y.reshape(x.shape).astype(np.float32)]


def wide(**attrs):
    return 2 if attrs.get("activation_type") == "swiglu" and not attrs.get("third") else 1


def moe(tokens, hidden, inter, experts, dtype="float32", bias=True, third=False, batch=None, **attrs):
    """A case whose expectation is the reference's."""
    rows = inter * wide(third=third, **attrs)
    scale = 1 / np.sqrt(max(hidden, 1))
    x = floats(*([tokens, hidden] if batch is None else [batch, tokens // batch, hidden]), low=-1, high=1)
    inputs = [
        x,
        floats(tokens, experts),
        floats(experts, rows, hidden, low=-2, high=2) * np.float32(scale),
        floats(experts, rows, low=-1, high=1) if bias else None,
        floats(experts, hidden, inter, low=-2, high=2) * np.float32(1 / np.sqrt(max(inter, 1))),
        floats(experts, hidden, low=-1, high=1) if bias else None,
        floats(experts, inter, hidden, low=-2, high=2) * np.float32(scale) if third else None,
        floats(experts, inter, low=-1, high=1) if third and bias else None,
    ]

    def reference(x, logits, up, up_bias, down, down_bias, third, third_bias):
        return mixed(x, logits, up, up_bias, down, down_bias, third, third_bias, attrs)

    return Case(
        "MoE",
        inputs,
        attrs,
        dtype=dtype,
        domain=DOMAIN,
        reference=reference,
        tolerance=TOLERANCE[dtype],
        name="-".join(f"{k[:9]}={v}" for k, v in attrs.items()) + "-third" * third,
    )


SWIGLU = {"activation_type": "swiglu", "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0}


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
            moe(6, 16, 8, 1, t, activation_type="identity"),
            moe(4, 24, 16, 8, t, k=2, use_sparse_mixer=1),
            moe(70, 8, 8, 40, t, k=7),
            moe(9, 8, 8, 1100, t, k=33, normalize_routing_weights=1),
        ]
    ],
    ids=str,
)
def test_moe(case):
    check(case)


def quantized(bits, experts, rows, depth, block, zeros):
    """Packed integers, scales and packed zeros, and a function that brings them back."""
    draw = seeded("quantized", bits, experts, rows, depth, block, zeros)
    values = draw.integers(0, 1 << bits, (experts, rows, depth)).astype(np.uint8)
    blocks = -(-depth // block) if block else 1
    shape = [experts, rows, blocks] if block else [experts, rows]
    scales = (draw.uniform(0.5, 2, shape) / np.sqrt(depth) / (1 << (bits - 1))).astype(np.float32)
    points = draw.integers(0, 1 << bits, shape).astype(np.uint8) if zeros else None
    return pack(values, bits), scales, None if points is None else pack(points, bits)


def pack(values, bits):
    if bits == 8:
        return values
    odd = values.shape[-1] % 2
    values = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, odd)])
    return values[..., ::2] | values[..., 1::2] << 4


def unpack(packed, bits, count):
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)[..., :count]


def restored(packed, scales, zeros, bits, block, depth):
    values = unpack(packed, bits, depth).astype(np.float64)
    blocks = scales.reshape(*values.shape[:2], -1)
    if zeros is None:
        points = np.full(blocks.shape, 1 << (bits - 1))
    elif block:
        points = unpack(zeros, bits, blocks.shape[-1])
    else:
        points = unpack(zeros, bits, values.shape[1])[..., None]
    each = [np.repeat(part, block or depth, -1)[..., :depth] for part in (blocks, points)]
    return (values - each[1]) * each[0].astype(np.float64)


def interleaved(packed, bits, depth):
    """The layout that onnxruntime's CUDA provider wants, from what its documentation says."""
    values = unpack(packed, bits, depth)
    experts, rows, _ = values.shape
    if bits == 4:
        turn = [0, 1, 8, 9, 16, 17, 24, 25, 2, 3, 10, 11, 18, 19, 26, 27]
        turn += [4, 5, 12, 13, 20, 21, 28, 29, 6, 7, 14, 15, 22, 23, 30, 31]
        within, together = [0, 2, 4, 6, 1, 3, 5, 7], 4
    else:
        turn, within, together = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15], [0, 2, 1, 3], 2
    values = values.reshape(experts, rows, -1, len(turn))[..., turn].reshape(experts, rows, depth)
    values = values.reshape(experts, rows, -1, len(within))[..., within].reshape(experts, rows, depth)
    values = values.reshape(experts, rows // together, together, depth // 64, 64).transpose(0, 1, 3, 2, 4)
    return pack(values.reshape(experts, rows, depth), bits)


def qmoe(
    tokens, hidden, inter, experts, dtype="float16", bits=4, block=32, zeros=False, bias=True, third=False, gates=False,
    packed=0, scale_type=None, constant=True, bits2=None, by_cpu=False, **attrs,
):  # fmt: skip
    rows = inter * wide(third=third, **attrs)
    bits2 = bits2 or bits

    def weights(bits, rows, depth):
        values, scales, points = quantized(bits, experts, rows, depth, block, zeros)
        if packed and dtype != "float32":
            values = interleaved(values, bits, depth)
        if scale_type == "float32":
            scales = Const(scales, fixed=True)
        return [Const(values) if constant else values, scales], points

    # Fed values are exchanged between runs, and scales of other types would not fit: constants are neither.
    one, one_zeros = weights(bits, rows, hidden)
    two, two_zeros = weights(bits2, hidden, inter)
    three, three_zeros = weights(bits, inter, hidden) if third else ([None, None], None)
    held = [None if z is None else Const(z) for z in (one_zeros, two_zeros, three_zeros)]
    inputs = [
        floats(tokens, hidden, low=-1, high=1),
        floats(tokens, experts),
        *one,
        floats(experts, rows, low=-1, high=1) if bias else None,
        *two,
        floats(experts, hidden, low=-1, high=1) if bias else None,
        *three,
        floats(experts, inter, low=-1, high=1) if third and bias else None,
        *held,
    ]
    if gates:
        inputs.append(floats(tokens, experts, low=0.1, high=1))
    while inputs[-1] is None:
        inputs.pop()

    def reference(*given):
        given = list(given) + [None] * (15 - len(given))
        # The layouts are permutations: what the reference reads is plain.
        plain = [quantized(b, experts, r, d, block, zeros)[0] for b, r, d in shapes] if packed else given[2:9:3]
        matrices = [
            None if given[i] is None else restored(values, given[i + 1], given[zero], b, block, d)
            for (b, _, d), values, i, zero in zip(shapes, [*plain, None][:3], (2, 5, 8), (11, 12, 13))
        ]
        return mixed(
            given[0], given[1], matrices[0], given[4], matrices[1], given[7], matrices[2], given[10], attrs, given[14]
        )

    shapes = [(bits, rows, hidden), (bits2, hidden, inter), (bits, inter, hidden)]
    more = {"expert_weight_bits": bits, "weights_prepacked": 0 if not packed else packed}
    if packed < 0:
        del more["weights_prepacked"]
    if bits2 != bits:
        more["fc2_expert_weight_bits"] = bits2
    if block:
        more["block_size"] = block
    return Case(
        "QMoE",
        inputs,
        {**attrs, **more},
        dtype=dtype,
        domain=DOMAIN,
        reference=None if by_cpu else reference,
        tolerance=TOLERANCE[dtype],
        name="-".join(
            filter(
                None,
                [
                    f"{bits}bits",
                    f"block{block}",
                    "zeros" * zeros,
                    "third" * third,
                    "gates" * gates,
                    f"packed{packed}" * bool(packed),
                    "fed" * (not constant),
                    "cpu" * by_cpu,
                    "-".join(f"{k[:9]}={v}" for k, v in attrs.items()),
                ],
            )
        ),
    )


NORMAL = {"normalize_routing_weights": 1, "k": 2}


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
            qmoe(4, 64, 32, 4, t, bits, 32, third=True, activation_type="silu", **NORMAL),
            qmoe(4, 64, 32, 4, t, bits, 32, zeros=True, third=True, activation_type="swiglu"),
            qmoe(100, 64, 96, 2, t, bits, 32, zeros=True, **NORMAL, **SWIGLU, swiglu_fusion=1),
            qmoe(70, 66, 34, 2, t, bits, 0, k=2, activation_type="relu"),
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
        qmoe(5, 64, 32, 4, "float32", 4, 32, zeros=True, by_cpu=True, **NORMAL),
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
    [{"k": 0}, {"k": -1}, {"activation_type": "tanh"}, {"use_sparse_mixer": 1, "k": 1}, {"swiglu_fusion": 3}],
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
