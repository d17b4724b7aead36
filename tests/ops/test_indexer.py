"""SparseAttentionIndexer and PackedSparseAttentionIndexer, for which the CPU EP has no kernel."""

import numpy as np
import pytest
from group_query import MICROSOFT, TYPES, in_double, in_order
from harness import Case, Const, _round, check, floats, seeded
from in_place import check_in_order, check_in_place
from indexer_reference import Chooser, padded, window, window_plan
from refusal import declined, fails

DENSE = "query key query_weight key_weight cos sin mask past gate bias head_weights ids past_length buffer".split()


def table_of(cos, sin, request):
    return (cos, sin) if cos.ndim == 2 else (cos[request], sin[request])


def dense_reference(dtype, **attrs):
    def run(*inputs):
        x = in_double(DENSE, inputs)
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
    options=None,
    name="",
    **attrs,
):
    """`wanted`: entries; `room`: of the buffer that the past is in."""
    windows = policy == "csa"
    inputs = {}
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
    what = ["packed"] * packed + ["mask"] * mask + ["tables"] * tables + [f"room{room}"] * (room is not None)
    return Case(
        "SparseAttentionIndexer",
        in_order(DENSE, inputs),
        attrs,
        dtype=dtype,
        outputs=3 if windows else 2,
        domain=MICROSOFT,
        name=name or "_".join([policy, f"{past}+{rows}x{batch}", f"r{ratio}", f"b{buffered}", *what]),
        family="indexer",
        reference=dense_reference(dtype, **attrs),
        misaligned=misaligned,
        options=options or {},
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
        dense("qsa", 0, 0, options={"gpu_mem_limit": 1 << 24}),  # of nothing, and with next to nothing
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
        dense("csa", 0, 0),
    ],
    ids=str,
)
def test_windows(case):
    check(case)


PACKED = (
    "query key query_weight key_weight cos sin starts had gate bias head_weights ids entries keys gates lengths".split()
)
PACKED += ["capture", "active"]


