import numpy as np
import pytest
from harness import Case, Const, check, floats
from in_place import check_in_order, check_in_place
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


def stepped(q, k, v, state, kept, rate, scale, corrects):
    """One token after the other, as the operators' descriptions have it. [batch, tokens, heads, ...], all at the
    state's heads; returns the answers, the states after each token, and what was added along each key."""
    answers, states, changes = [], [state], []
    for t in range(q.shape[1]):
        state = state * kept[:, t, :, :, None]
        change = v[:, t] - (np.einsum("bhrc,bhr->bhc", state, k[:, t]) if corrects else 0)
        change = change * rate[:, t, :, None]
        state = state + k[:, t, :, :, None] * change[:, :, None]
        answers.append(scale * np.einsum("bhrc,bhr->bhc", state, q[:, t]))
        states.append(state)
        changes.append(change)
    return answers, states, changes


def contrib(rule, batch, tokens, heads, rows, columns, *, queries=None, keys=None, window=0, dtype="float32", **how):
    """com.microsoft's: fewer heads of queries and keys than of values, and several states."""
    queries, keys = queries or heads, keys or heads
    made = inputs(rule, batch, tokens, heads, rows, columns, **how)
    made[0] = floats(batch, tokens, queries * rows)
    made[1] = np.ascontiguousarray(made[1][..., : keys * rows])
    if window and made[3] is not None:
        made[3] = floats(window, *made[3].shape)
    while made[-1] is None:
        made.pop()

    def reference(q, k, v, past=None, decay=None, rate=None):
        spread = lambda x, size: np.repeat(x.reshape(batch, tokens, -1, size), heads * size // x.shape[-1] or 1, 2)
        decay = np.zeros((batch, tokens, heads)) if decay is None else decay
        kept = np.broadcast_to(np.exp(decay.reshape(batch, tokens, heads, -1)), (batch, tokens, heads, rows))
        rate = np.broadcast_to(np.ones(1) if rate is None else rate, (batch, tokens, heads))
        state = np.zeros((batch, heads, rows, columns)) if past is None else past[-1] if window else past
        group = max(queries // heads, 1)
        answers = []
        for g in range(group):  # heads of queries that one state answers
            asked = q.reshape(batch, tokens, -1, group, rows)[:, :, :, g].reshape(batch, tokens, -1)
            each, states, _ = stepped(
                spread(asked, rows), spread(k, rows), spread(v, columns), state, kept, rate, rows**-0.5, "delta" in rule
            )
            answers.append(np.stack(each, 1))
        y = np.stack(answers, 3).reshape(batch, tokens, -1).astype(np.float32)
        if window:
            last = [np.zeros_like(states[0])] * max(window - tokens, 0) + states[1:][-window:]
            return [y, np.stack(last).astype(np.float32)]
        return [y, states[-1].astype(np.float32)]

    attrs = {"update_rule": rule, "kv_num_heads": heads, "q_num_heads": queries, "state_window": window}
    name = f"{rule}-{heads}-{queries}-{keys}-{window}"
    more = {"family": "matmul", "domain": "com.microsoft", "name": name, "reference": reference}
    return Case("LinearAttention", made, attrs, dtype, 2, **more)


CONTRIB = [
    *[contrib(rule, 2, 5, 4, 16, 40, dtype=t) for rule in RULES for t in TYPES],
    *[contrib("gated_delta", 2, 4, 4, 8, 8, queries=q, keys=k) for q in (1, 2, 8) for k in (1, 2, 4)],
    *[contrib("gated_delta", 2, tokens, 2, 8, 40, window=w) for tokens in (1, 3, 6) for w in (1, 3, 8)],
    contrib("gated", 1, 4, 3, 80, 96, window=2, past=False, queries=3),
    *[contrib("gated_delta", 2, 11, 2, 24, 40, queries=2 * q) for q in (2, 3, 8, 11, 12)],
    contrib("delta", 2, 17, 2, 130, 40, queries=4, window=3),
    contrib("gated_delta", 1, 1, 32, 128, 128, queries=16, keys=16, dtype="float16"),
    contrib("gated_delta", 1, 40, 4, 128, 128, queries=2, keys=2, dtype="bfloat16", decay_by_row=False),
]


@pytest.mark.parametrize("case", CONTRIB, ids=str)
def test_contrib_linear_attention(case):
    check(case)


@pytest.mark.parametrize("wrong", [{"q_num_heads": 3}, {"state_window": 9}, {"state_window": -1}], ids=str)
def test_contrib_linear_attention_refuses_attributes(wrong):
    given = inputs("linear", 1, 3, 2, 4, 4)[:3]
    declined("LinearAttention", given, {**HEADS, **wrong}, outputs=2, domain="com.microsoft")


def test_contrib_linear_attention_refuses_shapes():
    given = inputs("linear", 1, 3, 4, 4, 4)[:4]
    heads = {"kv_num_heads": 4, "q_num_heads": 4, "update_rule": "linear"}
    for which, shape, words in [(1, (1, 3, 12), "key has"), (1, (1, 3, 0), "key has"), (3, (1, 4, 4, 5), "past_state")]:
        wrong = list(given)
        wrong[which] = floats(*shape)
        fails("LinearAttention", wrong, heads, words, outputs=2, ranks=False, domain="com.microsoft")


def steps_in_place():
    for case in (
        attention("gated_delta", 2, 1, 3, 16, 70),
        attention("linear", 1, 6, 2, 130, 40, dtype="float16"),
        *[contrib("gated_delta", 2, tokens, 2, 8, 40, window=3) for tokens in (1, 6)],
    ):
        check_in_place(case, {1: 3})


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_states_may_be_the_same_memory(order):
    check_in_order(order, "test_linear_attention", "steps_in_place")


def delta_net(
    lengths, keys, heads, rows, columns, *, rule="gated_delta", packed=False, ragged=True, past=True, by_row=False,
    gate=False, squash=False, unit=False, most=0, active=None, rank4=False, final=True, dtype="float32", scale=0.0,
    bias_shape=None, floor=None, gates_in_halves=False, length=1.0,
):  # fmt: skip
    batch, tokens = len(lengths), sum(lengths)
    lead = (batch, tokens // batch) if rank4 else (tokens,)
    q, k, v = floats(*lead, keys, rows), floats(*lead, keys, rows), floats(*lead, heads, columns)
    if not unit:  # else a delta rule grows without end
        k /= np.maximum(np.sqrt((k**2).sum(-1, keepdims=True)), 1e-3)
    q, k = q * np.float32(length), k * np.float32(length)
    join = lambda *parts: np.concatenate([part.reshape(*lead, -1) for part in parts], -1)
    low, high = (-2, 2) if gate else (-1, 0)
    bounded = gate in ("sigmoid", "kda")
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    wide = lambda x: Const(x, fixed=True)  # float32 whatever the type
    gates = (lambda x: x) if gates_in_halves else wide
    given = [
        join(q, k, v) if packed else q,
        None if packed else k,
        None if packed else v,
        Const(ends) if ragged else None,
        gates(floats(*lead, heads, *([rows] if by_row else []), low=low, high=high)) if "gated" in rule else None,
        gates(floats(*lead, heads, low=0, high=1)) if "delta" in rule else None,
        wide(floats(batch, heads, columns, rows)) if past else None,
        wide(floats(heads, low=-1, high=1)) if gate else None,
        wide(floats(*(bias_shape or [heads]))) if gate else None,
        Const(np.array([(3 * i) % 11 - 1 for i in range(batch)], np.int32)) if most else None,
        Const(np.array([active], np.int32)) if active is not None else None,
    ]
    while given[-1] is None:
        given.pop()

    def reference(q, k, v, ends_, decay=None, rate=None, state=None, a_log=None, bias=None, counts=None, active_=None):
        if packed:
            flat = q.reshape(tokens, -1)
            q, k, v = np.split(flat, [keys * rows, 2 * keys * rows], 1)
        share = heads // keys
        q, k = (np.repeat(x.reshape(tokens, keys, rows), share, 1).astype(np.float64) for x in (q, k))
        v = v.reshape(tokens, heads, columns)
        if unit:
            least = 1e-6 if bounded else 1e-12
            q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + least) for x in (q, k))
        decay = (
            np.zeros((tokens, heads)) if decay is None else decay.reshape(tokens, heads, *([rows] if by_row else []))
        )
        if gate:
            across = decay.reshape(tokens, heads, -1) + bias.reshape(heads, -1)
            slope = np.exp(a_log)[:, None]
            decay = (floor or -5) / (1 + np.exp(-slope * across)) if bounded else -slope * np.log1p(np.exp(across))
        kept = np.broadcast_to(np.exp(decay.reshape(tokens, heads, -1)), (tokens, heads, rows))
        rate = np.ones((tokens, heads)) if rate is None else rate.reshape(tokens, heads)
        rate = 1 / (1 + np.exp(-rate)) if squash else rate
        state = np.zeros((batch, heads, columns, rows)) if state is None else state
        y, last = np.zeros((tokens, heads, columns)), np.zeros((batch, heads, columns, rows))
        decays = heads * (rows if by_row else 1)
        update = np.zeros((batch, most * (decays + keys * rows + heads * columns)))
        for i, (begin, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
            one = lambda x, begin=begin, end=end: x[None, begin:end]
            answers, states, changes = stepped(
                *map(one, (q, k, v)), state[i : i + 1].swapaxes(2, 3), one(kept), one(rate), scale or rows**-0.5,
                "delta" in rule,
            )  # fmt: skip
            for t, answer in enumerate(answers):
                y[begin + t] = answer[0]
            last[i] = states[-1][0].swapaxes(1, 2)
            for t in range(int(np.clip(counts[i], 0, min(most, end - begin))) if most and active != 0 else 0):
                sizes = np.cumsum([0, most * decays, most * keys * rows, most * heads * columns])
                parts = [update[i][a:b].reshape(most, -1) for a, b in zip(sizes[:-1], sizes[1:], strict=True)]
                parts[0][t] = kept[begin + t, :, : decays // heads].reshape(-1)
                parts[1][t] = k[begin + t, ::share].reshape(-1)
                parts[2][t] = changes[t][0].reshape(-1)
        made = [y.reshape(*lead, heads, columns), last, update][: 3 if most else 2 if final else 1]
        return [x.astype(np.float32) for x in made]

    attrs = {"update_rule": rule, "qk_l2_norm": int(unit), "state_update_capacity": most, "scale": scale}
    attrs |= {
        "gate_activation": {True: "qwen", False: "none"}.get(gate, gate),
        "beta_activation": "sigmoid" if squash else "none",
    }
    attrs |= {} if floor is None else {"gate_lower_bound": floor}
    flags = "".join(str(int(bool(f))) for f in (packed, ragged, past, by_row, gate, squash, unit, rank4, most, active))
    near = (2e-2, 2e-2) if dtype == "float16" else None  # what a delta rule rounds it repeats
    how = "".join(f"-{x}" for x in (gate if bounded else "", len(bias_shape or ""), gates_in_halves) if x)
    how += "" if length == 1 else "-short"
    more = {
        "name": f"{rule}-{batch}-{flags}{how}",
        "reference": reference,
        "tolerance": near,
        "domain": "com.microsoft",
    }
    return Case("GatedDeltaNet", given, attrs, dtype, 3 if most else 2 if final else 1, "matmul", **more)


NETS = [
    *[delta_net([3, 1, 6], 2, 4, 16, 24, rule=rule, dtype=t) for rule in RULES for t in TYPES],
    *[delta_net([3, 1, 6], 2, 4, 16, 24, dtype=t, gate=True, squash=True, unit=True, packed=True) for t in TYPES],
    delta_net([3, 1, 6], 2, 4, 16, 24, gate="softplus"),  # the same
    delta_net([4, 4], 1, 3, 8, 40, ragged=False),
    delta_net([4, 4], 1, 3, 8, 40, ragged=False, rank4=True),
    delta_net([4, 4], 1, 3, 8, 40, ragged=False, rank4=True, packed=True, scale=0.5),
    delta_net([5, 2], 2, 2, 8, 8, past=False),
    delta_net([5, 2], 2, 2, 8, 8, by_row=True, gate=False, final=False),
    *[delta_net([5, 1, 3], 2, 4, 8, 40, most=4, unit=unit, gate=unit, packed=unit) for unit in (False, True)],
    *[delta_net([5, 1, 3], 2, 4, 8, 8, most=2, active=a) for a in (0, 1)],
    delta_net([5, 1], 2, 4, 8, 40, gate="sigmoid"),
    delta_net([5, 1], 2, 4, 8, 40, gate="kda", floor=-2.0, by_row=True, bias_shape=[4, 8]),
    delta_net([5, 1], 2, 4, 8, 40, gate="kda", by_row=True, bias_shape=[32], most=3),
    delta_net([5, 1], 2, 4, 8, 40, gate="softplus", by_row=True, bias_shape=[4, 8]),
    delta_net([5, 1, 3], 2, 4, 70, 40, by_row=True, most=4),
    *[delta_net([5], 2, 4, 8, 40, gate=gate, unit=True, length=5e-4) for gate in ("softplus", "kda")],
    *[delta_net([3, 2], 2, 4, 8, 8, gate=True, squash=True, unit=True, gates_in_halves=True, dtype=t) for t in TYPES],
    delta_net([1] * 9, 4, 8, 128, 128, unit=True, gate=True, squash=True, dtype="float16"),
    delta_net([70], 1, 2, 200, 64, unit=True, gate=True, squash=True, dtype="bfloat16"),
]


@pytest.mark.parametrize("case", NETS, ids=str)
def test_gated_delta_net(case):
    check(case)


def test_gated_delta_net_refuses():
    q, ends, beta, past = floats(5, 2, 8), np.array([0, 2, 5], np.int32), floats(5, 2), floats(2, 2, 8, 8)
    given = [q, q, q, ends, beta, beta, past]
    for attrs in (
        {"update_rule": "quadratic"},
        {"gate_activation": "qwen"},
        {"gate_activation": "softplus"},
        {"gate_activation": "sigmoid"},
        {"gate_activation": "gelu"},
        {"beta_activation": "tanh"},
        {"state_update_capacity": 9},
        {"state_update_capacity": 1},
    ):
        declined("GatedDeltaNet", given, attrs, outputs=2, domain="com.microsoft")
    gated = [*given, floats(2), floats(2)]
    for floor in (0.0, 1.0, -np.inf):
        declined("GatedDeltaNet", gated, {"gate_activation": "kda", "gate_lower_bound": floor}, 21, 2, "com.microsoft")
    for leave_out in (1, 2, 4, 5):
        declined(
            "GatedDeltaNet", [None if i == leave_out else x for i, x in enumerate(given)], {}, 21, 2, "com.microsoft"
        )
    for which, wrong, words in [
        (0, floats(5, 2), "query"),
        (1, floats(5, 2, 7), "key has"),
        (2, floats(5, 3, 8), "heads"),
        (3, ends[:2], "cu_seqlens"),
        (4, floats(5, 3), "decay"),
        (5, floats(5, 3), "beta"),
        (6, floats(2, 2, 8, 7), "initial_state"),
    ]:
        fails("GatedDeltaNet", [wrong if i == which else x for i, x in enumerate(given)], {}, words, outputs=2,
              ranks=False, domain="com.microsoft")  # fmt: skip
    for which, wrong, words in [(7, floats(3), "a_log"), (8, floats(16), "dt_bias"), (8, floats(2, 8), "dt_bias")]:
        fails("GatedDeltaNet", [wrong if i == which else x for i, x in enumerate(gated)], {"gate_activation": "kda"},
              words, outputs=2, ranks=False, domain="com.microsoft")  # fmt: skip
    of_no_requests = [q, q, q, ends[:1], beta, beta, None]
    fails("GatedDeltaNet", of_no_requests, {}, "5 tokens of 0 requests", outputs=2, domain="com.microsoft")
    outside, leaves_out = "is outside", "a value is not allowed: "
    for wrong, words in [
        ([0, 9, 5], outside),
        ([0, 2, 6], outside),
        ([0, -3, 5], outside),
        ([-1, 2, 5], outside),
        ([0, 5, 2], outside),
        ([1, 2, 5], f"{leaves_out}1"),
        ([0, 2, 4], f"{leaves_out}4"),
    ]:
        given[3] = np.array(wrong, np.int32)
        fails("GatedDeltaNet", given, {}, words, outputs=2, domain="com.microsoft")
