"""GroupQueryAttention with lengths, attributes and shapes that do not fit."""

import numpy as np
import pytest
from group_query import INPUTS, MICROSOFT, Decoder, close, gqa
from harness import floats
from refusal import declined, fails


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("last", [[-1, 5], [5, 40], [-(1 << 31), (1 << 31) - 1]], ids=str)
def test_lengths_beyond_the_cache_are_reported(last, dtype):
    decoder = Decoder(2, 4, 2, 64, 40, dtype, graph=False)
    before = [decoder.inputs[n].numpy().copy() for n in ("past_key", "past_value")]
    with pytest.raises(Exception, match="not allowed|is outside") as caught:
        decoder.step(last)
    assert "'it'" in str(caught.value)
    for kind, kept in zip(("past_key", "past_value"), before):
        now = decoder.inputs[kind].numpy()
        for b, one in enumerate(last):
            changed = np.unique(np.nonzero(now[b] != kept[b])[1])
            assert list(changed) in ([], [one]), f"rows {changed} changed"


@pytest.mark.parametrize("how", [{}, {"qk_output": 1}, {"qk_output": 2}, {"bias": True}], ids=str)
@pytest.mark.parametrize("room", [90, 300])
@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_behind_the_last_key_may_be_anything(dtype, rows, room, how):
    decoder = Decoder(2, 4, 2, 64, room, dtype, graph=False, rows=rows, **how)
    last = [25, 89 if not how else room - 1]
    for kind in ("past_key", "past_value"):
        for b, end in enumerate(last):
            decoder.feeds[kind][b, :, end + 1 - rows :] = np.nan
        decoder.inputs[kind].update_inplace(decoder.feeds[kind])
    close(decoder, decoder.step(last))


def test_what_is_not_supported_is_declined():
    inputs = [getattr(x, "value", x) for x in gqa((6,), 7).inputs]
    for attrs in (
        {"sliding_window_cache": 1},
        {"sliding_window_cache": 2, "local_window_size": 4},
        {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"},
        {"num_heads": 3},
        {"qk_output": 1},
        {"num_heads": 0},
        {"num_heads": 1 << 60, "kv_num_heads": 1},
        {"causal": 0, "local_window_size": 4},
        {"causal": 2},
        {"do_rotary": 1},
        {"qk_norm_epsilon": float("nan")},
    ):
        declined(
            "GroupQueryAttention",
            inputs,
            {"num_heads": 4, "kv_num_heads": 2, **attrs},
            outputs=3,
            domain=MICROSOFT,
        )


def test_cosines_want_sines():
    inputs = [getattr(x, "value", x) for x in gqa((6,), 7).inputs]
    attrs = {"num_heads": 4, "kv_num_heads": 2}
    declined("GroupQueryAttention", [*inputs[:7], floats(9, 32)], attrs, outputs=3, domain=MICROSOFT)


@pytest.mark.parametrize(
    "change,words",
    [
        ({"query": (1, 7, 255)}, "cannot be divided"),
        ({"key": (1, 6, 128)}, "must be"),
        ({"value": (1, 7, 64)}, "must be"),
        ({"past_key": (1, 2, 3, 32), "past_value": (1, 2, 3, 64)}, "past_key"),
        ({"past_key": (2, 2, 3, 64), "past_value": (2, 2, 3, 64)}, "past_key"),
        ({"seqlens_k": np.array([6, 6], np.int32)}, "seqlens_k"),
        ({"total": np.array(8, np.int32)}, "the past has 0 keys"),
        ({"total": np.array(5, np.int32)}, "total_sequence_length is 5"),
        ({"total": np.array(-5, np.int32)}, "total_sequence_length is -5"),
        ({"cos": (9, 33), "sin": (9, 33)}, "cos_cache"),
        ({"cos": (6, 32), "sin": (6, 32)}, "fewer positions"),
        ({"position_ids": np.zeros((1, 6), np.int64)}, "position_ids"),
        ({"bias": (1, 3, 7, 7)}, "attention_bias"),
        ({"bias": (1, 1, 7, 6)}, "attention_bias"),
        ({"sinks": (3,)}, "head_sink"),
        ({"q_weight": (3,), "k_weight": (64,)}, "q_norm_weight"),
    ],
    ids=lambda x: "" if isinstance(x, dict) else x,
)
def test_what_does_not_fit_fails(change, words):
    case = gqa((6,), 7, rotary=32)
    inputs = dict.fromkeys(INPUTS) | dict(zip(INPUTS, case.inputs))
    inputs["total"] = inputs["total"].value
    inputs |= {n: floats(*x) if isinstance(x, tuple) else x for n, x in change.items()}
    fails("GroupQueryAttention", list(inputs.values()), case.attrs, words, outputs=3, ranks=False, domain=MICROSOFT)


@pytest.mark.parametrize("shape", [(7,), (1, 6), (2, 7)], ids=str)
def test_positions_that_do_not_fit_fail_where_nothing_is_turned(shape):
    inputs = [getattr(x, "value", x) for x in gqa((6,), 7).inputs]
    inputs += [None] * (INPUTS.index("position_ids") - len(inputs)) + [np.zeros(shape, np.int64)]
    attrs = {"num_heads": 4, "kv_num_heads": 2}
    fails("GroupQueryAttention", inputs, attrs, "position_ids has", outputs=3, ranks=False, domain=MICROSOFT)


@pytest.mark.parametrize("rotary", [None, 32])
@pytest.mark.parametrize(
    "change, words",
    [
        ({"past_key": None, "past_value": None}, "the past must have all keys"),
        ({"past_key": (1, 2, 6, 64), "past_value": (1, 2, 6, 64)}, "the past must have all keys"),
        ({"key": (1, 0, 127), "value": (1, 0, 127)}, "must be"),
        ({"key": (1, 0, 128), "value": (1, 7, 128)}, "must be"),
        ({"seqlens_k": np.array([12], np.int32)}, "not allowed"),
        ({"seqlens_k": np.array([-1], np.int32)}, "not allowed"),
        ({"total": np.array(9, np.int32), "seqlens_k": np.array([2], np.int32)}, "not allowed|is outside"),
    ],
    ids=str,
)
def test_a_past_that_layers_share_has_all_keys(change, words, rotary):
    case = gqa((6,), 7, room=12, rotary=rotary, filled=True)
    inputs = dict.fromkeys(INPUTS) | dict(zip(INPUTS, case.inputs))
    inputs["total"] = inputs["total"].value
    inputs |= {n: floats(*x) if isinstance(x, tuple) else x for n, x in change.items()}
    fails("GroupQueryAttention", list(inputs.values()), case.attrs, words, outputs=3, ranks=False, domain=MICROSOFT)


def test_a_window_takes_new_keys():
    case = gqa((6,), room=12, filled=True, local_window_size=4, sliding_window_cache=1)
    inputs = [getattr(x, "value", x) for x in case.inputs]
    fails("GroupQueryAttention", inputs, case.attrs, "have no rows", outputs=3, ranks=False, domain=MICROSOFT)
