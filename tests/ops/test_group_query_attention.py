"""GroupQueryAttention and com.microsoft's rotary embeddings, against the CPU EP where it takes the node; else against
what is written here."""

import encore_session
import numpy as np
import pytest
from encore_session import EAGER, has_clusters, on_virtual_gpu, only_if
from group_query import MICROSOFT, TYPES, Decoder, close, gqa, tables
from harness import Case, check, floats, seeded
from refusal import declined, fails


@pytest.mark.parametrize(
    "case",
    [  # decoding
        gqa((6,), dtype=dtype, packed=packed, rotary=rotary, room=room)
        for dtype in TYPES
        for packed, rotary, room in ((False, None, None), (True, 32, 40), (False, 16, 9))
    ]
    + [gqa((5, 0, 17), room=20, dtype=dtype, heads=8, kv_heads=1, rotary=32, packed=True) for dtype in TYPES]
    + [gqa((129,), size=size, dtype=dtype, rotary=size // 2) for size in (40, 80, 96, 128, 256) for dtype in TYPES]
    + [gqa((700, 130), room=1024, heads=32, kv_heads=8, size=128, dtype="float16", packed=True, rotary=64)]
    # a prompt, and one behind a past
    + [
        gqa(last, rows=rows, dtype=dtype, packed=packed, rotary=rotary, room=room)
        for dtype in TYPES
        for last, rows, packed, rotary, room in (
            ((0,), 1, False, 32, None),
            ((6,), 7, False, None, None),
            ((128,), 129, True, 32, None),
            ((6, 2), 7, True, 16, None),
            ((6, 6), 7, False, 32, 12),
            ((19,), 7, True, 32, None),
            ((39,), 20, False, 32, 64),
            ((19, 11), 7, False, 32, 24),
        )
    ]
    + [gqa((6,), 7, wanted=1), gqa((6,), room=20, rotary=32, wanted=1), gqa((6,), room=20, dtype="float16", wanted=1)],
    ids=str,
)
def test_cache(case):
    check(case)


@pytest.mark.parametrize("last,rows,room", [((6,), 1, 20), ((19, 5), 1, None), ((12,), 13, None), ((30,), 11, 40)])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "how",
    [
        {"local_window_size": 4},
        {"local_window_size": 1},
        {"softcap": 0.7},
        {"scale": 0.3},
        {"smooth_softmax": 1},
        {"sinks": True},
        {"sinks": True, "smooth_softmax": 1, "local_window_size": 3},
        {"bias": (1, 1)},
        {"bias": (1, 4), "rotary": 16},
        {"rotary": 32, "rotary_interleaved": 1},
        {"rotary": 8, "rotary_interleaved": 1},
        {"rotary": 12},
        {"rotary": 32, "ids": True, "packed": True},
        {"weights": True},
        {"weights": True, "rotary": 24, "packed": True, "qk_norm_epsilon": 0.1},
        {"weights": True, "rotary": 32, "q_norm_epsilon": 0.3, "k_norm_epsilon": 0.02},
        {"weights": True, "q_norm_epsilon": 0.3, "qk_norm_epsilon": 0.1},
        {"causal": 0},
    ],
    ids=lambda how: "_".join(map(str, how)),
)
def test_options(how, last, rows, room, dtype):
    check(gqa(last, rows=rows, room=room, dtype=dtype, **how))


@pytest.mark.parametrize(
    "case",
    [
        gqa((6,), 7, on_cpu=True),
        gqa((6, 3), 7, on_cpu=True),
        gqa((6,), 7, on_cpu=True, packed=True, rotary=32, dtype="float16"),
        gqa((19,), 7, on_cpu=True, rotary=16, room=30),
        gqa((19, 4), on_cpu=True, rotary=32, room=30, dtype="float16"),
        gqa((19, 4), on_cpu=True, rotary=32, room=30, rotary_interleaved=1),
        gqa((19, 4), on_cpu=True, rotary=32, room=30, local_window_size=5),
        gqa((12,), 13, on_cpu=True, local_window_size=5),
        gqa((19, 4), on_cpu=True, softcap=1.5, scale=0.2, bias=(2, 1)),
        gqa((19,), 5, on_cpu=True, bias=(1, 4), sinks=True),
        gqa((19, 4), on_cpu=True, smooth_softmax=1),
        gqa((12, 12), 13, on_cpu=True, causal=0),
        gqa((19, 4), on_cpu=True, rotary=32, ids=True),
        gqa([[19], [4]], on_cpu=True),
        gqa((19, 19), on_cpu=True, room=30, wanted=4, qk_output=1, local_window_size=5),
        gqa((12,), 13, on_cpu=True, wanted=4, qk_output=1, softcap=0.5, bias=(1, 4), rotary=16),
        gqa((19,), 5, on_cpu=True, wanted=4, qk_output=2, sinks=True, room=40),
        gqa((19,), 5, on_cpu=True, wanted=4, qk_output=2, dtype="float16"),
    ],
    ids=str,
)
def test_against_the_cpu(case):
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        gqa((6,), size=5),
        gqa((6,), 7, size=10, rotary=3, dtype="float16"),
        gqa((6, 3), size=7, weights=True, rotary=3),
        gqa((6,), size=300, dtype="float16", weights=True, rotary=150),
        gqa((6,), heads=3, kv_heads=3, size=24, dtype="bfloat16", rotary=12),
        gqa((9,), rows=4, heads=6, kv_heads=1, size=64, dtype="float16", misaligned=True, rotary=32),
        gqa((9,), rows=4, misaligned=True, packed=True),
        gqa((1500,), rows=300, heads=2, kv_heads=1, size=64, dtype="float16", rotary=32),
        gqa((299, 180), rows=300, heads=2, kv_heads=1, size=64, dtype="bfloat16", rotary=32, packed=True),
        gqa((300,), heads=8, kv_heads=1, size=128, room=512, dtype="float16", weights=True, rotary=64, packed=True),
        gqa((40, 7), heads=6, kv_heads=2, size=96, room=64, dtype="bfloat16", weights=True, rotary=16),
        gqa((40,), heads=2, kv_heads=2, size=40, room=50, dtype="float16", weights=True, rotary=16, packed=True),
        gqa((40,), heads=4, kv_heads=4, size=128, room=50, dtype="float16", weights=True, sinks=True),
        gqa((40,), heads=4, kv_heads=2, size=72, room=50, dtype="float16", weights=True, rotary=24, ids=True),
    ],
    ids=str,
)
def test_shapes(case):
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        gqa(last, rows, room=room, dtype=dtype, filled=True, **how)
        for dtype in TYPES
        for last, rows, room in (((6,), 1, None), ((19, 5), 1, 30), ((6, 3), 7, 7), ((6, 3), 7, 12), ((30,), 11, 40))
        for how in ({}, {"rotary": 32}, {"weights": True, "rotary": 16}, {"local_window_size": 4, "sinks": True})
    ]
    + [
        gqa((0,), 1, filled=True),
        gqa((19, 5), room=30, filled=True, bias=(1, 4), softcap=0.7),
        gqa((12,), 5, room=30, filled=True, rotary=12, ids=True, rotary_interleaved=1),
        gqa((12,), 13, filled=True, causal=0, dtype="float16"),
        gqa((12,), 5, room=30, filled=True, causal=0),
        gqa((300, 250), rows=200, heads=8, size=128, dtype="float16", filled=True, rotary=64, room=512),
        gqa((9,), rows=4, misaligned=True, filled=True, rotary=32, dtype="bfloat16"),
        gqa((9,), rows=4, filled=True, wanted=1, rotary=32),
    ],
    ids=str,
)
def test_a_past_that_layers_share(case):
    """Keys and values have no rows: the past has them all, of which none is written."""
    check(case)


