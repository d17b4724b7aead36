"""GroupQueryAttention's cases, what it means in double, and a node that decodes."""

import numpy as np
import onnxruntime as ort
from encore_session import HAS_GRAPHS, assert_all_on_encore, empty_on_device, on_device, run_options
from harness import Case, Const, _onnx_type, floats, seeded, session
from onnx import helper
from tolerance import tolerance

MICROSOFT = "com.microsoft"
INPUTS = "query key value past_key past_value seqlens_k total cos sin position_ids bias sinks k_scale v_scale".split()
INPUTS += ["q_weight", "k_weight"]


def in_order(names, inputs):
    """Those by name as a node has them: no slots behind the last that is there."""
    listed = [inputs.get(n) for n in names]
    while listed[-1] is None:
        listed.pop()
    return listed


def in_double(names, inputs):
    """What a node is given, by name."""
    given = dict.fromkeys(names) | dict(zip(names, inputs))
    return {n: x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for n, x in given.items()}


def heads_of(x, heads, kv_heads):
    """Queries, keys and values [batch, head, row, size] of x by name, where query may have all of them."""
    query = x["query"]
    size = query.shape[2] // (heads if x["key"] is not None else heads + 2 * kv_heads)
    if x["key"] is None:
        rows = np.split(query, [heads * size, (heads + kv_heads) * size], 2)
    else:
        rows = query, x["key"], x["value"]
    shapes = [(*y.shape[:2], n, size) for y, n in zip(rows, (heads, kv_heads, kv_heads))]
    return [y.reshape(shape).transpose(0, 2, 1, 3) for y, shape in zip(rows, shapes)]


def normed(q, k, x, attrs):
    if x["q_weight"] is None:
        return q, k

    def one(y, name):
        epsilon = attrs.get(f"{name}_norm_epsilon", attrs.get("qk_norm_epsilon", 1e-6))
        return y / np.sqrt((y * y).mean(-1, keepdims=True) + epsilon) * x[f"{name}_weight"]

    return [one(q, "q"), one(k, "k")]


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
        x = in_double(INPUTS, inputs)
        last, total = x["seqlens_k"].astype(int), int(x["total"].reshape(()))
        q, k, v = heads_of(x, heads, kv_heads)
        batch, _, rows, size = q.shape
        q, k = normed(q, k, x, attrs)
        prompt = rows > 1 and rows == total
        begins = np.zeros(batch, int) if prompt else last + 1 - rows
        if attrs.get("do_rotary", 0):
            positions = begins[:, None] + np.arange(rows) if x["position_ids"] is None else x["position_ids"]
            angles = x["cos"], x["sin"], positions, attrs.get("rotary_interleaved", 0)
            q, k = (turned(y, *angles) if y.shape[2] else y for y in (q, k))
        past_rows = 0 if x["past_key"] is None else x["past_key"].shape[2]
        present = [np.zeros((batch, kv_heads, max(total, past_rows), size)) for _ in range(2)]
        for to, past, new in zip(present, (x["past_key"], x["past_value"]), (k, v)):
            for b, begin in enumerate(begins):
                there = begin if new.shape[2] else last[b] + 1  # a past that other layers share has the new rows, too
                if there and past is not None:
                    to[b, :, :there] = past[b, :, :there]
                if new.shape[2]:
                    to[b, :, begin : begin + rows] = new[b]
        return [attend(q, *present, begins, last + 1, attrs, x["bias"], x["sinks"]), *present][:wanted]

    return run


def tables(positions, half):
    angles = np.arange(positions)[:, None] / 100.0 ** (np.arange(half) / max(half, 1))
    return [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]


