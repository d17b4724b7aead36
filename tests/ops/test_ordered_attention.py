"""com.microsoft's QOrderedAttention, which the CPU EP lacks: the reference rounds to 8 bits wherever the operator does.

Scales are powers of two, so that all but the softmax is exact. A power that differs in its last digit may make another
probability of a value between two: results are one apart then.
"""

import numpy as np
import pytest
from harness import Case, Const, check, floats, integers
from refusal import declined, fails
from test_order import COLUMNS, DOMAIN, ROWS, plain, scale, stored, to_int8

ORDERS = {"order_input": ROWS, "order_weight": COLUMNS, "order_output": ROWS}
INPUT, RESULTS, PROBABILITIES, OUTPUT = 2**-5, (2**-5, 2**-5, 2**-3), 2**-7, 2**-3


def seen_by(mask, batch, rows, causal):
    """[batch, query, key]"""
    key = np.arange(rows)
    seen = np.ones((batch, rows, rows), bool)
    if mask is not None:
        shape = mask.shape
        if len(shape) == 1:
            first = mask[batch:, None] if shape[0] == 2 * batch else 0
            seen &= ((key < mask[:batch, None]) & (key >= first))[:, None]
        elif len(shape) == 2:
            seen &= (mask != 0)[:, None]
        elif len(shape) == 3:
            seen &= mask != 0
        else:
            seen &= mask[:, 0, :rows, :rows] != 0
    return seen & (key <= key[:, None]) if causal else seen


def reference(heads, causal):
    def run(x, x_scale, *rest):
        results, weights, scales, biases = (rest[3 * i : 3 * i + 3] for i in range(4))
        score_scale, probability, out_scale, mask = (*rest[12:], None)[:4]
        batch, rows, _ = x.shape
        made = []
        for s, weight, of_weight, bias in zip(results, weights, scales, biases):
            sums = x.astype(np.int64) @ plain(weight, COLUMNS).astype(np.int64)
            part = to_int8((sums * (float(x_scale) * of_weight) + bias) / float(s)).astype(np.int64)
            made.append(part.reshape(batch, rows, heads, part.shape[2] // heads).transpose(0, 2, 1, 3))
        q, k, v = made
        q_scale, k_scale, v_scale = map(float, results)
        scores = to_int8(q @ k.transpose(0, 1, 3, 2) * (q_scale * k_scale / float(score_scale))).astype(float)
        powers = np.exp((scores - 127) * (float(score_scale) / np.sqrt(q.shape[-1])))
        powers *= seen_by(mask, batch, rows, causal)[:, None]
        totals = np.maximum(powers.sum(-1, keepdims=True), 1e-300)
        made = to_int8(powers / totals / float(probability)).astype(np.int64) @ v
        made = to_int8(made * (float(probability) * v_scale / float(out_scale)))
        return [made.transpose(0, 2, 1, 3).reshape(batch, rows, weights[2].shape[1])]

    return run


def inputs(batch, rows, heads, size, mask=None, constant=True, columns=True):
    depth = width = heads * size  # onnxruntime infers an output that is as wide as the input
    given = [integers(np.int8, batch, rows, depth, low=-127, high=127), scale(INPUT), *map(scale, RESULTS)]
    weights = [stored(integers(np.int8, depth, width, low=-127, high=127), COLUMNS) for _ in range(3)]
    given += [Const(w) for w in weights] if constant else weights
    # Sums of `depth` such products are around 5000 sqrt(depth); of `size` products of what comes out, half that.
    for result in RESULTS:
        halvings = integers(np.int8, *([width] if columns else []), low=6, high=7) + np.round(np.log2(depth) / 2)
        given.append(Const((result / INPUT * 2.0**-halvings).astype(np.float32), fixed=True))
    for result in RESULTS:
        given.append(Const((integers(np.int16, width) * result / 8).astype(np.float32), fixed=True))
    scores = RESULTS[0] * RESULTS[1] * 2.0 ** (6 + np.round(np.log2(size) / 2))
    given += [scale(scores), scale(PROBABILITIES), scale(OUTPUT)]
    return given if mask is None else [*given, mask]


def case(batch, rows, heads, size, mask=None, causal=False, constant=True, columns=True, **more):
    attrs = {"num_heads": heads, **ORDERS}
    if causal:
        attrs["unidirectional"] = 1
    if more.pop("sizes", False):
        attrs["qkv_hidden_sizes"] = [heads * size] * 3
    return Case(
        "QOrderedAttention",
        inputs(batch, rows, heads, size, mask, constant, columns),
        attrs,
        domain=DOMAIN,
        off_by=1,
        reference=reference(heads, causal),
        **more,
    )


def flags(*shape):
    return integers(np.int32, *shape, low=0, high=1)


def ints(*values):
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    "given",
    [
        case(1, 16, 2, 16, flags(1, 16), sizes=True),
        case(2, 70, 3, 20, ints(70, 13), name="ends"),
        case(2, 70, 2, 17, ints(70, 40, 3, 0), constant=False, name="ranges"),
        case(2, 9, 2, 8, flags(2, 9, 9), columns=False),
        case(2, 9, 1, 80, flags(2, 1, 12, 12)),
        case(1, 130, 1, 64, causal=True, name="causal"),
        case(3, 1, 2, 16),
        case(2, 5, 1, 16, np.zeros((2, 5), np.int32), name="blind"),
        case(1, 33, 1, 200, constant=False, misaligned=True),
        case(1, 128, 12, 64, flags(1, 128)),
        case(0, 4, 2, 16),
        case(2, 0, 2, 16),
    ],
    ids=str,
)
def test_attention(given):
    check(given)


def test_refusals():
    given, attrs = inputs(1, 4, 2, 8, constant=False), {"num_heads": 2, **ORDERS}
    for other in ({"order_input": 2}, {"order_weight": ROWS}, {"order_output": 0}, {"num_heads": 0}):
        declined("QOrderedAttention", given, {**attrs, **other}, domain=DOMAIN)
    declined("QOrderedAttention", given[:14] + [None, None] + given[16:], attrs, domain=DOMAIN)
    past = integers(np.int8, 2, 1, 2, 3, 8)
    declined("QOrderedAttention", [*given, None, past], attrs, domain=DOMAIN)

    def with_(at, value):
        return [*given[:at], value, *given[at + 1 :]]

    for at, value, words in [
        (0, integers(np.int8, 4, 16), "three dimensions"),
        (2, scale(0), "must be above zero"),
        (6, integers(np.int8, 16, 8), "K_weight has shape"),
        (9, Const(floats(3), fixed=True), "scale_K_weight has shape"),
        (13, Const(floats(15), fixed=True), "V_bias has shape"),
    ]:
        fails("QOrderedAttention", with_(at, value), attrs, words, ranks=False, domain=DOMAIN)
    fails("QOrderedAttention", [*given, flags(1, 5)], attrs, "mask_index has shape", domain=DOMAIN)
    fails("QOrderedAttention", given, {**attrs, "num_heads": 3}, "do not divide", domain=DOMAIN)
    none = [np.zeros((2**62, 0, 1), np.int8), *inputs(1, 4, 1, 1, constant=False)[1:], flags(1, 5)]
    fails("QOrderedAttention", none, {**attrs, "num_heads": 1}, "a size overflows", ranks=False, domain=DOMAIN)
