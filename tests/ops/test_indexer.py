"""SparseAttentionIndexer and PackedSparseAttentionIndexer, for which the CPU EP has no kernel."""

import numpy as np
import pytest
from harness import Case, Const, _round, check, floats, seeded
from indexer_reference import Chooser, padded, window, window_plan
from refusal import declined, fails
from test_group_query_attention import MICROSOFT, TYPES

# Entries are rounded once.
TOLERANCE = {"float32": (1e-4, 1e-5), "float16": (2e-3, 1e-3), "bfloat16": (2e-2, 1e-2)}
DENSE = "query key query_weight key_weight cos sin mask past gate bias head_weights ids past_length buffer".split()


def wide_of(names, inputs):
    given = dict.fromkeys(names) | dict(zip(names, inputs))
    return {n: x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for n, x in given.items()}


def table_of(cos, sin, request):
    return (cos, sin) if cos.ndim == 2 else (cos[request], sin[request])


def dense_reference(dtype, **attrs):
    def run(*inputs):
        x = wide_of(DENSE, inputs)
        rounded = lambda y: _round(np.asarray(y, np.float32), dtype).astype(np.float64)
        chooser = Chooser(attrs, x["query_weight"], x["key_weight"], rounded)
        (batch, rows), size, ratio = x["query"].shape[:2], chooser.size, chooser.ratio
        query, key = x["query"], x["key"]
        if key is None:
            query, key = query[..., :-size], query[..., -size:]
        had = x["past"].shape[1] if x["past_length"] is None else int(x["past_length"][0])
        chosen = np.full((batch, rows, chooser.width), -1, np.int32)
        if not chooser.windows:
            grown = np.zeros((batch, had + rows, size)) if x["past_length"] is None else x["past"].copy()
            grown[:, :had], grown[:, had : had + rows] = x["past"][:, :had], key
            for b in range(batch):
                table = table_of(x["cos"], x["sin"], b)
                there = np.arange(had + rows)
                if x["mask"] is not None:
                    there = there[x["mask"][b] != 0]
                blocks = [there[i : i + ratio] for i in range(0, len(there) - ratio + 1, ratio)]
                entries = np.array([chooser.entry(grown[b, t].mean(0), table, t[0]) for t in blocks]).reshape(-1, size)
                for s in range(rows):
                    seen = there[there <= had + s]
                    chosen[b, s] = padded(chooser.tokens(query[b, s], table, had + s, entries, seen), chooser.width)
            return [chosen, grown]
        buffered = x["buffer"].shape[2]
        overlap, made, stays = window_plan(buffered, rows, ratio)
        grown = np.zeros((batch, had + made, size)) if x["past_length"] is None else x["past"].copy()
        grown[:, :had] = x["past"][:, :had]
        keys, gates = (np.concatenate([x["buffer"][i], x[n]], 1) for i, n in enumerate(("key", "gate")))
        for b in range(batch):
            table = table_of(x["cos"], x["sin"], b)
            for w in range(made):
                pooled = window(keys[b], gates[b], x["bias"], overlap + w * ratio, ratio)
                grown[b, had + w] = rounded(chooser.entry(pooled, table, (had + w) * ratio))
            for s in range(rows):
                of = chooser.entries(
                    query[b, s], table, x["ids"][b, s], grown[b, : had + made], x["head_weights"][b, s]
                )
                chosen[b, s] = padded(of, chooser.width)
        return [chosen, grown, np.stack([keys[:, stays:], gates[:, stays:]])]

    return run


def angles(positions, width, batch=None):
    shape = [positions, width] if batch is None else [batch, positions, width]
    return [floats(*shape, low=-1, high=1) for _ in "cs"]


