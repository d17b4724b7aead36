"""MoEGroupRouter, against NumPy."""

import numpy as np
import pytest
from encore_session import ORT_VERSION, only_if
from harness import Case, Const, check, floats
from refusal import declined, fails

DOMAIN = "com.microsoft"
TYPES = ["float32", "float16", "bfloat16"]
newest = only_if(ORT_VERSION >= (1, 32))


def sigmoid(x):
    return 1 / (1 + np.exp(-x.astype(np.float32)))


def routed(attrs):
    def reference(logits, bias, *_):
        if not logits.size:
            return [np.zeros((0, logits.shape[-1]), np.float32)]
        scores = sigmoid(logits.reshape(-1, logits.shape[-1]))
        biased = scores + bias
        groups, experts = attrs.get("n_group", 1), scores.shape[1]
        of_groups = np.sort(biased.reshape(len(scores), groups, -1), -1)[..., ::-1][..., : attrs.get("group_topk", 2)]
        best = np.argsort(-of_groups.astype(np.float32).sum(-1), axis=1, kind="stable")[:, : attrs.get("topk_group", 1)]
        wanted = np.full(scores.shape, attrs.get("router_sentinel", -10000.0), np.float32)
        for row in range(len(scores)):
            inside = np.isin(np.arange(experts) // (experts // groups), best[row])
            order = np.argsort(np.where(inside, -biased[row], np.inf), kind="stable")[: attrs["top_k"]]
            order = order[inside[order]]
            wanted[row, order] = np.log(np.maximum(scores[row, order], 1e-20))
        return [wanted]

    return reference


def case(logits, bias, attrs, dtype, **rest):
    rest = {"reference": routed(attrs), **rest}
    bias = Const(bias, fixed=True)
    return Case("MoEGroupRouter", [logits, bias], attrs, dtype, domain=DOMAIN, family="matmul", **rest)


@newest
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape,groups", [((5, 16), 1), ((3, 7, 64), 8), ((0, 8), 2), ((2, 300), 3), ((1, 1024), 16)])
@pytest.mark.parametrize("how", [{}, {"group_topk": 1, "router_sentinel": -5.0}, {"group_topk": 100}], ids=str)
def test_router(dtype, shape, groups, how):
    # Numbers that every type tells apart, each its own.
    count = int(np.prod(shape))
    logits = (np.random.default_rng(count).permutation(max(count, 1))[:count].reshape(shape) % 251 - 125) / 32
    attrs = {"n_group": groups, "topk_group": (groups + 1) // 2, "top_k": 4, **how}
    bias = floats(shape[-1], low=-0.2, high=0.2)
    check(case(logits.astype(np.float32), bias, attrs, dtype, name=f"{groups}{how}"))


@newest
def test_the_first_of_equals():
    check(
        case(
            np.zeros((2, 12), np.float32),
            np.zeros(12, np.float32),
            {"n_group": 4, "topk_group": 2, "top_k": 4},
            "float32",
        )
    )


@newest
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("projected", [False, True])
def test_all_scores(dtype, projected):
    def reference(x, bias, w=None):
        scores = sigmoid(x if w is None else x.astype(np.float64) @ w.T.astype(np.float64))
        return [scores + bias, scores]

    logits = floats(5, 256, low=-0.5, high=0.5) if projected else floats(2, 3, 16)
    inputs = [logits, Const(floats(16), fixed=True)] + [Const(floats(16, 256, low=-0.3, high=0.3))] * projected
    more = {"outputs": [False, True, True], "reference": reference, "options": {"use_tf32": 0}}
    # The harness rounds what is wanted to the type, though scores are floats.
    tolerance = {"float16": (1e-3, 1e-3), "bfloat16": (8e-3, 1e-3)}.get(dtype)
    made = Case(
        "MoEGroupRouter", inputs, {"top_k": 2}, dtype, domain=DOMAIN, family="matmul", tolerance=tolerance, **more
    )
    if not projected:
        made.reference = lambda x, bias: [y.reshape(-1, 16) for y in reference(x, bias)]
    check(made)


@newest
@pytest.mark.parametrize(
    "attrs", [{"top_k": 0}, {"top_k": 2, "n_group": 2, "topk_group": 3}, {"top_k": 2, "group_topk": 0}], ids=str
)
def test_attributes_that_do_not_fit(attrs):
    declined("MoEGroupRouter", [floats(2, 8), floats(8)], attrs, domain=DOMAIN)


@newest
def test_what_does_not_fit():
    fails(
        "MoEGroupRouter", [floats(2, 8), floats(7)], {"top_k": 2}, "expert_bias has shape", ranks=False, domain=DOMAIN
    )
    attrs = {"top_k": 2, "n_group": 3, "topk_group": 1}
    fails("MoEGroupRouter", [floats(2, 8), floats(8)], attrs, "8 experts in 3 groups", ranks=False, domain=DOMAIN)
