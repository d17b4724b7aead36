"""Attention to keys and values in pages. The CPU EP has no kernel for it: what remains is that runs agree, and survive
what is hostile."""

import numpy as np
from proposals import MICROSOFT, proposes


class _Batch:
    """Sequences without padding, and a table of pages for each."""

    def __init__(self, s):
        self.s = s
        self.kv_heads, self.size = s.draw.number(1, 2), s.draw.pick([8, 16, 24, 64])
        self.heads, self.slots = self.kv_heads * s.draw.number(1, 3), s.draw.pick([1, 5, 16])
        count = s.draw.number(1, 3)
        self.news = [s.draw.pick([0, 1, 1, 2, 9]) for _ in range(count)]
        self.pasts = [s.draw.pick([0, 1, 6, 40]) for _ in range(count)]
        self.tokens = sum(self.news)
        self.longest = max(n + p for n, p in zip(self.news, self.pasts))
        self.codes, self.latent = None, False

    def inputs(self):
        """Up to the table."""
        s, width = self.s, -(-self.longest // self.slots) + 1
        packed = not self.latent and s.draw.chance(0.4)
        x = s.data(shape=[self.tokens, (self.heads + 2 * self.kv_heads * packed) * self.size], mild=True)
        kinds = "k" if self.latent else "kv"
        new = [s.like(x, [self.tokens, self.kv_heads * self.size], mild=True) for _ in kinds if not packed]
        pages = width * len(self.news)
        caches = [self._cache(x.type, (pages, self.slots, self.kv_heads)) for _ in kinds]
        new, caches = ((given + [None, None])[:2] for given in (new, caches))
        table = np.array(s.draw.shuffled(range(pages))).reshape(len(self.news), width)
        ints = [np.cumsum([0, *self.news]), self.pasts, table]
        return [x, *new, *caches, *(s.fixed(values, "int32") for values in ints)]

    def _cache(self, kind, shape):
        """In memory of its own, where it is written."""
        s = self.s
        if not self.codes:
            return s.new(s.draw.contents(kind, (*shape, self.size), mild=True), kind)
        least, bytes_of_a_row = (0, self.size // 2) if self.codes == "uint8" else (-128, self.size)
        codes = s.draw.numpy.integers(least, least + 256, (*shape, bytes_of_a_row))
        return s.fixed(codes, self.codes, constant=0)

    def scales(self):
        """Of keys and values, and the attributes that speak of them."""
        if not self.codes:
            return [None, None], {}
        how, scales = {}, []
        for which in "k" if self.latent else "kv":
            by_channel = self.s.draw.chance(0.5)
            shape = [self.kv_heads, 1, self.size] if by_channel else [1]
            most = 8 if self.codes == "uint8" else 128
            scales.append(self.s.fixed(self.s.draw.numpy.uniform(0.5, 2, shape) / most, "float"))
            how[f"{which}_quant_type"] = "PER_CHANNEL" if by_channel else "PER_TENSOR"
            if self.codes == "uint8":
                how[f"{which}_cache_dtype"] = "int4"
        return (scales + [None])[:2], how

    def places(self):
        return self.s.maybe(0.2, lambda: self.s.fixed([-1] * self.tokens, "int32"))

    def rest(self, x):
        """Cosines, sines and sinks, and the attributes."""
        s, turns = self.s, self.s.draw.chance(0.5)
        half = s.draw.number(1, self.size // 2)
        if self.codes == "uint8":  # two values of which are a byte
            half += half % 2
        tables = [s.like(x, [self.longest + s.draw.number(0, 3), half], mild=True) if turns else None for _ in "cs"]
        attrs = {
            "num_heads": self.heads,
            "kv_num_heads": self.kv_heads,
            "do_rotary": 1 if turns else None,
            "rotary_interleaved": s.maybe(0.4, lambda: 1),
            "local_window_size": s.maybe(0.3, lambda: s.draw.number(1, 9)),
            "is_causal": s.maybe(0.2, lambda: 0),
            "scale": s.maybe(0.3, lambda: 0.1),
            "softcap": s.maybe(0.2, lambda: abs(s.draw.real()) + 0.5),
        }
        return tables, s.maybe(0.3, lambda: s.like(x, [self.heads], mild=True)), attrs


@proposes("PagedAttention", domain=MICROSOFT, family="matmul", mild=True)
def paged_attention(s):
    batch = _Batch(s)
    batch.codes = s.maybe(0.5, lambda: s.draw.pick(["int8", "uint8", "uint8"]))
    if batch.kv_heads == 1 and s.draw.chance(0.5):
        batch.latent = True
    inputs = batch.inputs()
    tables, sinks, attrs = batch.rest(inputs[0])
    weights = [s.like(inputs[0], [batch.size], mild=True) for _ in "qk"] if s.draw.chance(0.3) else []
    if batch.latent:
        sinks, weights = None, []
        attrs |= {"kv_cache_layout": "LATENT", "v_head_size": s.draw.number(1, batch.size), "scale": 0.1}
    places = batch.places()
    hints = s.maybe(0.3, lambda: s.fixed([s.draw.number(0, 9), s.draw.number(0, 60)], "int32", constant=1))
    scales, how = batch.scales()
    more = [places, sinks, *(weights or [None, None]), *scales, hints]
    types = [None, batch.codes, batch.codes]
    wanted = s.draw.pick([1, 2 if batch.latent else 3])
    return s.node(*inputs, *tables, *more, types=types, wanted=wanted, **attrs, **how)


@proposes("SparsePagedAttention", domain=MICROSOFT, family="matmul", mild=True)
def sparse_paged_attention(s):
    batch = _Batch(s)
    inputs = batch.inputs()
    tables, sinks, attrs = batch.rest(inputs[0])
    most, rows = s.draw.number(0, 6), s.draw.number(1, 5)
    others = s.draw.chance(0.4)
    reach = rows if others else batch.longest
    indices = [s.draw.number(-1, reach) for _ in range(batch.tokens * most)]
    auxiliary = [None, None, None]
    if others:
        heads = s.draw.pick([1, batch.kv_heads])
        auxiliary = [s.like(inputs[0], [len(batch.news), rows, heads, batch.size], mild=True) for _ in "kv"]
        auxiliary.append(s.fixed([s.draw.number(0, rows) for _ in batch.news], "int32"))
    return s.node(
        *inputs,
        batch.places(),
        s.fixed(np.array(indices).reshape(batch.tokens, most), "int32"),
        s.fixed([s.draw.number(0, most) for _ in range(batch.tokens)], "int32"),
        *auxiliary,
        *tables,
        sinks,
        types=[None] * 3,
        wanted=s.draw.pick([1, 3]),
        attention_mode=s.maybe(0.5, lambda: "local_plus_selected"),
        selected_kv_source="auxiliary" if others else None,
        **attrs,
    )
