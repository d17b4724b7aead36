"""MoE and QMoE. The reference is written here, in double, from what the schemas say: the CPU EP lacks bfloat16, a third
matrix, SwiGLU in halves and the sparse mixer. Where it has the operator, it is asked, too."""

import numpy as np
import pytest
from encore_session import HAS_GRAPHS, EAGER, run_options
from harness import Case, Const, check, floats, seeded, session, _Model, _onnx_type
from onnx import helper
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


def moe(tokens, hidden, inter, experts, dtype="float32", bias=True, third=False, batch=None, shape=None, **attrs):
    """A case whose expectation is the reference's."""
    rows = inter * wide(third=third, **attrs)
    scale = 1 / np.sqrt(hidden)
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
