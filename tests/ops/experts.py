"""Cases of MoE and QMoE. The reference is written here, in double, from what the schemas say: the CPU EP lacks
bfloat16, a third matrix, SwiGLU in halves and the sparse mixer."""

import numpy as np
from harness import Case, Const, floats, seeded

HALVES = ["float16", "bfloat16"]
TYPES = ["float32", *HALVES]
DOMAIN = "com.microsoft"
GATED = "swiglu", "geglu"
SWIGLU = {"activation_type": "swiglu", "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0}
PRODUCT_LIMITED = {**SWIGLU, "swiglu_limit": 0.5, "swiglu_limit_after_activation": 1}
NORMAL = {"normalize_routing_weights": 1, "k": 2}


def activated(name, gate, linear, attrs):
    with np.errstate(over="ignore", invalid="ignore"):
        if name in ("relu", "relu2"):
            y = np.where(gate < 0, 0, gate) ** (2 if name == "relu2" else 1)
        elif name in ("gelu", "geglu"):
            y = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        elif name == "silu":
            y = gate / (1 + np.exp(-gate))
        elif name == "swiglu":
            limit = attrs.get("swiglu_limit", np.inf)
            after = attrs.get("swiglu_limit_after_activation", 0)
            gate, linear = gate if after else np.minimum(gate, limit), np.clip(linear, -limit, limit)
            alpha, beta = attrs.get("activation_alpha", 1.0), attrs.get("activation_beta", 0.0)
            product = gate / (1 + np.exp(-alpha * gate))
            return (np.minimum(product, limit) if after else product) * (linear + beta)
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
            elif name in GATED:
                half = len(made) // 2
                gate, linear = (
                    (made[:half], made[half:]) if attrs.get("swiglu_fusion") == 2 else (made[::2], made[1::2])
                )
            between = activated(name, gate, linear, attrs)
            y[t] += weight * (down[e].astype(np.float64) @ between + (0 if down_bias is None else down_bias[e]))
    return [y.reshape(x.shape).astype(np.float32)]


def wide(**attrs):
    return 2 if attrs.get("activation_type") in GATED and not attrs.get("third") else 1


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
        family="experts",
        name="-".join(f"{k[:9]}={v}" for k, v in attrs.items()) + "-third" * third,
    )


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
        family="experts",
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
