"""com.microsoft's Longformer attentions, which the CPU EP lacks. The reference has the whole matrix of scores."""

import functools

import numpy as np
import pytest
from harness import Case, Const, check, floats, integers
from heads_reference import softmax, split
from refusal import declined, fails
from test_order import COLUMNS, ROWS, plain, scale, stored, to_int8

DOMAIN = {"domain": "com.microsoft"}


def attend(local, general, mask, flags, heads, window):
    """Of queries, keys and values [batch, row, 3 * hidden], of local and of global queries."""
    if local.size == 0:
        return local[..., : local.shape[2] // 3]
    q, k, v, *of_global = (split(x, heads) for x in [*np.split(local, 3, -1), *np.split(general, 3, -1)])
    row = np.arange(local.shape[1])
    near = abs(row[:, None] - row) <= window
    seen = near | (flags[:, None, None, :] == 1)
    add = mask[:, None, None, :].astype(np.float64)

    def results(q, k, v, seen):
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]) + add
        return softmax(np.where(seen, scores, -np.inf)) @ v

    y = np.where(flags[:, None, :, None] == 1, results(*of_global, True), results(q, k, v, seen))
    y = np.where(mask[:, None, :, None] < 0, 0, y)
    return y.transpose(0, 2, 1, 3).reshape(*local.shape[:2], local.shape[2] // 3)


def reference(heads, window):
    def run(x, weight, bias, mask, global_weight, global_bias, flags):
        x, hidden = x.astype(np.float64), x.shape[2]
        if weight.ndim == 3:
            more = np.concatenate([global_bias, bias[3 * hidden :]])
            bias, global_bias = bias[: 3 * hidden], more
            weight, global_weight = (np.concatenate(list(w), 1) for w in (weight, global_weight))
        return [attend(x @ weight + bias, x @ global_weight + global_bias, mask, flags, heads, window)]

    return run


def flags(rows, *places):
    """Of each batch where its global tokens are."""
    made = np.zeros((len(places), rows), np.int32)
    for row, of_batch in zip(made, places):
        row[list(of_batch)] = 1
    return made


def padded(rows, *lengths):
    return np.where(np.arange(rows) < np.array(lengths)[:, None], 0, -10000).astype(np.float32)


def inputs(heads, size, given, mask=None, apart=False):
    (batch, rows), hidden = given.shape, heads * size
    near = 2 / np.sqrt(hidden)
    shape, biases = ((3, hidden, hidden), (5, 1)) if apart else ((hidden, 3 * hidden), (3, 3))
    weights = [Const(floats(*shape, low=-near, high=near)) for _ in range(2)]
    mask = np.zeros((batch, rows), np.float32) if mask is None else mask
    x = floats(batch, rows, hidden, low=-1, high=1)
    return [x, weights[0], floats(biases[0] * hidden), mask, weights[1], floats(biases[1] * hidden), given]


def case(window, heads, size, given, mask=None, apart=False, dtype="float32", **more):
    return Case(
        "LongformerAttention",
        inputs(heads, size, given, mask, apart),
        {"window": window, "num_heads": heads},
        dtype=dtype,
        family="projected",
        reference=reference(heads, window),
        options={"use_tf32": 0},
        **DOMAIN,
        **more,
    )


def small(dtype):
    """Sizes that do not fill tiles, or fill several."""
    make = functools.partial(case, dtype=dtype)
    return [
        make(4, 2, 8, flags(16, [0]), name="first"),
        make(3, 1, 5, flags(6, [5], []), padded(6, 4, 6), name="odd"),
        make(8, 2, 16, flags(80, [], []), padded(80, 80, 33), name="none"),
        make(8, 2, 16, flags(80, [0, 1, 40], [79]), padded(80, 78, 80), name="some"),
        make(5, 1, 16, flags(70, range(70), range(0, 70, 2)), padded(70, 70, 60), name="all"),
        make(1, 3, 24, flags(2, [1]), apart=True),
        make(8, 1, 16, flags(48, [3, 9], []), padded(48, 40, 48), apart=True, name="apart"),
        make(2, 1, 136, flags(36, [3, 9], [7]), name="large"),
        make(8, 1, 96, flags(528, range(0, 528, 12)), padded(528, 500), name="shares"),
        make(4, 2, 8, flags(8, [0]), misaligned=True),
        make(4, 2, 8, flags(0, [])),
    ]


@pytest.mark.parametrize("given", [*small("float32"), *small("float16")], ids=str)
def test_attention(given):
    check(given)


@pytest.mark.parametrize(
    "given",
    [
        case(256, 4, 64, flags(512, [0, 1, 2]), padded(512, 500), dtype="float16", capture=False),
        case(128, 2, 64, flags(1024, [0, 100, 1000]), padded(1024, 1020), dtype="float16"),
        case(128, 1, 64, flags(1024, range(70)), dtype="float32"),
    ],
    ids=str,
)
def test_real_sizes(given):
    check(given)


def test_refusals():
    attrs = {"window": 4, "num_heads": 2}
    given = inputs(2, 8, flags(16, [0]))

    def with_(at, value):
        return [*given[:at], value, *given[at + 1 :]]

    for at, value, words in [
        (0, floats(16, 16), "three dimensions"),
        (0, floats(1, 12, 16), "multiple of 8"),
        (0, floats(1, 16, 15), "do not divide"),
        (1, floats(16, 47), "weight has shape"),
        (1, floats(3, 16, 16), "global_weight has shape"),
        (2, floats(80), "bias has shape"),
        (3, floats(1, 15), "mask has shape"),
        (4, floats(3, 16, 16), "global_weight has shape"),
        (5, floats(16), "global_bias has shape"),
        (6, flags(8, [0]), "global has shape"),
        (6, flags(16, [0]) * 2, "not allowed: 2"),
    ]:
        fails("LongformerAttention", with_(at, value), attrs, words, ranks=False, **DOMAIN)
    for other in ({"window": 0}, {"window": -4}, {"num_heads": 0}, {"window": 1 << 40}):
        declined("LongformerAttention", given, {**attrs, **other}, **DOMAIN)


ORDERS = {"order_input": ROWS, "order_weight": COLUMNS, "order_global_weight": COLUMNS, "order_output": ROWS}
# Powers of two, so that all is exact but the attention, of halves: its results may be one apart.
INPUT, RESULTS, OUTPUT = 2**-5, (2**-4, 2**-5), 2**-4


def ordered_inputs(heads, size, given, mask=None, constant=True):
    (batch, rows), hidden = given.shape, heads * size
    made = [integers(np.int8, batch, rows, hidden, low=-127, high=127), scale(INPUT)]
    for result in RESULTS:
        weight = stored(integers(np.int8, hidden, 3 * hidden, low=-127, high=127), COLUMNS)
        bias = Const((integers(np.int16, 3 * hidden) / 8).astype(np.float32), fixed=True)
        of_weight = scale(result / INPUT * 2.0 ** -(7 + np.round(np.log2(hidden) / 2)))
        made += [Const(weight) if constant else weight, of_weight, bias]
        if result == RESULTS[0]:
            made += [scale(1), scale(result), np.zeros((batch, rows), np.float32) if mask is None else mask]
        else:
            made += [scale(result), given, scale(OUTPUT)]
    made[7] = made[7].astype(np.float16)
    return made


def ordered_reference(heads, window):
    def run(x, x_scale, w, w_scale, b, _, s, mask, global_w, global_w_scale, global_b, global_s, flags, y_scale):
        def project(w, of_weight, b, s):
            sums = x.astype(np.int64) @ plain(w, COLUMNS).astype(np.int64)
            return to_int8(sums * (float(x_scale) * of_weight / s) + b) * float(s)

        local, general = project(w, w_scale, b, s), project(global_w, global_w_scale, global_b, global_s)
        return [to_int8(attend(local, general, mask, flags, heads, window) / float(y_scale))]

    return run


def ordered(window, heads, size, given, mask=None, constant=True, **more):
    return Case(
        "QOrderedLongformerAttention",
        ordered_inputs(heads, size, given, mask, constant),
        {"window": window, "num_heads": heads, **ORDERS},
        off_by=1,
        reference=ordered_reference(heads, window),
        **DOMAIN,
        **more,
    )


@pytest.mark.parametrize(
    "given",
    [
        ordered(4, 2, 8, flags(16, [0])),
        ordered(3, 1, 5, flags(6, [5], []), padded(6, 4, 6), constant=False),
        ordered(8, 2, 16, flags(80, [0, 1, 40], [79]), padded(80, 78, 80)),
        ordered(64, 2, 64, flags(256, [0]), padded(256, 250)),
        ordered(4, 2, 8, flags(0, [])),
    ],
    ids=str,
)
def test_ordered(given):
    check(given)


def test_ordered_refusals():
    given, attrs = ordered_inputs(2, 8, flags(16, [0]), constant=False), {"window": 4, "num_heads": 2, **ORDERS}
    for other in ({"order_input": 2}, {"order_weight": ROWS}, {"order_global_weight": ROWS}, {"order_output": 0}):
        declined("QOrderedLongformerAttention", given, {**attrs, **other}, **DOMAIN)
    for at, value, words in [
        (1, scale(0), "scale_input is 0"),
        (2, integers(np.int8, 16, 47), "weight has shape"),
        (6, Const(np.ones(2, np.float32), fixed=True), "scale_qkv_gemm has 2 values"),
        (10, floats(47), "the bias of global_weight has shape"),
    ]:
        wrong = [*given[:at], value, *given[at + 1 :]]
        fails("QOrderedLongformerAttention", wrong, attrs, words, ranks=False, **DOMAIN)
    wide = [np.zeros((0, 0, 2**62), np.int8), *given[1:7], np.zeros((0, 0), np.float16), *given[8:12]]
    fails(
        "QOrderedLongformerAttention",
        [*wide, np.zeros((0, 0), np.int32), *given[13:]],
        attrs,
        "a size overflows",
        ranks=False,
        **DOMAIN,
    )
