"""DynamicSparseAttention, for which the CPU EP has no kernel."""

import numpy as np
import pytest
from group_query import MICROSOFT, TYPES, grouped, heads_of, in_double, in_order, normed, turned
from harness import Case, Const, check, floats, seeded
from refusal import declined, fails

INPUTS = "query key value past_key past_value other_key other_value indices counts seqlens_k total cos sin ids".split()
INPUTS += ["q_weight", "k_weight", "sinks"]


def reference(wanted=3, **attrs):
    heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]
    local = attrs.get("attention_mode") == "local_plus_selected"

    def run(*inputs):
        x = in_double(INPUTS, inputs)
        q, k, v = heads_of(x, heads, kv_heads)
        batch, _, rows, size = q.shape
        begins = x["seqlens_k"].astype(int) + 1 - rows
        at = begins[:, None] + np.arange(rows)
        q, k = normed(q, k, x, attrs)
        if attrs.get("do_rotary", 0):
            positions, first = at if x["ids"] is None else x["ids"], attrs.get("rotary_offset", 0)
            for y in (q, k):
                tail = turned(y[..., first:], x["cos"], x["sin"], positions, attrs.get("rotary_interleaved", 0))
                y[..., first:] = tail
        present = [np.zeros((batch, kv_heads, rows, size)) for _ in "kv"]
        if x["past_key"] is not None:
            present = [x["past_key"].copy(), x["past_value"].copy()]
        for to, new in zip(present, (k, v)):
            for b, begin in enumerate(begins):
                to[b, :, begin : begin + rows] = new[b]
        others = (
            [x["other_key"], x["other_key"] if x["other_value"] is None else x["other_value"]] if local else present
        )
        sinks = x["sinks"] if x["sinks"] is not None else np.full(heads, 0 if attrs.get("smooth_softmax") else -np.inf)
        y = np.zeros((batch, rows, heads, size))
        for b, s, h in np.ndindex(batch, rows, heads):
            token, of = b * rows + s, h // (heads // kv_heads)
            chosen = x["indices"][token][: x["counts"][token]]
            if not local:
                chosen = chosen[chosen <= at[b, s]]
            window = np.arange(max(0, at[b, s] + 1 - attrs["local_window_size"]), at[b, s] + 1) if local else []
            keys, values = (
                np.concatenate([p[b, of][np.asarray(window, int)], o[b, of][chosen]]) for p, o in zip(present, others)
            )
            scores = keys @ q[b, h, s] * (attrs.get("scale", 0) or 1 / np.sqrt(size))
            top = max(scores.max(initial=-1e30), sinks[h])
            powers = np.exp(scores - top)
            total = powers.sum() + np.exp(sinks[h] - top)
            y[b, s, h] = powers @ values / total if total else 0
        return [y.reshape(batch, rows, heads * size), *present][:wanted]

    return run


def dynamic(
    last,
    rows=1,
    heads=4,
    kv_heads=2,
    size=64,
    room=None,
    most=20,
    others=None,
    dtype="float32",
    packed=False,
    rotary=None,
    ids=False,
    weights=False,
    sinks=False,
    shared=False,
    misaligned=False,
    name="",
    wanted=3,
    **attrs,
):
    """`last`: seqlens_k; `room`: of the past, else there is none; `others`: how many other keys; `rotary`: pairs."""
    batch, total, tokens = len(last), max(last) + 1, len(last) * rows
    inputs = grouped(last, rows, heads, kv_heads, size, room, packed, rotary, sinks, weights)
    attrs = {"num_heads": heads, "kv_num_heads": kv_heads, **attrs}
    draw = seeded("chosen", last, rows, most)
    if others is not None:
        attrs |= {"attention_mode": "local_plus_selected", "selected_kv_source": "auxiliary"}
        inputs["other_key"] = floats(batch, kv_heads, others, size, low=-1, high=1)
        if shared:
            attrs["auxiliary_kv_shared"] = 1
        else:
            inputs["other_value"] = floats(batch, kv_heads, others, size, low=-1, high=1)
    # Chosen once each, whatever comes of their order; how many of them there are stays.
    there = (room or total) if others is None else others
    chosen = [draw.permutation(there)[:most] for _ in range(tokens)]
    counts = [draw.integers(0, min(most, there), endpoint=True) for _ in range(tokens)]
    inputs["indices"] = np.full((tokens, most), -1, np.int32)
    for row, one, count in zip(inputs["indices"], chosen, counts):
        row[:count] = one[:count]
    inputs["indices"], inputs["counts"] = Const(inputs["indices"]), Const(np.array(counts, np.int32))
    if rotary is not None:
        attrs["do_rotary"] = 1
    if ids:
        inputs["ids"] = draw.integers(0, total + 5, (batch, rows))
    what = ["packed"] * packed + [f"others{others}"] * (others is not None) + [f"rotary{rotary}"] * (rotary is not None)
    what += ["ids"] * ids + ["norm"] * weights + ["sinks"] * sinks
    what += [f"{n[0]}{n.split('_')[-1]}{v}" for n, v in attrs.items() if isinstance(v, int)]
    return Case(
        "DynamicSparseAttention",
        in_order(INPUTS, inputs),
        attrs,
        dtype=dtype,
        outputs=wanted,
        domain=MICROSOFT,
        name=name or "_".join([*map(str, last), *what]),
        family="cached",
        reference=reference(wanted, **attrs),
        misaligned=misaligned,
    )


