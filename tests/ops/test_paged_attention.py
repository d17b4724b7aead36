"""PagedAttention and SparsePagedAttention, for which no other provider here has a kernel, against what they mean."""

import numpy as np
import pytest
from encore_session import EAGER
from group_query import MICROSOFT, in_order
from harness import Case, Const, check, floats, seeded
from paged import HALVES, Server, paged
from pages_reference import PAGED, SPARSE, batch, reference, tables
from refusal import declined, fails
from tolerance import tolerance

MIXED = (7, 1, 0, 20, 1), (0, 33, 5, 12, 100)


@pytest.mark.parametrize(
    "case",
    [
        paged(news, pasts, dtype, heads=2 * group, kv_heads=2, size=size, slots=slots)
        for dtype, size, group, slots, (news, pasts) in (
            ("float16", 64, 4, 16, ((1,), (70,))),
            ("bfloat16", 64, 1, 16, ((1, 1, 1), (0, 15, 300))),
            ("float16", 80, 4, 256, ((1, 1), (300, 7))),
            ("bfloat16", 80, 4, 16, MIXED),
            ("float16", 128, 4, 16, MIXED),
            ("bfloat16", 128, 4, 256, ((1, 1, 1, 1), (600, 10, 255, 256))),
            ("float16", 128, 1, 256, ((129,), (0,))),
            ("float16", 256, 4, 16, ((1, 5), (40, 0))),
            ("bfloat16", 256, 1, 256, ((33,), (9,))),
        )
    ]
    + [  # tiles of keys that pages divide, more heads than a block has rows, and every number of rows
        paged((3, 1), (20, 60), size=40, slots=5),
        paged((3, 1), (20, 60), heads=24, kv_heads=1, slots=24),
        paged((1,) * 40, tuple(range(0, 80, 2)), heads=2, kv_heads=1, size=8),
        paged((1, 1), (5000, 100), size=128),
        paged((70,), (3,), size=64, heads=2, kv_heads=1, packed=True, rotary=32, misaligned=True),
        paged((1, 2), (3, 0), size=64, spare=5),
    ],
    ids=str,
)
def test_pages(case):
    check(case)


@pytest.mark.parametrize("metadata", [[64, 128], [1, 0, 0]], ids=str)
def test_hints_are_no_more(metadata):
    check(paged((9, 1), (0, 50), metadata=metadata, spare=1, sinks=True))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "how",
    [
        {"packed": True, "rotary": 32},
        {"rotary": 16, "rotary_interleaved": 1},
        {"rotary": 12},
        {"rotary": 16, "rotary_offset": 8, "weights": True},
        {"rotary": 5, "rotary_interleaved": 1, "rotary_offset": 24, "packed": True},
        {"weights": True, "qk_norm_epsilon": 0.1, "packed": True},
        {"local_window_size": 5},
        {"local_window_size": 1, "sinks": True},
        {"softcap": 0.7, "scale": 0.3},
        {"is_causal": 0},
        {"is_causal": 0, "local_window_size": 9},
        {"places": True},
    ],
    ids=lambda how: "_".join(map(str, how)),
)
def test_options_of_pages(how, dtype):
    check(paged((7, 1, 20), (0, 33, 12), dtype, **how))


@pytest.mark.parametrize(
    "outputs, how",
    [(1, {}), (3, {}), (3, {"cache": "int4"}), (2, {"latent": True})],
    ids=["alone", "caches", "caches_of_int4", "latent_rows"],
)
def test_one_graph_serves_every_length(outputs, how):
    server = Server(3, 100, outputs, **how)
    for step in range(12):
        shape = server.x["query"].shape
        got = server.step(query=floats(*shape, low=-1, high=1), pasts=[step, 7 * step, 99 - step], starts=[0, 1, 2, 3])
        wanted = reference(PAGED, how.get("cache", ""), **server.attrs)(*[server.x.get(n) for n in PAGED])
        for g, w in zip(got, wanted):
            np.testing.assert_allclose(g.astype(np.float64), w, *tolerance("cached", "float16"))
        server.x |= dict(zip(server.caches, got[1:]))


