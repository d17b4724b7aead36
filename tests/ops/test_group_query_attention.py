"""GroupQueryAttention and com.microsoft's rotary embeddings, against the CPU EP where it takes the node; else against
what is written here."""

import encore_session
import numpy as np
import onnxruntime as ort
import pytest
from encore_session import (
    EAGER,
    HAS_GRAPHS,
    assert_all_on_encore,
    empty_on_device,
    on_device,
    on_virtual_gpu,
    only_if,
    run_options,
)
from harness import Case, Const, _onnx_type, check, floats, seeded, session
from onnx import helper
from refusal import declined, fails

MICROSOFT = "com.microsoft"
# Queries and keys are rounded once more after they are turned, which the references don't do.
TOLERANCE = {"float32": (3e-5, 3e-6), "float16": (4e-3, 3e-3), "bfloat16": (3e-2, 2e-2)}
INPUTS = "query key value past_key past_value seqlens_k total cos sin position_ids bias sinks k_scale v_scale".split()
INPUTS += ["q_weight", "k_weight"]


def turned(x, cos, sin, positions, interleaved):
    """x [batch, head, row, size] at positions [batch, row]."""
    half = cos.shape[1]
    c, s = (table[positions][:, None].astype(np.float64) for table in (cos, sin))
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    a, b = x[..., pairs[0]], x[..., pairs[1]]
    y = x.copy()
    y[..., pairs[0]], y[..., pairs[1]] = a * c - b * s, a * s + b * c
    return y


def attend(q, keys, values, begins, ends, attrs, bias=None, sinks=None):
    """q's rows [batch, head, row, size] are at begins[batch] and after it; keys end at `ends`."""
    heads, rows, size = q.shape[1:]
    group = heads // keys.shape[1]
    scores = q @ np.repeat(keys, group, 1).transpose(0, 1, 3, 2) * (attrs.get("scale", 0) or 1 / np.sqrt(size))
    if softcap := attrs.get("softcap", 0):
        scores = softcap * np.tanh(scores / softcap)
    at = (np.asarray(begins)[:, None] + np.arange(rows))[:, None, :, None]
    key = np.arange(keys.shape[2])
    seen = np.broadcast_to(key < np.asarray(ends)[:, None, None, None], scores.shape).copy()
    if attrs.get("causal", 1):
        seen &= key <= at
    if (window := attrs.get("local_window_size", -1)) > 0:
        seen &= key > at - window
    if bias is not None:
        seen[..., bias.shape[-1] :] = False
        columns = min(bias.shape[-1], keys.shape[2])
        scores[..., :columns] += bias[..., :columns]
    scores = np.where(seen, scores, -np.inf)
    if sinks is None and attrs.get("smooth_softmax", 0) == 1:
        sinks = np.zeros(heads)
    sink = np.full(heads, -np.inf) if sinks is None else sinks
    sink = np.broadcast_to(sink[None, :, None, None], (*scores.shape[:3], 1))
    top = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), sink)
    top = np.where(np.isneginf(top), 0, top)
    powers = np.exp(scores - top)
    total = powers.sum(-1, keepdims=True) + np.exp(sink - top)
    y = powers / np.where(total == 0, 1, total) @ np.repeat(values, group, 1)
    return y.transpose(0, 2, 1, 3).reshape(len(q), rows, -1)


def reference(wanted=3, **attrs):
    heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]

    def run(*inputs):
        given = dict.fromkeys(INPUTS) | dict(zip(INPUTS, inputs))
        wide = {n: x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for n, x in given.items()}
        query, bias, last = wide["query"], wide["bias"], wide["seqlens_k"].astype(int)
        (batch, rows), total = query.shape[:2], int(wide["total"].reshape(()))
        size = query.shape[2] // (heads if given["key"] is not None else heads + 2 * kv_heads)
        if given["key"] is None:
            q, k, v = np.split(query, [heads * size, (heads + kv_heads) * size], 2)
        else:
            q, k, v = query, wide["key"], wide["value"]
        q, k, v = (x.reshape(batch, rows, -1, size).transpose(0, 2, 1, 3) for x in (q, k, v))
        if given["q_weight"] is not None:
            epsilon = attrs.get("qk_norm_epsilon", 1e-6)
            q, k = (
                x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * wide[w]
                for x, w in ((q, "q_weight"), (k, "k_weight"))
            )
        prompt = rows > 1 and rows == total
        begins = np.zeros(batch, int) if prompt else last + 1 - rows
        if attrs.get("do_rotary", 0):
            positions = begins[:, None] + np.arange(rows) if given["position_ids"] is None else given["position_ids"]
            q, k = (turned(x, wide["cos"], wide["sin"], positions, attrs.get("rotary_interleaved", 0)) for x in (q, k))
        past_rows = 0 if given["past_key"] is None else given["past_key"].shape[2]
        present = [np.zeros((batch, kv_heads, max(total, past_rows), size)) for _ in range(2)]
        for to, past, new in zip(present, (wide["past_key"], wide["past_value"]), (k, v)):
            for b, begin in enumerate(begins):
                if begin and past is not None:
                    to[b, :, :begin] = past[b, :, :begin]
                to[b, :, begin : begin + rows] = new[b]
        return [attend(q, *present, begins, last + 1, attrs, bias, wide["sinks"]), *present][:wanted]

    return run


