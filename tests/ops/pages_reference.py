"""What PagedAttention and SparsePagedAttention mean, token by token, and inputs for them."""

import ml_dtypes
import numpy as np
from harness import Const, floats, seeded

PAGED = (
    "query key value key_cache value_cache starts pasts table cos sin places sinks q_weight k_weight k_scale v_scale "
    "metadata"
).split()
SPARSE = (
    "query key value key_cache value_cache starts pasts table places indices counts aux_key aux_value aux_lengths "
    "cos sin sinks q_weight k_weight k_scale v_scale metadata"
).split()


MOST = {"int8": 127, "int4": 7, "float8": 400}  # that codes are


def _turned(x, cos, sin, position, attrs):
    """x [head, size]"""
    half, first = cos.shape[1], attrs.get("rotary_offset", 0)
    c, s = cos[position], sin[position]
    if attrs.get("rotary_interleaved", 0):
        pairs = slice(first, first + 2 * half, 2), slice(first + 1, first + 2 * half, 2)
    else:
        pairs = slice(first, first + half), slice(first + half, first + 2 * half)
    a, b = x[:, pairs[0]], x[:, pairs[1]]
    y = x.copy()
    y[:, pairs[0]], y[:, pairs[1]] = a * c - b * s, a * s + b * c
    return y


def _normal(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def _coded(x, scale, cache):
    """x [kv_head, size] as the cache's codes, if it has some."""
    if scale is None:
        return x
    scale = scale.reshape(len(x), -1) if scale.size > 1 else scale.reshape(1, 1)
    wide = x.astype(np.float32) / scale.astype(np.float32)
    if cache == "float8":
        return np.clip(wide, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return np.clip(np.rint(wide), *((-128, 127) if cache == "int8" else (-8, 7)))


def _unpacked(x):
    """Codes of int4, two of which are a byte, with a zero of 8."""
    return np.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], -1) - 8.0


def _packed(x):
    codes = x.astype(int) + 8
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)


def _decoded(x, scale):
    if scale is None:
        return x
    return x * (scale.reshape(x.shape[0], -1) if scale.size > 1 else scale.reshape(1, 1))


