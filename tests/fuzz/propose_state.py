"""Operators that carry a state from one run to the next."""

import numpy as np
from proposals import MICROSOFT, proposes

SMALL = [0, 1, 2, 3, 5, 17]


@proposes("CausalConvWithState", family="matmul", sums=True, mild=True)
def causal_conv_with_state(s):
    batch, channels, length = (s.draw.pick(SMALL) for _ in range(3))
    channels = max(channels, 1)  # a convolution of none the CPU EP does not survive
    kernel = s.draw.number(1, 5)
    x = s.data(shape=[batch, channels, length], mild=True)
    bias = s.maybe(0.5, lambda: s.like(x, [channels], mild=True))
    past = s.maybe(0.5, lambda: s.like(x, [batch, channels, kernel - 1], mild=True))
    activation = s.draw.pick([None, "none", "silu", "swish"])
    return s.node(x, s.like(x, [channels, 1, kernel], mild=True), bias, past, wanted=2, activation=activation)


# With keys as long as these, a delta rule enlarges what was rounded from token to token.
@proposes("LinearAttention", family="matmul", sums=True, mild=True, tolerance={"float": (2e-3, 2e-3)})
def linear_attention(s):
    rule = s.draw.pick(["linear", "gated", "delta", "gated_delta"])
    batch, tokens, heads, queries = (
        s.draw.number(0, 2),
        s.draw.pick([0, 1, 1, 4]),
        s.draw.number(1, 3),
        s.draw.number(1, 2),
    )
    rows, columns = s.draw.pick([1, 4, 8, 70]), s.draw.pick([1, 5, 8, 40])
    query = s.data(shape=[batch, tokens, heads * queries * rows], mild=True)

    def some(*shape):
        return s.like(query, list(shape), mild=True)

    key, value = some(batch, tokens, heads * rows), some(batch, tokens, heads * columns)
    past = s.maybe(0.6, lambda: some(batch, heads, rows, columns))
    decay = some(batch, tokens, heads * s.draw.pick([1, rows])) if "gated" in rule else None
    beta = some(batch, tokens, s.draw.pick([1, heads])) if "delta" in rule else None
    rest = {"kv_num_heads": heads, "q_num_heads": heads * queries, "scale": s.maybe(0.3, lambda: 0.5)}
    return s.node(query, key, value, past, decay, beta, wanted=2, update_rule=rule, **rest)


@proposes("CausalConvWithState", domain=MICROSOFT, family="matmul", sums=True, mild=True)
def contrib_causal_conv(s):
    batch, length = s.draw.pick(SMALL), s.draw.pick(SMALL)
    channels, kernel = max(s.draw.pick(SMALL), 1), s.draw.number(1, 5)
    dilation, last, window = s.draw.pick([None, None, 2]), s.draw.pick([None, 1]), s.draw.pick([None, None, 3])
    kept = (kernel - 1) * (dilation or 1)

    def laid(places):
        return [batch, places, channels] if last else [batch, channels, places]

    x = s.data(shape=laid(length), mild=True)
    bias = s.maybe(0.5, lambda: s.like(x, [channels], mild=True))
    past = s.maybe(0.5, lambda: s.like(x, [*([window] if window else []), *laid(kept)], mild=True))
    weight, activation = s.like(x, [channels, 1, kernel], mild=True), s.draw.pick([None, "none", "silu", "swish"])
    more = {"dilation": dilation, "channels_last": last, "state_window": window, "activation": activation}
    return s.node(x, weight, bias, past, wanted=2, **more)


def _ends(s, sequences, tokens):
    return np.array([0, *sorted(s.draw.number(1, tokens) for _ in range(sequences - 1)), tokens], np.int32)


