"""Attention as com.microsoft has it: heads that a projection has made, masks of integers, and packed sequences."""

import numpy as np
from draw import for_cpu
from proposals import MICROSOFT, proposes

NUMBERS = ["float", "float16", "bfloat16"]
# A product that is rounded to a half, before the powers of what it makes.
ROUGH = {"float16": (0.25, 0.25), "bfloat16": (1.0, 1.0)}


def _ints(s, values, shape, constant=0.3):
    return s.fixed(np.array(values).reshape(shape), "int32", constant=constant)


def _mask(s, batch, queries, keys, kinds):
    kind = s.draw.pick(kinds)
    if kind == "lengths":
        return _ints(s, [s.draw.number(1, keys) for _ in range(batch)], [batch])
    if kind == "ends":
        ends = [s.draw.number(1, keys) for _ in range(batch)]
        return _ints(s, ends + [s.draw.number(0, end - 1) for end in ends], [2 * batch], constant=1)
    shape = {"keys": [batch, keys], "queries": [batch, queries, keys]}[kind]
    seen = np.array(s.draw.picks([0, 1, 1], int(np.prod(shape)))).reshape(shape)
    seen[..., 0] = 1
    return _ints(s, seen, shape, constant=1)


def _bias(s, x, batch, heads, queries, keys):
    shape = [s.draw.pick([1, batch]), s.draw.pick([1, heads]), queries, keys]
    return s.maybe(0.3, lambda: s.like(x, shape, mild=True))


@proposes("MultiHeadAttention", domain=MICROSOFT, family="matmul", tolerance=ROUGH, sums=True, mild=True)
def multi_head_attention(s):
    batch, heads = s.draw.number(1, 2), s.draw.number(1, 3)
    queries, past = s.draw.pick([1, 2, 7, 20]), s.draw.pick([0, 0, 1, 5])
    causal = s.draw.chance(0.3)
    keys = queries if past or causal else s.draw.pick([queries, 1, 3, 30])
    size = s.draw.pick([1, 4, 5, 8, 40])
    values = size if past else s.draw.pick([size, 4, 8])
    total = past + keys
    x = s.data(types=[name for name in s.types() if name in NUMBERS], shape=[batch, queries, heads * size], mild=True)
    if not past and s.draw.chance(0.2):  # an encoder's
        values = size
        others = [s.like(x, [batch, heads, keys, size], mild=True) for _ in range(2)]
    else:
        others = [s.like(x, [batch, keys, heads * n], mild=True) for n in (size, values)]
    inputs = [x, *others, s.maybe(0.4, lambda: s.like(x, [heads * (2 * size + values)], mild=True))]
    inputs.append(s.maybe(0.4, lambda: _mask(s, batch, queries, total, ["lengths", "keys", "queries"])))
    inputs.append(_bias(s, x, batch, heads, queries, total))
    if past:
        inputs += [s.like(x, [batch, heads, past, size], mild=True) for _ in range(2)]
    return s.node(
        *inputs,
        types=[None, None, None][: 3 if past else 1],
        wanted=3 if past else 1,
        num_heads=heads,
        unidirectional=1 if causal else None,
        scale=s.maybe(0.3, lambda: abs(s.draw.real()) + 0.1),
    )


def _projection(s, x, wide, heads):
    size = s.draw.pick([4, 5, 8])
    return size, s.like(x, [wide, 3 * heads * size], mild=True), s.like(x, [3 * heads * size], mild=True)


@proposes("Attention", domain=MICROSOFT, family="matmul", tolerance=ROUGH, sums=True, mild=True)
def projected(s):
    batch, heads, rows, wide = s.draw.number(1, 2), s.draw.number(1, 3), s.draw.pick([1, 2, 7, 20]), s.draw.number(1, 5)
    past = s.draw.pick([0, 0, 1, 5])
    x = s.data(types=[name for name in s.types() if name in NUMBERS], shape=[batch, rows, wide], mild=True)
    size, weight, bias = _projection(s, x, wide, heads)
    causal = s.draw.chance(0.3)
    kinds = ["lengths", "keys", "queries"] if causal else ["lengths", "ends", "keys", "queries"]
    mask = s.maybe(0.5, lambda: _mask(s, batch, rows, past + rows, kinds))
    inputs = [x, weight, bias, mask, s.like(x, [2, batch, heads, past, size], mild=True) if past else None]
    inputs.append(None if past else _bias(s, x, batch, heads, rows, rows))
    return s.node(
        *inputs,
        types=[None, None][: 2 if past else 1],
        wanted=2 if past else 1,
        num_heads=heads,
        unidirectional=1 if causal else None,
    )


