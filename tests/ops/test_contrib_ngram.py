"""Operators of com.microsoft about rows of tokens, against the CPU EP."""

import numpy as np
import pytest
from encore_session import EAGER, assert_all_on_encore, on_device, run_options
from harness import Case, Const, _Model, check, floats, integers, session
from refusal import declined, fails

MICROSOFT = "com.microsoft"


def exact(op, inputs, attrs, outputs):
    return Case(op, inputs, attrs, outputs=outputs, domain=MICROSOFT, family="exact")


# NGramRepeatBlock


@pytest.mark.parametrize("size", [1, 2, 3, 9])
@pytest.mark.parametrize("batch, length, tokens", [(1, 5, 4), (3, 8, 4), (2, 700, 1000), (2, 1, 5), (0, 4, 4)])
def test_repeats(batch, length, tokens, size):
    ids = integers("int64", batch, length, low=0, high=min(tokens, 12) - 1)
    check(exact("NGramRepeatBlock", [ids, floats(batch, tokens)], {"ngram_size": size}, 1))


def test_repeats_that_do_not_fit():
    ids = np.array([[1, 2, 9, 1, 2]])
    for token in (9, -1):
        ids[0, 2] = token
        fails("NGramRepeatBlock", [ids, floats(1, 6)], {"ngram_size": 3}, f"{token}.*6", domain=MICROSOFT)
    fails("NGramRepeatBlock", [ids, floats(2, 6)], {"ngram_size": 3}, "the first alike", domain=MICROSOFT)
    declined("NGramRepeatBlock", [ids, floats(1, 6)], {"ngram_size": 0}, domain=MICROSOFT)


# NGramHashMapping


def tables(dtype, most, heads):
    wide = 2**40 if dtype == "int64" else 2**30
    multipliers = integers(dtype, most, low=-wide, high=wide)
    return [multipliers, integers(dtype, (most - 1) * heads, low=1, high=1_000_000)]


def hashed(dtype, batch, length, most=3, heads=2, past=True, offsets=False, eos=False, segments=False, **attrs):
    inputs = [
        integers(dtype, batch, length, low=0, high=5),
        *tables(dtype, most, heads),
        integers(dtype, batch, most - 1, low=0, high=5) if past else None,
        integers(dtype, (most - 1) * heads, low=0, high=1000) if offsets else None,
        np.array(3, dtype) if eos else None,
        integers("int32", batch, length, low=0, high=1) if segments else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"max_ngram_size": most, "n_head_per_ngram": heads, "pad_id": 7, **attrs}
    return exact("NGramHashMapping", inputs, attrs, 2)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("most, heads", [(2, 1), (3, 8), (5, 3)])
@pytest.mark.parametrize("batch, length", [(1, 1), (2, 7), (3, 129), (2, 0), (1, 5000)])
def test_hashes(batch, length, most, heads, dtype):
    check(hashed(dtype, batch, length, most, heads))


@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("eos, resets", [(False, 0), (False, 1), (True, 0), (True, 1)])
@pytest.mark.parametrize("segments", [True, False])
def test_hashes_with_optional_parts(segments, eos, resets, past):
    check(hashed("int64", 2, 40, 4, past=past, eos=eos, segments=segments, offsets=eos, reset_on_eos=resets))


