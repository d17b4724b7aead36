"""GroupQueryAttention over a quantized cache, against the CPU EP where it takes the node; else against double."""

import ml_dtypes
import numpy as np
import pytest
from encore_session import assert_all_on_encore
from group_query import INPUTS, MICROSOFT, attend, tables, turned
from harness import Case, Const, check, floats, seeded, session
from onnx import TensorProto, helper
from refusal import declined, fails
from tolerance import tolerance

pytestmark = pytest.mark.newest
KINDS = {"int8": (8, -128, 127), "uint8": (4, -8, 7), "float8e4m3fn": (8, -448, 448)}


def decode(codes, kind, size):
    if kind != "uint8":
        return codes.astype(np.float64)
    pairs = np.stack([codes & 15, codes >> 4], -1).astype(np.float64) - 8
    return pairs.reshape(*codes.shape[:-1], -1)[..., :size]


def encode(x, kind):
    _, low, high = KINDS[kind]
    x = np.clip(x, low, high)
    if kind == "float8e4m3fn":
        return x.astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    whole = np.rint(x).astype(int)
    if kind == "int8":
        return whole.astype(np.int8)
    nibbles = whole + 8
    if nibbles.shape[-1] % 2:
        nibbles = np.concatenate([nibbles, np.zeros((*nibbles.shape[:-1], 1), int)], -1)
    return (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).astype(np.uint8)


def reference(kind, rows, size, **attrs):
    heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]

    def run(*inputs):
        given = dict.fromkeys(INPUTS) | dict(zip(INPUTS, inputs))
        query, last = given["query"].astype(np.float64), given["seqlens_k"].astype(int)
        batch, total = len(query), int(given["total"])
        q, k, v = np.split(query, [heads * size, (heads + kv_heads) * size], 2)
        q, k, v = (x.reshape(batch, rows, -1, size).transpose(0, 2, 1, 3) for x in (q, k, v))
        begins = np.zeros(batch, int) if rows > 1 and rows == total else last + 1 - rows
        if given["cos"] is not None:
            positions = begins[:, None] + np.arange(rows)
            q, k = (turned(x, given["cos"], given["sin"], positions, 0) for x in (q, k))
        past, present, scales = [], [], [given["k_scale"], given["v_scale"]]
        for cache, new, scale in zip((given["past_key"], given["past_value"]), (k, v), scales):
            now = np.zeros((batch, kv_heads, max(total, cache.shape[2]), cache.shape[3]), cache.dtype)
            wide = np.broadcast_to(
                scale.astype(np.float64).reshape(scale.shape if scale.size > 1 else ()), (1, kv_heads, 1, size)
            )
            for b, begin in enumerate(begins):
                now[b, :, :begin] = cache[b, :, :begin]
                now[b, :, begin : begin + rows] = encode(new[b] / wide[0], kind)
            present.append(now)
            past.append(decode(now, kind, size) * wide)
        return [attend(q, *past, begins, last + 1, attrs), *present]

    return run


def coded(
    last,
    rows=1,
    kind="int8",
    channels=True,
    heads=4,
    kv_heads=2,
    size=64,
    room=None,
    dtype="float32",
    rotary=None,
    on_cpu=True,
    **attrs,
):
    batch, total = len(last), np.max(last) + 1
    inputs = dict.fromkeys(INPUTS[:14])
    inputs["query"] = floats(batch, rows, (heads + 2 * kv_heads) * size, low=-1, high=1)
    bits, low, high = KINDS[kind]
    shape = (batch, kv_heads, total - rows if room is None else room, size)
    draw = seeded("codes", shape, kind)
    for n in ("past_key", "past_value"):
        inputs[n] = encode(draw.uniform(low, high, shape), kind)
    inputs["seqlens_k"] = np.array(last, np.int32)
    inputs["total"] = Const(np.array(total, np.int32))
    for n in ("k_scale", "v_scale"):
        scale = draw.uniform(0.5, 1.2, (1, kv_heads, 1, size) if channels else (1,)) / high
        inputs[n] = Const(scale.astype(np.float32), fixed=True)
    if rotary:
        inputs["cos"], inputs["sin"] = tables(total + 5, rotary)
    how = "PER_CHANNEL" if channels else "PER_TENSOR"
    attrs = {"num_heads": heads, "kv_num_heads": kv_heads, "k_quant_type": how, "v_quant_type": how, **attrs}
    attrs |= {"kv_cache_bit_width": bits} | ({"do_rotary": 1} if rotary else {})
    name = [*last, rows, kind, how, dtype, size] + ["turned"] * bool(rotary) + ["room"] * bool(room)
    known = "num_heads", "kv_num_heads", "local_window_size", "softcap", "causal"
    own = {n: v for n, v in attrs.items() if n in known}
    return Case(
        "GroupQueryAttention",
        list(inputs.values()),
        attrs,
        dtype=dtype,
        outputs=3,
        domain=MICROSOFT,
        name="_".join(map(str, name)),
        family="cached",
        reference=None if on_cpu else reference(kind, rows, size, **own),
    )


@pytest.mark.parametrize("channels", [False, True], ids=["tensor", "channels"])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("last, rows", [((6,), 7), ((40,), 1), ((40,), 3), ((300,), 60)], ids=str)
def test_against_the_cpu(last, rows, kind, channels, dtype):
    check(coded(last, rows, kind, channels, dtype=dtype))