@proposes("QAttention", domain=MICROSOFT, family="matmul", sums=True, mild=True, steady=False)
def quantized(s):
    batch, heads, rows, wide = s.draw.number(1, 2), s.draw.number(1, 3), s.draw.pick([1, 2, 7, 20]), s.draw.number(1, 5)
    size = s.draw.pick([4, 5, 8])
    width = 3 * heads * size

    def whole(name, shape, constant=0.0):
        info = np.iinfo(name)
        codes = s.draw.numpy.integers(info.min, info.max, shape, endpoint=True)
        return s.fixed(for_cpu(codes, name), name, constant)

    kind = s.draw.pick(["int8", "uint8"])
    columns = [width] if s.draw.chance(0.4) else []
    points = s.draw.chance(0.5)
    return s.node(
        whole("uint8", [batch, rows, wide]),
        whole(kind, [wide, width], 0.6),
        s.new(s.draw.contents("float", [width], True), "float"),
        s.fixed(np.array(0.01), "float"),
        s.fixed(s.draw.numpy.uniform(0.005, 0.01, columns), "float"),
        s.maybe(0.4, lambda: _mask(s, batch, rows, rows, ["lengths", "keys"])),
        whole("uint8", [], 1.0) if points else None,
        whole(kind, columns, 1.0) if points else None,
        types=["float"],
        num_heads=heads,
        unidirectional=s.maybe(0.3, lambda: 1),
    )


@proposes("DecoderMaskedMultiHeadAttention", domain=MICROSOFT, family="matmul", sums=True, mild=True)
def step(s):
    batch, heads, size = s.draw.number(1, 2), s.draw.number(1, 3), s.draw.pick([8, 16, 64])
    most = s.draw.pick([1, 2, 9, 140])
    past = s.draw.number(0, most - 1)
    x = s.data(types=["float", "float16"], shape=[batch, 1, heads * size], mild=True)
    new = [s.like(x, [batch, 1, heads * size], mild=True) for _ in range(2)]
    cache = [s.like(x, [batch, heads, most, size], mild=True) for _ in range(2)]
    mask = s.maybe(0.4, lambda: _mask(s, batch, 1, past + 1, ["keys"]))
    bias = _bias(s, x, batch, heads, 1, past + 1)
    inputs = [x, *new, mask, bias, *cache, _ints(s, [past], [1], 1)]
    return s.node(*inputs, types=[None] * 3, wanted=3, num_heads=heads, past_present_share_buffer=1)


@proposes("DecoderMaskedSelfAttention", domain=MICROSOFT, family="matmul", tolerance=ROUGH, sums=True, mild=True)
def projected_step(s):
    batch, heads, size, wide = s.draw.number(1, 2), s.draw.number(1, 3), s.draw.pick([32, 64]), s.draw.number(1, 5)
    most = s.draw.pick([1, 2, 9, 140])
    past = s.draw.number(0, most - 1)
    x = s.data(types=["float", "float16"], shape=[batch, 1, wide], mild=True)
    weight, bias = s.like(x, [wide, 3 * heads * size], mild=True), s.like(x, [3 * heads * size], mild=True)
    mask = s.maybe(0.4, lambda: _mask(s, batch, 1, past + 1, ["keys"]))
    cache = s.like(x, [2, batch, heads, most, size], mild=True)
    inputs = [x, weight, bias, mask, cache, None, _ints(s, [past], [1], 1)]
    return s.node(
        *inputs,
        types=[None] * 2,
        wanted=2,
        num_heads=heads,
        past_present_share_buffer=1,
        do_rotary=s.maybe(0.3, lambda: 1),
    )


def _sequences(s):
    """How many tokens, token_offset and cumulative_sequence_length."""
    batch, rows = s.draw.number(1, 3), s.draw.pick([1, 4, 9])
    counts = [s.draw.number(0, rows) for _ in range(batch)]
    seen = (np.arange(rows) < np.array(counts)[:, None]).reshape(-1)
    index = np.arange(batch * rows)
    offsets = _ints(s, np.concatenate([index[seen], index[~seen]]), [batch, rows], 1)
    return sum(counts), offsets, _ints(s, np.cumsum([0, *counts]), [batch + 1], 1), [batch, rows]


@proposes("PackedMultiHeadAttention", domain=MICROSOFT, family="matmul", tolerance=ROUGH, sums=True, mild=True)
def packed(s):
    heads, size = s.draw.number(1, 3), s.draw.pick([4, 5, 8])
    tokens, offsets, ends, (batch, rows) = _sequences(s)
    x = s.data(types=["float", "float16"], shape=[tokens, heads * size], mild=True)
    others = [s.like(x, [tokens, heads * size], mild=True) for _ in range(2)]
    bias = s.maybe(0.4, lambda: s.like(x, [3 * heads * size], mild=True))
    return s.node(x, *others, bias, offsets, ends, _bias(s, x, batch, heads, rows, rows), num_heads=heads)


