"""What com.microsoft's attentions mean, in double: where the CPU EP lacks a type, a layout or a kind of mask."""

import numpy as np


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def split(x, heads):
    """[batch, row, head * size] as [batch, head, row, size]."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def addend(mask, batch, queries, keys, filtered):
    """Of a mask in any of its forms, [batch, 1, query, key]."""
    shape = np.shape(mask)
    key = np.arange(keys)
    if len(shape) == 1 and shape[0] in (batch, 3 * batch + 2):
        seen = key < mask[:batch, None]
        seen = seen[:, None, None]
    elif len(shape) == 1:
        seen = (key < mask[:batch, None]) & (key >= mask[batch:, None])
        seen = seen[:, None, None]
    elif shape == (batch, keys):
        seen = (mask != 0)[:, None, None]
    elif len(shape) == 2:
        return 0.0
    elif len(shape) == 3:
        seen = (mask != 0)[:, None]
    else:
        seen = (mask != 0)[:, :, keys - queries : keys, :keys]
    # What is all masked is not masked, but for the digits that a float then lacks.
    add = np.where(seen, 0.0, filtered)
    everything = ~seen.any(-1, keepdims=True)
    return np.where(everything, 0.0, add)


def attend(q, k, v, mask=None, bias=None, causal=False, scale=0.0, filtered=-10000.0):
    """All [batch, head, row, size]; the output [batch, row, head * size], and the scores."""
    (batch, _, queries, size), keys = q.shape, k.shape[2]
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 1, 3, 2) * (scale or 1 / np.sqrt(size))
    if mask is not None:
        scores = scores + addend(np.asarray(mask), batch, queries, keys, filtered)
    if bias is not None:
        scores = scores + bias
    if causal:
        seen = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
        scores = np.where(seen, scores, -np.inf)
    y = softmax(scores) @ v.astype(np.float64)
    return y.transpose(0, 2, 1, 3).reshape(batch, queries, y.shape[1] * y.shape[3]), scores


def turn(x, first, turned):
    """Rotary positions of [batch, head, row, size], halves being pairs."""
    half = turned // 2
    angle = (first + np.arange(x.shape[2]))[:, None] * 10000.0 ** (-np.arange(half) / half)
    a, b = x[..., :half].astype(np.float64), x[..., half:turned].astype(np.float64)
    c, s = np.cos(angle), np.sin(angle)
    return np.concatenate([a * c - b * s, b * c + a * s, x[..., turned:]], -1)