def test_hints_are_not_negative():
    inputs = in_order(PAGED, batch((2,), (3,), 4, 2, 64, 16) | {"metadata": Const(np.array([-1, 5], np.int32))})
    inputs = [x.astype(np.float16) if getattr(x, "dtype", None) == np.float32 else x for x in inputs]
    words = "attention_metadata begins with -1"
    fails("PagedAttention", inputs, {"num_heads": 4, "kv_num_heads": 2}, words, outputs=3, domain=MICROSOFT)


LOW, HIGH = -(1 << 31), (1 << 31) - 1


@pytest.mark.parametrize("how", [{}, {"cache": "int4"}, {"latent": True}], ids=["plain", "int4", "latent"])
@pytest.mark.parametrize(
    "changed",
    [
        {"table": [[7] * 7, [HIGH] * 7, [1 << 20] * 7]},
        {"table": [[LOW] * 7, [-2] * 7, [1] * 7]},
        {"pasts": [LOW, 5, -1]},
        {"pasts": [HIGH, 112, 1 << 20]},
        {"starts": [0, 2, 1, 3]},
        {"starts": [HIGH, LOW, 2, 1 << 20]},
        {"starts": [-1, 1, 2, 4]},
        {"starts": [3, 2, 1, 0]},
    ],
    ids="pages_beyond pages_below pasts_below pasts_beyond down far_away below backwards".split(),
)
def test_what_is_out_of_range_is_reported(changed, how):
    server = Server(3, 112, 1, graph=False, **how)
    with pytest.raises(Exception, match="not allowed|is outside") as caught:
        server.step(EAGER, **{"pasts": [50, 60, 70], **changed})
    assert "'it'" in str(caught.value)


@pytest.mark.parametrize(
    "how", [{}, {"cache": "int4"}, {"latent": 48, "kv_heads": 1, "scale": 0.1}], ids=["plain", "int4", "latent"]
)
def test_pages_that_are_not_there_are_unseen(how):
    """Those behind a window may be gone; and the others, whose keys are passed over."""
    case = paged((1, 4), (60, 40), local_window_size=20, **how)
    at = PAGED.index("table")
    for inputs in (case.inputs, *case.replays):
        inputs[at] = inputs[at].copy()
        inputs[at][0, :2] = -1
        inputs[at][1, 1] = -1
    check(case)


def sparse(news, pasts, dtype="float16", heads=4, kv_heads=2, size=64, most=12, auxiliary=None, cache="", **attrs):
    """`auxiliary`: heads of the rows in place of the pages'."""
    attrs = {"num_heads": heads, "kv_num_heads": kv_heads, **attrs}
    shared = attrs.get("auxiliary_kv_shared", 0)
    if auxiliary:
        attrs["selected_kv_source"] = "auxiliary"
    if cache:
        attrs |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_TENSOR"}

    def inputs(key):
        x = batch(news, pasts, heads, kv_heads, size, 16, cache=cache, key=key)
        rng, tokens = seeded("sparse", news, pasts, key), sum(news)
        room = 30 if auxiliary else max(n + p for n, p in zip(news, pasts))
        x["indices"] = np.stack([rng.permutation(room + most)[:most] - 1 for _ in range(tokens)]).astype(np.int32)
        x["counts"] = rng.integers(-1, most + 3, tokens).astype(np.int32)
        if auxiliary:
            for n in ("aux_key", "aux_value")[: 1 if shared else 2]:
                x[n] = floats(len(news), 30, auxiliary, size, low=-1, high=1)
            x["aux_lengths"] = rng.integers(-1, 33, len(news)).astype(np.int32)
        if attrs.get("do_rotary"):
            x["cos"], x["sin"] = tables(max(pasts) + max(news), size // 2)
        x["sinks"] = floats(heads, low=-1, high=1)
        return in_order(SPARSE, x)

    return Case(
        "SparsePagedAttention",
        inputs(0),
        attrs,
        dtype=dtype,
        outputs=3,
        domain=MICROSOFT,
        name="_".join(f"{n}{v}" for n, v in attrs.items()),
        family="cached",
        reference=reference(SPARSE, cache, **attrs),
        replays=(inputs(1), inputs(2)),
    )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"heads": 20, "kv_heads": 1, "size": 128, "do_rotary": 1},
        {"is_causal": 0, "size": 256},
        {"attention_mode": "local_plus_selected", "local_window_size": 5},
        {"attention_mode": "local_plus_selected", "most": 3, "softcap": 0.7},
        {"auxiliary": 1, "auxiliary_kv_shared": 1, "attention_mode": "local_plus_selected", "local_window_size": 9},
        {"auxiliary": 2, "size": 80},
        {"auxiliary": 2, "cache": "int8", "attention_mode": "local_plus_selected", "local_window_size": 30},
        {"cache": "int8", "most": 200},
    ],
    ids=lambda how: "_".join(map(str, how)) or "selected",
)
def test_selected_keys(how, dtype):
    check(sparse((3, 1, 0, 2), (0, 50, 9, 31), dtype, **how))


