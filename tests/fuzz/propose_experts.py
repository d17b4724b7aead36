"""Mixtures of experts. Logits of a token differ from each other: of equal ones the CPU EP chooses others."""

import numpy as np
from proposals import MICROSOFT, proposes


def _logits(s, x, tokens, experts):
    rows = [s.draw.shuffled(range(experts)) for _ in range(tokens)]
    return s.fixed(np.array(rows, np.float32).reshape(tokens, experts) / 4 - 1, x.type, constant=0.3)


def _activation(s):
    name = s.draw.pick(["relu", "gelu", "silu", "identity", "swiglu"])
    if name != "swiglu":
        return name, {"activation_type": s.maybe(0.9 if name == "relu" else 1, lambda: name)}
    return name, {
        "activation_type": name,
        "swiglu_fusion": 1,
        "activation_alpha": s.maybe(0.5, lambda: 1.702),
        "activation_beta": s.maybe(0.5, lambda: 1.0),
        "swiglu_limit": s.maybe(0.5, lambda: 2.5),
    }


def _tokens(s, hidden):
    """The tokens' values, and how many there are."""
    tokens = s.draw.pick([1, 2, 5, 9, 40, 70])
    shape = [tokens, hidden] if s.draw.chance(0.6) else [1, tokens, hidden]
    return s.data(shape=shape, mild=True), tokens


@proposes("MoE", domain=MICROSOFT, family="matmul", sums=True, mild=True, steady=False)
def moe(s):
    hidden, inter, experts = s.draw.pick([1, 7, 16, 40]), s.draw.pick([1, 5, 24, 72]), s.draw.pick([1, 2, 5, 33])
    x, tokens = _tokens(s, hidden)
    name, attrs = _activation(s)
    rows = inter * (2 if name == "swiglu" else 1)
    biases = [s.maybe(0.5, lambda n=n: s.like(x, [experts, n], mild=True)) for n in (rows, hidden)]
    return s.node(
        x,
        _logits(s, x, tokens, experts),
        s.like(x, [experts, rows, hidden], mild=True),
        biases[0],
        s.like(x, [experts, hidden, inter], mild=True),
        biases[1],
        k=s.draw.number(1, min(experts, 4)),
        normalize_routing_weights=s.maybe(0.5, lambda: 1),
        **attrs,
    )


# Halves round weights that have been brought back, and what the first layer makes, which may be large.
@proposes(
    "QMoE",
    domain=MICROSOFT,
    family="matmul",
    tolerance={"float16": (2e-2, 2e-2), "bfloat16": (1e-1, 1e-1)},
    sums=True,
    mild=True,
    steady=False,
)
def quantized_moe(s):
    hidden, inter, experts = s.draw.pick([16, 32, 64]), s.draw.pick([16, 32, 96]), s.draw.pick([1, 2, 5])
    x, tokens = _tokens(s, hidden)
    name, attrs = _activation(s)
    rows = inter * (2 if name == "swiglu" else 1)
    # Of eight bits in blocks, the CPU EP rounds what it multiplies them with.
    bits, block = s.draw.pick([(4, 16), (4, 0), (8, 0)])

    def layer(rows, depth):
        # No value of a layer is much larger than what goes into it.
        packed = s.draw.numpy.integers(0, 256, (experts, rows, depth * bits // 8))
        shape = [experts, rows, depth // block] if block else [experts, rows]
        scales = s.draw.numpy.uniform(0.1, 1, shape).astype(np.float32) / (depth << (bits - 4))
        bias = s.maybe(0.5, lambda: s.like(x, [experts, rows], mild=True))
        return s.fixed(packed, "uint8", constant=0.8), s.fixed(scales, x.type, constant=0.8), bias

    return s.node(
        x,
        _logits(s, x, tokens, experts),
        *layer(rows, hidden),
        *layer(hidden, inter),
        k=s.draw.number(1, min(experts, 4)),
        normalize_routing_weights=1,
        expert_weight_bits=bits,
        block_size=block or None,
        weights_prepacked=0,
        **attrs,
    )


@proposes("MoEGroupRouter", domain=MICROSOFT, family="matmul", mild=True, steady=False)
def group_router(s):
    groups = s.draw.pick([1, 2, 4])
    experts = groups * s.draw.number(1, 6)
    x = s.data(shape=[s.draw.number(1, 6), experts], mild=True)
    bias = s.fixed(s.draw.numpy.uniform(-0.2, 0.2, experts), "float")
    attrs = {"n_group": groups, "topk_group": s.draw.number(1, groups), "top_k": s.draw.number(1, experts)}
    return s.node(x, bias, group_topk=s.maybe(0.5, lambda: s.draw.number(1, 3)), **attrs)
