"""com.microsoft's DecoderMaskedMultiHeadAttention and DecoderMaskedSelfAttention. The reference is ours: the CPU EP has
keys in another order, and no kernel for the latter."""

import numpy as np
import pytest
from encore_session import EAGER, assert_all_on_encore, on_device, run_options
from harness import Case, Const, check, floats, seeded, session
from heads_reference import attend, split, turn
from onnx import helper
from refusal import declined, fails
from test_multi_head_attention import ints, raw

TYPES = ["float32", "float16"]
DOMAIN = {"domain": "com.microsoft"}


def reordered(keys, dtype):
    """[batch, head, row, size] as chunks of 16 bytes before rows, in the same shape."""
    part = 4 if dtype == "float32" else 8
    *lead, rows, size = keys.shape
    return keys.reshape(*lead, rows, size // part, part).swapaxes(-3, -2).reshape(keys.shape)


def ordered(keys, dtype):
    part = 4 if dtype == "float32" else 8
    *lead, rows, size = keys.shape
    return keys.reshape(*lead, size // part, rows, part).swapaxes(-3, -2).reshape(keys.shape)


def step(q, k, v, past_k, past_v, past, dtype, mask=None, bias=None, width=None, beams=None, filtered=-10000.0):
    """The output, and what keys and values are with the new ones; q, k, v [batch, head, 1, size]."""
    past_k = ordered(past_k, dtype)
    batch = q.shape[0]
    rows = np.broadcast_to(np.arange(batch)[:, None], (batch, past))
    if width is not None and width[0] > 1:
        rows = rows // width[0] * width[0] + beams.reshape(batch, -1)[:, :past]
    found_k, found_v = (
        np.concatenate([x[rows, :, np.arange(past)].transpose(0, 2, 1, 3), new], 2)
        for x, new in ((past_k, k), (past_v, v))
    )
    y, scores = attend(q, found_k, found_v, mask, bias, filtered=filtered)
    now_k, now_v = past_k.astype(np.float64), past_v.astype(np.float64)
    now_k[:, :, past], now_v[:, :, past] = k[:, :, 0], v[:, :, 0]
    return y, reordered(now_k, dtype), now_v, scores


def multi_head(inputs, heads, dtype, outputs=3, misaligned=False, **attrs):
    inputs = [None if i is None else floats(*i, low=-2, high=2) if isinstance(i, tuple) else i for i in inputs]
    attrs = {"num_heads": heads, **attrs}
    filtered = attrs.get("mask_filter_value", -10000.0)
    if outputs == 3:
        attrs["past_present_share_buffer"] = 1

    def run(
        q, k=None, v=None, mask=None, bias=None, past_k=None, past_v=None, past=None, width=None, beams=None, add=None
    ):
        parts = [q, k, v] if k is not None else np.split(q, 3, -1)
        if add is not None:
            adds = np.split(add, 3)
            parts = [x + b if x.ndim == 3 else x for x, b in zip(parts, adds)]
        q, k, v = (split(x, heads) if x.ndim == 3 else x for x in parts)
        if past is None:
            return [attend(q, ordered(k, dtype), v, mask, filtered=filtered)[0]]
        return step(q, k, v, past_k, past_v, past[0], dtype, mask, bias, width, beams, filtered)[:3]

    return Case(
        "DecoderMaskedMultiHeadAttention",
        inputs,
        attrs,
        dtype=dtype,
        outputs=outputs,
        family="heads",
        reference=run,
        misaligned=misaligned,
        **DOMAIN,
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [8, 32, 64, 80, 128, 256])
@pytest.mark.parametrize("past,most", [(0, 1), (5, 9), (128, 200), (700, 701)])
def test_a_step(size, past, most, dtype):
    n = 2
    new, cache = (2, 1, n * size), (2, n, most, size)
    tail = [cache, cache, Const(ints(past))]
    check(multi_head([new, new, new, None, None, *tail], n, dtype))
    check(multi_head([(2, 1, 3 * n * size), None, None, None, None, *tail], n, dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("past", [7, 300])
def test_bias_mask_and_beams(past, dtype):
    n, size, most = 3, 64, past + 5
    new, cache = (4, 1, n * size), (4, n, most, size)
    tail = [cache, cache, Const(ints(past))]
    for width in (1, 2, 4):
        beams = seeded("beams", width, past).integers(0, width, (4 // width, width, most)).astype(np.int32)
        more = [Const(ints(width)), beams]
        check(multi_head([new, new, new, None, None, *tail, *more], n, dtype))
        for bias in ((1, 1, 1, past + 1), (4, n, 1, past + 1), (1, n, 1, past + 1)):
            check(multi_head([new, new, new, raw(4, past + 1), bias, *tail, *more, (3 * n * size,)], n, dtype))
    check(multi_head([(4, 1, 3 * n * size), *[None] * 4, *tail, None, None, (3 * n * size,)], n, dtype))
    check(multi_head([new, new, new, raw(4, past + 1), None, *tail], n, dtype, mask_filter_value=-2.0))
    check(multi_head([new, new, new, None, None, *tail, None, None, (3 * n * size,)], n, dtype, misaligned=True))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("keys", [1, 9, 1500])
def test_keys_of_an_encoder(keys, dtype):
    new, cache = (2, 1, 3 * 64), (2, 3, keys, 64)
    check(multi_head([new, cache, cache], 3, dtype, 1))
    check(multi_head([new, cache, cache, raw(2, keys), *[None] * 6, (3 * 192,)], 3, dtype, 1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scores", TYPES)
def test_scores(scores, dtype):
    arrays = [floats(2, 1, 64).astype(dtype), *(floats(2, 2, 9, 32).astype(dtype) for _ in range(2))]
    feeds = {f"x{i}": x for i, x in enumerate(arrays)}
    node = helper.make_node(
        "DecoderMaskedMultiHeadAttention",
        [*feeds],
        ["y", "", "", "qk"],
        name="it",
        num_heads=2,
        output_qk=1,
        **DOMAIN,
    )
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    kinds = [values[0].type.tensor_type.elem_type, helper.np_dtype_to_tensor_dtype(np.dtype(scores))]
    results = [helper.make_tensor_value_info(n, kind, None) for n, kind in zip(("y", "qk"), kinds)]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    sess = session(
        helper.make_model(
            helper.make_graph([node], "scores", values, results),
            opset_imports=opsets,
            ir_version=10,
        )
    )
    assert_all_on_encore(sess)
    wanted = attend(split(arrays[0], 2), ordered(arrays[1], dtype), arrays[2])
    for got, want in zip(sess.run(None, feeds), wanted, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=4e-3, atol=1e-2)


def self_attention(b, n, size, past, most, dtype, mask=None, beams=None, width=None, **attrs):
    wide = 24
    inputs = [
        floats(b, 1, wide, low=-1, high=1),
        floats(wide, 3 * n * size, low=-1, high=1),
        floats(3 * n * size),
        mask,
    ]
    inputs += [floats(2, b, n, most, size), None, Const(ints(past)), width and Const(ints(width)), beams]
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"num_heads": n, "past_present_share_buffer": 1, **attrs}

    def run(x, weights, bias, mask=None, cache=None, _=None, past=None, width=None, beams=None):
        q, k, v = (split(p, n) for p in np.split(x.astype(np.float64) @ weights + bias, 3, -1))
        if attrs.get("do_rotary"):
            q, k = (turn(p, past[0], size) for p in (q, k))
        y, keys, values, _ = step(q, k, v, *cache, past[0], dtype, mask, None, width, beams)
        return [y, np.stack([keys, values])]

    return Case(
        "DecoderMaskedSelfAttention",
        inputs,
        attrs,
        dtype=dtype,
        outputs=2,
        family="turned" if attrs.get("do_rotary") else "projected",
        reference=run,
        options={"use_tf32": 0},
        **DOMAIN,
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("past,most", [(0, 1), (5, 9), (300, 320)])
def test_self_attention(past, most, dtype):
    for size in (32, 64, 128):
        check(self_attention(2, 2, size, past, most, dtype))
        check(self_attention(2, 2, size, past, most, dtype, do_rotary=1))
    check(self_attention(2, 2, 64, past, most, dtype, mask=raw(2, past + 1)))
    beams = seeded("beams", past).integers(0, 2, (1, 2, most)).astype(np.int32)
    check(self_attention(2, 2, 64, past, most, dtype, beams=beams, width=2))


@pytest.mark.parametrize("op", ["DecoderMaskedMultiHeadAttention", "MultiHeadAttention"])
def test_one_buffer(op):
    """That is both past and present."""
    decoder = op.startswith("Decoder")
    rows = [floats(2, 1, 64) for _ in range(3)]
    cache = [floats(2, 2, 12, 32) for _ in range(2)]
    between = ["", ""] if decoder else ["", "", ""]
    attrs = {"past_present_share_buffer": 1} if decoder else {}
    node = helper.make_node(
        op, ["q", "k", "v", *between, "pk", "pv", "n"], ["y", "nk", "nv"], name="it", num_heads=2, **attrs, **DOMAIN
    )
    shapes = {"q": (2, 1, 64), "k": (2, 1, 64), "v": (2, 1, 64), "pk": (2, 2, 12, 32), "pv": (2, 2, 12, 32)}
    inputs = [helper.make_tensor_value_info(n, 1, s) for n, s in shapes.items()]
    inputs.append(helper.make_tensor_value_info("n", 6, [1]))
    results = [helper.make_tensor_value_info(n, 1, None) for n in ("y", "nk", "nv")]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "shared", inputs, results)
    sess = session(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    assert_all_on_encore(sess)
    binding = sess.io_binding()
    keep = {name: on_device(x) for name, x in zip(shapes, [*rows, *cache])}
    for name, value in keep.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_cpu_input("n", ints(7))
    binding.bind_ortvalue_output("nk", keep["pk"])
    binding.bind_ortvalue_output("nv", keep["pv"])
    binding.bind_output("y")
    sess.run_with_iobinding(binding, run_options(EAGER))
    heads = [split(x, 2) for x in rows]
    if not decoder:
        cache[0] = reordered(cache[0], "float32")
    y, keys, values, _ = step(*heads, *cache, 7, "float32")
    if not decoder:
        keys = ordered(keys, "float32")
    got = [binding.copy_outputs_to_cpu()[2], keep["pk"].numpy(), keep["pv"].numpy()]
    for one, want in zip(got, (y, keys, values), strict=True):
        np.testing.assert_allclose(one, want, rtol=3e-5, atol=5e-6)


def test_refusals():
    row, cache = floats(2, 1, 64), floats(2, 2, 8, 32)
    attrs = {"num_heads": 2, "past_present_share_buffer": 1}
    op = "DecoderMaskedMultiHeadAttention"

    def run(inputs, words, **more):
        fails(op, inputs, {**attrs, **more}, words, outputs=3, **DOMAIN)

    run([row, row, row, None, None, cache, cache, ints(8)], "past_sequence_length is 8")
    run([row, row, row, None, None, cache, cache, ints(-1)], "past_sequence_length is -1")
    run([row, row, row, raw(2, 8), None, cache, cache, ints(3)], "mask_index has shape")
    run([row, row, row, None, None, cache, cache, ints(3), ints(3)], "beam_width is 3")
    run([row, row, row, None, None, cache, cache, ints(3), ints(2)], "cache_indirection is wanted")
    beams = np.zeros((1, 2, 2), np.int32)
    run([row, row, row, None, None, cache, cache, ints(3), ints(2), beams], "cache_indirection has shape")
    beams = np.full((1, 2, 8), 2, np.int32)
    run([row, row, row, None, None, cache, cache, ints(3), ints(2), beams], "2")
    two = floats(2, 2, 64)
    run([two, two, two, None, None, cache, cache, ints(3)], "there must be one")
    for change in ({"past_present_share_buffer": 0}, {"num_heads": 0}, {"num_heads": 2**62}):
        declined(op, [row, row, row, None, None, cache, cache, ints(8)], {**attrs, **change}, outputs=3, **DOMAIN)
