"""The same as symptoms.py, of attention and experts."""

import re

import numpy as np
from symptoms import as_of, beside_largest, contents, has, is_near, made_of, trembles

# What their rounding may come to, of the largest result.
ROUNDED = {"float16": 0.01, "bfloat16": 0.08}


def sees_no_key(finding):
    """Of MultiHeadAttention, rows that a mask leaves no key to; all of a row's scores are rounded."""
    if not has(finding, 4):
        return False
    mask = contents(finding, 4)
    seen = mask > 0 if mask.ndim < 2 else (mask > 0).any(-1)
    if seen.shape[:1] != finding.got.shape[:1]:
        return False
    seen = seen.reshape(seen.shape + (1,) * (finding.got.ndim - seen.ndim))
    return ~seen & beside_largest(0.01)(finding)


def hides_keys(finding):
    """Of QAttention, batches that are shorter than their rows."""
    x = contents(finding)
    if not has(finding, 5) or contents(finding, 5).shape != x.shape[:1]:
        return False
    return _of_batches(finding, contents(finding, 5) < x.shape[1])


def _of_batches(finding, odd):
    return np.reshape(odd, (-1,) + (1,) * (finding.got.ndim - 1))


def _chunks(finding):
    """How DecoderMaskedMultiHeadAttention has the keys of the past: 16 bytes of each position side by side."""
    size = 16 // contents(finding, 5).dtype.itemsize
    return lambda keys: keys.reshape(*keys.shape[:-1], -1, size).swapaxes(2, 3).reshape(keys.shape)


def has_keys_in_chunks(finding):
    """Where the result is the CPU EP's, of keys as it has them."""
    if not has(finding, 5) or contents(finding, 5).shape[-1] % 8:
        return False
    past, in_chunks = contents(finding, 5), _chunks(finding)
    size = 16 // past.dtype.itemsize
    batch, heads, rows, wide = past.shape
    plain = past.reshape(batch, heads, wide // size, rows, size).swapaxes(2, 3).reshape(past.shape)
    made = made_of(finding, {5: plain})
    if made is None:
        return False
    wanted = made[finding.output]
    return is_near(finding, in_chunks(wanted) if finding.output == 1 else wanted)


def passes_its_total(finding):
    """Of GroupQueryAttention, batches of which the length is beyond the total."""
    return (contents(finding, 5).reshape(-1) >= contents(finding, 6)).any()


def believes_lengths(finding):
    """Where the result is the CPU EP's, of a total that the lengths do not pass."""
    longest = (contents(finding, 5) + 1).max().reshape(contents(finding, 6).shape)
    return passes_its_total(finding) and as_of(finding, {6: longest})


def pads_a_prompt(finding):
    """Of GroupQueryAttention, the rows behind a prompt's last."""
    rows = contents(finding).shape[1]
    place = np.arange(finding.got.shape[1 if finding.got.ndim == 3 else 2])
    ends = contents(finding, 5).reshape(-1, 1)
    if (ends >= rows).any() or (ends < 0).any():
        return False
    return _rows_of(finding, place[None] > ends)


def _rows_of(finding, odd):
    """Of [batch, row, width], or [batch, head, row, width]."""
    return odd[:, :, None] if finding.got.ndim == 3 else odd[:, None, :, None]


def has_no_positions(finding):
    """Of GroupQueryAttention, batches that have fewer positions than the cache of a window has rows."""
    if finding.node.attrs.get("sliding_window_cache", 0) != 1:
        return False
    return _of_batches(finding, contents(finding, 5) + 1 < contents(finding, 3).shape[2])


def rounds_what_it_turns(finding):
    """Of tables that no rotation has, as large as they are, results tremble by more."""
    kind = finding.node.inputs[0].type
    return kind in ROUNDED and (beside_largest(ROUNDED[kind])(finding) | trembles(finding))


def does_not_normalize(finding):
    """Of QMoE: where the result is the CPU EP's times what the chosen experts' weights add up to."""
    if finding.node.attrs.get("normalize_routing_weights", 0) == 1:
        return False
    logits = contents(finding, 1).astype(np.float64)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    chosen = np.sort(weights)[:, -finding.node.attrs.get("k", 1) :].sum(-1)
    wanted = finding.wanted.astype(np.float64)
    return is_near(finding, (wanted.reshape(len(chosen), -1) * chosen[:, None]).reshape(wanted.shape))


def do_not_fit(finding):
    """Of ONNX's Attention, queries, keys and values of several batches, heads, rows or sizes, as the error has them."""
    told = re.search(r"Q \[(.*?)\], K \[(.*?)\] and V \[(.*?)\] don't fit together", finding.text)
    if not told:
        return False
    q, k, v = ([int(size) for size in shape.split(",")] for shape in told.groups())
    in_groups = k[1] > 0 and q[1] % k[1] == 0
    return not (q[0] == k[0] and k[:3] == v[:3] and q[3] == k[3] and in_groups)


def has_other_lengths(finding):
    """Of ONNX's Attention, as many as there are no batches."""
    lengths = contents(finding, 6) if has(finding, 6) else None
    return (
        lengths is not None and lengths.shape != contents(finding).shape[:1] and "nonpad_kv_seqlen has" in finding.text
    )
