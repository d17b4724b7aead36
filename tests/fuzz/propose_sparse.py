"""Attention of which a layout, or an indexer, says what it looks at."""

import numpy as np
from proposals import MICROSOFT, proposes

ROUGH = {"float16": (1e-2, 3e-2), "bfloat16": (8e-2, 2e-1)}
FLOATS = ["float", "float16", "bfloat16"]


def _ints(s, values, shape, constant=0.3, name="int32"):
    return s.fixed(np.array(values).reshape(shape), name, constant=constant)


def _new(s, batch, rows, heads, kv_heads, size):
    """Query, key and value, or all in one."""
    packed = s.draw.chance(0.4)
    x = s.data(types=FLOATS, shape=[batch, rows, (heads + 2 * kv_heads * packed) * size], mild=True)
    others = [None if packed else s.like(x, [batch, rows, kv_heads * size], mild=True) for _ in "kv"]
    return x, [x, *others]


def _tables(s, x, positions, most):
    half = s.draw.pick(range(8, most + 1, 8))
    return [s.like(x, [positions, half], mild=True) for _ in "cs"]


@proposes("SparseAttention", domain=MICROSOFT, family="matmul", tolerance=ROUGH, sums=True, mild=True)
def sparse_attention(s):
    kv_heads, group, size = s.draw.number(1, 2), s.draw.pick([1, 2, 4]), s.draw.pick([16, 32, 64])
    heads, rows, past, block = (
        kv_heads * group,
        s.draw.pick([1, 1, 2, 20]),
        s.draw.pick([0, 1, 40]),
        s.draw.pick([16, 64]),
    )
    batch, total = s.draw.number(1, 2), past + rows
    blocks, layouts = -(-total // block), s.draw.pick([1, group])
    x, inputs = _new(s, batch, rows, heads, kv_heads, size)
    inputs += [s.like(x, [batch, kv_heads, blocks * block, size], mild=True) for _ in "kv"]
    seen = [[[c for c in range(r) if s.draw.chance(0.5)] + [r] for r in range(blocks)] for _ in range(layouts)]
    columns = [[c for row in one for c in row] for one in seen]
    most = max(map(len, columns))
    inputs += [
        _ints(s, [np.cumsum([0] + [len(row) for row in one]) for one in seen], [layouts, blocks + 1]),
        _ints(s, [one + [-1] * (most - len(one)) for one in columns], [layouts, most]),
        _ints(s, [total], [1], 1),
        _ints(s, [total] * batch, [batch]),
    ]
    rotates = s.draw.chance(0.5)
    return s.node(
        *inputs,
        *(_tables(s, x, total + 1, size // 2) if rotates else []),
        types=[None] * 3,
        wanted=3,
        num_heads=heads,
        kv_num_heads=kv_heads,
        sparse_block_size=block,
        do_rotary=1 if rotates else None,
        rotary_interleaved=s.maybe(0.3, lambda: 1),
        scale=s.maybe(0.3, lambda: 0.1),
    )


@proposes("DynamicSparseAttention", domain=MICROSOFT, family="matmul", tolerance=ROUGH, sums=True, mild=True)
def dynamic_sparse_attention(s):
    kv_heads, group, size = s.draw.number(1, 2), s.draw.pick([1, 3, 8]), s.draw.pick([16, 24, 64])
    heads, rows, past, batch = kv_heads * group, s.draw.pick([1, 1, 2, 9]), s.draw.pick([0, 1, 40]), s.draw.number(1, 2)
    total, tokens = past + rows, batch * rows
    x, inputs = _new(s, batch, rows, heads, kv_heads, size)
    room = total + (s.draw.number(0, 3) if past else 0)
    inputs += [s.like(x, [batch, kv_heads, room, size], mild=True) if past else None for _ in "kv"]
    local = s.draw.chance(0.5)
    others = s.draw.number(0, 30) if local else total
    shared = local and s.draw.chance(0.5)
    inputs += [
        s.like(x, [batch, kv_heads, others, size], mild=True) if local and not (shared and i) else None
        for i in range(2)
    ]
    most = s.draw.pick([1, 4, 30])
    counts = [s.draw.number(0, min(most, others)) for _ in range(tokens)]
    chosen = [s.draw.picks(range(others), count) if count else [] for count in counts]
    rotates = s.draw.chance(0.4)
    weighs = s.draw.chance(0.3)
    inputs += [
        _ints(s, [row + [-1] * (most - len(row)) for row in chosen], [tokens, most]),
        _ints(s, counts, [tokens]),
        _ints(s, [total - 1] * batch, [batch]),
        _ints(s, [total], [1], 1),
        *(_tables(s, x, total + 1, size // 2) if rotates else [None, None]),
        None,
        *[s.like(x, [size], mild=True) if weighs else None for _ in "qk"],
        s.maybe(0.3, lambda: s.like(x, [heads], mild=True)),
    ]
    return s.node(
        *inputs,
        types=[None] * 3,
        wanted=3,
        num_heads=heads,
        kv_num_heads=kv_heads,
        attention_mode="local_plus_selected" if local else None,
        selected_kv_source="auxiliary" if local else None,
        auxiliary_kv_shared=1 if shared else None,
        local_window_size=s.draw.number(1, 20) if local else None,
        do_rotary=1 if rotates else None,
        smooth_softmax=s.maybe(0.3, lambda: 1),
    )


# A small difference chooses something else.
@proposes("SparseAttentionIndexer", "PackedSparseAttentionIndexer", domain=MICROSOFT, steady=False, mild=True)
def indexer(s):
    packed, windows = s.op.startswith("Packed"), s.draw.chance(0.5)
    batch, rows, ratio = s.draw.number(1, 2), s.draw.pick([1, 1, 2, 30]), s.draw.pick([1, 3, 4])
    heads, size, had = s.draw.pick([1, 4, 33]), s.draw.pick([8, 20, 64]), s.draw.pick([0, 1, 30])
    with_key = windows or s.draw.chance(0.5)
    tokens = [batch * rows] if packed else [batch, rows]
    wide = 2 * size if windows else size
    x = s.data(types=FLOATS, shape=[*tokens, (heads + (not with_key)) * size], mild=True)
    new = lambda *shape: s.like(x, list(shape), mild=True)
    width = s.draw.pick([2, 4, size // 4 * 2])
    width = width // 2 if windows else width
    inputs = [x, new(*tokens, wide) if with_key else None, new(size), new(size)]
    inputs += [new(had + rows + 1, width) for _ in "cs"]
    of_windows = [new(*tokens, wide), new(ratio, wide), new(*tokens, heads)] if windows else [None] * 3
    ids = [s.draw.number(0, had * ratio + rows) for _ in range(batch * rows)]
    of_windows.append(_ints(s, ids, tokens, name="int64") if windows else None)
    wanted = s.draw.pick([1, 5, 40])
    attrs = {"policy_mode": "csa" if windows else "qsa", "compress_ratio": ratio}
    attrs |= {"index_topk": wanted} if windows else {"token_budget": wanted * ratio}
    if not packed:
        mask = s.draw.chance(0.4) and not windows
        inputs.append(
            _ints(s, s.draw.picks([0, 1, 1], batch * (had + rows)), [batch, had + rows], name="int64") if mask else None
        )
        inputs += [new(batch, had, size), *of_windows, None]
        inputs.append(new(2, batch, s.draw.number(0, 2 * ratio - 1), wide) if windows else None)
        return s.node(*inputs, types=["int32", None, None][: 2 + windows], wanted=2 + windows, **attrs)
    capacity, buffered = had + rows + 1, s.draw.number(0, (2 if windows else 1) * ratio - 1)
    inputs += [
        _ints(s, [i * rows for i in range(batch + 1)], [batch + 1]),
        _ints(s, [had * ratio + buffered] * batch, [batch]),
    ]
    inputs += [*of_windows, new(batch, capacity, size), new(batch, 2 * ratio - 1, wide)]
    inputs += [new(batch, 2 * ratio - 1, wide) if windows else None, _ints(s, [had, buffered] * batch, [batch, 2])]
    return s.node(
        *inputs,
        types=["int32", "int32", None, None, None, "int32"],
        wanted=[True] * 4 + [windows, True],
        state_capacity=capacity,
        **attrs,
    )
