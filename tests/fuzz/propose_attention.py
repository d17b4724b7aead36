"""Attention and rotary embeddings."""

import numpy as np
from proposals import MICROSOFT, proposes


def _flat(s, x, flat):
    """[batch, head, row, size] as [batch, row, head * size]."""
    if not flat:
        return x
    batch, heads, rows, size = x.array.shape
    return s.like(x, [batch, rows, heads * size], mild=True)


@proposes("Attention", family="matmul", sums=True, mild=True)
def attention(s):
    batch, kv_heads, group = s.draw.number(1, 2), s.draw.number(1, 2), s.draw.number(1, 3)
    queries, keys, past = s.draw.pick([1, 2, 7, 20]), s.draw.pick([1, 3, 30, 70]), s.draw.pick([0, 0, 1, 5])
    size, value_size = s.draw.pick([1, 4, 5, 8, 40]), s.draw.pick([1, 4, 8])
    flat = s.draw.chance(0.3)
    # Of doubles the CPU EP has no kernel but ONNX's function, which has its scale in float and takes more shapes.
    types = [name for name in s.types() if name != "double"]
    x = s.data(types=types, shape=[batch, kv_heads * group, queries, size], mild=True)
    k = s.like(x, [batch, kv_heads, keys, size], mild=True)
    v = s.like(x, [batch, kv_heads, keys, value_size], mild=True)
    total = past + keys
    inputs = [_flat(s, x, flat), _flat(s, k, flat), _flat(s, v, flat), None]
    if s.draw.chance(0.5):
        shape = [queries, total]
        if s.draw.chance(0.4):
            shape = [s.draw.pick([1, batch]), s.draw.pick([1, kv_heads * group]), *shape]
        if s.draw.chance(0.5):
            inputs[3] = s.fixed(np.array(s.draw.picks([True, True, False], int(np.prod(shape)))).reshape(shape), "bool")
        else:
            inputs[3] = s.like(x, shape, mild=True)
    if past:
        inputs += [s.like(x, [batch, kv_heads, past, n], mild=True) for n in (size, value_size)]
    elif s.opset >= 24 and s.draw.chance(0.3):
        inputs += [None, None, s.fixed([s.draw.number(0, keys) for _ in range(batch)])]
    heads = {"q_num_heads": kv_heads * group, "kv_num_heads": kv_heads} if flat else {}
    return s.node(
        *inputs,
        types=[None, None, None][: 3 if past else 1],
        wanted=3 if past else 1,
        # Where there is a past, the CPU EP counts a query's position from the last key, and ONNX from the first.
        is_causal=s.maybe(0.4 * (not past or queries == keys), lambda: 1),
        scale=s.maybe(0.3, lambda: abs(s.draw.real()) + 0.1),
        softcap=s.maybe(0.2, lambda: abs(s.draw.real()) + 0.5),
        **heads,
    )