def test_hashes_where_the_past_lies():
    """What is kept may be bound to the memory of what was kept."""
    c = hashed("int64", 2, 1, 4, eos=True)
    model = _Model(c, "float32")
    sess = session(model.model)
    assert_all_on_encore(sess)
    wanted = sess.run(model.outputs, model.feeds)
    binding = sess.io_binding()
    values = {name: on_device(value) for name, value in model.feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    hashes = on_device(np.zeros_like(wanted[0]))
    binding.bind_ortvalue_output("y0", hashes)
    binding.bind_ortvalue_output("y1", values["x3"])
    sess.run_with_iobinding(binding, run_options(EAGER))
    np.testing.assert_array_equal(hashes.numpy(), wanted[0])
    np.testing.assert_array_equal(values["x3"].numpy(), wanted[1])


def test_hashes_of_no_sizes_and_of_none():
    c = hashed("int64", 2, 6)
    c.inputs[2][:] = [0, -3, 5, 7]
    sess = session(_Model(c, "float32").model)
    got = sess.run(["y0"], {f"x{i}": v for i, v in enumerate(c.inputs)})[0]
    assert not got[..., :2].any() and got[..., 2:].any()
    for at, value, words in [
        (1, np.ones(2, np.int64), "multipliers"),
        (2, np.ones(3, np.int64), "vocab_sizes"),
        (3, np.ones((2, 3), np.int64), "past_ids"),
    ]:
        inputs = list(c.inputs)
        inputs[at] = value
        fails("NGramHashMapping", inputs, c.attrs, words, domain=MICROSOFT)
    for attrs in [{"max_ngram_size": 1}, {"n_head_per_ngram": 0}]:
        declined("NGramHashMapping", c.inputs, {**c.attrs, **attrs}, domain=MICROSOFT)


# VarlenNGramHashMapping


def packed(dtype, lengths, most=3, heads=2, past=True, eos=False, segments=0, capacity=0, offsets=False, **attrs):
    """With segments 2, those of the past, too."""
    batch, total, state = len(lengths), sum(lengths), most - 1
    inputs = [
        integers(dtype, total, low=0, high=5),
        *tables(dtype, most, heads),
        Const(np.cumsum([0, *lengths]).astype(np.int32)),
        integers(dtype, batch, state, low=0, high=5) if past else None,
        integers(dtype, state * heads, low=0, high=1000) if offsets else None,
        np.array(3, dtype) if eos else None,
        integers("int32", total, low=0, high=1) if segments else None,
        integers("int32", batch, state, low=0, high=1) if segments == 2 else None,
        integers("int32", batch, low=-1, high=9) if capacity else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"max_ngram_size": most, "n_head_per_ngram": heads, "pad_id": 7, **attrs}
    if capacity:
        attrs["state_update_capacity"] = capacity
    return exact("VarlenNGramHashMapping", inputs, attrs, [True, True, segments > 0, capacity > 0])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("most, heads", [(2, 1), (3, 8), (5, 3)])
@pytest.mark.parametrize("lengths", [[1], [2, 5], [1, 1, 1], [40, 1, 3, 129, 7]], ids=str)
def test_packed_hashes(lengths, most, heads, dtype):
    check(packed(dtype, lengths, most, heads))


@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("eos, resets", [(False, 0), (True, 0), (True, 1)])
@pytest.mark.parametrize("segments", [0, 1, 2])
@pytest.mark.parametrize("capacity", [0, 4, 8])
def test_packed_hashes_with_optional_parts(capacity, segments, eos, resets, past):
    lengths = [3, 1, 20, 2]
    check(packed("int64", lengths, 4, 2, past, eos, segments, capacity, offsets=eos, reset_on_eos=resets))


@pytest.mark.parametrize("ends", [[0, 7, 6], [1, 3, 6], [0, 0, 6], [0, 3, 9], [0, -4, 6], [0, 2, 3]], ids=str)
def test_sequences_that_are_none(ends):
    c = packed("int64", [2, 4], segments=2, capacity=2)
    c.inputs[3] = np.array(ends, np.int32)
    fails("VarlenNGramHashMapping", c.inputs, c.attrs, "value", outputs=4, domain=MICROSOFT)


def test_packed_hashes_that_do_not_fit():
    c = packed("int64", [2, 4])
    fails("VarlenNGramHashMapping", [*c.inputs[:3], np.array([6], np.int32)], c.attrs, "two values", domain=MICROSOFT)
    fails("VarlenNGramHashMapping", c.inputs, c.attrs, "want segment_ids", outputs=3, domain=MICROSOFT)
    inputs = [*(c.inputs + [None] * 3)[:6], np.array([3])]
    fails("VarlenNGramHashMapping", inputs, c.attrs, "must be a scalar", ranks=False, domain=MICROSOFT)
    declined("VarlenNGramHashMapping", c.inputs, {**c.attrs, "state_update_capacity": 2}, domain=MICROSOFT)
    declined("VarlenNGramHashMapping", c.inputs, {**c.attrs, "state_update_capacity": 9}, domain=MICROSOFT)