@pytest.mark.parametrize(
    "attrs",
    [{"attention_mode": "all"}, {"selected_kv_source": "other"}, {"auxiliary_cache_layout": "paged"}],
    ids=str,
)
def test_selections_that_are_not_known_are_declined(attrs):
    case = sparse((2,), (3,))
    inputs = [x.astype(np.float16) if x is not None and x.dtype == np.float32 else x for x in case.inputs]
    declined(case.op, inputs, {**case.attrs, **attrs}, outputs=3, domain=MICROSOFT)


@pytest.mark.parametrize(
    "attrs",
    [
        {"num_heads": 3},
        {"num_heads": 0},
        {"num_heads": 1 << 60, "kv_num_heads": 1},
        {"local_window_size": -2},
        {"rotary_offset": 4},
        {"do_rotary": 1},
        {"kv_cache_layout": "LATENT"},
        {"kv_cache_layout": "BOTH"},
        {"v_head_size": 64},
        {"k_cache_dtype": "int4"},
        {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"},
        {"k_quant_type": "PER_ROW"},
        {"softcap": float("nan")},
        {"qk_norm_epsilon": -1.0},
    ],
    ids=str,
)
def test_what_is_not_supported_is_declined(attrs):
    inputs = in_order(PAGED, batch((2,), (3,), 4, 2, 64, 16))
    inputs = [x.astype(np.float16) if x is not None and x.dtype == np.float32 else x for x in inputs]
    declined("PagedAttention", inputs, {"num_heads": 4, "kv_num_heads": 2, **attrs}, outputs=3, domain=MICROSOFT)


@pytest.mark.parametrize(
    "changed,words",
    [
        ({"query": (2, 250)}, "heads of 64"),
        ({"key": (2, 64)}, "beside query"),
        ({"value_cache": (4, 16, 2, 32)}, "must be alike"),
        ({"starts": (3,)}, "sequences"),
        ({"table": (2, 2)}, "block_table"),
        ({"key_cache": (4, 0, 2, 64), "value_cache": (4, 0, 2, 64)}, "is wanted"),
        ({"key_cache": (4, 16, 2, 12), "value_cache": (4, 16, 2, 12)}, "multiple of 8"),
        ({"places": (3,)}, "slot_mapping"),
        ({"sinks": (3,)}, "head_sink"),
    ],
    ids=lambda v: str(v) if isinstance(v, str) else "_".join(v),
)
def test_shapes_that_do_not_fit(changed, words):
    x = batch((2,), (3,), 4, 2, 64, 16)
    kinds = {n: v.dtype for n, v in x.items()} | {"places": np.int32, "sinks": np.float32}
    x |= {n: np.zeros(shape, kinds[n]) for n, shape in changed.items()}
    inputs = [v.astype(np.float16) if v is not None and v.dtype == np.float32 else v for v in in_order(PAGED, x)]
    fails("PagedAttention", inputs, {"num_heads": 4, "kv_num_heads": 2}, words, outputs=3, domain=MICROSOFT)


def test_nothing():
    check(paged((0, 0), (3, 0), name="no_tokens"))


@pytest.mark.parametrize("auxiliary", [None, 2], ids=["main", "auxiliary"])
def test_selected_keys_that_there_are_not_are_unseen(auxiliary):
    case = sparse((3, 1, 0, 2), (0, 50, 9, 31), auxiliary=auxiliary)
    for inputs in (case.inputs, *case.replays):
        given = dict(zip(SPARSE, inputs))
        given["indices"][:, ::3], given["indices"][:, 1::3] = HIGH, LOW
        given["counts"][:] = [HIGH, LOW, 12, HIGH, 0, 13]
        if auxiliary:
            given["aux_lengths"][:] = [HIGH, LOW, 0, 31]
    check(case)
