"""What SparseAttentionIndexer and PackedSparseAttentionIndexer choose, as their documentation has it: one request."""

import numpy as np


def normalised(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def turned(x, cos, sin, position, leading):
    """x [..., size] by a table's row; positions beyond it are the last one."""
    position = int(np.clip(position, 0, len(cos) - 1))
    c, s, y = cos[position], sin[position], x.copy()
    width = cos.shape[1]
    if leading:
        half = width // 2
        y[..., :half] = x[..., :half] * c[:half] - x[..., half:width] * s[:half]
        y[..., half:width] = x[..., half:width] * c[half:] + x[..., :half] * s[half:]
    else:
        a, b = x[..., x.shape[-1] - 2 * width :: 2], x[..., x.shape[-1] - 2 * width + 1 :: 2]
        y[..., x.shape[-1] - 2 * width :: 2] = a * c - b * s
        y[..., x.shape[-1] - 2 * width + 1 :: 2] = b * c + a * s
    return y


def best(scores, wanted):
    """Of what is the same, the first."""
    return np.argsort(-scores, kind="stable")[:wanted]


def padded(row, width):
    return np.array([*row, *[-1] * (width - len(row))], np.int32)


def scores_of(query, entries, scale, weights=None):
    """query [head, size]"""
    products = np.maximum(query @ entries.T, 0) * scale
    return (products if weights is None else products * weights[:, None]).sum(0)


def window(keys, gates, bias, first, ratio):
    """The entry of the window that begins with token `first`, before it is normalised."""
    size = keys.shape[1] // 2
    values, logits = keys[first : first + ratio, size:], gates[first : first + ratio, size:] + bias[:, size:]
    if first >= ratio:
        before = slice(first - ratio, first)
        values = np.concatenate([keys[before, :size], values])
        logits = np.concatenate([gates[before, :size] + bias[:, :size], logits])
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(logits - logits.max(0))
        total = powers.sum(0)
        sums = (powers * values).sum(0)
    sound = np.isfinite(total) & (total > 0)
    return np.where(sound, sums / np.where(sound, total, 1), 0)


def window_plan(buffered, tokens, ratio):
    """How many tokens of the last window there are, how many windows are made, and which tokens stay."""
    overlap = ratio if buffered >= ratio else 0
    pending = buffered - overlap + tokens
    made = pending // ratio
    return overlap, made, overlap + (made - 1) * ratio if made else 0


class Chooser:
    """The attributes, and what all requests have."""

    def __init__(self, attrs, query_weight, key_weight, rounded):
        self.windows = attrs["policy_mode"] == "csa"
        self.ratio, self.epsilon = attrs["compress_ratio"], attrs.get("epsilon", 1e-6)
        self.query_weight, self.key_weight, self.rounded = query_weight, key_weight, rounded
        self.size = len(query_weight)
        self.scale = attrs.get("scale", 1 / np.sqrt(self.size))
        self.head_scale = attrs.get("head_weight_scale")
        self.wanted = attrs["index_topk"] if self.windows else attrs["token_budget"] // self.ratio
        self.width = attrs["index_topk"] if self.windows else attrs["token_budget"] + self.ratio - 1

    def entry(self, pooled, table, position):
        return turned(normalised(pooled, self.key_weight, self.epsilon), *table, position, not self.windows)

    def query(self, query, table, position):
        heads = normalised(query.reshape(-1, self.size), self.query_weight, self.epsilon)
        return turned(heads, *table, position, not self.windows)

    def tokens(self, query, table, position, entries, seen):
        """Chosen tokens, of those that are seen, in their order; entries are those of whole blocks of them."""
        whole = len(seen) // self.ratio
        of = scores_of(self.query(query, table, position), entries[:whole], self.scale) if whole else np.zeros(0)
        blocks = [seen[e * self.ratio + i] for e in best(of, self.wanted) for i in range(self.ratio)]
        return blocks + list(seen[whole * self.ratio :])

    def entries(self, query, table, position, entries, weights):
        scale = self.scale * (self.head_scale or 1 / np.sqrt(len(weights)))
        seen = entries[: max(0, (int(position) + 1) // self.ratio)]
        if not len(seen):
            return []
        return list(best(scores_of(self.query(query, table, position), seen, scale, weights), self.wanted))
