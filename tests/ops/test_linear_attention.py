import numpy as np
import pytest
from harness import Case, check, floats
from refusal import declined, fails

TYPES = ["float32", "float16", "bfloat16"]
RULES = ["linear", "gated", "delta", "gated_delta"]


def inputs(rule, batch, tokens, heads, rows, columns, *, queries=1, past=True, decay_by_row=True, beta_by_head=True):
    keys = floats(batch, tokens, heads, rows)
    keys /= np.maximum(np.sqrt((keys**2).sum(-1, keepdims=True)), 1e-3)  # else a delta rule grows without end
    return [
        floats(batch, tokens, heads * queries * rows),
        keys.reshape(batch, tokens, heads * rows),
        floats(batch, tokens, heads * columns),
        floats(batch, heads, rows, columns) if past else None,
        floats(batch, tokens, heads * (rows if decay_by_row else 1), low=-1, high=0) if "gated" in rule else None,
        floats(batch, tokens, heads if beta_by_head else 1, low=0, high=1) if "delta" in rule else None,
    ]


def attention(rule, *shape, dtype="float32", queries=1, name="", attrs=None, reference=None, **how):
    heads = {"kv_num_heads": shape[2], "q_num_heads": shape[2] * queries}
    given = inputs(rule, *shape, queries=queries, **how)
    while given[-1] is None:
        given.pop()
    return Case(
        "LinearAttention",
        given,
        {"update_rule": rule, **heads, **(attrs or {})},
        dtype=dtype,
        outputs=2,
        family="matmul",
        opset=27,
        reference=reference,
        name="-".join(filter(None, [rule, name])),
    )


CASES = [
    *[attention(rule, 2, 9, 3, 16, 40, dtype=t) for rule in RULES for t in TYPES],
    *[attention("gated_delta", 2, 5, 2, rows, 33) for rows in (1, 7, 64, 65, 128, 200, 256)],
    attention("gated_delta", 1, 1, 8, 128, 128, queries=2, dtype="float16", name="decode"),
    attention("gated_delta", 1, 70, 2, 64, 64, queries=4, dtype="bfloat16", name="prompt"),
    attention("gated_delta", 2, 6, 3, 8, 8, past=False, decay_by_row=False, beta_by_head=False, name="scalars"),
    attention("gated", 2, 6, 3, 1, 8, name="one-row"),
    attention("linear", 2, 6, 3, 8, 8, past=False, attrs={"scale": 0.25}, name="scaled"),
    # Which the CPU EP's Reshape refuses.
    attention("linear", 2, 0, 3, 8, 8, name="no-tokens", reference=lambda q, k, v, past: [v, past]),
    attention("linear", 0, 4, 3, 8, 8, name="no-batch", reference=lambda q, k, v, past: [v, past]),
]
HEADS = {"kv_num_heads": 2, "q_num_heads": 2, "update_rule": "linear"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_linear_attention(case):
    check(case)


@pytest.mark.parametrize(
    "wrong",
    [
        {"q_num_heads": 3},
        {"q_num_heads": 0},
        {"kv_num_heads": -2},
        {"update_rule": "quadratic"},
        {"update_rule": "gated"},
        {"update_rule": "delta"},
    ],
    ids=str,
)
def test_linear_attention_refuses_attributes(wrong):
    declined("LinearAttention", inputs("linear", 1, 3, 2, 4, 4)[:3], {**HEADS, **wrong}, opset=27, outputs=2)


@pytest.mark.parametrize(
    "which, shape, words",
    [
        (1, (1, 3, 6), "key has"),
        (2, (1, 3, 7), "value has"),
        (3, (1, 2, 4, 5), "past_state has"),
        (0, (1, 3, 9), "query"),
    ],
)
def test_linear_attention_refuses_shapes(which, shape, words):
    given = inputs("linear", 1, 3, 2, 4, 4)[:4]
    given[which] = floats(*shape)
    fails("LinearAttention", given, HEADS, words, opset=27, outputs=2, ranks=False)
