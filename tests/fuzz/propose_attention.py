"""Attention and rotary embeddings."""

import numpy as np
from proposals import proposes


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
