"""Attention and RotaryEmbedding. The reference of Attention is written here: onnxruntime's CPU EP lacks types, windows,
masks of rank one and empty sequences, and lets what is masked through where it is infinite."""

import numpy as np
import pytest
from both import Both
from encore_session import EP_NAME, nodes_on
from harness import Case, Const, bools, check, floats, seeded, session
from in_place import check_refused
from onnx import helper
from refusal import declined, fails

OPSET = 24
HALVES = ["float16", "bfloat16"]


def softmax(scores):
    with np.errstate(invalid="ignore", over="ignore"):
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(np.isneginf(top), 0, top))
        total = powers.sum(-1, keepdims=True)
        return powers / np.where(total == 0, 1, total)


def reference(opset, wanted, **attrs):
    """In double, after onnx's reference; what is masked stays so, also where the score is not finite."""

    def split(x, heads):
        return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    def run(q, k, v, mask=None, past_k=None, past_v=None, lengths=None):
        flat = q.ndim == 3
        q, k, v = (
            split(x.astype(np.float64), attrs.get(f"{name}_num_heads")) for x, name in ((q, "q"), (k, "kv"), (v, "kv"))
        )
        if past_k is not None:
            k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
        (batch, heads, queries, size), keys = q.shape, k.shape[2]
        group = heads // k.shape[1]
        with np.errstate(invalid="ignore"):
            scores = q @ np.repeat(k, group, 1).transpose(0, 1, 3, 2) * attrs.get("scale", 1 / np.sqrt(size))
        stages = [scores]
        softcap = attrs.get("softcap", 0)
        stages.append(softcap * np.tanh(scores / softcap) if softcap > 0 else scores)

        seen = np.ones((batch, heads, queries, keys), bool)
        ends = np.full(batch, keys) if lengths is None else lengths
        start = 0 if past_k is None else past_k.shape[2]
        starts = np.full(batch, start) if lengths is None else lengths - queries
        at = (starts[:, None] + np.arange(queries))[:, None, :, None]
        key = np.arange(keys)
        seen &= key < ends[:, None, None, None]
        left, right = attrs.get("left_window_size", -1), attrs.get("right_window_size", -1)
        if attrs.get("is_causal") == 1:
            seen &= key <= at
        if left >= 0:
            seen &= key >= at - left
        if right >= 0:
            seen &= key <= at + right
        bias = 0.0
        if mask is not None:
            missing = keys - mask.shape[-1] if opset >= 24 else 0
            pad = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
            mask = np.pad(mask, pad, constant_values=False if mask.dtype == bool else -np.inf)
            bias = np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
            seen = seen & ~np.isneginf(bias)
        with np.errstate(invalid="ignore"):
            stages.append(np.where(seen, stages[1] + bias, -np.inf))
        stages.append(softmax(stages[2]))
        # Zero times a value that is not finite is not: as with the powers, unseen keys are left out.
        y = stages[3] @ np.repeat(v, group, 1)
        if flat:
            y = y.transpose(0, 2, 1, 3).reshape(batch, queries, -1)
        return [out for out, want in zip([y, k, v, stages[attrs.get("qk_matmul_output_mode", 0)]], wanted) if want]

    return run