def reference(names, cache="", wanted=3, **attrs):
    heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]
    latent = attrs.get("kv_cache_layout") == "LATENT"  # a row's first channels are its values

    def run(*inputs):
        given = dict.fromkeys(names) | dict(zip(names, inputs))
        x = {n: v.astype(np.float64) if v is not None and v.dtype.kind == "f" else v for n, v in given.items()}
        keys, values = (
            _unpacked(x[n]) if cache == "int4" else x[n].astype(np.float64)
            for n in ("key_cache", "key_cache" if latent else "value_cache")
        )
        pages, slots, _, size = keys.shape
        if x["key"] is None:
            q, k, v = np.split(x["query"], [heads * size, (heads + kv_heads) * size], 1)
        else:
            q, k, v = x["query"], x["key"], x["key" if latent else "value"]
        tokens = len(q)
        q, k, v = (a.reshape(tokens, a.shape[1] // size, size).copy() for a in (q, k, v))
        starts, pasts = x["starts"].astype(int), x["pasts"].astype(int)
        owner = {t: b for b in range(len(pasts)) for t in range(starts[b], starts[b + 1])}
        at = {t: pasts[b] + t - starts[b] for t, b in owner.items()}

        def slot(b, key):
            page = x["table"][b, key // slots]
            return None if page < 0 else (page, key % slots)

        for t, b in owner.items():
            if x["q_weight"] is not None:
                epsilon = attrs.get("qk_norm_epsilon", 1e-6)
                q[t], k[t] = _normal(q[t], x["q_weight"], epsilon), _normal(k[t], x["k_weight"], epsilon)
            if attrs.get("do_rotary", 0):
                q[t], k[t] = (_turned(a, x["cos"], x["sin"], at[t], attrs) for a in (q[t], k[t]))
            to = slot(b, at[t])
            if x["places"] is not None:
                to = None if x["places"][t] < 0 else divmod(x["places"][t], slots)
            if to:
                keys[to], values[to] = _coded(k[t], x["k_scale"], cache), _coded(v[t], x["v_scale"], cache)
        if latent:
            values, x["v_scale"] = keys, x["k_scale"]

        width = attrs.get("v_head_size", 0) or size
        y = np.zeros((tokens, heads, width))
        for t, b in owner.items():
            rows = list(_seen(x, t, at[t], pasts[b] + starts[b + 1] - starts[b], b, attrs))
            found = [
                (x["aux_key"][b, n], x["aux_key" if x["aux_value"] is None else "aux_value"][b, n])
                if auxiliary
                else (_decoded(keys[slot(b, n)], x["k_scale"]), _decoded(values[slot(b, n)], x["v_scale"]))
                for auxiliary, n in rows
                if auxiliary or slot(b, n)
            ]
            if not found:
                continue
            k_rows, v_rows = (
                np.stack([np.broadcast_to(one[i], (kv_heads, size)) for one in found], 1) for i in range(2)
            )
            of_head = np.arange(heads) // (heads // kv_heads)
            scores = np.einsum("hd,hnd->hn", q[t], k_rows[of_head]) * (attrs.get("scale", 0) or 1 / np.sqrt(size))
            if softcap := attrs.get("softcap", 0):
                scores = softcap * np.tanh(scores / softcap)
            sinks = np.full(heads, -np.inf) if x["sinks"] is None else x["sinks"]
            top = np.maximum(scores.max(1), sinks)
            powers = np.exp(scores - top[:, None])
            total = powers.sum(1) + np.exp(sinks - top)
            y[t] = np.einsum("hn,hnd->hd", powers / total[:, None], v_rows[of_head, :, :width])
        if cache == "int4":
            caches = _packed(keys), _packed(values)
        else:
            caches = (c.astype(np.int8 if cache == "int8" else np.float64) for c in (keys, values))
        return [y.reshape(tokens, heads * width), *caches][: 2 if latent else wanted]

    return run


def _seen(x, token, position, length, b, attrs):
    """(whether it is in the auxiliary cache, which) of each key."""
    window, causal = attrs.get("local_window_size", -1), attrs.get("is_causal", 1)
    first = max(0, position - window + 1) if window > 0 else 0
    near = range(first, position + 1 if causal else length)
    if x.get("indices") is None:
        yield from ((False, n) for n in near)
        return
    local = attrs.get("attention_mode") == "local_plus_selected"
    if local:
        yield from ((False, n) for n in near)
    for n in x["indices"][token, : max(x["counts"][token], 0)]:
        if attrs.get("selected_kv_source") == "auxiliary":
            if 0 <= n < min(x["aux_lengths"][b], x["aux_key"].shape[1]):
                yield True, n
        elif 0 <= n < length and (not causal or n <= position) and not (local and n in near):
            yield False, n


def tables(positions, half):
    angles = np.arange(positions)[:, None] / 100.0 ** (np.arange(half) / max(half, 1))
    return [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]


def quarters(positions, half):
    """Of turns after which values are still exact, so that they have the same codes everywhere."""
    at = (np.arange(positions)[:, None] + np.arange(half)) % 4
    return [np.array(of, np.float32)[at] for of in ([1, 0, -1, 0], [0, 1, 0, -1])]


def batch(news, pasts, heads, kv_heads, size, slots, width=None, packed=False, cache="", spare=0, key=0, latent=False):
    """Inputs of sequences with so many new tokens behind a past; `spare` tokens belong to none."""
    rng = seeded("pages", news, pasts, heads, size, slots, key)
    width = width or max(-(-(n + p) // slots) for n, p in zip(news, pasts)) + 1
    tokens, pages = sum(news) + spare, len(news) * width + 2
    wide = [(heads + 2 * kv_heads) * size] if packed else [heads * size, kv_heads * size, kv_heads * size]
    x = {n: floats(tokens, w, low=-1, high=1) for n, w in zip(("query", "key", "value"), wide)}
    shape = (pages, slots, kv_heads, size)
    for n in ("key_cache", "value_cache"):
        if cache == "int8":
            x[n] = rng.integers(-127, 128, shape).astype(np.int8)
        elif cache == "int4":
            x[n] = rng.integers(0, 256, (*shape[:-1], size // 2)).astype(np.uint8)
        else:
            x[n] = floats(*shape, low=-1, high=1)
    x["starts"] = np.cumsum([0, *news]).astype(np.int32)
    x["pasts"] = np.array(pasts, np.int32)
    x["table"] = rng.permutation(pages)[: len(news) * width].reshape(len(news), width).astype(np.int32)
    if cache:
        for n in "kv":
            scale = rng.uniform(0.5, 1.5, (kv_heads, 1, size) if n == "k" else 1) / MOST[cache]
            x[f"{n}_scale"] = Const(scale.astype(np.float32), fixed=True)
    return {n: v for n, v in x.items() if not (latent and n in ("value", "value_cache", "v_scale"))}