@pytest.mark.newest
@pytest.mark.parametrize(
    "case",
    [
        gqa((6,), 7, on_cpu=True, filled=True, room=10),
        gqa((19, 5), on_cpu=True, filled=True, room=30),
        gqa((19,), 7, on_cpu=True, filled=True, room=30, local_window_size=5, sinks=True),
    ],
    ids=str,
)
def test_a_past_that_layers_share_against_the_cpu(case):
    check(case)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("attrs", [{}, {"local_window_size": 9}], ids=["all", "window"])
def test_one_graph_serves_every_length(dtype, attrs):
    decoder = Decoder(2, 8, 2, 64, 300, dtype, **attrs)
    for step in range(64):
        close(decoder, decoder.step([3 + step, 4 * step]))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_prompt_and_what_follows(dtype):
    """A model's life: a prompt, its answer by a captured graph, another prompt behind that, and its answer."""
    decoder = Decoder(1, 8, 2, 64, 300, dtype)
    last = -1
    for graph, (prompt, answer) in enumerate([(37, 20), (50, 20), (2, 4)]):
        decoder.take_rows(prompt)
        last += prompt
        close(decoder, decoder.step([last], EAGER))
        decoder.take_rows(1)
        for _ in range(answer):
            last += 1
            close(decoder, decoder.step([last], graph))