@proposes("VarlenCausalConvWithState", domain=MICROSOFT, family="matmul", sums=True, mild=True)
def packed_causal_conv(s):
    sequences, channels, kernel = s.draw.number(1, 4), s.draw.pick([1, 3, 17]), s.draw.number(1, 5)
    tokens = sequences + s.draw.number(0, 9)
    dilation, most = s.draw.pick([None, None, 2]), s.draw.pick([None, None, 3])
    x = s.data(shape=[tokens, channels], mild=True)
    # A sequence of none is an error.
    ends = s.fixed([*(i * (tokens // sequences) for i in range(sequences)), tokens], "int32")
    bias = s.maybe(0.5, lambda: s.like(x, [channels], mild=True))
    past = s.like(x, [sequences, channels, (kernel - 1) * (dilation or 1)], mild=True)
    counts = s.fixed([s.draw.number(-1, 5) for _ in range(sequences)], "int32") if most else None
    more = {"dilation": dilation, "state_update_capacity": most, "activation": s.draw.pick([None, "silu"])}
    weight = s.like(x, [channels, 1, kernel], mild=True)
    return s.node(x, weight, ends, bias, past, counts, wanted=3 if most else 2, **more)


@proposes("LinearAttention", domain=MICROSOFT, family="matmul", sums=True, mild=True, tolerance={"float": (2e-3, 2e-3)})
def contrib_linear_attention(s):
    rule = s.draw.pick(["linear", "gated", "delta", "gated_delta"])
    batch, tokens = s.draw.number(1, 2), s.draw.pick([1, 1, 4])
    heads = s.draw.pick([1, 2, 4])
    queries, keys = s.draw.pick([1, heads, 2 * heads]), s.draw.pick([1, heads])
    rows, columns, window = s.draw.pick([1, 4, 8, 70]), s.draw.pick([1, 5, 8, 40]), s.draw.pick([None, None, 3])
    query = s.data(shape=[batch, tokens, queries * rows], mild=True)

    def some(*shape):
        return s.like(query, list(shape), mild=True)

    past = s.maybe(0.6, lambda: some(*([window] if window else []), batch, heads, rows, columns))
    decay = some(batch, tokens, heads * s.draw.pick([1, rows])) if "gated" in rule else None
    beta = some(batch, tokens, s.draw.pick([1, heads])) if "delta" in rule else None
    key, value = some(batch, tokens, keys * rows), some(batch, tokens, heads * columns)
    told = {"kv_num_heads": heads, "q_num_heads": queries, "state_window": window, "update_rule": rule}
    return s.node(query, key, value, past, decay, beta, wanted=2, **told)


@proposes("GatedDeltaNet", domain=MICROSOFT, family="matmul", sums=True, mild=True, tolerance={"float": (2e-3, 2e-3)})
def gated_delta_net(s):
    requests, keys, rows, columns = (
        s.draw.number(1, 3),
        s.draw.number(1, 2),
        s.draw.pick([1, 8, 70]),
        s.draw.pick([5, 40]),
    )
    heads, each, most = keys * s.draw.number(1, 2), s.draw.number(1, 4), s.draw.pick([None, None, 3])
    tokens, ragged, gate = requests * each, s.draw.chance(0.6), s.draw.pick([None, "qwen", "kda"])
    by_row, in_halves = [rows] if s.draw.chance(0.3) else [], s.draw.chance(0.3)
    query = s.data(shape=[tokens, keys, rows], mild=True)

    def wide(*shape):
        return s.data(["float"], shape=list(shape), mild=True)

    def like_query(*shape):
        return s.like(query, list(shape), mild=True)

    rates = like_query if in_halves else wide
    key, value = like_query(tokens, keys, rows), like_query(tokens, heads, columns)
    ends = s.fixed(_ends(s, requests, tokens), "int32") if ragged else None
    past = s.maybe(0.6 if ragged else 1.0, lambda: wide(requests, heads, columns, rows))
    gates = (wide(heads), wide(heads, *(by_row if s.draw.chance(0.5) else []))) if gate else (None, None)
    counts = s.fixed([s.draw.number(-1, 5) for _ in range(requests)], "int32") if most else None
    told = {"qk_l2_norm": 1, "gate_activation": gate, "state_update_capacity": most}
    if gate == "kda" and s.draw.chance(0.5):
        told["gate_lower_bound"] = -1.5
    inputs = [query, key, value, ends, rates(tokens, heads, *by_row), rates(tokens, heads), past, *gates, counts]
    kinds = [None, "float", "float"][: 3 if most else 2]
    return s.node(*inputs, types=kinds, wanted=len(kinds), beta_activation="sigmoid", **told)