def tables(positions, half):
    angles = np.arange(positions)[:, None] / 100.0 ** (np.arange(half) / max(half, 1))
    return [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]


def gqa(
    last,
    rows=1,
    heads=4,
    kv_heads=2,
    size=64,
    room=None,
    dtype="float32",
    packed=False,
    rotary=None,
    ids=False,
    bias=None,
    sinks=False,
    weights=False,
    on_cpu=False,
    misaligned=False,
    name="",
    wanted=3,
    **attrs,
):
    """`last`: seqlens_k of each batch; `room`: of the past, else as many keys as it has, or none; `rotary`: pairs."""
    batch, total = len(last), np.max(last) + 1
    widths = [(heads + 2 * kv_heads) * size] if packed else [heads * size, kv_heads * size, kv_heads * size]
    inputs = dict.fromkeys(INPUTS)
    for n, width in zip(INPUTS, widths):
        inputs[n] = floats(batch, rows, width, low=-1, high=1)
    past = total - rows if room is None else room
    if past:
        inputs["past_key"], inputs["past_value"] = (floats(batch, kv_heads, past, size, low=-1, high=1) for _ in "kv")
    inputs["seqlens_k"] = np.array(last, np.int32)
    inputs["total"] = Const(np.array(total, np.int32))
    attrs = {"num_heads": heads, "kv_num_heads": kv_heads, **attrs}
    if rotary is not None:
        attrs["do_rotary"] = 1
        inputs["cos"], inputs["sin"] = tables(total + 5, rotary)
    if ids:
        inputs["position_ids"] = seeded("ids", batch, rows).integers(0, total + 5, (batch, rows))
    if bias:
        inputs["bias"] = floats(*bias, rows, total, low=-1, high=1)
    if sinks:
        inputs["sinks"] = floats(heads, low=-1, high=1)
    if weights:
        inputs["q_weight"], inputs["k_weight"] = floats(size, low=0.5, high=1.5), floats(size, low=0.5, high=1.5)
    inputs = list(inputs.values())
    while inputs[-1] is None:
        inputs.pop()
    what = ["packed"] * packed + ["past"] * bool(past) + [f"rotary{rotary}"] * (rotary is not None) + ["ids"] * ids
    what += ["bias"] * bool(bias) + ["sinks"] * sinks + ["norm"] * weights + ["cpu"] * on_cpu
    what += [f"{n[0]}{n.split('_')[-1]}{v}" for n, v in attrs.items()]
    return Case(
        "GroupQueryAttention",
        inputs,
        attrs,
        dtype=dtype,
        outputs=wanted,
        domain=MICROSOFT,
        name=name or "_".join([*map(str, last), *what]),
        tolerance=TOLERANCE[dtype],
        reference=None if on_cpu else reference(wanted, **attrs),
        misaligned=misaligned,
    )


HALVES = ["float16", "bfloat16"]
TYPES = ["float32", *HALVES]


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
    ],
    ids=str,
)
def test_shapes(case):
    check(case)