@proposes("PackedAttention", domain=MICROSOFT, family="matmul", tolerance=ROUGH, sums=True, mild=True)
def projected_and_packed(s):
    heads, wide = s.draw.number(1, 3), s.draw.number(1, 5)
    tokens, offsets, ends, (batch, rows) = _sequences(s)
    x = s.data(types=["float", "float16"], shape=[tokens, wide], mild=True)
    _, weight, bias = _projection(s, x, wide, heads)
    return s.node(x, weight, bias, offsets, ends, _bias(s, x, batch, heads, rows, rows), num_heads=heads)


@proposes("RemovePadding", domain=MICROSOFT, family="exact")
def remove_padding(s):
    batch, rows = s.draw.number(1, 3), s.draw.number(1, 9)
    x = s.data(types=["float", "float16"], shape=[batch, rows, s.draw.number(1, 9)])
    counts = _ints(s, [s.draw.number(0, rows) for _ in range(batch)], [batch])
    return s.node(x, counts, types=[None, "int32", "int32", "int32"], wanted=4)


@proposes("RestorePadding", domain=MICROSOFT, family="exact")
def restore_padding(s):
    tokens, offsets, _, _ = _sequences(s)
    return s.node(s.data(types=["float", "float16"], shape=[tokens, s.draw.number(1, 9)]), offsets)


@proposes("RelativePositionBias", domain=MICROSOFT, family="exact")
def relative_position_bias(s):
    table = s.data(types=["float", "float16"], shape=[s.draw.pick([4, 8, 32]), s.draw.number(1, 3)])
    length = s.draw.pick([1, 2, 9, 40])
    lengths = [s.fixed([length]) for _ in range(2)]
    return s.node(table, *lengths, max_distance=s.draw.pick([20, 128]), is_bidirectional=s.maybe(0.5, lambda: 1))


@proposes("GatedRelativePositionBias", domain=MICROSOFT, family="matmul", sums=True, mild=True)
def gated_relative_position_bias(s):
    batch, rows, heads, size = s.draw.number(1, 2), s.draw.pick([1, 7, 16]), s.draw.number(1, 3), s.draw.pick([4, 5])
    x = s.data(types=["float", "float16"], shape=[batch, rows, heads * size], mild=True)
    half = s.draw.number(1, 4)
    shapes = [[heads * size], [1, heads, rows, rows], [size, 2 * half], [2 * half], [1, heads, 1, 1]]
    return s.node(x, *(s.like(x, shape, mild=True) for shape in shapes), num_heads=heads)


@proposes("DecoderAttention", domain=MICROSOFT, family="matmul", tolerance=ROUGH, sums=True, mild=True)
def decoder_attention(s):
    batch, heads, size = s.draw.number(1, 2), s.draw.number(1, 3), s.draw.pick([4, 5])
    queries, keys, past, width = s.draw.number(1, 5), s.draw.number(1, 5), s.draw.number(0, 3), heads * size
    x = s.data(types=["float", "float16"], shape=[queries, batch, width], mild=True)
    key = s.like(x, [keys, batch, width], mild=True)
    others = [s.like(x, shape, mild=True) for shape in ([width, width], [width, 2 * width], [3 * width])]
    cache = [s.like(x, [batch, heads, past, size], mild=True) for _ in range(2)]
    static, use = s.draw.chance(0.5), s.draw.chance(0.5)
    flags = [s.fixed(np.array([given]), "bool") for given in (static, use, use, False)]
    return s.node(x, key, *others, None, *cache, *flags, types=[None] * 3, wanted=3, num_heads=heads)


@proposes("LongformerAttention", domain=MICROSOFT, family="matmul", tolerance=ROUGH, sums=True, mild=True)
def longformer(s):
    batch, heads, window = s.draw.number(1, 2), s.draw.number(1, 3), s.draw.pick([1, 3, 8, 20])
    rows, hidden = 2 * window * s.draw.number(1, 4), heads * s.draw.pick([1, 5, 8, 40])
    apart = s.draw.chance(0.3)
    shape = [3, hidden, hidden] if apart else [hidden, 3 * hidden]
    x = s.data(shape=[batch, rows, hidden], mild=True)
    biases = (5, 1) if apart else (3, 3)
    weights = [(s.like(x, shape, mild=True), s.like(x, [n * hidden], mild=True)) for n in biases]
    mask = s.fixed(_padding(s, batch, rows), x.type, constant=0.3)
    return s.node(x, *weights[0], mask, *weights[1], _global(s, batch, rows), window=window, num_heads=heads)


def _padding(s, batch, rows):
    return np.array(
        [[0.0 if i < end else -10000.0 for i in range(rows)] for end in s.draw.picks([rows, rows // 2], batch)]
    )


def _global(s, batch, rows):
    likely = s.draw.pick([[0], [1], [0, 0, 0, 0, 1]])
    return _ints(s, s.draw.picks(likely, batch * rows), [batch, rows])
