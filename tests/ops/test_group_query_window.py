"""GroupQueryAttention over a cache that holds no more than a window (`sliding_window_cache`), step by step beside the
CPU EP."""

import numpy as np
import onnxruntime as ort
import pytest
from encore_session import EAGER, HAS_GRAPHS, assert_all_on_encore, empty_on_device, on_cpu, on_device, run_options
from group_query import INPUTS, MICROSOFT, tables
from harness import _onnx_type, floats, session
from onnx import helper
from refusal import declined, fails
from test_group_query_codes import KINDS, decode, encode
from tolerance import tolerance

pytestmark = pytest.mark.newest
POSITIONS = 80


class Window:
    """A model of one node, on both providers. In place: the past and the present are the same memory."""

    def __init__(self, batch, window, room, size=32, dtype="float32", in_place=True, kind=None, **attrs):
        self.attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "sliding_window_cache": 1} | attrs
        self.attrs["local_window_size"] = self.window = window
        self.shape, self.dtype, self.in_place, self.size = (batch, 2, room, size), np.dtype(dtype), in_place, size
        self.kind = kind
        if kind:
            self.attrs |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
            self.attrs["kv_cache_bit_width"] = KINDS[kind][0]
            self.scales = floats(1, 2, 1, size, low=0.9, high=1.4) / KINDS[kind][2]
        self.sinks = floats(self.attrs["num_heads"], low=-1, high=1)
        options = {"enable_cuda_graph": 1, "min_num_runs_before_cuda_graph_capture": 1} if HAS_GRAPHS else {}
        self.session = session(self._model(dtype), **options)
        assert_all_on_encore(self.session)
        # In float16 it rounds more often than we do.
        self.cpu = on_cpu(self._model("float32"))
        self.caches = {f"past_{kind}": floats(*self.shape, low=-1, high=1) for kind in ("key", "value")}
        if kind:
            self.caches = {n: encode(cache / self.scales, kind) for n, cache in self.caches.items()}
            self.shape = self.caches["past_key"].shape
        self.there = {n: on_device(cache.astype(self.cache_type())) for n, cache in self.caches.items()}
        self.bound = {}

    def cache_type(self):
        return np.dtype(self.kind or self.dtype)

    def _model(self, dtype):
        batch, kv_heads, size = *self.shape[:2], self.size
        names = [n if n not in ("key", "value") else "" for n in INPUTS[:9]] + ["", "", "sinks"]
        table = [t.astype(dtype) for t in tables(POSITIONS, size // 2)]
        forms = {"query": [batch, "rows", (self.attrs["num_heads"] + 2 * kv_heads) * size]}
        values = [helper.make_tensor_value_info(n, _onnx_type(np.dtype(dtype)), s) for n, s in forms.items()]
        cache = _onnx_type(np.dtype(self.kind or dtype))
        shape = [*self.shape[:3], size // 2 if self.kind == "uint8" else size]
        values += [helper.make_tensor_value_info(f"past_{n}", cache, shape) for n in ("key", "value")]
        values += [
            helper.make_tensor_value_info("seqlens_k", 6, [batch]),
            helper.make_tensor_value_info("total", 6, []),
        ]
        kept = {"cos": table[0], "sin": table[1], "sinks": self.sinks.astype(dtype)}
        if self.kind:
            names += ["k_scale", "v_scale"]
            kept |= {n: self.scales for n in names[-2:]}
        kept = [helper.make_tensor(n, _onnx_type(x.dtype), x.shape, x.tobytes(), raw=True) for n, x in kept.items()]
        outputs = ["y", "present_key", "present_value"]
        node = helper.make_node("GroupQueryAttention", names, outputs, "it", domain=MICROSOFT, **self.attrs)
        results = [helper.make_empty_tensor_value_info(n) for n in outputs]
        graph = helper.make_graph([node], "window", values, results, kept)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _bind(self, rows):
        batch, kv_heads, _, _ = self.shape
        heads, size = self.attrs["num_heads"], self.size
        feeds = {
            "query": on_device(np.zeros((batch, rows, (heads + 2 * kv_heads) * size), self.dtype)),
            "seqlens_k": on_device(np.zeros(batch, np.int32)),
            "total": ort.OrtValue.ortvalue_from_numpy(np.zeros((), np.int32)),
        }
        binding = self.session.io_binding()
        for n, value in (feeds | self.there).items():
            binding.bind_ortvalue_input(n, value)
        outputs = {"y": empty_on_device((batch, rows, heads * size), self.dtype)}
        for n, past in self.there.items():
            outputs[n] = past if self.in_place else empty_on_device(self.shape, self.cache_type())
            binding.bind_ortvalue_output(n.replace("past", "present"), outputs[n])
        binding.bind_ortvalue_output("y", outputs["y"])
        return binding, feeds, outputs

    def step(self, last, rows, graph=EAGER):
        if rows not in self.bound:
            self.bound[rows] = self._bind(rows)
        binding, feeds, outputs = self.bound[rows]
        given = {
            "query": floats(*feeds["query"].shape(), low=-1, high=1).astype(self.dtype),
            "seqlens_k": np.array(last, np.int32),
            # A graph is captured once, whatever the lengths then become.
            "total": np.array(max(last) + 1 if graph == EAGER else POSITIONS, np.int32),
        }
        for n, value in given.items():
            feeds[n].update_inplace(value)
        self.session.run_with_iobinding(binding, run_options(graph))
        if not self.in_place:
            for n, past in self.there.items():
                past.update_inplace(outputs[n].numpy())
        return given, [outputs[n].numpy() for n in ("y", *self.there)]

    def close(self, last, given, got):
        given["query"] = given["query"].astype(np.float32)
        given["total"] = np.array(max(last) + 1, np.int32)
        wanted = self.cpu.run(None, given | self.caches)
        self.caches = dict(zip(self.caches, wanted[1:]))
        rtol, atol = tolerance("cached", self.dtype)
        np.testing.assert_allclose(got[0].astype(np.float64), wanted[0], rtol=rtol, atol=atol)
        for b, end in enumerate(last):
            there = residents(end + 1, self.window, self.shape[2])
            assert self.in_place or not any(g[b, :, there:].any() for g in got[1:])
            for g, w in zip(got[1:], wanted[1:]):
                g, w = (
                    x[b, :, :there] if not self.kind else decode(x[b, :, :there], self.kind, self.size) for x in (g, w)
                )
                # A code may be the one beside it.
                np.testing.assert_allclose(g.astype(np.float64), w, rtol=rtol, atol=1 if self.kind else atol)


def residents(positions, window, room):
    step = room - window + 1
    return positions if positions <= room else positions - step * -(-(positions - room) // step)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("window, room", [(8, 8), (8, 12), (1, 1), (5, 40)])
def test_a_prompt_and_what_follows(window, room, dtype, in_place):
    """Rows come in prompts, one by one by a captured graph, and a few at a time, also more than there is room for."""
    window = Window(1, window, room, dtype=dtype, in_place=in_place)
    last = -1
    for prompt, answer in ((6, 12), (3, 3), (21, 4), (1, 1)):
        last += prompt
        window.close([last], *window.step([last], prompt))
        for _ in range(answer):
            last += 1
            window.close([last], *window.step([last], 1, graph=1))


@pytest.mark.parametrize(
    "size, attrs", [(64, {"num_heads": 16}), (80, {"softcap": 1.5, "rotary_interleaved": 1})], ids=str
)
def test_batches_of_different_lengths(size, attrs):
    window = Window(3, 7, 9, size, "float32", **attrs)
    for step in range(30):
        last = [step, 6 + step, 40 + step]
        window.close(last, *window.step(last, 1, graph=1))


@pytest.mark.parametrize("kind, size", [("int8", 32), ("uint8", 96)])
def test_codes(kind, size):
    window = Window(1, 7, 10, size, kind=kind)
    last = -1
    for rows in (5, 1, 1, 1, 3, 1, 1, 25, 1, 1, 1, 1):
        last += rows
        window.close([last], *window.step([last], rows, graph=EAGER if rows > 1 else 1))


@pytest.mark.parametrize("last", [-1, -(1 << 31), (1 << 31) - 1])
def test_lengths_that_are_none_are_reported(last):
    window = Window(2, 4, 6)
    before = [cache.numpy() for cache in window.there.values()]
    with pytest.raises(Exception, match="not allowed|is outside"):
        window.step([last, 5], 1, graph=1)
    for old, new in zip(before, (cache.numpy() for cache in window.there.values())):
        kept = (new[1, :, :5] == old[1, :, :5]).all(), (new[0] == old[0]).all()
        assert all(kept) or (last > 0 and kept[0])


def node(window=4, room=6, bias=False, **attrs):
    past = [floats(1, 2, room, 8) for _ in "kv"]
    inputs = [floats(1, 1, 64), None, None, *past, np.array([9], np.int32), np.array(10, np.int32)]
    inputs += [None, None, None, floats(1, 1, 1, 10)] if bias else []
    attrs = {"num_heads": 4, "kv_num_heads": 2, "sliding_window_cache": 1, "local_window_size": window} | attrs
    return "GroupQueryAttention", inputs, attrs


def test_what_does_not_fit():
    declined(*node(window=-1), outputs=3, domain=MICROSOFT)
    declined(*node(bias=True), outputs=3, domain=MICROSOFT)
    fails(*node(window=7), "room for the window of 7", outputs=3, ranks=False, domain=MICROSOFT)
    fails(*node(room=0), "room for the window", outputs=3, ranks=False, domain=MICROSOFT)