def grouped(last, rows, heads, kv_heads, size, past=0, packed=False, rotary=None, sinks=False, weights=False):
    """Inputs by name; `last`: seqlens_k of each batch; `past`: so many rows; `rotary`: pairs."""
    batch, total = len(last), np.max(last) + 1
    widths = [(heads + 2 * kv_heads) * size] if packed else [heads * size, kv_heads * size, kv_heads * size]
    inputs = {n: floats(batch, rows, width, low=-1, high=1) for n, width in zip(INPUTS, widths)}
    if past:
        inputs |= {n: floats(batch, kv_heads, past, size, low=-1, high=1) for n in ("past_key", "past_value")}
    inputs |= {"seqlens_k": np.array(last, np.int32), "total": Const(np.array([total], np.int32))}
    if rotary is not None:
        inputs["cos"], inputs["sin"] = tables(total + 5, rotary)
    if sinks:
        inputs["sinks"] = floats(heads, low=-1, high=1)
    if weights:
        inputs |= {n: floats(size, low=0.5, high=1.5) for n in ("q_weight", "k_weight")}
    return inputs


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
    filled=False,
    name="",
    wanted=3,
    **attrs,
):
    """`last`: seqlens_k of each batch; `room`: of the past, else as many keys as it has, or none; `rotary`: pairs;
    `filled`: the past has all keys, as where layers share it."""
    batch, total = len(last), np.max(last) + 1
    past = (total if filled else total - rows) if room is None else room
    inputs = grouped(last, rows, heads, kv_heads, size, past, packed, rotary, sinks, weights)
    if filled:
        inputs |= {n: np.zeros((batch, 0, kv_heads * size), np.float32) for n in ("key", "value")}
    attrs = {"num_heads": heads, "kv_num_heads": kv_heads, **attrs}
    if rotary is not None:
        attrs["do_rotary"] = 1
    if ids:
        inputs["position_ids"] = seeded("ids", batch, rows).integers(0, total + 5, (batch, rows))
    if bias:
        inputs["bias"] = floats(*bias, rows, total, low=-1, high=1)
    what = (
        ["packed"] * packed
        + ["past"] * bool(past)
        + ["filled"] * filled
        + [f"rotary{rotary}"] * (rotary is not None)
        + ["ids"] * ids
    )
    what += ["bias"] * bool(bias) + ["sinks"] * sinks + ["norm"] * weights + ["cpu"] * on_cpu
    what += [f"{n[0]}{n.split('_')[-1]}{v}" for n, v in attrs.items()]
    return Case(
        "GroupQueryAttention",
        in_order(INPUTS, inputs),
        attrs,
        dtype=dtype,
        outputs=wanted,
        domain=MICROSOFT,
        name=name or "_".join([*map(str, last), *what]),
        family="cached",
        reference=None if on_cpu else reference(wanted, **attrs),
        misaligned=misaligned,
    )


HALVES = ["float16", "bfloat16"]
TYPES = ["float32", *HALVES]


class Decoder:
    """A node whose past and present are the same memory."""

    def __init__(self, batch, heads, kv_heads, size, room, dtype, graph=True, rows=1, bias=False, **attrs):
        self.attrs = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, **attrs}
        self.shape, self.dtype = (batch, kv_heads, room, size), np.dtype(dtype)
        cos, sin = (t.astype(dtype) for t in tables(room, size // 2))
        packed = (batch, rows, (heads + 2 * kv_heads) * size)
        forms = {"query": (packed, dtype), "past_key": (self.shape, dtype), "past_value": (self.shape, dtype)}
        forms |= {"seqlens_k": ((batch,), "int32"), "total": ((1,), "int32")}
        forms |= {"cos": (cos.shape, dtype), "sin": (sin.shape, dtype)}
        if bias:
            forms["bias"] = ((1, heads, rows, room), dtype)  # for steps that fill the room
        names = [n if n in forms else "" for n in INPUTS[: 11 if bias else 9]]
        outputs = {"y": (batch, rows, heads * size), "present_key": self.shape, "present_value": self.shape}
        if attrs.get("qk_output"):
            outputs["qk"] = (batch, heads, rows, room)  # for steps that fill the room
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
        if bias:
            self.feeds["bias"] = floats(*forms["bias"][0], low=-1, high=1).astype(dtype)
        self.binding = self.session.io_binding()
        self.total = ort.OrtValue.ortvalue_from_numpy(self.feeds["total"])
        self.inputs = {n: on_device(x) for n, x in self.feeds.items() if n != "total"} | {"total": self.total}
        for n, value in self.inputs.items():
            self.binding.bind_ortvalue_input(n, value)
        self.take_rows(rows)
        for kind in ("key", "value"):
            self.binding.bind_ortvalue_output(f"present_{kind}", self.inputs[f"past_{kind}"])
        if "qk" in outputs:
            self.binding.bind_ortvalue_output("qk", empty_on_device(outputs["qk"], self.dtype))

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


def close(decoder, got):
    """Of a cache what is no number may have become zero: cuDNN cannot have it behind the last key."""
    rtol, atol = tolerance("cached", decoder.dtype)
    for i, (g, w) in enumerate(zip(got, decoder.wanted())):
        if i > 0:
            g = np.where(np.isnan(w) & (g == 0), w, g)
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=rtol, atol=atol)
