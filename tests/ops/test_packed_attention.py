"""com.microsoft's operators of sequences without padding, which the CPU EP lacks."""

import numpy as np
import pytest
from harness import Case, Const, check, floats
from heads_reference import attend
from refusal import fails
from test_multi_head_attention import ints

TYPES = ["float32", "float16"]
DOMAIN = {"domain": "com.microsoft"}


def numbers(*shape):
    return floats(*shape, low=-2, high=2)


def places(counts, rows):
    """token_offset and cumulative_sequence_length."""
    seen = (np.arange(rows) < np.array(counts)[:, None]).reshape(-1)
    index = np.arange(seen.size)
    offsets = np.concatenate([index[seen], index[~seen]]).reshape(len(counts), rows)
    return Const(offsets.astype(np.int32)), Const(ints(*np.cumsum([0, *counts])))


def by_sequence(q, k, v, starts, bias, scale):
    """All [token, head, size]."""
    made = []
    for b in range(len(starts) - 1):
        some = slice(starts[b], starts[b + 1])
        if starts[b + 1] == starts[b]:
            continue
        n = starts[b + 1] - starts[b]
        one = None if bias is None else bias[b % len(bias)][None, :, :n, :n]
        y, _ = attend(*(x[some].transpose(1, 0, 2)[None] for x in (q, k, v)), None, one, False, scale)
        made.append(y[0])
    return np.concatenate(made) if made else np.zeros((0, v.shape[1] * v.shape[2]))


SEQUENCES = [([1, 2, 4], 4), ([9, 0, 40], 40), ([129], 130), ([0, 0], 3)]
CASES = dict(argnames="counts,rows", argvalues=SEQUENCES, ids=["few", "some", "one", "none"])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(**CASES)
@pytest.mark.parametrize("size,values", [(40, 40), (64, 64), (64, 24), (5, 5)])
def test_multi_head(counts, rows, size, values, dtype):
    tokens, n, batch = sum(counts), 2, len(counts)
    ends = places(counts, rows)

    def run(q, k=None, v=None, add=None, _=None, starts=None, bias=None):
        if k is None:
            q, k, v = (q[:, :, i] for i in range(3))
        else:
            q, k, v = (x.reshape(tokens, n, x.shape[1] // n) for x in (q, k, v))
        if add is not None:
            adds = np.split(add, [n * size, 2 * n * size])
            q, k, v = (x + a.reshape(n, -1) for x, a in zip((q, k, v), adds))
        return [by_sequence(q, k, v, starts, bias, attrs.get("scale", 0.0))]

    wide, small, add = numbers(tokens, n * size), numbers(tokens, n * values), numbers(n * (2 * size + values))
    for inputs, attrs in (
        ([wide, wide, small, None, *ends], {}),
        ([wide, wide, small, add, *ends, numbers(1, 1, rows, rows)], {}),
        ([wide, wide, small, add, *ends, numbers(batch, n, rows, rows)], {"scale": 0.3}),
        ([numbers(tokens, n, 3, size), None, None, None, *ends], {}),
        ([numbers(tokens, n, 3, size), None, None, numbers(3 * n * size), *ends], {}),
    ):
        attrs = {"num_heads": n, **attrs}
        check(
            Case(
                "PackedMultiHeadAttention",
                inputs,
                attrs,
                dtype=dtype,
                family="heads" if dtype == "float32" else "projected",  # rounded with the bias
                reference=run,
                **DOMAIN,
            )
        )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(**CASES)
@pytest.mark.parametrize("size,values", [(40, 40), (64, 24)])
def test_projected(counts, rows, size, values, dtype):
    tokens, n = sum(counts), 2
    ends = places(counts, rows)

    def run(x, weights, add, _, starts, bias=None):
        made = np.split(x.astype(np.float64) @ weights + add, [n * size, 2 * n * size], -1)
        return [by_sequence(*(p.reshape(tokens, n, p.shape[1] // n) for p in made), starts, bias, 0.0)]

    attrs = {"num_heads": n}
    if size != values:
        attrs["qkv_hidden_sizes"] = [n * size, n * size, n * values]
    width = n * (2 * size + values)
    inputs = [
        floats(tokens, 24, low=-1, high=1),
        floats(24, width, low=-1, high=1),
        floats(width, low=-1, high=1),
        *ends,
    ]
    for more in ([], [floats(1, n, rows, rows)]):
        check(
            Case(
                "PackedAttention",
                inputs + more,
                attrs,
                dtype=dtype,
                family="projected",
                reference=run,
                options={"use_tf32": 0},
                **DOMAIN,
            )
        )


def removed(x, counts):
    offsets, starts = places(counts, x.shape[1])
    tokens = starts.value[-1]
    rows = x.reshape(-1, x.shape[2])[offsets.value.reshape(-1)[:tokens]]
    return [rows, offsets.value, starts.value, ints(max(counts, default=0))]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [1, 5, 64])
@pytest.mark.parametrize(**CASES)
def test_padding(counts, rows, width, dtype):
    x = floats(len(counts), rows, width)
    more = dict(dtype=dtype, family="exact", **DOMAIN)
    check(Case("RemovePadding", [x, ints(*counts)], outputs=4, reference=removed, capture=False, **more))

    def restored(packed, offsets):
        y = np.zeros((offsets.size, width), np.float32)
        y[offsets.reshape(-1)[: len(packed)]] = packed
        return [y.reshape(*offsets.shape, width)]

    offsets = places(counts, rows)[0].value
    check(Case("RestorePadding", [floats(sum(counts), width), offsets], reference=restored, **more))


def test_places_that_no_offset_names_are_padding():
    def restored(packed, offsets):
        return [np.concatenate([packed, np.zeros((3, 8), packed.dtype)]).reshape(2, 2, 8)]

    inputs = [floats(1, 8), Const(np.int32([[0, 3], [3, 3]]))]
    check(Case("RestorePadding", inputs, reference=restored, family="exact", **DOMAIN))


def test_refusals():
    x = floats(2, 3, 8)
    fails("RemovePadding", [x, ints(1, 4)], {}, "sequence_token_count has 4", outputs=4, **DOMAIN)
    fails("RemovePadding", [x, ints(-1, 3)], {}, "sequence_token_count has -1", outputs=4, **DOMAIN)
    fails("RemovePadding", [x, ints(1)], {}, "sequence_token_count has shape", outputs=4, **DOMAIN)
    rows = floats(3, 8)
    fails("RestorePadding", [rows, ints(0, 1, 2, 9).reshape(2, 2)], {}, "9", **DOMAIN)
    fails("RestorePadding", [rows, ints(0, 1).reshape(1, 2)], {}, "token_offset", **DOMAIN)
    offsets, ends = (c.value for c in places([1, 2], 3))
    packed = [rows, rows, rows, None, offsets, ends]
    run = "PackedMultiHeadAttention"
    fails(run, packed, {"num_heads": 3}, "heads divide", **DOMAIN)
    fails(run, [*packed[:5], ints(0, 1, 9)], {"num_heads": 2}, "3", **DOMAIN)
    fails(run, [*packed[:5], ints(0, 1)], {"num_heads": 2}, "cumulative_sequence_length has shape", **DOMAIN)
    fails(run, [*packed[:4], offsets + 4, ends], {"num_heads": 2}, "6", **DOMAIN)
