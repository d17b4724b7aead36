"""com.microsoft's RelativePositionBias and GatedRelativePositionBias, which the CPU EP lacks."""

import numpy as np
import pytest
from harness import Case, Const, check, floats
from refusal import declined, fails
from test_packed_attention import places

TYPES = ["float32", "float16"]
DOMAIN = {"domain": "com.microsoft"}


def buckets_of(length, buckets, furthest, both_ways):
    """As T5 has them."""
    ahead = np.arange(length) - np.arange(length)[:, None]
    side = buckets // 2 if both_ways else buckets
    distance = np.abs(ahead) if both_ways else np.maximum(-ahead, 0)
    exact = side // 2
    with np.errstate(divide="ignore"):
        far = np.log(distance.astype(np.float32) / np.float32(exact)) / np.log(np.float32(furthest) / np.float32(exact))
    far = exact + np.nan_to_num(far * np.float32(side - exact), neginf=0).astype(np.int64)
    found = np.where(distance < exact, distance, np.minimum(far, side - 1))
    return found + (side * (ahead > 0) if both_ways else 0)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("both_ways", [0, 1])
@pytest.mark.parametrize("length", [0, 1, 7, 40, 300])
@pytest.mark.parametrize("buckets,furthest", [(32, 128), (4, 3), (64, 1000)])
def test_distances(buckets, furthest, length, both_ways, dtype):
    def run(table, *_):
        return [table.reshape(-1, buckets)[:, buckets_of(length, buckets, furthest, both_ways)][None]]

    lengths = [Const(np.array([length])), Const(np.array([length]))]
    attrs = {"max_distance": furthest, "is_bidirectional": both_ways}
    more = dict(dtype=dtype, family="exact", reference=run, **DOMAIN)
    check(Case("RelativePositionBias", [floats(buckets, 3), *lengths], attrs, **more))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n,size,half", [(2, 64, 4), (3, 5, 1)])
@pytest.mark.parametrize("counts,rows", [([3, 7], 7), ([0, 40, 9], 40)])
@pytest.mark.parametrize("packed", [False, True])
def test_gates(counts, rows, packed, n, size, half, dtype):
    batch, tokens = len(counts), sum(counts)

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def run(query, query_bias, bias, weight, add, eco, offsets=None):
        if offsets is not None:
            whole = np.zeros((batch * rows, n * size))
            whole[offsets.reshape(-1)[:tokens]] = query
            query = whole.reshape(batch, rows, -1)
        heads = (query + query_bias.astype(np.float64)).reshape(batch, rows, n, size).transpose(0, 2, 1, 3)
        gates = sigmoid((heads @ weight + add).reshape(batch, n, rows, 2, half).sum(-1))
        return [(gates[..., :1] * (gates[..., 1:] * eco - 1) + 2) * bias]

    shape = (tokens, n * size) if packed else (batch, rows, n * size)
    inputs = [floats(*shape, low=-1, high=1), floats(n * size, low=-1, high=1), floats(1, n, rows, rows)]
    inputs += [floats(size, 2 * half, low=-0.5, high=0.5), floats(2 * half), floats(1, n, 1, 1)]
    if packed:
        inputs.append(places(counts, rows)[0])
    check(
        Case(
            "GatedRelativePositionBias",
            inputs,
            {"num_heads": n},
            dtype=dtype,
            family="reduce",
            reference=run,
            **DOMAIN,
        )
    )


def test_refusals():
    table, length = floats(32, 2), np.array([4])
    run = "RelativePositionBias"
    fails(run, [table, length, np.array([5])], {"max_distance": 99}, "must be the same", **DOMAIN)
    fails(run, [table, -length, -length], {"max_distance": 99}, "cannot be negative", **DOMAIN)
    fails(run, [table, length, length], {"max_distance": 9}, "must be above 16", **DOMAIN)
    fails(run, [floats(1, 2), length, length], {"max_distance": 9}, "buckets at least", **DOMAIN)
    declined(run, [table, length, length], {"max_distance": 0}, **DOMAIN)
    gated = [floats(2, 3, 8), floats(8), floats(1, 2, 3, 3), floats(4, 6), floats(6), floats(1, 2, 1, 1)]
    run = "GatedRelativePositionBias"
    fails(run, gated, {"num_heads": 3}, "divide the width", **DOMAIN)
    fails(run, [*gated[:4], floats(5), gated[5]], {"num_heads": 2}, "weight has shape", **DOMAIN)