def dense(
    policy,
    rows,
    past=0,
    room=None,
    batch=1,
    heads=4,
    size=64,
    ratio=4,
    wanted=4,
    buffered=0,
    width=None,
    dtype="float32",
    packed=False,
    mask=False,
    tables=False,
    misaligned=False,
    name="",
    **attrs,
):
    """`wanted`: entries; `room`: of the buffer that the past is in."""
    windows = policy == "csa"
    inputs = dict.fromkeys(DENSE)
    inputs["query"] = floats(batch, rows, (heads + packed) * size, low=-1, high=1)
    if not packed:
        inputs["key"] = floats(batch, rows, size * (1 + windows), low=-1, high=1)
    inputs["query_weight"], inputs["key_weight"] = (floats(size, low=0.5, high=1.5) for _ in "qk")
    width = width if width is not None else size // 4
    inputs["cos"], inputs["sin"] = angles(past + rows + 3, width, batch if tables else None)
    inputs["past"] = floats(batch, past if room is None else room, size, low=-1, high=1)
    if room is not None:
        inputs["past_length"] = Const(np.array([past], np.int32))
    attrs = {"policy_mode": policy, "compress_ratio": ratio, **attrs}
    draw = seeded("indexer", batch, rows, past)
    if windows:
        inputs["gate"] = floats(batch, rows, 2 * size, low=-1, high=1)
        inputs["bias"] = floats(ratio, 2 * size, low=-1, high=1)
        inputs["head_weights"] = floats(batch, rows, heads, low=-1, high=1)
        inputs["ids"] = draw.integers(-1, (past + 2) * ratio + rows, (batch, rows))
        inputs["buffer"] = floats(2, batch, buffered, 2 * size, low=-1, high=1)
        attrs["index_topk"] = wanted
    else:
        attrs["token_budget"] = wanted * ratio
        if mask:
            inputs["mask"] = draw.integers(0, 3, (batch, past + rows)).astype(np.int64)
    inputs = list(inputs.values())
    while inputs[-1] is None:
        inputs.pop()
    what = ["packed"] * packed + ["mask"] * mask + ["tables"] * tables + [f"room{room}"] * (room is not None)
    return Case(
        "SparseAttentionIndexer",
        inputs,
        attrs,
        dtype=dtype,
        outputs=3 if windows else 2,
        domain=MICROSOFT,
        name=name or "_".join([policy, f"{past}+{rows}x{batch}", f"r{ratio}", f"b{buffered}", *what]),
        tolerance=TOLERANCE[dtype],
        reference=dense_reference(dtype, **attrs),
        misaligned=misaligned,
    )


@pytest.mark.parametrize(
    "case",
    [
        dense("qsa", rows, past, room, batch, dtype=dtype, **more)
        for dtype in TYPES
        for rows, past, room, batch, more in (
            (1, 0, None, 1, {}),
            (1, 77, None, 2, {"packed": True, "size": 128}),
            (1, 77, 100, 1, {"heads": 3}),
            (21, 0, None, 2, {"mask": True, "tables": True}),
            (9, 30, 64, 2, {"mask": True, "packed": True, "ratio": 3, "size": 40}),
        )
    ]
    + [
        dense("qsa", 1, 5000, ratio=2, wanted=600, dtype="float16"),  # more than few are wanted
        dense("qsa", 130, 0, heads=40, size=32, wanted=30),  # more heads than rows of a tile, and tiles of entries
        dense("qsa", 70, 500, heads=1, ratio=1, wanted=7, width=0),
        dense("qsa", 3, 9, ratio=16, wanted=1, scale=0.5, epsilon=0.1),
        dense("qsa", 12, 9, size=42, width=6, dtype="bfloat16"),
        dense("qsa", 12, 9, dtype="float16", misaligned=True),
        dense("qsa", 0, 9),
        dense("qsa", 3, 0, batch=3),
    ],
    ids=str,
)
def test_blocks(case):
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        dense("csa", rows, past, room, batch, buffered=buffered, dtype=dtype, **more)
        for dtype in TYPES
        for rows, past, room, batch, buffered, more in (
            (1, 0, None, 1, 0, {}),
            (1, 7, None, 2, 7, {"size": 128, "heads": 64}),
            (1, 7, 20, 1, 3, {}),
            (21, 0, None, 2, 0, {"tables": True}),
            (9, 12, 20, 2, 5, {"ratio": 3, "size": 40}),
            (2, 3, None, 1, 4, {}),
        )
    ]
    + [
        dense("csa", 1, 1300, buffered=5, wanted=512, dtype="bfloat16"),
        dense("csa", 40, 3, ratio=1, buffered=1, width=0),
        dense("csa", 12, 9, size=42, width=21, dtype="float16", head_weight_scale=0.3, scale=2.0),
        dense("csa", 0, 9, buffered=6),
    ],
    ids=str,
)
def test_windows(case):
    check(case)
