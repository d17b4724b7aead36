"""com.microsoft's DecoderAttention, which the CPU EP lacks."""

import numpy as np
import pytest
from harness import Case, Const, check, floats, seeded
from refusal import declined, fails

DOMAIN = {"domain": "com.microsoft"}


def flag(value):
    return Const(np.array([bool(value)]))


def reference(heads, wanted):
    def run(query, key, q_weight, kv_weight, bias, mask, past_k, past_v, static, use, state, has_mask):
        width = query.shape[2]

        def split(x):
            return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2, 0, 3)

        q = split(query.astype(np.float64) @ q_weight + bias[:width])
        if use[0] and state[0] and static[0]:
            k, v = past_k, past_v
        else:
            both = (key if static[0] else query).astype(np.float64) @ kv_weight + bias[width:]
            k, v = split(both[..., :width]), split(both[..., width:])
            if use[0] and state[0]:
                k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(width // heads)
        if has_mask[0]:
            scores = np.where(mask[:, None, None], -np.inf, scores)
        top = scores.max(-1, keepdims=True, initial=-1e30)
        powers = np.exp(scores - top)
        total = powers.sum(-1, keepdims=True)
        y = powers / np.where(total == 0, 1, total) @ v
        return [y.transpose(2, 0, 1, 3).reshape(query.shape), k, v][:wanted]

    return run


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("static,use,state", [(0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1), (0, 1, 0), (1, 0, 1)])
@pytest.mark.parametrize("queries,keys,past", [(1, 9, 6), (7, 30, 20), (40, 3, 1)])
@pytest.mark.parametrize("masked", [0, 1])
def test_decoder_attention(queries, keys, past, static, use, state, masked, dtype):
    batch, heads, size = 2, 2, 16
    width = heads * size
    cached = use and state
    total = past * cached + (0 if cached and static else keys if static else queries)
    mask = seeded("padding", queries, total).uniform(size=(batch, total)) > 0.6
    one, small = {"low": -1, "high": 1}, {"low": -0.2, "high": 0.2}
    inputs = [floats(queries, batch, width, **one), floats(keys, batch, width, **one), floats(width, width, **small)]
    inputs += [floats(width, 2 * width, **small), floats(3 * width, **one), mask if masked else None]
    inputs += [floats(batch, heads, past, size, **one) if cached else None for _ in range(2)]
    inputs += [flag(static), flag(use), flag(state), flag(masked)]
    for outputs in (1, 3):
        check(
            Case(
                "DecoderAttention",
                inputs,
                {"num_heads": heads},
                dtype=dtype,
                outputs=outputs,
                family="projected",
                reference=reference(heads, outputs),
                options={"use_tf32": 0},
                **DOMAIN,
            )
        )


def test_refusals():
    rows, square, wide, bias = floats(3, 2, 8), floats(8, 8), floats(8, 16), floats(24)
    yes, no = np.array([True]), np.array([False])
    run = "DecoderAttention"
    fails(
        run, [rows, rows, square, wide, bias, None, None, None, no, no, no, no], {"num_heads": 3}, "divided", **DOMAIN
    )
    fails(
        run, [rows, rows, square, wide, bias, None, None, None, no, yes, yes, no], {"num_heads": 2}, "cache", **DOMAIN
    )
    fails(
        run, [rows, rows, square, square, bias, None, None, None, no, no, no, no], {"num_heads": 2}, "weight", **DOMAIN
    )
    declined(run, [rows, rows, square, wide, bias, None, None, None, no, no, no, no], {"num_heads": 0}, **DOMAIN)