def attention(
    q,
    k,
    v=None,
    mask=None,
    past=0,
    lengths=None,
    dtype="float32",
    opset=OPSET,
    outputs=None,
    name="",
    misaligned=False,
    options=None,
    **attrs,
):
    """q [batch, heads, rows, size] and so on, given as shapes or arrays; 3-D if there are numbers of heads."""

    def made(x):
        return x if isinstance(x, np.ndarray) else floats(*x, low=-2, high=2)

    v = k if v is None else v
    inputs = [made(q), made(k), made(v), mask if mask is None or isinstance(mask, Const) else np.asarray(mask)]
    if past:
        shapes = [np.shape(x) if isinstance(x, np.ndarray) else x for x in (k, v)]
        if len(shapes[0]) == 3:
            shapes = [(s[0], attrs["kv_num_heads"], s[1], s[2] // attrs["kv_num_heads"]) for s in shapes]
        inputs += [floats(*s[:2], past, s[3], low=-2, high=2) for s in shapes]
    elif lengths is not None:
        inputs += [None, None]
    if lengths is not None:
        inputs.append(Const(np.array(lengths, np.int64)))
    while inputs[-1] is None:
        inputs.pop()
    outputs = outputs or [True, past > 0, past > 0, False]
    while not outputs[-1]:
        outputs = outputs[:-1]
    return Case(
        "Attention",
        inputs,
        attrs,
        dtype=dtype,
        opset=opset,
        outputs=outputs,
        name=name or "_".join(f"{key[0]}{value}" for key, value in attrs.items()),
        family="attention",
        reference=reference(opset, outputs, **attrs),
        misaligned=misaligned,
        options=options or {},
    )


def masked(*shape, rate=0.3):
    return seeded("mask", shape).uniform(size=shape) > rate


FLOATS = ["float32", "float16", "bfloat16", "float64"]
SIZES = [8, 40, 64, 80, 96, 128, 256]


@pytest.mark.parametrize(
    "case",
    [
        attention((1, 2, rows, size), (1, 2, keys, size), dtype=dtype, is_causal=causal)
        for dtype in FLOATS
        for rows, keys, size, causal in ((9, 7, 16, 0), (129, 129, 40, 1), (20, 70, 96, 0))
    ]
    + [attention((1, 1, 65, size), (1, 1, 66, size), dtype=dtype) for size in SIZES for dtype in ("float32", "float16")]
    + [
        attention((1, 1, 9, 5), (1, 1, 70, 5), (1, 1, 70, 3)),
        attention((1, 1, 9, 5), (1, 1, 70, 5), (1, 1, 70, 3), dtype="float16"),
        attention((1, 1, 70, 300), (1, 1, 66, 300), (1, 1, 66, 20), name="deep"),
        attention((1, 1, 10, 520), (1, 1, 20, 520), dtype="float64", name="deep"),
        attention((1, 1, 10, 16), (1, 1, 20, 16), (1, 1, 20, 300), name="many_values"),
        attention((1, 1, 2, 16), (1, 1, 20, 16), (1, 1, 20, 300), dtype="float16", name="many_values"),
        attention((1, 1, 1, 1), (1, 1, 1, 1)),
        attention((2, 3, 33, 16), (2, 3, 33, 16), misaligned=True),
        attention((2, 3, 33, 16), (2, 3, 33, 16), dtype="float16", misaligned=True),
    ],
    ids=str,
)
def test_tiles(case):
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        attention((2, 4, rows, size), (2, 2, keys, size), dtype=dtype, past=past, is_causal=1)
        for dtype in ("float32", *HALVES)
        for rows, keys, past, size in ((1, 1, 0, 64), (1, 1, 130, 64), (7, 7, 60, 80), (8, 3, 1, 128))
    ]
    + [attention((1, 1, 1, size), (1, 1, 33, size)) for size in SIZES]
    + [attention((1, 1, 1, size), (1, 1, 33, size), dtype="float16") for size in SIZES]
    + [
        attention((1, 1, 1, 64), (1, 1, 5000, 64), name="many_keys"),
        attention((1, 8, 3, 128), (1, 1, 3000, 128), dtype="float16", name="many_keys", is_causal=1),
        attention((1, 1, 1, 24), (1, 1, 33, 24), (1, 1, 33, 6), dtype="float16"),
        attention((1, 2, 1, 64), (1, 2, 33, 64), dtype="float16", misaligned=True),
        attention((1, 1, 2, 64), (1, 1, 5000, 64), mask=bools(2, 5000), name="many_keys_masked"),
        attention((1, 1, 1, 64), (1, 1, 20, 64), dtype="float64"),
    ],
    ids=str,
)
def test_few_queries(case):
    check(case)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size, values", [(8, 8), (24, 32), (64, 64), (40, 64), (80, 80), (128, 96)])
