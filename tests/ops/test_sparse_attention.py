"""SparseAttention, against what is written here, which the CPU EP agrees with where it takes the node."""

import numpy as np
import onnxruntime as ort
import pytest
from encore_session import on_cpu
from group_query import MICROSOFT, TYPES, grouped, heads_of, in_double, in_order, turned
from harness import Case, Const, _Model, _plain, check, compare
from refusal import fails

INPUTS = "query key value past_key past_value begins columns total lengths cos sin".split()


def layout(blocks, kept, first=0, every=3):
    """Rows of blocks: each block sees itself, `kept` - 1 before it, and from `first` on every few."""
    return [
        [c for c in range(r + 1) if r - c < kept or (c >= first and (c - first) % every == 0)] for r in range(blocks)
    ]


def as_csr(layouts):
    """Padded with -1 to the layout that has most."""
    begins = [np.cumsum([0] + [len(row) for row in one]) for one in layouts]
    most = max(b[-1] for b in begins)
    columns = [[c for row in one for c in row] for one in layouts]
    return np.array(begins, np.int32), np.array([c + [-1] * (most - len(c)) for c in columns], np.int32)


def reference(block, **attrs):
    heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]

    def run(*inputs):
        x = in_double(INPUTS, inputs)
        q, k, v = heads_of(x, heads, kv_heads)
        batch, _, rows, size = q.shape
        lengths, total = x["lengths"].astype(int), int(x["total"].reshape(()))
        begins = np.zeros(batch, int) if rows == total else lengths - rows
        at = begins[:, None] + np.arange(rows)
        if attrs.get("do_rotary", 0):
            q, k = (turned(y, x["cos"], x["sin"], at, attrs.get("rotary_interleaved", 0)) for y in (q, k))
        room = x["past_key"].shape[2]
        present = [x["past_key"].copy(), x["past_value"].copy()]
        for to, new in zip(present, (k, v)):
            for b, begin in enumerate(begins):
                to[b, :, begin : begin + rows] = new[b]
        keys, values = (np.repeat(y, heads // kv_heads, 1) for y in present)
        seen = np.zeros((batch, heads, rows, room), bool)
        for h in range(heads):
            one = h % len(x["begins"])
            for b in range(batch):
                for r in range(rows):
                    begin, end = x["begins"][one][at[b, r] // block :][:2]
                    for c in x["columns"][one][begin:end]:
                        seen[b, h, r, c * block : (c + 1) * block] = True
                    seen[b, h, r, min(at[b, r] + 1, lengths[b]) :] = False
        scores = q @ keys.transpose(0, 1, 3, 2) * (attrs.get("scale", 0) or 1 / np.sqrt(size))
        scores = np.where(seen, scores, -np.inf)
        top = scores.max(-1, keepdims=True, initial=-1e30)
        powers = np.exp(scores - top)
        total = powers.sum(-1, keepdims=True)
        y = powers / np.where(total == 0, 1, total) @ values
        return [y.transpose(0, 2, 1, 3).reshape(batch, rows, heads * size), *present]

    return run


def sparse(
    lengths,
    rows=1,
    heads=4,
    kv_heads=2,
    size=64,
    block=16,
    room=None,
    layouts=None,
    dtype="float32",
    packed=False,
    rotary=None,
    misaligned=False,
    name="",
    **attrs,
):
    room = room or -(-max(lengths) // block) * block
    blocks = -(-room // block)
    layouts = layouts or [layout(blocks, 2, n) for n in range(heads // 2)]
    begins, columns = as_csr(layouts)
    inputs = grouped(np.array(lengths) - 1, rows, heads, kv_heads, size, room, packed, rotary)
    inputs |= {"begins": Const(begins), "columns": Const(columns), "lengths": np.array(lengths, np.int32)}
    attrs = {"num_heads": heads, "kv_num_heads": kv_heads, "sparse_block_size": block, **attrs}
    what = ["packed"] * packed + [f"rotary{rotary}"] * (rotary is not None)
    if rotary is not None:
        attrs["do_rotary"] = 1
    what += [f"{n[0]}{n.split('_')[-1]}{v}" for n, v in attrs.items()]
    return Case(
        "SparseAttention",
        in_order(INPUTS, inputs),
        attrs,
        dtype=dtype,
        outputs=3,
        domain=MICROSOFT,
        name=name or "_".join([*map(str, lengths), *what]),
        family="cached",
        reference=reference(block, **attrs),
        misaligned=misaligned,
    )


@pytest.mark.parametrize(
    "case",
    [  # decoding
        sparse((100,), dtype=dtype, size=size, block=block, packed=packed, rotary=rotary)
        for dtype in TYPES
        for size, block, packed, rotary in (
            (64, 16, False, None),
            (80, 64, True, 40),
            (128, 128, True, 64),
            (256, 16, False, 64),
        )
    ]
    + [sparse((5, 1, 70, 64), dtype=dtype, room=80, heads=8, kv_heads=1, packed=True, rotary=32) for dtype in TYPES]
    # of many blocks, which several blocks of threads share out
    + [
        sparse((1500, 900), dtype="float16", heads=8, kv_heads=2, size=128, block=16, room=1600, rotary=64),
        sparse(
            (2048,), dtype="bfloat16", heads=32, kv_heads=1, block=64, layouts=[layout(32, 3, n, 8) for n in range(8)]
        ),
        sparse((1000,), dtype="float32", heads=2, kv_heads=2, block=32),
    ]
    # a prompt, and rows behind a past
    + [
        sparse(lengths, rows, dtype=dtype, size=size, block=block, room=room, rotary=32, packed=packed)
        for dtype in TYPES
        for lengths, rows, size, block, room, packed in (
            ((1,), 1, 64, 16, None, True),
            ((129,), 129, 64, 16, None, True),
            ((50, 33), 50, 80, 32, 64, False),
            ((90,), 7, 128, 16, 128, False),
            ((90, 33), 20, 64, 64, 128, True),
        )
    ]
    + [sparse((300,), 300, dtype="float16", size=256, heads=2, kv_heads=1, block=128)],
    ids=str,
)
def test_cache(case):
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        # all that is before a query, as the one layout of all heads
        sparse((77,), 77, dtype=dtype, layouts=[layout(5, 9)], name="dense")
        for dtype in TYPES
    ]
    + [
        # blocks that a query does not see, or nothing at all, which the CPU EP sees evenly
        sparse((77,), 77, dtype=dtype, layouts=[[[], [0], [1, 2], [0, 0, 3], [4]]], name="blind")
        for dtype in TYPES
    ]
    + [
        sparse((77,), 40, dtype="float16", scale=0.3, rotary=16, rotary_interleaved=1),
        # columns beyond the diagonal, and out of order
        sparse((77,), 40, dtype="float16", layouts=[[[4, 0], [1, 0], [3, 2], [3, 1, 0], [4, 2]]], name="unordered"),
        sparse((77,), dtype="float16", misaligned=True, name="misaligned"),
        sparse((77,), dtype="float16", size=40, rotary=12),
        sparse((77,), 20, dtype="bfloat16", size=44, name="odd"),
        sparse((20,), 0, dtype="float16", name="none"),
        sparse((3, 2), 3, dtype="float16"),
    ],
    ids=str,
)
def test_layouts(case):
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        sparse((100,)),
        sparse((77,), 77, rotary=32, packed=True),
        sparse((90,), 1, heads=8, block=32, layouts=[layout(3, 1, n, 2) for n in range(4)]),
    ],
    ids=str,
)
def test_the_reference_agrees_with_the_cpu(case):
    """Which wants the past and the present in the same memory."""
    model = _Model(case, case.dtype)
    reference = on_cpu(model.model, _plain())
    binding, values = reference.io_binding(), {}
    for name, value in model.feeds.items():
        values[name] = ort.OrtValue.ortvalue_from_numpy(value.copy())
        binding.bind_ortvalue_input(name, values[name])
    for name, past in (("y1", "x3"), ("y2", "x4")):
        binding.bind_ortvalue_output(name, values[past])
    binding.bind_output("y0")
    reference.run_with_iobinding(binding)
    made = binding.get_outputs()  # as they were bound
    got = [made[2].numpy(), made[0].numpy(), made[1].numpy()]
    compare(case, got, case.reference(*[getattr(x, "value", x) for x in case.inputs]), "on the CPU")


def changed(case, **what):
    inputs = [getattr(x, "value", x) for x in case.inputs]
    for name, value in what.items():
        inputs[INPUTS.index(name)] = np.asarray(value, np.int32)
    # What the host reads stays a constant.
    return [Const(x) if name == "total" else x for name, x in zip(INPUTS, inputs)]


@pytest.mark.parametrize(
    "what,words",
    [
        ({"total": [3]}, "total_sequence_length is 3, and there are 7 new rows"),
        ({"total": [81]}, "ends with key 80"),
        ({"total": [65]}, "has room for 64 keys"),
        ({"lengths": [60, 60]}, "key_total_sequence_lengths has shape"),
        ({"begins": [[0, 1, 2, 3, 4, 5]] * 3, "columns": [[0]] * 3}, "num_heads"),
        ({"begins": [0, 1]}, "block_row_indices"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit(what, words):
    case = sparse((60,), 7, room=64, layouts=[layout(5, 2)])
    fails("SparseAttention", changed(case, **what), case.attrs, words, outputs=3, domain=MICROSOFT)


@pytest.mark.parametrize("size", [64, 44])  # by tiles, and not
@pytest.mark.parametrize(
    "what",
    [
        {"begins": [[0, 1, 2, 9, 4, 5]]},  # goes down
        {"begins": [[0, 1, 2, -3, 4, 5]]},
        {"begins": [[0, 1, 2, 3, 99, 5]]},  # beyond the columns
        {"columns": [[0, 1, 2, 3, 7, 3]]},  # blocks that there are not
        {"columns": [[0, 1, 2, -1, -2, 3]]},
        {"lengths": [65]},
        {"lengths": [6]},
        {"lengths": [-(2**31)]},
        {"lengths": [2**31 - 1]},
    ],
    ids=str,
)
def test_hostile_contents(what, size):
    case = sparse((60,), 7, room=64, size=size, dtype="float16", layouts=[[[0], [1], [2], [2, 1, 3], [4]]])
    inputs = [x.astype(np.float16) if getattr(x, "dtype", None) == np.float32 else x for x in changed(case, **what)]
    fails("SparseAttention", inputs, case.attrs, "is outside|value|out of range", outputs=3, domain=MICROSOFT)


@pytest.mark.parametrize(
    "attrs",
    [{"sparse_block_size": 24}, {"num_heads": 3}, {"kv_num_heads": 0}, {"num_heads": 2**62}, {"scale": float("inf")}],
    ids=str,
)
def test_attributes_that_are_none(attrs):
    """Nodes that have such are taken all the same: the CPU EP would divide by them."""
    case = sparse((60,), 7, room=64)
    fails(
        "SparseAttention", changed(case), {**case.attrs, **attrs}, "it must be|must be a", outputs=3, domain=MICROSOFT
    )