SEVERAL = ["AddPackedRows", "AttendGroupedDecode", "Combine"]  # launches
# A cluster looks at the keys of a head; without one it is a block, for which many are too many.
OF_MANY = ["DecodeStep"] if has_clusters() else SEVERAL


@only_if(on_virtual_gpu())
@pytest.mark.parametrize("rows, launches", [(1, OF_MANY), (4, SEVERAL)])
def test_decoding_takes_few_launches(rows, launches):
    decoder = Decoder(1, 8, 2, 64, 4096, "float16", graph=False, rows=rows)
    decoder.step([700])
    kernels = encore_session.trace(decoder.session, lambda: decoder.step([701]))
    names = [k["name"] for k in kernels if k["what"] == "kernel"]
    assert len(names) == len(launches) and all(n in name for n, name in zip(launches, names)), names


@pytest.mark.parametrize(
    "case",
    [
        {"heads": 8, "kv_heads": 8, "size": 64, "room": 1, "lasts": [0]},
        {"heads": 32, "kv_heads": 8, "size": 64, "room": 2048, "lasts": [0, 1, 16, 17, 255, 1024, 2047]},
        {"heads": 14, "kv_heads": 2, "size": 64, "room": 1000, "lasts": [5, 400, 999], "batch": 3},
        {"heads": 32, "kv_heads": 4, "size": 128, "room": 700, "lasts": [3, 699]},
        {"heads": 16, "kv_heads": 4, "size": 96, "room": 300, "lasts": [1, 130], "batch": 2},
        {"heads": 4, "kv_heads": 2, "size": 48, "room": 257, "lasts": [0, 256]},
        {"heads": 8, "kv_heads": 2, "size": 64, "room": 900, "lasts": [0, 40, 880], "local_window_size": 33},
        {"heads": 8, "kv_heads": 2, "size": 64, "room": 900, "lasts": [0, 880], "local_window_size": 1},
        {"heads": 8, "kv_heads": 2, "size": 64, "room": 500, "lasts": [0, 450], "smooth_softmax": 1, "softcap": 2.0},
        {"heads": 4, "kv_heads": 2, "size": 128, "room": 9000, "lasts": [3000, 4112, 8191, 8999]},
        {"heads": 16, "kv_heads": 8, "size": 128, "room": 9000, "lasts": [8999], "local_window_size": 5000},
        {"heads": 4, "kv_heads": 2, "size": 48, "room": 15000, "lasts": [2000, 14999]},
        {"heads": 66, "kv_heads": 66, "size": 112, "room": 700, "lasts": [140, 699]},
    ],
    ids=lambda case: "_".join(map(str, case.values())),
)
def test_a_new_row_takes_one_launch(case):
    case = dict(case)
    heads, kv_heads, size, room, lasts = (case.pop(k) for k in ("heads", "kv_heads", "size", "room", "lasts"))
    batch = case.pop("batch", 1)
    decoder = Decoder(batch, heads, kv_heads, size, room, "float16", **case)
    for last in lasts:
        close(decoder, decoder.step([max(last - 7 * i, 0) for i in range(batch)]))
    if on_virtual_gpu():
        kernels = encore_session.trace(decoder.session, lambda: decoder.step([lasts[0]] * batch, EAGER))
        names = [k["name"] for k in kernels if k["what"] == "kernel"]
        launches = OF_MANY if room > 2048 or kv_heads > 40 else ["DecodeStep"]  # nor may heads be more than fit
        assert len(names) == len(launches) and all(n in name for n, name in zip(launches, names)), names


