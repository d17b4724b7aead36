"""Operators that carry a state from one run to the next."""

from proposals import proposes

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
