import numpy as np
import pytest
from harness import Case, Const, check, floats
from in_place import check_in_order, check_in_place
from refusal import declined, fails

TYPES = ["float32", "float16", "bfloat16"]


def conv(batch, channels, length, kernel, *, bias=True, past=True, dtype="float32", activation=None, **rest):
    given = [
        floats(batch, channels, length),
        floats(channels, 1, kernel),
        floats(channels) if bias else None,
        floats(batch, channels, kernel - 1) if past else None,
    ]
    while given[-1] is None:
        given.pop()
    attrs = {"activation": activation} if activation else {}
    return Case("CausalConvWithState", given, attrs, dtype, 2, "matmul", opset=27, name=activation or "", **rest)


CASES = [
    *[conv(2, 5, 17, 4, dtype=t, activation=how) for t in TYPES for how in ("silu", "swish", "none")],
    *[conv(2, 3, 9, 4, bias=bias, past=past) for bias in (True, False) for past in (True, False)],
    conv(1, 2048, 1, 4, dtype="float16", activation="silu"),
    conv(3, 700, 130, 4, dtype="bfloat16"),
    conv(2, 3, 2, 6),
    conv(2, 3, 5, 1, past=False),
    conv(2, 3, 0, 3, reference=lambda x, w, bias, past: [x, past]),  # which the CPU EP's Conv refuses
    conv(0, 3, 5, 3),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_causal_conv(case):
    check(case)


def test_causal_conv_refuses():
    x, w = floats(2, 3, 5), floats(3, 1, 4)
    declined("CausalConvWithState", [x, w], {"activation": "relu"}, opset=27, outputs=2)
    for inputs, words in [
        ([x, floats(3, 2, 4)], "weight"),
        ([x, floats(2, 1, 4)], "weight"),
        ([x, floats(3, 1, 0)], "weight"),
        ([x, w, floats(2)], "bias"),
        ([x, w, floats(3), floats(2, 3, 4)], "past_state"),
        ([floats(2, 15), w], "input"),
    ]:
        fails("CausalConvWithState", inputs, {}, words, opset=27, outputs=2, ranks=False)


def contrib(
    batch,
    channels,
    length,
    kernel,
    *,
    dilation=1,
    last=False,
    window=0,
    bias=True,
    past=True,
    dtype="float32",
    activation="silu",
    more=(),
):
    """com.microsoft's, which knows dilated taps, another layout, and several states."""
    kept = (kernel - 1) * dilation
    shape = lambda places: [batch, places, *(more or [channels])] if last else [batch, channels, places]
    given = [
        floats(*shape(length)),
        floats(channels, 1, kernel),
        floats(channels) if bias else None,
        floats(*([window] if window else []), *shape(kept)) if past else None,
    ]
    while given[-1] is None:
        given.pop()

    def reference(x, w, b=None, past=None):
        first = lambda a: np.moveaxis(a.reshape(*a.shape[:2], -1), 1, 2) if last else a
        stored = lambda a, like: np.moveaxis(a, 1, 2).reshape(like) if last else a
        before = np.zeros((batch, channels, kept), np.float32)
        if past is not None:
            before = first(past[-1] if window else past)
        return _stepped(
            first(x), w, b, before, dilation, activation, window, lambda a, places: stored(a, shape(places))
        )

    attrs = {"activation": activation, "dilation": dilation, "channels_last": int(last), "state_window": window}
    name = f"{dilation}-{last}-{window}-{activation}"
    return Case(
        "CausalConvWithState", given, attrs, dtype, 2, "matmul", "com.microsoft", name=name, reference=reference
    )


def _stepped(x, w, b, before, dilation, activation, window, stored):
    """Written from the operator's description: the CPU EP has only some of it."""
    batch, channels, length = x.shape
    kernel, kept = w.shape[-1], before.shape[-1]
    all_seen = np.concatenate([before, x], -1)
    y = sum(all_seen[..., j * dilation : j * dilation + length] * w[:, 0, j][:, None] for j in range(kernel))
    y = y if b is None else y + b[:, None]
    y = y / (1 + np.exp(-y)) if activation != "none" else y
    after = lambda places: stored(all_seen[..., places : places + kept], kept)
    if not window:
        return [stored(y, length), after(length)]
    ends = [length - window + 1 + slot for slot in range(window)]
    states = [after(end) if end > 0 or end == length else np.zeros_like(after(length)) for end in ends]
    return [stored(y, length), np.stack(states)]


CONTRIB = [
    *[contrib(2, 5, 17, 4, dtype=t, last=last) for t in TYPES for last in (False, True)],
    *[contrib(2, 3, 9, 4, bias=bias, past=past, last=True) for bias in (True, False) for past in (True, False)],
    *[
        contrib(2, 3, length, 3, dilation=2, last=last, window=w)
        for length in (1, 2, 9)
        for last in (0, 1)
        for w in (0, 1, 5)
    ],
    contrib(2, 3, 5, 3, window=8, past=False),
    contrib(1, 12, 7, 4, last=True, more=[3, 4], window=2, activation="none"),
    contrib(3, 700, 130, 4, dtype="float16", last=True),
    contrib(2, 3, 5, 1, activation="swish"),
    contrib(2, 3, 0, 3, window=2),
    # Those that are done in packs.
    *[contrib(2, 24, 32, k, last=last, dtype=t, window=1) for k in (3, 4) for last in (False, True) for t in TYPES],
    *[contrib(2, 16, 8, 4, last=last, past=past, bias=False) for last in (False, True) for past in (False, True)],
    contrib(2, 16, 9, 4, last=True, dilation=3, dtype="bfloat16", window=3),
    contrib(1, 6, 16, 3, activation="none", dtype="float16"),
]


@pytest.mark.parametrize("case", CONTRIB, ids=str)
def test_contrib_causal_conv(case):
    check(case)


def steps_in_place():
    for case in (
        conv(1, 300, 1, 4, dtype="float16", activation="silu"),
        conv(2, 24, 32, 4),
        *[contrib(2, 70, n, 3, dilation=2, last=last, window=w) for n in (1, 3) for last in (0, 1) for w in (0, 3)],
    ):
        check_in_place(case, {1: 3})
    check_in_place(packed([1, 5, 1, 2], 40, 4, dilation=2), {1: 4})


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_states_may_be_the_same_memory(order):
    check_in_order(order, "test_causal_conv", "steps_in_place")


def packed(lengths, channels, kernel, *, dilation=1, most=0, bias=True, dtype="float32", activation="silu"):
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    kept = (kernel - 1) * dilation
    counts = Const(np.arange(len(lengths), dtype=np.int32) * 2 - 1) if most else None
    given = [
        floats(ends[-1], channels),
        floats(channels, 1, kernel),
        Const(ends),
        floats(channels) if bias else None,
        floats(len(lengths), channels, kept),
        counts,
    ]
    if not most:
        given.pop()

    def reference(x, w, ends, b, past, counts=None):
        y, final, first = np.zeros_like(x), np.zeros_like(past), np.zeros((len(past), most, channels), np.float32)
        for i, (begin, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
            made, final[i] = (
                a[0]
                for a in _stepped(x[begin:end].T[None], w, b, past[i : i + 1], dilation, activation, 0, lambda a, _: a)
            )
            y[begin:end] = made.T
            if most:
                count = int(np.clip(counts[i], 0, min(most, end - begin)))
                first[i, :count] = x[begin : begin + count]
        return [y, final, first][: 3 if most else 2]

    attrs = {"activation": activation, "dilation": dilation, "state_update_capacity": most}
    return Case(
        "VarlenCausalConvWithState",
        given,
        attrs,
        dtype,
        3 if most else 2,
        "matmul",
        "com.microsoft",
        name=f"{len(lengths)}-{most}-{dilation}",
        reference=reference,
    )


PACKED = [
    *[packed([3, 1, 9, 2], 5, 4, dtype=t, most=m) for t in TYPES for m in (0, 4)],
    packed([1] * 40, 260, 4, dtype="float16"),
    packed([7], 3, 3, dilation=3, bias=False, activation="none"),
    packed([2, 5], 3, 1, most=8),
    packed([1, 129, 30], 96, 4, dilation=2, most=2, activation="swish"),
]


@pytest.mark.parametrize("case", PACKED, ids=str)
def test_packed_sequences(case):
    check(case)


# Of some no token shows it.
NO_RANGES = [[0, 9, 5], [0, 2, 6], [1, 2, 5], [0, -3, 5], [0, 2**31 - 1, 5], [0, 3, 2, 5], [0, 5, 4, 5], [0, -1, 0, 5]]


@pytest.mark.parametrize("tokens, ends", [(5, ends) for ends in NO_RANGES] + [(0, [0, 0, 1]), (0, [0, 1, 0])], ids=str)
def test_packed_sequences_refuse_what_is_no_range(tokens, ends):
    given = [floats(tokens, 3), floats(3, 1, 4), np.array(ends, np.int32), floats(3), floats(len(ends) - 1, 3, 3)]
    fails("VarlenCausalConvWithState", given, {}, "is outside", outputs=2, domain="com.microsoft")


def test_contrib_causal_convs_refuse():
    x, w = floats(2, 3, 5), floats(3, 1, 4)
    for attrs in ({"ndim": 2}, {"dilation": 0}, {"state_window": 9}, {"state_window": -1}, {"activation": "relu"}):
        declined("CausalConvWithState", [x, w], attrs, outputs=2, domain="com.microsoft")
    x, ends, past = floats(5, 3), np.array([0, 2, 5], np.int32), floats(2, 3, 3)
    for attrs in ({"state_update_capacity": 9}, {"state_update_capacity": 1}, {"dilation": -1}):
        declined("VarlenCausalConvWithState", [x, w, ends, floats(3), past], attrs, outputs=2, domain="com.microsoft")
    for at, wrong, words in [
        (0, floats(5), "input"),
        (1, floats(3, 2, 4), "weight"),
        (3, floats(2), "bias"),
        (4, floats(2, 3, 2), "initial_state"),
        (2, np.array([], np.int32), "cumulative"),
    ]:
        given = [x, w, ends, floats(3), past]
        given[at] = wrong
        fails("VarlenCausalConvWithState", given, {}, words, outputs=2, ranks=False, domain="com.microsoft")