def packed_reference(dtype, **attrs):
    def run(*inputs):
        x = in_double(PACKED, inputs)
        rounded = lambda y: _round(np.asarray(y, np.float32), dtype).astype(np.float64)
        chooser = Chooser(attrs, x["query_weight"], x["key_weight"], rounded)
        size, ratio, capacity = chooser.size, chooser.ratio, attrs["state_capacity"]
        query, key = x["query"], x["key"]
        if key is None:
            query, key = query[:, :-size], query[:, -size:]
        chosen = np.full((len(query), chooser.width), -1, np.int32)
        counts = np.zeros(len(query), np.int32)
        entries, buffers = x["entries"].copy(), [x["keys"].copy()]
        if chooser.windows:
            buffers.append(x["gates"].copy())
        lengths = x["lengths"].copy()
        slots = attrs.get("state_update_capacity", 0)
        updates = np.zeros((len(lengths), slots, size))
        for b, (there, buffered) in enumerate(x["lengths"]):
            first, end = x["starts"][b : b + 2]
            rows, table = end - first, table_of(x["cos"], x["sin"], b)
            all_keys = np.concatenate([x["keys"][b, :buffered], key[first:end]])
            if chooser.windows:
                overlap, made, stays = window_plan(buffered, rows, ratio)
                all_gates = np.concatenate([x["gates"][b, :buffered], x["gate"][first:end]])
            else:
                made = (buffered + rows) // ratio
                stays = made * ratio
            if there + made > capacity:
                continue
            for e in range(made):
                if chooser.windows:
                    pooled = window(all_keys, all_gates, x["bias"], overlap + e * ratio, ratio)
                else:
                    pooled = all_keys[e * ratio : (e + 1) * ratio].mean(0)
                entries[b, there + e] = rounded(chooser.entry(pooled, table, (there + e) * ratio))
            left = len(all_keys) - stays
            buffers[0][b, :left] = all_keys[stays:]
            if chooser.windows:
                buffers[1][b, :left] = all_gates[stays:]
            lengths[b] = there + made, left
            for s in range(rows):
                if chooser.windows:
                    position = x["ids"][first + s]
                    one = chooser.entries(
                        query[first + s], table, position, entries[b, : there + made], x["head_weights"][first + s]
                    )
                else:
                    position = x["had"][b] + s
                    one = chooser.tokens(query[first + s], table, position, entries[b], np.arange(position + 1))
                chosen[first + s], counts[first + s] = padded(one, chooser.width), len(one)
            if slots and (x["active"] is None or x["active"][0]):
                for s in range(min(x["capture"][b], rows, slots)):
                    filled = buffered + s + 1
                    updates[b, s] = entries[b, there + filled // ratio - 1] if filled % ratio == 0 else key[first + s]
        gates = buffers[1:] if chooser.windows else []
        return [chosen, counts, entries, buffers[0], *gates, lengths, *([updates] if slots else [])]

    return run


def packed(
    policy,
    requests,
    heads=4,
    size=64,
    ratio=4,
    wanted=4,
    capacity=40,
    dtype="float32",
    with_key=True,
    tables=False,
    moving=False,
    capture=None,
    active=None,
    name="",
    **attrs,
):
    """`requests`: of each how many new tokens, entries and buffered tokens it has; `moving`: others in each replay."""
    windows, batch = policy == "csa", len(requests)
    tokens = sum(r[0] for r in requests)
    most = max(r[0] + r[1] * ratio + r[2] for r in requests)
    inputs = {}
    inputs["query"] = floats(tokens, (heads + (not with_key)) * size, low=-1, high=1)
    width = size * (1 + windows)
    if with_key:
        inputs["key"] = floats(tokens, width, low=-1, high=1)
    inputs["query_weight"], inputs["key_weight"] = (floats(size, low=0.5, high=1.5) for _ in "qk")
    inputs["cos"], inputs["sin"] = angles(most + 3, size // 4, batch if tables else None)
    # What tells of requests stays as it is when contents are replaced.
    inputs["starts"] = Const(np.cumsum([0] + [r[0] for r in requests]).astype(np.int32))
    inputs["had"] = Const(np.array([r[1] * ratio + r[2] for r in requests], np.int32))
    inputs["entries"] = floats(batch, capacity, size, low=-1, high=1)
    inputs["keys"] = floats(batch, 2 * ratio - 1, width, low=-1, high=1)
    lengths = np.array([r[1:] for r in requests], np.int32)
    inputs["lengths"] = lengths if moving else Const(lengths)
    attrs = {"policy_mode": policy, "compress_ratio": ratio, "state_capacity": capacity, **attrs}
    if windows:
        inputs["gate"] = floats(tokens, width, low=-1, high=1)
        inputs["bias"] = floats(ratio, width, low=-1, high=1)
        inputs["head_weights"] = floats(tokens, heads, low=-1, high=1)
        inputs["ids"] = seeded("ids", tokens).integers(-1, most + 9, tokens)
        inputs["gates"] = floats(batch, 2 * ratio - 1, width, low=-1, high=1)
        attrs["index_topk"] = wanted
    else:
        attrs["token_budget"] = wanted * ratio
    outputs = [True] * 4 + [windows, True]
    if capture is not None:
        attrs["state_update_capacity"] = 3
        inputs["capture"] = np.array(capture, np.int32)
        if active is not None:
            inputs["active"] = np.array([active], np.int32)
        outputs.append(True)
    what = ["packed"] * (not with_key) + ["tables"] * tables + [f"capture{active}"] * (capture is not None)
    return Case(
        "PackedSparseAttentionIndexer",
        in_order(PACKED, inputs),
        attrs,
        dtype=dtype,
        outputs=outputs,
        domain=MICROSOFT,
        name=name or "_".join([policy, *("+".join(map(str, r)) for r in requests), f"r{ratio}", *what]),
        family="indexer",
        reference=packed_reference(dtype, **attrs),
    )


@pytest.mark.parametrize(
    "case",
    [
        packed("qsa", requests, dtype=dtype, **more)
        for dtype in TYPES
        for requests, more in (
            ([(1, 0, 0)], {}),
            ([(1, 12, 3), (1, 7, 0), (0, 5, 2), (1, 3, 2)], {"with_key": False, "size": 128}),
            ([(70, 0, 0), (3, 30, 3), (20, 2, 1)], {"tables": True}),
            ([(7, 38, 1), (5, 38, 1), (1, 40, 1), (3, 40, 1)], {"heads": 3, "size": 40}),  # two have no room
            ([(5, 3, 2), (2, 0, 0), (9, 0, 1)], {"capture": [3, 1, 8], "with_key": False}),
        )
    ]
    + [
        packed("qsa", [(5, 3, 2), (2, 0, 0)], capture=[3, 1], active=0),
        packed("qsa", [(5, 3, 2), (2, 0, 0)], capture=[2, -3], active=1, ratio=3),
        packed("qsa", [(5, 3, 0)], ratio=1),
        packed("qsa", [(1, 900, 3), (1, 1000, 1)], capacity=1200, wanted=512, dtype="bfloat16"),
        packed("csa", [(5, 3, 1)], ratio=1),
    ]
    + [
        packed("csa", requests, dtype=dtype, **more)
        for dtype in TYPES
        for requests, more in (
            ([(1, 0, 0)], {}),
            ([(1, 12, 7), (1, 7, 4), (0, 5, 2), (1, 0, 2)], {"size": 128, "heads": 64}),
            ([(70, 0, 0), (3, 30, 6), (20, 2, 5)], {"tables": True}),
            ([(7, 38, 5), (5, 38, 7), (1, 40, 7)], {"heads": 3, "size": 40}),  # the last has no room
        )
    ]
    + [packed("csa", [(9, 5, 2), (1, 3, 7), (4, 0, 6), (0, 1, 1)], moving=True, capacity=7, name="moving")],
    ids=str,
)
def test_requests(case):
    check(case)


def steps_in_place():
    where = {2: 12, 3: 13, 4: 14, 5: 15}
    check_in_place(packed("qsa", [(9, 5, 2), (1, 3, 3), (2, 0, 1)], moving=True), {n: where[n] for n in (2, 3, 5)})
    check_in_place(packed("csa", [(9, 5, 2), (1, 3, 7), (4, 0, 6), (0, 1, 1)], moving=True), where)


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_what_is_kept_may_lie_where_it_was(order):
    check_in_order(order, "test_indexer", "steps_in_place")


def changed(case, names, **what):
    inputs = [getattr(x, "value", x) for x in case.inputs]
    for name, value in what.items():
        inputs[names.index(name)] = value
    return [Const(x) if name == "past_length" else x for name, x in zip(names, inputs)]


@pytest.mark.parametrize(
    "what",
    [
        {"starts": [0, 9, 3]},
        {"starts": [0, -1, 9]},
        {"starts": [0, 3, 99]},
        {"starts": [0, 3, 7]},
        {"had": [-5, 0]},
        {"lengths": [[99, 0], [0, 0]]},
        {"lengths": [[0, 0], [-3, 0]]},
        {"lengths": [[0, 9], [0, 0]]},
        {"lengths": [[0, 0], [0, -(2**31)]]},
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", ["qsa", "csa"])
def test_indexers_refuse_requests(policy, what):
    case = packed(policy, [(3, 2, 1), (6, 4, 3)])
    inputs = changed(case, PACKED, **{n: np.array(v, np.int32) for n, v in what.items()})
    fails(case.op, inputs, case.attrs, "value", outputs=case.outputs, domain=MICROSOFT)


@pytest.mark.parametrize(
    "policy,attrs",
    [
        ("qsa", {"policy_mode": "other"}),
        ("qsa", {"compress_ratio": 0}),
        ("qsa", {"token_budget": 7}),
        ("qsa", {"token_budget": -4}),
        ("qsa", {"token_budget": 2**63 - 1, "compress_ratio": 7}),
        ("qsa", {"index_topk": 3}),
        ("qsa", {"head_weight_scale": 3.0}),
        ("csa", {"token_budget": 8}),
        ("csa", {"index_topk": 0}),
    ],
    ids=str,
)
def test_indexers_refuse_attributes(policy, attrs):
    case = dense(policy, 3, 5)
    declined(case.op, changed(case, DENSE), {**case.attrs, **attrs}, outputs=case.outputs, domain=MICROSOFT)


def test_indexers_refuse_lengths():
    case = dense("qsa", 3, 5, room=7)
    words = "past_sequence_length is 5, and past_key .* has no room for 3 more"
    fails(case.op, changed(case, DENSE), case.attrs, words, outputs=2, domain=MICROSOFT)
    inputs = changed(case, DENSE, past_length=np.array([-1], np.int32))
    fails(case.op, inputs, case.attrs, "past_sequence_length is -1", outputs=2, domain=MICROSOFT)