# ---- Rotary embeddings


def rotary(
    shape, dtype="float32", turned=0, heads=0, ids="each", interleaved=0, sections=None, misaligned=False, **more
):
    flat = len(shape) == 3
    batch, rows = shape[0], shape[1 if flat else 2]
    size = shape[3] if not flat else shape[2] // heads if heads else more.pop("size")
    half = (turned or size) // 2
    positions = rows + 11
    draw = seeded("ids", shape, ids)
    if sections:
        given = draw.integers(0, positions, (3, batch, rows))
    else:
        given = draw.integers(0, positions, (batch, rows)) if ids == "each" else np.array([7])
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": turned, "num_heads": heads, **more}
    attrs = {n: v for n, v in attrs.items() if v}
    name = "_".join([*map(str, attrs), ids, *map(str, sections or ())])
    if sections:
        attrs["mrope_section"] = sections
    return Case(
        "MRotaryEmbedding" if sections else "RotaryEmbedding",
        [floats(*shape), given, *tables(positions, half)],
        attrs,
        dtype=dtype,
        domain=MICROSOFT,
        name=name,
        misaligned=misaligned,
        family="rotary",
    )


@pytest.mark.parametrize(
    "case",
    [
        rotary(shape, dtype, turned, heads, ids, interleaved, **more)
        for dtype in TYPES
        for interleaved in (0, 1)
        for ids in ("each", "first")
        for shape, turned, heads, more in (
            ((2, 3, 5, 64), 0, 0, {}),
            ((2, 3, 5, 64), 32, 3, {}),
            ((2, 5, 96), 0, 3, {}),
            ((2, 5, 96), 0, 0, {"size": 32}),
            ((1, 7, 240), 40, 3, {}),
        )
    ]
    + [rotary((2, 3, 5, 64), "float16", misaligned=True), rotary((1, 1, 1, 2), ids="first")]
    + [rotary((2, 300, 1024), "float16", heads=8)],
    ids=str,
)
def test_rotary(case):
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        rotary(shape, dtype, turned, heads, interleaved=interleaved, sections=sections, mrope_layout=layout, **more)
        for dtype in TYPES
        for interleaved in (0, 1)
        for layout in (0, 1)
        for shape, turned, heads, sections, more in (
            ((2, 3, 5, 64), 0, 0, [16, 8, 8], {}),
            ((2, 3, 5, 64), 32, 3, [5, 5, 6], {"scale": 0.5}),
            ((2, 5, 96), 0, 3, [16, 0, 0], {}),
            ((1, 7, 240), 40, 3, [6, 7, 7], {}),
            ((1, 2, 9, 128), 0, 0, [0, 11, 53], {}),
        )
    ]
    + [rotary((2, 3, 5, 64), "float16", sections=[16, 8, 8], misaligned=True)],
    ids=str,
)
def test_three_positions(case):
    check(case)


def test_positions_out_of_range_fail():
    x, (cos, sin) = floats(1, 2, 3, 8), tables(9, 4)
    for ids in ([[0, 9, 1]], [[0, -1, 1]], [7], [(1 << 63) - 2], [-1]):
        fails("RotaryEmbedding", [x, np.array(ids), cos, sin], {}, "is outside", domain=MICROSOFT)
    ids = np.zeros((3, 1, 3), int)
    ids[2, 0, 1] = 9
    fails("MRotaryEmbedding", [x, ids, cos, sin], {"mrope_section": [2, 1, 1]}, "is outside", domain=MICROSOFT)


