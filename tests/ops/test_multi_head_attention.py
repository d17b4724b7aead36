"""com.microsoft's MultiHeadAttention. The CPU EP has no halves and nothing packed: there the reference is ours."""

import numpy as np
import pytest
from encore_session import assert_all_on_encore
from harness import Case, Const, check, floats, seeded, session
from heads_reference import attend, split
from in_place import check_refused
from onnx import helper
from refusal import declined, fails
from tolerance import tolerance

TYPES = ["float32", "float16", "bfloat16"]


def reference(wanted, num_heads, unidirectional=0, scale=0.0, mask_filter_value=-10000.0):
    def run(q, k=None, v=None, bias=None, mask=None, score_bias=None, past_k=None, past_v=None, length=None):
        def heads(x):
            return x if x.ndim == 4 else split(x, num_heads)

        if k is None:
            q, k, v = (q[:, :, :, i].transpose(0, 2, 1, 3) for i in range(3))
        elif k.ndim == 5:
            q, k, v = heads(q), *(k[:, :, :, i].transpose(0, 2, 1, 3) for i in range(2))
            if bias is not None:
                assert k.ndim == 4
        else:
            projected = k.ndim == 3
            q, k, v = heads(q), heads(k), heads(v)
            if bias is not None and not projected:
                bias = np.concatenate([bias[: num_heads * q.shape[3]], np.zeros(2 * bias.size, np.float32)])
        if bias is not None:
            width = num_heads * q.shape[3]
            parts = bias[:width], bias[width : 2 * width], bias[2 * width : 2 * width + num_heads * v.shape[3]]
            q, k, v = (x + b.reshape(num_heads, 1, -1) for x, b in zip((q, k, v), parts))
        rest = None
        if past_k is not None:
            if length is not None:
                rest = [x[:, :, length[0] + k.shape[2] :] for x in (past_k, past_v)]
                past_k, past_v = past_k[:, :, : length[0]], past_v[:, :, : length[0]]
            k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
        y, scores = attend(q, k, v, mask, score_bias, unidirectional, scale, mask_filter_value)
        if rest:
            k, v = (np.concatenate([x, r], 2) for x, r in zip((k, v), rest))
        return [out for out, want in zip([y, k, v, scores], wanted) if want]

    return run


def case(inputs, heads, dtype="float32", outputs=1, ours=True, name="", misaligned=False, family="heads", **attrs):
    inputs = [None if i is None else floats(*i, low=-2, high=2) if isinstance(i, tuple) else i for i in inputs]
    wanted = [True] * outputs if isinstance(outputs, int) else outputs
    attrs["num_heads"] = heads
    return Case(
        "MultiHeadAttention",
        inputs,
        attrs,
        dtype=dtype,
        domain="com.microsoft",
        outputs=outputs,
        family=family,
        name=name,
        misaligned=misaligned,
        reference=reference(wanted, **attrs) if ours or dtype != "float32" else None,
    )


def ints(*values):
    return np.array(values, np.int32)


def raw(*shape, rate=0.3):
    return (seeded("raw", shape).uniform(size=shape) > rate).astype(np.int32)


