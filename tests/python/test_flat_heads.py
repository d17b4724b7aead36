"""Attention by torch.bmm, which sees batch and heads as one dimension, and masks on the way to its softmax."""

import numpy as np
import pytest
from test_fused_attention import HALVES, Network, numbers
from test_rotations import check

BATCH, HEADS, ROWS, SIZE = 2, 3, 9, 16
FLAT = BATCH * HEADS
CAUSAL = ~np.tri(ROWS, dtype=bool)


def heads(net, name):
    """[batch * head, row, size]."""
    x = net.node("Reshape", [net.input(name, [BATCH, ROWS, HEADS * SIZE]), net.ints(BATCH, ROWS, HEADS, SIZE)])
    turned = net.node("Transpose", [x], perm=(0, 2, 1, 3))
    return net.node("Reshape", [turned, net.ints(FLAT, ROWS, SIZE)])


def apart(net, x, last):
    return net.node("Reshape", [x, net.ints(BATCH, HEADS, ROWS, last)])


def alibi(net, scores):
    """Bloom's: for each head a number for each key, before scores are seen by heads."""
    slopes = np.array([2.0**-i for i in range(HEADS)] * BATCH).reshape(FLAT, 1, 1) * np.arange(ROWS)
    return net.node("Add", [scores, net.constant(slopes)])


def added(net, scores):
    return net.node("Add", [scores, net.constant(np.where(CAUSAL, np.float16(-65504), 0)[None, None])])


def chosen(net, scores):
    return net.node("Where", [net.constant(CAUSAL[None, None], bool), net.constant(-65504), scores])


def attention(bias=alibi, mask=added, flat=True):
    """`flat`: the softmax, too, sees batch and heads as one."""

    def build(kind):
        net = Network(kind)
        q, k, v = (heads(net, name) for name in "qkv")
        scores = net.node("MatMul", [q, net.node("Transpose", [k], perm=(0, 2, 1))])
        scores = net.node("Mul", [scores, net.constant(0.25)])
        scores = mask(net, apart(net, bias(net, scores), ROWS))
        if flat:
            scores = net.node("Reshape", [scores, net.ints(FLAT, ROWS, ROWS)])
        p = net.node("Softmax", [scores], axis=-1)
        if not flat:
            p = net.node("Reshape", [p, net.ints(FLAT, ROWS, ROWS)])
        y = net.node("Transpose", [apart(net, net.node("MatMul", [p, v]), SIZE)], perm=(0, 2, 1, 3))
        net.output(net.node("Reshape", [y, net.ints(BATCH, ROWS, HEADS * SIZE)]), [BATCH, ROWS, HEADS * SIZE])
        return net

    return build


FEEDS = [
    {name: numbers((BATCH, ROWS, HEADS * SIZE), seed + i, -2, 2) for i, name in enumerate("qkv")} for seed in (1, 9)
]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mask", [added, chosen])
@pytest.mark.parametrize("bias", [alibi, lambda net, scores: scores], ids=["alibi", "none"])
@pytest.mark.parametrize("dtype", HALVES)
def test_one_attention(encore, make_model, tmp_path, dtype, bias, mask, flat):
    _, plan = check(make_model, tmp_path, attention(bias, mask, flat), dtype, *FEEDS, steps="encore.Attention(")
    for left in ("Softmax", "MatMul(", "Where(", "Add("):
        assert left not in plan, plan


@pytest.mark.parametrize("mask", [added, chosen])
def test_floats(encore, make_model, tmp_path, mask):
    check(make_model, tmp_path, attention(mask=mask), "float32", *FEEDS, steps="encore.Attention(")


def all_hidden(net, scores):
    hides = CAUSAL.copy()
    hides[3] = True
    return net.node("Where", [net.constant(hides[None, None], bool), net.constant(-65504), scores])


def test_rows_that_see_nothing_see_all_alike(encore, make_model, tmp_path):
    _, plan = check(make_model, tmp_path, attention(mask=all_hidden), "float16", *FEEDS, steps="Softmax")
    assert "encore.Attention(" not in plan
