"""com.microsoft's Attention. The CPU EP has no halves, no rotary positions and no square masks: there it is ours."""

import numpy as np
import pytest
from harness import Case, Const, check, floats
from heads_reference import attend, split, turn
from refusal import declined, fails
from test_multi_head_attention import TYPES, ints, raw


def reference(
    wanted,
    num_heads,
    unidirectional=0,
    scale=0.0,
    mask_filter_value=-10000.0,
    qkv_hidden_sizes=None,
    do_rotary=0,
    rotary_embedding_dim=0,
    past_present_share_buffer=0,
):
    def run(x, weights, bias=None, mask=None, past=None, score_bias=None, length=None):
        made = x.astype(np.float64) @ weights + (0 if bias is None else bias)
        width = qkv_hidden_sizes[0] if qkv_hidden_sizes else weights.shape[1] // 3
        q, k, v = (split(p, num_heads) for p in np.split(made, [width, 2 * width], -1))
        before = 0 if past is None else length[0] if past_present_share_buffer else past.shape[3]
        if do_rotary:
            q, k = (turn(p, before, rotary_embedding_dim or p.shape[3]) for p in (q, k))
        rest = None
        if past is not None:
            rest = past[:, :, :, before + k.shape[2] :] if past_present_share_buffer else None
            k, v = (np.concatenate([p[:, :, :before], n], 2) for p, n in zip(past, (k, v)))
        y, _ = attend(q, k, v, mask, score_bias, unidirectional, scale, mask_filter_value)
        if not wanted[-1] or len(wanted) == 1:
            return [y]
        present = np.stack([k, v])
        return [y, present if rest is None else np.concatenate([present, rest], 3)]

    return run


def case(inputs, heads, dtype="float32", outputs=1, ours=True, name="", misaligned=False, **attrs):
    inputs = [None if i is None else floats(*i, low=-1, high=1) if isinstance(i, tuple) else i for i in inputs]
    attrs["num_heads"] = heads
    wanted = [True] * outputs
    return Case(
        "Attention",
        inputs,
        attrs,
        dtype=dtype,
        domain="com.microsoft",
        outputs=outputs,
        family="projected",
        name=name,
        misaligned=misaligned,
        reference=reference(wanted, **attrs) if ours or dtype != "float32" else None,
        options={"use_tf32": 0},
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("b,s,n,h,wide", [(2, 7, 2, 40, 24), (1, 129, 2, 64, 8), (2, 1, 3, 80, 16), (2, 4, 2, 5, 6)])
@pytest.mark.parametrize("causal", [0, 1])
def test_projection(b, s, n, h, wide, causal, dtype):
    for bias in (None, (3 * n * h,)):
        inputs = [(b, s, wide), (wide, 3 * n * h), bias]
        check(case(inputs, n, dtype, ours=bias is None, unidirectional=causal))
        check(case(inputs, n, dtype, 2, ours=bias is None, unidirectional=causal))


@pytest.mark.parametrize("dtype", TYPES)
def test_sizes(dtype):
    for s in (1, 9, 40):
        check(case([(2, s, 8), (8, 112), (112,)], 2, dtype, ours=False, qkv_hidden_sizes=[32, 32, 48]))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("past", [0, 1, 60])
@pytest.mark.parametrize("s,h", [(1, 64), (7, 40), (3, 5)])
def test_past(s, h, past, dtype):
    inputs = [(2, s, 8), (8, 6 * h), (6 * h,), None, (2, 2, 2, past, h)]
    check(case(inputs, 2, dtype, 2, ours=False, unidirectional=1))
    inputs[3] = raw(2, past + s)
    inputs[3][:, 0] = 1
    check(case(inputs, 2, dtype, 2, ours=False, unidirectional=1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("past,s", [(0, 5), (6, 1), (11, 1), (4, 3)])
def test_shared_buffer(past, s, dtype):
    inputs = [(2, s, 8), (8, 240), (240,), None, (2, 2, 2, 12, 40), None, Const(ints(past))]
    check(case(inputs, 2, dtype, 2, unidirectional=1, past_present_share_buffer=1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("past,turned", [(0, 0), (3, 32), (40, 64)])
def test_rotary(past, turned, dtype):
    inputs = [(2, 5, 8), (8, 384), (384,), None, (2, 2, 2, past, 64)]
    more = {"rotary_embedding_dim": turned} if turned else {}
    check(case(inputs, 2, dtype, 2, unidirectional=1, do_rotary=1, **more))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "mask",
    [ints(9, 24), Const(ints(9, 24, 2, 5)), raw(2, 24), raw(2, 24, 24), raw(2, 1, 30, 30)],
    ids=["lengths", "ends_and_starts", "keys", "queries", "square"],
)
def test_masks(mask, dtype):
    ours = getattr(mask, "ndim", 0) == 4
    inputs = [(2, 24, 8), (8, 96), (96,), mask]
    check(case(inputs, 2, dtype, ours=ours))
    for bias in ((1, 1, 24, 24), (2, 2, 24, 24)):
        check(case([*inputs, None, bias], 2, dtype, ours=ours))


def test_edges():
    check(case([(2, 3, 8), (8, 96), (96,)], 2, misaligned=True))
    check(case([(2, 3, 8), (8, 96), (96,)], 2, "float16", misaligned=True))
    check(case([(0, 3, 8), (8, 96), (96,)], 2))
    check(case([(2, 3, 8), (8, 96), (96,)], 2, scale=0.3))


def test_refusals():
    x, weights, bias = floats(2, 3, 8), floats(8, 96), floats(96)
    node = dict(domain="com.microsoft")

    def run(inputs, attrs, words, outputs=1):
        fails("Attention", inputs, attrs, words, outputs=outputs, **node)

    run([x, weights, bias], {"num_heads": 5}, "cannot be divided")
    run([x, floats(7, 96), bias], {"num_heads": 2}, "don't fit together")
    run([x, weights, floats(95)], {"num_heads": 2}, "bias has shape")
    run([x, weights, bias, raw(2, 4)], {"num_heads": 2}, "the mask has shape")
    run([x, weights, bias], {"num_heads": 2, "qkv_hidden_sizes": [32, 32, 34]}, "qkv_hidden_sizes wants")
    past = floats(2, 2, 2, 6, 16)
    run([x, weights, bias, None, floats(2, 2, 3, 6, 16)], {"num_heads": 2}, "past has shape", 2)
    shared = {"num_heads": 2, "past_present_share_buffer": 1}
    run([x, weights, bias, None, past], shared, "past_sequence_length is wanted", 2)
    run([x, weights, bias, None, past, None, ints(4)], shared, "past_sequence_length is 4", 2)
    for attrs in ({"num_heads": 0}, {"num_heads": 2, "qkv_hidden_sizes": [32, 16, 48]}):
        declined("Attention", [x, weights, bias], attrs, **node)