@pytest.mark.parametrize(
    "case",
    [
        dynamic(last, rows, dtype=dtype, **more)
        for dtype in TYPES
        for last, rows, more in (
            ((99,), 1, {"room": 100}),
            ((99, 3, 60), 1, {"room": 128, "packed": True, "rotary": 16, "heads": 8, "kv_heads": 1, "size": 128}),
            ((40,), 41, {"packed": True, "rotary": 32, "weights": True}),
            ((60, 30), 7, {"room": 64, "size": 80, "rotary": 8, "rotary_offset": 64, "sinks": True}),
            (
                (20,),
                1,
                {"room": 30, "size": 256, "heads": 3, "kv_heads": 1, "ids": True, "rotary": 32, "smooth_softmax": 1},
            ),
        )
    ]
    + [dynamic((3000,), room=4000, most=2051, heads=16, kv_heads=1, dtype=dtype) for dtype in ("float16", "float32")]
    + [dynamic((1,), 2, most=0, dtype="float16"), dynamic((5,), 0, room=9, dtype="float16", name="none")],
    ids=str,
)
def test_chosen_keys(case):
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        dynamic(last, rows, others=others, local_window_size=window, dtype=dtype, **more)
        for dtype in TYPES
        for last, rows, others, window, more in (
            ((99,), 1, 30, 16, {"room": 100}),
            ((99, 3), 1, 25, 8, {"room": 128, "packed": True, "rotary": 16, "heads": 8, "kv_heads": 1, "shared": True}),
            ((40,), 41, 10, 128, {"packed": True, "rotary": 32, "sinks": True}),
            ((60, 30), 7, 15, 1, {"room": 64, "size": 80, "smooth_softmax": 1}),
            # heads beyond those that kernels of tiles have
            (
                (60,),
                3,
                15,
                12,
                {"room": 64, "size": 512, "heads": 5, "kv_heads": 1, "rotary": 32, "rotary_offset": 448},
            ),
        )
    ]
    + [
        dynamic((9,), 3, room=16, others=0, local_window_size=4, dtype="float16"),
        dynamic((99,), room=100, others=30, local_window_size=9, dtype="float16", misaligned=True),
        dynamic((99,), room=100, others=30, local_window_size=9, dtype="bfloat16", size=44, wanted=1),
        dynamic(
            (2000,), room=2048, others=900, most=700, local_window_size=600, heads=64, kv_heads=1, dtype="bfloat16"
        ),
        dynamic((60,), 7, room=64, others=20, local_window_size=5, scale=0.3, rotary=16, rotary_interleaved=1),
    ],
    ids=str,
)
def test_windows_and_other_keys(case):
    check(case)


def changed(case, **what):
    inputs = [getattr(x, "value", x) for x in case.inputs]
    for name, value in what.items():
        inputs[INPUTS.index(name)] = value
    return [Const(x) if name == "total" else x for name, x in zip(INPUTS, inputs)]


@pytest.mark.parametrize("size", [64, 44])  # by tiles, and not
@pytest.mark.parametrize("others", [None, 9])
@pytest.mark.parametrize(
    "what",
    [
        {"indices": [[3, 99]]},
        {"indices": [[-7, 1]]},
        {"counts": [3]},
        {"counts": [-1]},
        {"seqlens_k": [64]},
        {"seqlens_k": [-3]},
        {"seqlens_k": [2**31 - 1]},
    ],
    ids=str,
)
def test_chosen_keys_refuse_contents(what, others, size):
    more = {} if others is None else {"local_window_size": 5}
    case = dynamic((60,), room=64, most=2, size=size, others=others, **more)
    fixed = {"indices": np.array([[3, 1]], np.int32), "counts": np.array([2], np.int32)}
    inputs = changed(case, **fixed | {n: np.array(v, np.int32) for n, v in what.items()})
    fails(case.op, inputs, case.attrs, "is outside|value", outputs=3, domain=MICROSOFT)


@pytest.mark.parametrize(
    "what,words",
    [
        ({"total": [65]}, "has room for 64 keys"),
        ({"total": [3]}, "there are 7 new rows"),
        ({"seqlens_k": [1, 2]}, "seqlens_k has shape"),
        ({"indices": [[1, 2]]}, "selected_indices has shape"),
        ({"counts": [1, 2]}, "selected_counts has shape"),
    ],
    ids=str,
)
def test_chosen_keys_refuse_shapes(what, words):
    case = dynamic((60,), 7, room=64, most=2)
    inputs = changed(case, **{n: np.array(v, np.int32) for n, v in what.items()})
    fails(case.op, inputs, case.attrs, words, outputs=3, domain=MICROSOFT)


@pytest.mark.parametrize("first", [64, 2**63 - 8])
def test_a_rotation_that_begins_behind_the_head_fails(first):
    case = dynamic((60,), 7, room=64, size=64, rotary=8)
    attrs = {**case.attrs, "rotary_offset": first}
    fails(case.op, changed(case), attrs, f"rotary_offset is {first}", outputs=3, domain=MICROSOFT)


@pytest.mark.parametrize(
    "attrs",
    [
        {"is_causal": 0},
        {"attention_mode": "local_plus_selected", "local_window_size": 3},
        {"selected_kv_source": "auxiliary"},
        {"attention_mode": "all"},
        {"selected_kv_source": "other"},
        {"rotary_offset": 4},
        {"num_heads": 3},
        {"smooth_softmax": 2},
        {"scale": -1.0},
    ],
    ids=str,
)
def test_chosen_keys_refuse_attributes(attrs):
    case = dynamic((60,), 7, room=64)
    declined(case.op, changed(case), {**case.attrs, **attrs}, outputs=3, domain=MICROSOFT)