class Decoder:
    """A node whose past and present are the same memory."""

    def __init__(self, batch, heads, kv_heads, size, room, dtype, graph=True, rows=1, **attrs):
        self.attrs = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, **attrs}
        self.shape, self.dtype = (batch, kv_heads, room, size), np.dtype(dtype)
        cos, sin = (t.astype(dtype) for t in tables(room, size // 2))
        packed = (batch, rows, (heads + 2 * kv_heads) * size)
        forms = {"query": (packed, dtype), "past_key": (self.shape, dtype), "past_value": (self.shape, dtype)}
        forms |= {"seqlens_k": ((batch,), "int32"), "total": ((1,), "int32")}
        forms |= {"cos": (cos.shape, dtype), "sin": (sin.shape, dtype)}
        names = [n if n in forms else "" for n in INPUTS[:9]]
        outputs = {"y": (batch, rows, heads * size), "present_key": self.shape, "present_value": self.shape}
        node = helper.make_node("GroupQueryAttention", names, list(outputs), "it", domain=MICROSOFT, **self.attrs)
        declared = {n: ["batch", "rows", s[2]] if n == "query" else s for n, (s, _) in forms.items()}
        values = [helper.make_tensor_value_info(n, _onnx_type(np.dtype(t)), declared[n]) for n, (_, t) in forms.items()]
        results = [helper.make_empty_tensor_value_info(n) for n in outputs]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        graph = helper.make_graph([node], "decoder", values, results)
        options = {"enable_cuda_graph": 1, "min_num_runs_before_cuda_graph_capture": 1} if graph and HAS_GRAPHS else {}
        self.session = session(helper.make_model(graph, opset_imports=opsets, ir_version=10), **options)
        assert_all_on_encore(self.session)

        self.feeds = {n: np.zeros(s, t) for n, (s, t) in forms.items()} | {"cos": cos, "sin": sin}
        for n in ("past_key", "past_value"):
            self.feeds[n] = floats(*self.shape, low=-1, high=1).astype(dtype)
        self.binding = self.session.io_binding()
        self.total = ort.OrtValue.ortvalue_from_numpy(self.feeds["total"])
        self.inputs = {n: on_device(x) for n, x in self.feeds.items() if n != "total"} | {"total": self.total}
        for n, value in self.inputs.items():
            self.binding.bind_ortvalue_input(n, value)
        self.take_rows(rows)
        for kind in ("key", "value"):
            self.binding.bind_ortvalue_output(f"present_{kind}", self.inputs[f"past_{kind}"])

    def take_rows(self, rows):
        batch, _, width = self.feeds["query"].shape
        self.feeds["query"] = np.zeros((batch, rows, width), self.dtype)
        self.inputs["query"] = on_device(self.feeds["query"])
        self.binding.bind_ortvalue_input("query", self.inputs["query"])
        self.y = empty_on_device((batch, rows, self.attrs["num_heads"] * self.shape[3]), self.dtype)
        self.binding.bind_ortvalue_output("y", self.y)

    def step(self, last, graph=None):
        """y, and what the cache is then; and the same by the reference."""
        shape = self.feeds["query"].shape
        self.feeds["query"] = floats(*shape, low=-1, high=1).astype(self.dtype)
        self.feeds["seqlens_k"] = np.array(last, np.int32)
        self.feeds["total"] = np.array([min(max(last) + 1, self.shape[2])], np.int32)
        for n in ("query", "seqlens_k", "total"):
            self.inputs[n].update_inplace(self.feeds[n])
        self.session.run_with_iobinding(self.binding, run_options(graph))
        return [x.numpy() for x in (self.y, self.inputs["past_key"], self.inputs["past_value"])]

    def wanted(self):
        y, keys, values = reference(**self.attrs)(*[self.feeds.get(n) for n in INPUTS])
        # The rest of the shared memory stays as it was.
        for kind, now in (("past_key", keys), ("past_value", values)):
            kept = self.feeds[kind].copy()
            for b, last in enumerate(self.feeds["seqlens_k"]):
                kept[b, :, : last + 1] = now[b, :, : last + 1]
            self.feeds[kind] = kept
        return y, self.feeds["past_key"], self.feeds["past_value"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("attrs", [{}, {"local_window_size": 9}], ids=["all", "window"])
def test_one_graph_serves_every_length(dtype, attrs):
    decoder = Decoder(2, 8, 2, 64, 300, dtype, **attrs)
    for step in range(64):
        close(decoder, decoder.step([3 + step, 4 * step]))


def close(decoder, got):
    rtol, atol = TOLERANCE[str(decoder.dtype)]
    for g, w in zip(got, decoder.wanted()):
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=rtol, atol=atol)


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


@only_if(on_virtual_gpu())
@pytest.mark.parametrize("rows", [1, 4])
def test_decoding_takes_three_launches(rows):
    decoder = Decoder(1, 8, 2, 64, 4096, "float16", graph=False, rows=rows)
    decoder.step([700])
    kernels = encore_session.trace(decoder.session, lambda: decoder.step([701]))
    names = [k["name"] for k in kernels if k["what"] == "kernel"]
    assert len(names) == 3 and all(n in name for n, name in zip(("AddPackedRows", "AttendGroup", "Combine"), names)), (
        names
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("last", [[-1, 5], [5, 40], [-(1 << 31), (1 << 31) - 1]], ids=str)
def test_lengths_beyond_the_cache_are_reported(last, dtype):
    decoder = Decoder(2, 4, 2, 64, 40, dtype, graph=False)
    before = [decoder.inputs[n].numpy().copy() for n in ("past_key", "past_value")]
    with pytest.raises(Exception, match="not allowed|is outside") as caught:
        decoder.step(last)
    assert "'it'" in str(caught.value)
    for kind, kept in zip(("past_key", "past_value"), before):
        now = decoder.inputs[kind].numpy()
        for b, one in enumerate(last):
            changed = np.unique(np.nonzero(now[b] != kept[b])[1])
            assert list(changed) in ([], [one]), f"rows {changed} changed"


def test_what_is_not_supported_is_declined():
    inputs = [getattr(x, "value", x) for x in gqa((6,), 7).inputs]
    for attrs in (
        {"sliding_window_cache": 1, "local_window_size": 4},
        {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"},
        {"num_heads": 3},
        {"num_heads": 0},
        {"num_heads": 1 << 60, "kv_num_heads": 1},
        {"causal": 0, "local_window_size": 4},
        {"do_rotary": 1},
    ):
        declined(
            "GroupQueryAttention",
            inputs,
            {"num_heads": 4, "kv_num_heads": 2, **attrs},
            outputs=3,
            domain=MICROSOFT,
        )


@pytest.mark.parametrize(
    "change,words",
    [
        ({"query": (1, 7, 255)}, "cannot be divided"),
        ({"key": (1, 6, 128)}, "must be"),
        ({"value": (1, 7, 64)}, "must be"),
        ({"past_key": (1, 2, 3, 32), "past_value": (1, 2, 3, 64)}, "past_key"),
        ({"past_key": (2, 2, 3, 64), "past_value": (2, 2, 3, 64)}, "past_key"),
        ({"seqlens_k": np.array([6, 6], np.int32)}, "seqlens_k"),
        ({"total": np.array(8, np.int32)}, "the past has 0 keys"),
        ({"total": np.array(5, np.int32)}, "total_sequence_length is 5"),
        ({"total": np.array(-5, np.int32)}, "total_sequence_length is -5"),
        ({"cos": (9, 33), "sin": (9, 33)}, "cos_cache"),
        ({"cos": (6, 32), "sin": (6, 32)}, "fewer positions"),
        ({"position_ids": np.zeros((1, 6), np.int64)}, "position_ids"),
        ({"bias": (1, 3, 7, 7)}, "attention_bias"),
        ({"bias": (1, 1, 7, 6)}, "attention_bias"),
        ({"sinks": (3,)}, "head_sink"),
        ({"q_weight": (3,), "k_weight": (64,)}, "q_norm_weight"),
    ],
    ids=lambda x: "" if isinstance(x, dict) else x,
)
def test_what_does_not_fit_fails(change, words):
    case = gqa((6,), 7, rotary=32)
    inputs = dict.fromkeys(INPUTS) | dict(zip(INPUTS, case.inputs))
    inputs["total"] = inputs["total"].value
    inputs |= {n: floats(*x) if isinstance(x, tuple) else x for n, x in change.items()}
    fails("GroupQueryAttention", list(inputs.values()), case.attrs, words, outputs=3, ranks=False, domain=MICROSOFT)


# ---- Rotary embeddings

# Products that cancel: an error of the inputs' magnitude, at most 3.
ROTARY = {"float32": (2e-6, 1e-6), "float16": (1e-3, 2e-3), "bfloat16": (8e-3, 1.6e-2)}


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
        tolerance=ROTARY[dtype],
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
        ("RotaryEmbedding", ((1, 2, 3, 8), (1, 3), (9, 3), (9, 3)), {}, "to be turned"),
        ("RotaryEmbedding", ((1, 2, 3, 8), (1, 3), (9, 4), (8, 4)), {}, "one shape"),
        ("RotaryEmbedding", ((1, 2, 3, 8), (1, 2), (9, 4), (9, 4)), {}, "position_ids has shape"),
        ("MRotaryEmbedding", ((1, 2, 3, 8), (1, 3), (9, 4), (9, 4)), {"mrope_section": [2, 1, 1]}, "position_ids"),
        ("MRotaryEmbedding", ((1, 2, 3, 8), (3, 1, 3), (9, 4), (9, 4)), {"mrope_section": [2, 1, 2]}, "add up to 5"),
    ],
)
def test_rotary_that_does_not_fit_fails(op, inputs, attrs, words):
    arrays = [np.zeros(s, np.int64) if i == 1 else floats(*s) for i, s in enumerate(inputs)]
    fails(op, arrays, attrs, words, ranks=False, domain=MICROSOFT)


@pytest.mark.parametrize("attrs", [{}, {"mrope_section": [1, 2]}, {"mrope_section": [-1, 3, 2]}], ids=str)
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