# (batch, heads, queries, keys, size, value size)
SHAPES = [
    (2, 3, 7, 7, 40, 40),
    (1, 2, 129, 129, 64, 64),
    (2, 2, 1, 33, 80, 80),
    (1, 2, 5, 70, 96, 24),
    (1, 1, 3, 9, 128, 256),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("b,n,s,t,h,w", SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_separate(b, n, s, t, h, w, bias, dtype):
    more = [((2 * h + w) * n,)] if bias else []
    check(case([(b, s, n * h), (b, t, n * h), (b, t, n * w), *more], n, dtype, ours=False))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("b,n,s,h", [(2, 3, 7, 64), (1, 2, 129, 40), (2, 1, 1, 5)])
def test_packed(b, n, s, h, bias, dtype):
    more = [None, None, (3 * n * h,)] if bias else []
    check(case([(b, s, n, 3, h), *more], n, dtype, unidirectional=1))
    more = [None, (3 * n * h,)] if bias else []
    check(case([(b, 9, n * h), (b, s, n, 2, h), *more], n, dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("s", [1, 7, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_keys_of_an_encoder(s, bias, dtype):
    more = [(3 * 128,)] if bias else []
    check(case([(2, s, 128), (2, 2, 11, 64), (2, 2, 11, 64), *more], 2, dtype, ours=False))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("past", [0, 1, 60])
@pytest.mark.parametrize("s,h", [(1, 64), (7, 40), (129, 80), (3, 5)])
def test_past(s, h, past, dtype):
    new = [(2, s, 2 * h)] * 3
    for bias in (None, (6 * h,)):
        inputs = [*new, bias, None, None, (2, 2, past, h), (2, 2, past, h)]
        check(case(inputs, 2, dtype, 3, ours=False, unidirectional=1))
    check(case([*new, None, None, None, (2, 2, past, h), (2, 2, past, h)], 2, dtype))
    check(case(new, 2, dtype, 3, ours=False, unidirectional=1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("past,s", [(0, 1), (0, 5), (6, 1), (11, 1), (4, 3)])
@pytest.mark.parametrize("bias", [None, (3 * 80,)])
def test_shared_buffer(past, s, bias, dtype):
    inputs = [(2, s, 80)] * 3 + [bias, None, None, (2, 2, 12, 40), (2, 2, 12, 40), Const(ints(past))]
    check(case(inputs, 2, dtype, 3, unidirectional=1))


def test_a_past_of_another_room_where_the_present_is_fails():
    inputs = [(2, 1, 80)] * 3 + [None] * 3 + [(2, 2, 5, 40)] * 2
    check_refused(case(inputs, 2, outputs=3), {1: 6, 2: 7}, "has room for 5 rows and not for 6")


B, N, S, T, H = 2, 3, 5, 24, 16
MASKS = {
    "lengths": ints(9, 24),
    "lengths_of_all_or_none": ints(0, 99),
    "negative": ints(-3, 5),
    "lengths_and_starts": ints(3, 24, 0, 3, 6, 0, 5, 10),
    "ends_and_starts": ints(9, 24, 2, 20),
    "ends_before_starts": ints(9, 3, 2, 20),
    "keys": raw(B, T),
    "no_keys": np.zeros((B, T), np.int32),
    "queries": raw(B, S, T),
    "square": raw(B, 1, 30, 30),
    "one": np.zeros((B, 1), np.int32),
    "one_of_all": np.zeros((1, 1), np.int32),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_masks(mask, causal, dtype):
    shapes = [(B, S, N * H), (B, T, N * H), (B, T, N * H)]
    given = MASKS[mask] if mask != "ends_before_starts" or not causal else MASKS["ends_and_starts"]
    if causal and mask in ("ends_and_starts", "queries", "square"):
        given = np.array(given)
        given[..., -1 if mask == "ends_and_starts" else slice(0, 3)] = 1  # each query sees one
    if mask.startswith("ends"):
        given = Const(given)  # in another order, ends are before starts
    biases = [None, (1, 1, S, T), (B, 1, S, T), (1, N, S, T), (B, N, S, T)]
    if mask in ("no_keys", "ends_before_starts") and dtype != "float32":
        biases = [None]  # 10000 and the bias is one number, which in a half has no digits for the bias
    for bias in biases:
        check(case([*shapes, None, given, bias], N, dtype, name=mask, family="masked heads", unidirectional=causal))


@pytest.mark.parametrize("dtype", TYPES)
def test_odd_masks(dtype):
    """Keys that no pack fits, a mask that is the least there is, one that hardly masks, a single query."""
    shapes = [(B, S, N * H), (B, 13, N * H), (B, 13, N * H)]
    least = float(np.finfo(np.float32).min)
    for filtered in (-10000.0, least, -2.0):
        for mask in (raw(B, 13), raw(B, S, 13), ints(4, 13), Const(ints(4, 13, 1, 2))):
            check(case([*shapes, None, mask], N, dtype, mask_filter_value=filtered))
            check(case([*shapes, None, mask, (1, N, S, 13)], N, dtype, mask_filter_value=filtered))
    one = [(B, 1, N * 64), (B, 1, N * 64), (B, 1, N * 64), None]
    check(case([*one, raw(B, 40), None, (B, N, 39, 64), (B, N, 39, 64)], N, dtype, 3))
    check(case([*one, raw(B, 40), None, (B, N, 39, 64), (B, N, 39, 64)], N, dtype, 3, misaligned=True))


@pytest.mark.parametrize("mask", [ints(9, 24), raw(B, T), raw(B, S, T)], ids=["lengths", "keys", "queries"])
def test_masks_against_the_cpu(mask):
    shapes = [(B, S, N * H), (B, T, N * H), (B, T, N * H)]
    check(case([*shapes, (3 * N * H,), mask, (1, N, S, T)], N, ours=False))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mask", [None, ints(2, 9), raw(2, 9)], ids=["none", "lengths", "keys"])
@pytest.mark.parametrize("s", [1, 7, 40])
def test_scores(s, mask, dtype):
    """With a model of its own: what type they have the node does not tell."""
    arrays = [floats(2, rows, 32).astype(dtype) for rows in (s, 9, 9)]
    feeds = {f"x{i}": x for i, x in enumerate([*arrays, *([] if mask is None else [mask])])}
    names = ["x0", "x1", "x2", *([] if mask is None else ["", "x3"])]
    node = helper.make_node(
        "MultiHeadAttention", names, ["y", "", "", "qk"], name="it", domain="com.microsoft", num_heads=2
    )
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    results = [helper.make_tensor_value_info(n, values[0].type.tensor_type.elem_type, None) for n in ("y", "qk")]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "scores", values, results)
    sess = session(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    assert_all_on_encore(sess)
    wanted = reference([True, False, False, True], 2)(*arrays, None, mask)
    rtol, atol = tolerance("masked heads", dtype)
    for got, want in zip(sess.run(None, feeds), wanted, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=rtol, atol=5 * atol)


@pytest.mark.parametrize("dtype", TYPES)
def test_edges(dtype):
    check(case([(2, 3, 32)] * 3, 2, dtype, misaligned=True))
    check(case([(2, 3, 32)] * 3 + [(96,)], 2, dtype, misaligned=True))
    check(case([(0, 3, 32)] * 3, 2, dtype))
    check(case([(2, 0, 32), (2, 3, 32), (2, 3, 32)], 2, dtype))
    check(case([(2, 3, 32)] * 3, 2, dtype, scale=0.3))
    check(case([(1, 300, 64)] * 3 + [None, raw(1, 300)], 1, dtype, unidirectional=0))


def test_refusals():
    rows = floats(2, 3, 32)
    node = dict(domain="com.microsoft")

    def run(inputs, attrs, words, outputs=1):
        fails("MultiHeadAttention", inputs, attrs, words, outputs=outputs, **node)

    run([rows, rows, rows], {"num_heads": 5}, "heads divide")
    run([rows, rows, floats(2, 4, 32)], {"num_heads": 2}, "don't fit together")
    run([rows, rows, rows, floats(95)], {"num_heads": 2}, "bias has shape")
    run([rows, rows, rows, None, raw(2, 4)], {"num_heads": 2}, "the mask has shape")
    run([rows, rows, rows, None, None, floats(1, 2, 3, 4)], {"num_heads": 2}, "attention_bias has shape")
    past = floats(2, 2, 8, 16)
    run([rows, rows, rows, None, None, None, past], {"num_heads": 2}, "wanted together")
    run([rows, rows, rows, None, None, None, past, past, ints(6)], {"num_heads": 2}, "past_sequence_length is 6", 3)
    run([rows, rows, rows, None, None, None, past, past, ints(-1)], {"num_heads": 2}, "past_sequence_length is -1", 3)
    for attrs in ({"num_heads": 0}, {"num_heads": 2, "scale": float("nan")}):
        declined("MultiHeadAttention", [rows, rows, rows], attrs, **node)
    declined(
        "MultiHeadAttention",
        [rows, rows, rows, None, None, None, past, past, ints(1), np.zeros((2, 1, 8), np.int32)],
        {"num_heads": 2},
        **node,
    )