def test_short_sequences(size, values, dtype):
    """Whose keys a block has on their way at once, or in a few turns."""

    def short(heads, kv_heads, rows, keys, **more):
        q, k, v = (2, heads, rows, size), (2, kv_heads, keys, size), (2, kv_heads, keys, values)
        check(attention(q, k, v, dtype=dtype, **more))

    short(3, 3, 16, 49)
    short(4, 2, 33, 129, is_causal=1, softcap=3.0)
    short(2, 1, 70, 300, mask=masked(2, 1, 70, 300), name="masked")
    short(2, 2, 12, 512, mask=floats(2, 12, 500), name="added")
    short(2, 2, 40, 40, lengths=[40, 11], is_causal=1)
    short(
        6, 6, 197, 197, mask=floats(197, 197), name="with_fewer_warps"
    )  # for blocks of all would not be there at once


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("heads, queries", [(7, 1), (8, 1), (12, 1), (5, 3), (32, 1), (40, 1), (12, 8)])
@pytest.mark.parametrize("size, values", [(64, 64), (80, 80), (96, 24), (128, 128), (72, 256)])
def test_heads_that_share_keys(size, values, heads, queries, dtype):
    check(attention((2, heads, queries, size), (2, 1, 90, size), (2, 1, 90, values), dtype=dtype, past=9, is_causal=1))


@pytest.mark.parametrize("dtype", HALVES)
def test_few_rows_of_many_keys(dtype):
    q, k = (2, 8, 2, 64), (2, 2, 3000, 64)
    check(attention(q, k, dtype=dtype, lengths=[2000, 17], is_causal=1, softcap=4.0))
    check(attention(q, k, dtype=dtype, mask=masked(2, 1, 2, 3000), lengths=[3000, 0]))
    check(attention(q, k, dtype=dtype, mask=floats(8, 2, 2500), name="added"))
    # In few shares, in some, and with values that fill no packs.
    check(attention((1, 2, 1, 64), (1, 2, 600, 64), (1, 2, 600, 40), dtype=dtype))
    check(attention((1, 4, 1, 64), (1, 1, 1900, 64), dtype=dtype, past=9, is_causal=1))
    check(attention((1, 2, 1, 24), (1, 2, 3000, 24), (1, 2, 3000, 7), dtype=dtype))
    # As a buffer of rows with heads among them.
    heads = {"q_num_heads": 8, "kv_num_heads": 2}
    check(attention((2, 1, 512), (2, 3000, 128), dtype=dtype, lengths=[2999, 300], **heads))


