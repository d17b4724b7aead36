"""com.microsoft's SwiGLU and RouterGateUpProj, against NumPy: few versions of onnxruntime have kernels of them."""

import numpy as np
import pytest
from encore_session import ORT_VERSION, only_if
from harness import SPECIAL, Case, Const, _round, check, floats
from refusal import declined, fails

TYPES = ["float32", "float16", "bfloat16"]
DOMAIN = "com.microsoft"
newest = only_if(ORT_VERSION >= (1, 32))

ATTRIBUTES = [
    {},
    {"activation_alpha": 1.702, "activation_beta": 1.0, "limit": 1.5},
    {"limit": 0.5},
    {"limit": -1.0, "activation_beta": -0.25},
    {"round_activation": 1, "activation_beta": 0.5},
]


def gated(gate, up, attrs, dtype):
    gate, up = gate.astype(np.float64), up.astype(np.float64)
    limit = attrs.get("limit", 0.0)
    if limit > 0:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    with np.errstate(all="ignore"):
        product = gate / (1 + np.exp(-np.float64(np.float32(attrs.get("activation_alpha", 1.0))) * gate))
        if attrs.get("round_activation"):
            product = _round(product.astype(np.float32), dtype).astype(np.float64)
        return (product * (up + attrs.get("activation_beta", 0.0))).astype(np.float32)


def swiglu(inputs, attrs, dtype, **rest):
    def reference(x, up=None):
        if up is None:
            x, up = np.split(x, 2, -1)
        return [gated(x, up, attrs, dtype)]

    name = "-".join(f"{key}{value}" for key, value in attrs.items())
    return Case("SwiGLU", inputs, attrs, dtype, domain=DOMAIN, reference=reference, name=name, **rest)


@newest
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("attrs", ATTRIBUTES, ids=str)
@pytest.mark.parametrize("shape", [(3, 40), (7,), (0, 4), (2, 3, 5, 6), (5, 0), (130, 1000)], ids=str)
def test_swiglu(dtype, attrs, shape):
    # Where rounding a product changes it, the next step may fall to either side.
    loose = {"tolerance": (8e-3, 1e-3)} if attrs.get("round_activation") and dtype != "float32" else {}
    loose = {"tolerance": (3e-2, 1e-2)} if loose and dtype == "bfloat16" else loose
    check(swiglu([floats(*shape), floats(*shape)], attrs, dtype, **loose))
    check(swiglu([floats(*shape[:-1], 2 * shape[-1])], attrs, dtype, **loose))


@newest
def test_swiglu_of_extremes():
    large = np.array([-90, -100, -87.5, -1e4, 50, 1e4, 0.0, -0.0], np.float32)
    for x, y in ((SPECIAL, SPECIAL[::-1].copy()), (large, large), (large, np.full(8, 1e30, np.float32))):
        check(swiglu([x, y], {}, "float32"))
        check(swiglu([x, y], {"limit": 3.0}, "float32", misaligned=True))


@newest
def test_swiglu_of_what_does_not_fit():
    fails("SwiGLU", [floats(3, 4), floats(3, 2)], {}, "they must have the same", ranks=False, domain=DOMAIN)
    fails("SwiGLU", [floats(3, 5)], {}, "two halves", ranks=False, domain=DOMAIN)


@newest
@pytest.mark.parametrize("dtype", TYPES[1:])
@pytest.mark.parametrize(
    "shape,router,inter", [((1, 64), 8, 32), ((5, 33), 3, 7), ((2, 40, 128), 16, 96), ((0, 8), 2, 4)]
)
@pytest.mark.parametrize("attrs", ATTRIBUTES[:3], ids=str)
def test_router_gate_up(dtype, shape, router, inter, attrs):
    def reference(x, w):
        made = _round((x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32), dtype).astype(np.float64)
        gate, up = np.split(made[..., router:], 2, -1)
        return [made[..., :router].astype(np.float32), gated(gate, up, attrs, dtype)]

    inputs = [floats(*shape, low=-1, high=1), Const(floats(shape[-1], router + 2 * inter, low=-0.3, high=0.3))]
    more = {"family": "matmul", "outputs": 2, "reference": reference, "options": {"use_tf32": 0}}
    check(
        Case(
            "RouterGateUpProj", inputs, {"router_size": router, **attrs}, dtype, domain=DOMAIN, name=str(attrs), **more
        )
    )


@newest
def test_routers_of_what_does_not_fit():
    x, w = floats(2, 4).astype(np.float16), floats(4, 7).astype(np.float16)
    fails("RouterGateUpProj", [x, w], {"router_size": 2}, "two halves", outputs=2, ranks=False, domain=DOMAIN)
    fails("RouterGateUpProj", [x, w[:3, :6]], {"router_size": 2}, "as many rows", outputs=2, ranks=False, domain=DOMAIN)
    declined("RouterGateUpProj", [x, w], {"router_size": 0}, outputs=2, domain=DOMAIN)
    declined("RouterGateUpProj", [x, w], {"router_size": 1, "activation": "gelu"}, outputs=2, domain=DOMAIN)