@proposes("RotaryEmbedding", family="matmul", sums=True, mild=True)
def rotary_embedding(s):
    batch, heads, rows = s.draw.number(1, 2), s.draw.number(1, 3), s.draw.number(1, 5)
    size = 2 * s.draw.pick([1, 2, 4, 5, 8])
    turned = s.maybe(0.3, lambda: 2 * s.draw.number(1, size // 2))
    flat = s.draw.chance(0.4)
    x = s.data(shape=[batch, rows, heads * size] if flat else [batch, heads, rows, size], mild=True)
    ids = s.draw.chance(0.5)
    caches = [s.draw.number(rows, 9), (turned or size) // 2] if ids else [batch, rows, (turned or size) // 2]
    positions = s.draw.picks(range(caches[0]), batch * rows) if ids else None
    return s.node(
        x,
        s.like(x, caches, mild=True),
        s.like(x, caches, mild=True),
        s.fixed(np.array(positions).reshape(batch, rows)) if ids else None,
        interleaved=s.maybe(0.4, lambda: 1),
        rotary_embedding_dim=turned,
        num_heads=heads if flat else None,
    )


# What is turned is rounded once more, and powers make much of that.
TURNED = {"float16": (1e-2, 3e-2), "bfloat16": (8e-2, 2e-1)}


@proposes("GroupQueryAttention", domain=MICROSOFT, family="matmul", tolerance=TURNED, sums=True, mild=True)
def group_query_attention(s):
    kv_heads, group, size = s.draw.number(1, 2), s.draw.number(1, 3), s.draw.pick([8, 16, 32, 40, 64])
    heads, rows, past = kv_heads * group, s.draw.pick([1, 1, 2, 7, 20]), s.draw.pick([0, 0, 1, 6, 40])
    batch, total = 1 if past and rows > 1 else s.draw.number(1, 3), past + rows
    packed, causal = s.draw.chance(0.4), s.draw.chance(0.9)
    window = s.maybe(0.3 * causal, lambda: s.draw.number(1, 9))
    # A full cache that holds no more than its window; what it has no rows for is anything.
    windowed = past and window and past >= window and s.draw.chance(0.5)
    x = s.data(shape=[batch, rows, (heads + 2 * kv_heads * packed) * size], mild=True)
    inputs = [x, None, None, None, None]
    if not packed:
        inputs[1:3] = [s.like(x, [batch, rows, kv_heads * size], mild=True) for _ in "kv"]
    if past:
        # With room for what is new, as onnxruntime infers the shape of the present.
        room = window if windowed else total
        inputs[3:5] = [s.like(x, [batch, kv_heads, room, size], mild=True) for _ in "kv"]
    # What is behind the last key is anything, so every batch is as long as the longest.
    inputs += [s.fixed([total - 1] * batch, "int32"), s.fixed(total, "int32"), None, None, None, None, None]
    rotates = size % 16 == 0 and s.draw.chance(0.5)
    if rotates:
        half = s.draw.pick(range(8, size // 2 + 1, 8))
        positions = total + s.draw.number(0, 4)
        inputs[7:9] = [s.like(x, [positions, half], mild=True) for _ in "cs"]
        # Of the positions of a prompt the CPU EP looks at the first only.
        if past and s.draw.chance(0.3):
            inputs[9] = s.fixed(np.array(s.draw.picks(range(positions), batch * rows)).reshape(batch, rows))
    if not windowed and s.draw.chance(0.2):
        inputs[10] = s.like(x, [s.draw.pick([1, batch]), s.draw.pick([1, heads]), rows, total], mild=True)
    if s.draw.chance(0.2):
        inputs[11] = s.like(x, [heads], mild=True)
    # Turned keys may be rounded to the code beside the CPU EP's.
    cache, how = None, {}
    if past and not rotates and size % 32 == 0 and s.draw.chance(0.4):
        bits = s.draw.pick([8, 4])
        cache, least = ("int8", -128) if bits == 8 else ("uint8", 0)
        shape = [batch, kv_heads, window if windowed else total, size * bits // 8]
        inputs[3:5] = [s.fixed(s.draw.numpy.integers(least, least + 256, shape), cache, constant=0) for _ in "kv"]
        by_channel = s.draw.chance(0.5)
        scales = [1, kv_heads, 1, size] if by_channel else [1]
        inputs += [s.fixed(s.draw.numpy.uniform(0.5, 2, scales) / 2 ** (bits - 1), "float") for _ in "kv"]
        kind = "PER_CHANNEL" if by_channel else "PER_TENSOR"
        how = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
    return s.node(
        *inputs,
        types=[None, cache, cache],
        wanted=3,
        **how,
        num_heads=heads,
        kv_num_heads=kv_heads,
        do_rotary=1 if rotates else None,
        rotary_interleaved=s.maybe(0.4, lambda: 1),
        local_window_size=window,
        sliding_window_cache=1 if windowed else None,
        causal=None if causal else 0,
        scale=s.maybe(0.3, lambda: 0.1),
        softcap=s.maybe(0.2, lambda: abs(s.draw.real()) + 0.5),
        smooth_softmax=s.maybe(0.2, lambda: 1),
    )


@proposes("RotaryEmbedding", "MRotaryEmbedding", domain=MICROSOFT, family="matmul", sums=True, mild=True)
def rotary_embedding_for_microsoft(s):
    batch, heads, rows = s.draw.number(1, 2), s.draw.number(1, 3), s.draw.number(1, 5)
    size = 2 * s.draw.pick([1, 2, 4, 5, 8])
    turned = s.maybe(0.3, lambda: 2 * s.draw.number(1, size // 2))
    flat, streams = s.draw.chance(0.4), s.op == "MRotaryEmbedding"
    x = s.data(shape=[batch, rows, heads * size] if flat else [batch, heads, rows, size], mild=True)
    half = (turned or size) // 2
    positions = s.draw.number(rows + 3, 12)
    if streams:
        ids = np.array(s.draw.picks(range(positions), 3 * batch * rows)).reshape(3, batch, rows)
    elif s.draw.chance(0.4):
        ids = [s.draw.number(0, positions - rows)]
    else:
        ids = np.array(s.draw.picks(range(positions), batch * rows)).reshape(batch, rows)
    first = s.draw.number(0, half)
    second = s.draw.number(0, half - first)
    return s.node(
        x,
        s.fixed(ids),
        s.like(x, [positions, half], mild=True),
        s.like(x, [positions, half], mild=True),
        interleaved=s.maybe(0.4, lambda: 1),
        rotary_embedding_dim=turned,
        num_heads=heads if flat or turned else None,
        mrope_section=[first, second, half - first - second] if streams else None,
        mrope_layout=s.maybe(0.5 * streams, lambda: 1),
        scale=s.maybe(0.3 * streams, lambda: s.draw.pick([0.5, -2.0])),
    )


@proposes("GemmaRotaryEmbedding", domain=MICROSOFT, own_types=True, mild=True)
def gemma_rotary_embedding(s):
    batch, heads, rows, size = (
        s.draw.number(1, 2),
        s.draw.pick([1, 3, 4, 9]),
        s.draw.number(1, 5),
        s.draw.pick([1, 7, 16]),
    )
    angles = s.data(shape=[batch, rows, size], mild=True)
    states = [s.data(types=["float16"], shape=[batch, heads, rows, size], mild=True) for _ in range(4)]
    return s.node(angles, *states, types=[None, None], like=1, wanted=2)