def test_powers_of_many_keys_that_are_small_count():
    # One key has nearly all of the weight; what is left, shared by all others, is 2 percent.
    q, k, v = np.ones((1, 1, 1, 16)), np.zeros((1, 1, 20001, 16)), np.ones((1, 1, 20001, 16))
    k[0, 0, 700], v[0, 0, 700] = 1, -1
    for dtype in HALVES:
        inputs = [x.astype(np.float32) for x in (q, k, v)]
        check(attention(*inputs, dtype=dtype, scale=13.8 / 16, name="small_powers"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rows", [3, 12])
@pytest.mark.parametrize(
    "shape",
    [
        (20,),
        (1, 20),
        ("r", 20),
        ("r", 1),
        (1, 1),
        (2, 1, 20),
        (2, "r", 20),
        (3, 1, "r", 20),
        (3, 2, "r", 20),
        (1, 2, 1, 20),
        ("r", 13),
        (3, 1, 1, 17),
    ],
    ids=str,
)
def test_masks(shape, rows, dtype):
    shape = tuple(rows if dim == "r" else dim for dim in shape)
    for mask in (masked(*shape), floats(*shape)):
        check(attention((3, 2, rows, 16), (3, 2, 20, 16), mask=mask, dtype=dtype))


@pytest.mark.parametrize("rows", [2, 70])
def test_masks_with_windows(rows):
    for attrs in ({"is_causal": 1}, {"is_causal": 1, "softcap": 2.0}, {"scale": 0.3, "softcap": 5.0}):
        for mask in (masked(2, 1, rows, 150), floats(rows, 150)):
            check(attention((2, 4, rows, 24), (2, 2, 100, 24), mask=mask, past=50, **attrs))


@pytest.mark.parametrize("causal", [-1, 2, 2**32 + 1])
def test_only_one_is_causal(causal):
    check(attention((2, 4, 9, 24), (2, 2, 9, 24), is_causal=causal))


def test_a_scalar_dimension_of_a_mask_is_repeated_before_24():
    check(attention((1, 2, 9, 16), (1, 2, 20, 16), mask=masked(9, 1), opset=23))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [4, 40])
def test_rows_that_see_nothing_are_zero(rows, dtype):
    blind = np.ones((rows, 30), bool)
    blind[1] = False
    for mask in (blind, np.where(blind, 0, -np.inf).astype(np.float32)):
        for mode in (2, 3):
            check(
                attention(
                    (1, 2, rows, 16),
                    (1, 2, 30, 16),
                    mask=Const(mask),
                    dtype=dtype,
                    outputs=[True, False, False, True],
                    qk_matmul_output_mode=mode,
                )
            )
        check(attention((1, 2, rows, 16), (1, 2, 30, 16), mask=Const(mask), dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_lengths(rows, causal, dtype):
    sizes = (4, 2, 70, 32)
    check(attention((4, 4, rows, 32), sizes, lengths=[70, 0, 13, 3], is_causal=causal, dtype=dtype))
    check(attention((4, 4, rows, 32), sizes, lengths=[70, 1, 69, 3], mask=masked(rows, 70), is_causal=causal))


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", FLOATS)
def test_scores(mode, dtype):
    wanted = [True, False, False, True]
    for rows, attrs in ((1, {}), (70, {"is_causal": 1, "softcap": 3.0})):
        check(
            attention(
                (2, 4, rows, 16),
                (2, 2, 90, 16),
                mask=floats(rows, 90),
                dtype=dtype,
                outputs=wanted,
                qk_matmul_output_mode=mode,
                **attrs,
            )
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_flat_inputs(dtype):
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    check(attention((2, 10, 64), (2, 17, 32), dtype=dtype, **heads))
    check(attention((2, 2, 64), (2, 17, 32), (2, 17, 24), dtype=dtype, **heads))
    check(attention((2, 10, 64), (2, 10, 32), (2, 10, 24), past=5, dtype=dtype, is_causal=1, **heads))
    check(attention((2, 10, 64), (2, 10, 32), dtype=dtype, outputs=[True, True, True, False], **heads))


def test_a_past_of_another_room_where_the_present_is_fails():
    c = attention((2, 2, 3, 8), (2, 2, 3, 8), past=4)
    check_refused(c, {1: 4, 2: 5}, "has room for 4 rows and not for 7")


def test_of_what_is_wanted_of_past_and_present():
    for outputs in ([True, False, False], [True, True, False], [True, False, True]):
        check(attention((2, 2, 3, 8), (2, 2, 3, 8), past=4, outputs=[*outputs, False], name=str(outputs)))
    check(attention((2, 2, 3, 8), (2, 2, 3, 8), outputs=[True, True, True, True]))


@pytest.mark.parametrize(
    "case",
    [
        attention((0, 2, 3, 8), (0, 2, 5, 8), name="batch"),
        attention((1, 2, 0, 8), (1, 2, 5, 8), name="queries"),
        attention((1, 2, 3, 8), (1, 2, 0, 8), name="keys"),
        attention((1, 2, 30, 8), (1, 2, 0, 8), name="keys"),
        attention((1, 2, 30, 8), (1, 2, 0, 8), mask=np.zeros((30, 0), bool), name="keys_masked"),
        attention((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 0), name="values"),
        attention((1, 2, 3, 8), (1, 2, 5, 8), mask=np.zeros((3, 0), bool), name="mask"),
    ],
    ids=str,
)
def test_empty(case):
    check(case)


@pytest.mark.parametrize("rows, dtype", [(2, "float32"), (20, "float32"), (2, "bfloat16"), (2, "float16")])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values(special, rows, dtype):
    for which in range(3):
        inputs = [floats(1, 2, n, 16, low=-2, high=2) for n in (rows, 70, 70)]
        inputs[which][0, 0, 1, 3] = special
        check(attention(*inputs, dtype=dtype, name=f"{special}_{which}"))
    # What is masked stays so; nothing is known of the values there.
    q, k, v = (floats(1, 2, n, 16, low=-2, high=2) for n in (rows, 70, 70))
    k[0, 0, 69] = special
    case = attention(q, k, v, lengths=[69], dtype=dtype, name=f"unseen_{special}")
    case.capture = False
    check(case)


def test_large_scores_are_finite():
    check(attention((1, 1, 20, 16), (1, 1, 40, 16), scale=500.0))
    check(attention((1, 1, 2, 16), (1, 1, 40, 16), scale=500.0))


def test_precision_of_the_softmax():
    for precision in (1, 10, 11, 16):
        check(attention((1, 1, 10, 16), (1, 1, 20, 16), dtype="float16", softmax_precision=precision))


@pytest.mark.parametrize("choice", [1, 8, 16, 255])
def test_the_choice_of_kernels_changes_no_result(choice):
    options = {"sdpa_kernel": choice}
    for rows in (1, 33):
        case = attention((2, 4, rows, 64), (2, 2, 40, 64), dtype="float16", is_causal=1, options=options)
        check(case)


def test_agrees_with_the_cpu():
    q, k, v = floats(2, 4, 20, 16), floats(2, 2, 30, 16), floats(2, 2, 30, 8)
    for attrs in ({}, {"is_causal": 1}, {"scale": 0.5, "softcap": 2.0}):
        Both("Attention", [q, k, v], attrs, opset=OPSET).agree(q, k, v, rtol=2e-5, atol=2e-6)
        mask = masked(20, 30)
        Both("Attention", [q, k, v, mask], attrs, opset=OPSET).agree(q, k, v, mask, rtol=2e-5, atol=2e-6)


def test_lengths_out_of_range_fail():
    q, k = floats(2, 2, 3, 8), floats(2, 2, 5, 8)
    for bad in (6, -1, 2**62):
        inputs = [q, k, k, None, None, None, np.array([2, bad], np.int64)]
        fails("Attention", inputs, {}, str(bad), opset=OPSET)


@pytest.mark.parametrize(
    "inputs, attrs, words",
    [
        (((1, 3, 2, 8), (1, 2, 2, 8), (1, 2, 2, 8)), {}, "cannot be shared out"),
        (((1, 2, 2, 8), (1, 2, 2, 4), (1, 2, 2, 8)), {}, "don't fit together"),
        (((1, 2, 2, 8), (1, 2, 3, 8), (1, 2, 2, 8)), {}, "don't fit together"),
        (((1, 2, 2, 8), (2, 2, 2, 8), (2, 2, 2, 8)), {}, "don't fit together"),
        (((1, 2, 2, 8), (1, 2, 2, 8), (1, 2, 2, 8)), {"q_num_heads": 4}, "q_num_heads and kv_num_heads say"),
        (((1, 2, 9), (1, 2, 8), (1, 2, 8)), {"q_num_heads": 2, "kv_num_heads": 2}, "cannot be divided"),
        (((1, 2, 2, 8), (1, 2, 2, 8), (1, 2, 2, 8), (3, 2)), {}, "does not broadcast"),
        (((1, 2, 2, 8), (1, 2, 2, 8), (1, 2, 2, 8), (1, 1, 1, 2, 2)), {}, "four dimensions at most"),
        (((1, 2, 2, 8), (1, 2, 2, 8), (1, 2, 2, 8), (2, 3)), {}, "does not broadcast"),
        (((1, 2, 2, 8), (1, 2, 2, 8), (1, 2, 2, 8), None, (1, 2, 2, 4), (1, 2, 2, 8)), {}, "don't fit K"),
    ],
)
def test_what_does_not_fit_fails(inputs, attrs, words):
    # Attention of such shapes onnxruntime would refuse itself, if it knew them.
    fails("Attention", [None if s is None else floats(*s) for s in inputs], attrs, words, opset=OPSET, ranks=False)


@pytest.mark.parametrize(
    "attrs",
    [
        {"scale": -1.0},
        {"scale": 0.0},
        {"softcap": -1.0},
        {"softcap": float("nan")},
        {"qk_matmul_output_mode": 4},
        {"softmax_precision": 7},
    ],
    ids=str,
)
def test_hostile_attributes_are_declined(attrs):
    x = floats(1, 2, 3, 8)
    declined("Attention", [x, x, x], attrs, opset=OPSET)


def test_masks_of_other_types_are_left_to_the_function():  # of which onnxruntime makes smaller nodes
    x = floats(1, 2, 3, 8)
    node = helper.make_node("Attention", ["x", "x", "x", "mask"], ["y"], name="it")
    values = [helper.make_tensor_value_info("x", 1, x.shape), helper.make_tensor_value_info("mask", 6, [3, 3])]
    graph = helper.make_graph([node], "case", values, [helper.make_empty_tensor_value_info("y")])
    sess = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10))
    assert "Attention" not in nodes_on(sess).get(EP_NAME, [])
    y = sess.run(None, {"x": x, "mask": np.zeros((3, 3), np.int32)})[0]
    np.testing.assert_allclose(y, reference(OPSET, [True])(x, x, x)[0], rtol=2e-5, atol=2e-6)


# ---- RotaryEmbedding


def rotary(shape, dtype="float32", turned=0, heads=0, ids=None, interleaved=0, misaligned=False):
    batch, rows = shape[0], shape[1 if heads else 2]
    half = (turned or (shape[2] // heads if heads else shape[3])) // 2
    positions = max(11, rows)
    caches = (positions, half) if ids else (batch, rows, half)
    angles = seeded("angles", caches).uniform(0, 7, caches).astype(np.float32)
    inputs = [floats(*shape), np.cos(angles), np.sin(angles)]
    if ids:
        inputs.append(seeded("ids", shape).integers(0, positions, (batch, rows)))
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": turned, "num_heads": heads}
    attrs = {key: value for key, value in attrs.items() if value}
    name = "_".join([*map(str, attrs), "ids" * bool(ids)])
    return Case(
        "RotaryEmbedding",
        inputs,
        attrs,
        dtype=dtype,
        opset=23,
        name=name,
        misaligned=misaligned,
        family="rotary",
    )


@pytest.mark.parametrize(
    "case",
    [
        rotary(shape, dtype, turned, heads, ids, interleaved)
        for dtype in ("float32", "float16", "bfloat16")
        for interleaved in (0, 1)
        for ids in (False, True)
        for shape, turned, heads in (
            ((2, 3, 5, 64), 0, 0),
            ((2, 3, 5, 64), 32, 0),
            ((2, 5, 96), 0, 3),
            ((1, 2, 3, 10), 6, 0),
            ((2, 7, 30), 4, 3),
            ((1, 1, 1, 2), 0, 0),
        )
    ]
    + [rotary((4, 8, 200, 128)), rotary((4, 200, 1024), "float16", 64, 8, True)]
    + [rotary((2, 3, 5, 64), misaligned=True), rotary((2, 3, 5, 64), "float16", interleaved=1, misaligned=True)]
    + [rotary((0, 3, 5, 64)), rotary((2, 3, 0, 8), ids=True)],
    ids=str,
)
def test_rotary(case):
    if 0 in case.inputs[0].shape:  # which the CPU EP does not take
        case.reference = lambda x, *_: [x]
    check(case)


def test_rotary_special_values():
    x = floats(1, 2, 3, 8)
    x[0, 0, 0] = [np.nan, np.inf, -np.inf, 0, 1, 2, 3, 4]
    angles = floats(5, 4)
    node = Both("RotaryEmbedding", [x, angles, angles, np.zeros((1, 3), np.int64)], opset=23)
    node.agree(x, np.cos(angles), np.sin(angles), np.array([[1, 0, 4]]), rtol=2e-6, atol=1e-6)


def test_rotary_positions_out_of_range_fail():
    x, angles = floats(1, 2, 3, 8), floats(5, 4)
    for bad in (5, -1, 2**62):
        fails("RotaryEmbedding", [x, angles, angles, np.array([[0, bad, 1]])], {}, str(bad), opset=23)


@pytest.mark.parametrize(
    "shapes, attrs, words",
    [
        (((1, 2, 3, 8), (5, 3), (5, 3)), {}, "cos_cache"),
        (((1, 2, 3, 7), (1, 3, 3), (1, 3, 3)), {}, "in pairs"),
        (((1, 2, 3, 8), (1, 3, 5), (1, 3, 5)), {"rotary_embedding_dim": 10}, "in pairs"),
        (((1, 3, 16), (1, 3, 4), (1, 3, 4)), {"num_heads": 3}, "cannot be divided"),
    ],
)
def test_rotary_of_what_does_not_fit_fails(shapes, attrs, words):
    fails("RotaryEmbedding", [floats(*s) for s in shapes], attrs, words, opset=23, ranks=False)


def test_rotary_hostile_attributes_are_declined():
    x, angles = floats(1, 2, 3, 8), floats(1, 3, 4)
    for attrs in ({"rotary_embedding_dim": 3}, {"rotary_embedding_dim": -2}, {"num_heads": -1}):
        declined("RotaryEmbedding", [x, angles, angles], attrs, opset=23)