@pytest.mark.parametrize(
    "op,inputs,attrs,words",
    [
        ("RotaryEmbedding", ((1, 3, 9), (1, 3), (9, 4), (9, 4)), {}, "cannot be divided"),
        ("RotaryEmbedding", ((1, 2, 3, 8), (1, 3), (9, 3), (9, 3)), {}, "to be rotated"),
        ("RotaryEmbedding", ((1, 2, 3, 8), (1, 3), (9, 4), (8, 4)), {}, "one shape"),
        ("RotaryEmbedding", ((1, 2, 3, 8), (1, 2), (9, 4), (9, 4)), {}, "position_ids has shape"),
        ("MRotaryEmbedding", ((1, 2, 3, 8), (1, 3), (9, 4), (9, 4)), {"mrope_section": [2, 1, 1]}, "position_ids"),
        ("MRotaryEmbedding", ((1, 2, 3, 8), (3, 1, 3), (9, 4), (9, 4)), {"mrope_section": [2, 1, 2]}, "add up to 5"),
        (
            "MRotaryEmbedding",
            ((2, 3, 8), (3, 2, 3), (9, 1), (9, 1)),
            {"mrope_section": [1, 0, 0], "num_heads": 3, "rotary_embedding_dim": 2},
            "3 heads",
        ),
    ],
)
def test_rotary_that_does_not_fit_fails(op, inputs, attrs, words):
    arrays = [np.zeros(s, np.int64) if i == 1 else floats(*s) for i, s in enumerate(inputs)]
    fails(op, arrays, attrs, words, ranks=False, domain=MICROSOFT)


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"mrope_section": [1, 2]},
        {"mrope_section": [-1, 3, 2]},
        {"mrope_section": [2, 1, 1], "mrope_layout": 2},
    ],
    ids=str,
)
def test_hostile_sections_are_declined(attrs):
    inputs = [floats(1, 2, 3, 8), np.zeros((3, 1, 3), np.int64), *tables(9, 4)]
    declined("MRotaryEmbedding", inputs, attrs, domain=MICROSOFT)


def gemma(batch, heads, rows, size, misaligned=False):
    def reference(angles, q, q_other, k, k_other):
        cos, sin = (f(angles)[:, None].astype(np.float16).astype(np.float32) for f in (np.cos, np.sin))
        return [
            (x.astype(np.float32) * cos + y.astype(np.float32) * sin).astype(np.float16)
            for x, y in ((q, q_other), (k, k_other))
        ]

    states = [floats(batch, heads, rows, size).astype(np.float16) for _ in range(4)]
    return Case(
        "GemmaRotaryEmbedding",
        [floats(batch, rows, size, low=-40, high=40), *states],
        outputs=2,
        domain=MICROSOFT,
        reference=reference,
        misaligned=misaligned,
        tolerance=(2e-3, 3e-3),  # a cosine may be rounded the other way
    )


@pytest.mark.parametrize(
    "case",
    [
        gemma(1, 8, 1, 256),
        gemma(2, 9, 7, 64),
        gemma(2, 1, 129, 40),
        gemma(1, 2, 3, 7),
        gemma(1, 8, 5, 64, misaligned=True),
        gemma(1, 0, 3, 8),
        gemma(0, 2, 3, 8),
    ],
    ids=str,
)
def test_gemma(case):
    check(case)


def test_gemma_that_does_not_fit_fails():
    angles, q, k = floats(1, 3, 8), floats(1, 2, 3, 8).astype(np.float16), floats(1, 2, 3, 7).astype(np.float16)
    for inputs in ([angles, q, q, k, k], [angles, q, k, q, q], [angles[:, :2], q, q, q, q], [angles, *[q[0]] * 4]):
        fails("GemmaRotaryEmbedding", inputs, {}, "must be", outputs=2, ranks=False, domain=MICROSOFT)