@pytest.mark.parametrize(
    "case",
    [
        coded((6,), 7, "int8", rotary=16),
        coded((6, 30), 1, "uint8", room=50, heads=8, kv_heads=1, local_window_size=5, softcap=0.9),
        coded((6, 6), 7, "int8", channels=False, room=20),
        coded((1200,), kind="int8", heads=16, size=128),
        coded((1200,), 2, kind="uint8", heads=16, size=256, dtype="float16"),
        coded((900, 40), room=1000, kind="int8", size=80, heads=8, kv_heads=4, dtype="float16"),
        coded((9,), 3, "uint8", size=7, on_cpu=False),
        coded((9,), 1, "int8", size=5, dtype="float16", on_cpu=False),
    ],
    ids=str,
)
def test_shapes(case):
    check(case)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("last, rows, room", [((6,), 7, 7), ((40,), 5, 60), ((40, 21), 3, 60)], ids=str)
def test_both_directions(last, rows, room, kind):
    """onnxruntime's CUDA provider does not have it; what `causal` 0 means is no other over codes, so Encore does."""
    check(coded(last, rows, kind, room=room, causal=0, on_cpu=False))
    if len(last) == 1:
        check(coded(last, rows, kind, room=room, causal=0))


def run_in(case, dtype, kind):
    """Of types that numpy lacks: the model casts at both ends."""
    narrow = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float32": TensorProto.FLOAT}[dtype]
    cache = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "float8e4m3fn": TensorProto.FLOAT8E4M3FN}[kind]
    nodes, names, feeds, values = [], [], {}, []
    for name, given in zip(INPUTS, case.inputs):
        names.append(name if given is not None else "")
        if given is None:
            continue
        array = np.asarray(getattr(given, "value", given))
        to = cache if name.startswith("past") else narrow if name in ("query", "cos", "sin") else None
        feeds[name] = array.astype(np.float32) if to else array
        values.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(feeds[name].dtype), None))
        if to:
            nodes.append(helper.make_node("Cast", [name], [f"{name}_as"], to=to))
            names[-1] = f"{name}_as"
    outputs = ["y", "present_key", "present_value"]
    nodes.append(helper.make_node("GroupQueryAttention", names, outputs, "it", domain=MICROSOFT, **case.attrs))
    nodes += [helper.make_node("Cast", [n], [f"{n}_wide"], to=TensorProto.FLOAT) for n in outputs]
    results = [helper.make_tensor_value_info(f"{n}_wide", TensorProto.FLOAT, None) for n in outputs]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    graph = helper.make_graph(nodes, "codes", values, results)
    ours = session(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    assert_all_on_encore(ours)
    return ours.run(None, feeds)


@pytest.mark.parametrize("last, rows", [((40,), 1), ((6, 6), 7), ((60,), 30)], ids=str)
@pytest.mark.parametrize(
    "kind, dtype",
    [(kind, "bfloat16") for kind in KINDS] + [("float8e4m3fn", dtype) for dtype in ("float16", "float32")],
)
def test_narrow_types(last, rows, kind, dtype):
    case = coded(last, rows, kind, size=64)
    narrow = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    case.inputs[0] = case.inputs[0].astype(narrow).astype(np.float32)
    got = run_in(case, dtype, kind)
    arrays = [getattr(x, "value", x) for x in case.inputs]
    heads = {n: case.attrs[n] for n in ("num_heads", "kv_num_heads")}
    wanted = reference(kind, rows, 64, **heads)(*arrays)
    rtol, atol = tolerance("cached", dtype)
    np.testing.assert_allclose(got[0], wanted[0], rtol=rtol, atol=atol)
    for g, w in zip(got[1:], wanted[1:]):
        np.testing.assert_array_equal(g, w.astype(np.float32))


@pytest.mark.parametrize("last, rows", [((40,), 1), ((6, 6), 7)], ids=str)
def test_float8_needs_no_width(last, rows):
    case = coded(last, rows, "float8e4m3fn", size=64)
    named = run_in(case, "float16", "float8e4m3fn")
    for unnamed in ({"kv_cache_bit_width": 0}, {}):
        del case.attrs["kv_cache_bit_width"]
        case.attrs |= unnamed
        for got, wanted in zip(run_in(case, "float16", "float8e4m3fn"), named):
            np.testing.assert_array_equal(got, wanted)


def arrays_of(case):
    return [getattr(x, "value", x) for x in case.inputs]


@pytest.mark.parametrize("scale", [0.0, np.nan, np.inf, 1e-38, -1.0])
def test_any_scale_is_taken(scale):
    case = coded((9,), 4, "int8", channels=False)
    case.inputs[12] = case.inputs[13] = Const(np.array([scale], np.float32), fixed=True)
    names = ["y", "present_key", "present_value"]
    got = run_in(case, "float16", "int8")
    assert all(g.shape for g in got) and len(names) == len(got)


@pytest.mark.parametrize(
    "change",
    [
        {"k_quant_type": "PER_ROW"},
        {"k_quant_type": "NONE"},
        {"kv_cache_bit_width": 4},
        {"kv_cache_bit_width": 0},
        {"k_quant_type": "NONE", "v_quant_type": "NONE"},
    ],
    ids=str,
)
def test_what_is_not_supported_is_declined(change):
    case = coded((9,), 4, "int8")
    declined("GroupQueryAttention", arrays_of(case), case.attrs | change, outputs=3, domain=MICROSOFT)


@pytest.mark.parametrize(
    "place, shape, words",
    [
        (12, (1, 2, 1, 63), "k_scale has shape"),
        (13, (1,), "v_scale has shape"),
        (3, (1, 2, 6, 32), "past_key"),
        (4, (1, 2, 5, 64), "past_key"),
    ],
)
def test_what_does_not_fit_fails(place, shape, words):
    case = coded((9,), 4, "int8")
    inputs = arrays_of(case)
    inputs[place] = np.ones(shape, inputs[place].dtype)
    fails("GroupQueryAttention", inputs, case.attrs, words, outputs=3, ranks=False, domain=MICROSOFT)
