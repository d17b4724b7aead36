"""persistent_decode: a token's products and attention as one kernel, against the kernels that each of them has."""

import encore_session as es
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi
from test_fused_norms import TYPES, agree

CAPACITY = 40  # of the caches
SEEN = np.zeros((1, CAPACITY), np.float32)  # of which only the shape matters
PERSISTENT = "PersistentDecode<"


class Decoder:
    """Layers of norms, attention and gates as a language model has them, for one token; ends are float32.

    With 16 bits weights are as they are, and as large as it takes for one row to have a kernel of its own.
    """

    def __init__(self, dtype="float16", bits=4, **sizes):
        self.kind, self.dtype = TYPES[dtype]
        self.bits = bits
        self.random = np.random.default_rng(0)
        wide = {"width": 1024, "ffn": 1024, "vocabulary": 1024} if bits == 16 else {}
        self.__dict__ |= {"layers": 2, "heads": 4, "kv_heads": 2, "size": 64, "width": 256, "ffn": 512}
        self.__dict__ |= {
            "vocabulary": 384,
            "block": 32,
            "zeros": False,
            "bias": False,
            "attention": {},
            "sinks": False,
        }
        self.__dict__ |= {"shown": (), "reused": {}, "positions": CAPACITY, "rotated": self.size} | wide | sizes
        self.nodes, self.constants = [], []
        self.inputs = {"x": [1, 1, self.width], "last": ([1], TensorProto.INT32), "seen": [1, "keys"]}
        self.outputs = {}

    def uniform(self, low, high, *shape):
        return self.random.uniform(low, high, shape).astype(self.dtype)

    def constant(self, name, array):
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op, inputs, outputs, domain="com.microsoft", **attributes):
        self.nodes.append(helper.make_node(op, inputs, outputs, f"{outputs[0]}'s", domain=domain, **attributes))

    def product(self, x, name, depth, columns, bias=False):
        if self.bits == 16:
            scale = depth**-0.5
            weights = self.constant(f"{name}.weights", self.uniform(-1.5 * scale, 1.5 * scale, depth, columns))
            self.node("MatMul", [x, weights], [f"{name}.product" if bias else name], "")
            if bias:
                by = self.constant(f"{name}.bias", self.uniform(-1, 1, columns))
                self.node("Add", [f"{name}.product", by], [name], "")
            return name
        blocks = -(-depth // self.block)
        bytes_of = lambda *shape: self.random.integers(0, 256, shape, np.uint8)
        inputs = [x, self.constant(f"{name}.codes", bytes_of(columns, blocks, self.block * self.bits // 8))]
        scale = depth**-0.5 / 4
        inputs.append(self.constant(f"{name}.scales", self.uniform(0.5 * scale, 1.5 * scale, columns, blocks)))
        zeros = self.constant(f"{name}.zeros", bytes_of(columns, (blocks * self.bits + 7) // 8)) if self.zeros else ""
        inputs += [zeros, "", self.constant(f"{name}.bias", self.uniform(-1, 1, columns))] if bias else [zeros]
        sizes = {"K": depth, "N": columns, "block_size": self.block, "bits": self.bits}
        self.node("MatMulNBits", inputs, [name], **sizes)
        return name

    def norm(self, x, skip, name):
        gamma = self.constant(f"{name}.gamma", self.uniform(0.5, 1.5, self.width))
        if skip is None:
            self.node("SimplifiedLayerNormalization", [x, gamma], [name], "", epsilon=1e-5)
            return name, x
        self.node("SkipSimplifiedLayerNormalization", [skip, x, gamma], [name, "", "", f"{name}.sum"], epsilon=1e-5)
        return name, f"{name}.sum"

    def attend(self, qkv, i):
        angles = np.outer(np.arange(self.positions), 100.0 ** -np.linspace(0, 1, self.rotated // 2))
        names = []
        for name, table in ("cos", np.cos), ("sin", np.sin):
            if i == 0:
                self.constant(name, table(angles).astype(self.dtype))
            names.append(name)
        caches = []
        for what in "key", "value":
            end = f"past_key_values.{self.reused.get(i, i)}.{what}"
            dims = ([1, self.kv_heads, CAPACITY, self.size], self.kind)
            self.inputs[end] = dims
            self.outputs[end.replace("past_key_values", "present") + ("" if i not in self.reused else ".again")] = dims
            caches.append(end)
        sinks = [self.constant(f"sinks{i}", self.uniform(-1, 1, self.heads))] if self.sinks else []
        inputs = [qkv, "", "", *caches, "last", "total", *names, *(["", "", *sinks] if sinks else [])]
        outputs = [f"{i}.attended", *list(self.outputs)[-2:]]
        how = {"num_heads": self.heads, "kv_num_heads": self.kv_heads, "do_rotary": 1} | self.attention
        self.node("GroupQueryAttention", inputs, outputs, **how)
        return f"{i}.attended"

    def model(self, make_model):
        self.node("Shape", ["seen"], ["lengths"], "", start=1)
        self.node("Cast", ["lengths"], ["total"], "", to=TensorProto.INT32)
        self.node("Cast", ["x"], ["embedded"], "", to=self.kind)
        x, residual = "embedded", None
        for i in range(self.layers):
            rows, residual = self.norm(x, residual, f"{i}.rows")
            qkv = self.product(rows, f"{i}.qkv", self.width, (self.heads + 2 * self.kv_heads) * self.size, self.bias)
            x = self.product(self.attend(qkv, i), f"{i}.out", self.heads * self.size, self.width)
            rows, residual = self.norm(x, residual, f"{i}.more")
            gate, up = (self.product(rows, f"{i}.{name}", self.width, self.ffn) for name in ("gate", "up"))
            self.node("Sigmoid", [gate], [f"{i}.sigmoid"], "")
            self.node("Mul", [gate, f"{i}.sigmoid"], [f"{i}.silu"], "")
            self.node("Mul", [f"{i}.silu", up], [f"{i}.gated"], "")
            x = self.product(f"{i}.gated", f"{i}.down", self.ffn, self.width)
        rows, residual = self.norm(x, residual, "rows")
        self.product(rows, "logits", self.width, self.vocabulary)
        for value in "logits", *self.shown:
            self.outputs[f"{value}.out"] = [1, 1, self.vocabulary if value == "logits" else "width"]
            self.node("Cast", [value], [f"{value}.out"], "", to=TensorProto.FLOAT)
        return make_model(self.nodes, self.inputs, self.outputs, self.constants)


class Steps:
    """A session whose caches stay where they are. What they hold at first is the same for all."""

    def __init__(self, net, model, **options):
        self.net = net
        self.session = es.make_session(model, **options)
        first = {"x": np.zeros((1, 1, net.width), np.float32), "last": np.int32([0]), "seen": SEEN}
        shapes = {item.name: item.shape for item in self.session.get_outputs() if item.name.endswith(".out")}
        forms = {
            name: ((1, 1, net.width if shape[-1] == "width" else shape[-1]), np.float32)
            for name, shape in shapes.items()
        }
        self.bound = es.Bound(self.session, first, forms)
        random = np.random.default_rng(5)
        self.caches = {}
        for item in self.session.get_inputs():
            if item.name.startswith("past"):
                held = random.standard_normal(item.shape).astype(net.dtype)
                cache = ort.OrtValue.ortvalue_from_shape_and_type(item.shape, net.kind, "gpu", 0, es.NVIDIA)
                cache.update_inplace(held if held.dtype == np.float16 else held.view(np.uint16))
                self.caches[item.name] = cache
                self.bound.binding.bind_ortvalue_input(item.name, cache)
        for item in self.session.get_outputs():
            if item.name.startswith("present"):
                cache = self.caches[item.name.replace("present", "past_key_values").removesuffix(".again")]
                self.bound.binding.bind_ortvalue_output(item.name, cache)

    def feeds(self, last, seed):
        x = np.random.default_rng(seed).standard_normal((1, 1, self.net.width)).astype(np.float32)
        return {"x": x, "last": np.int32([last]), "seen": SEEN}

    def run(self, last, seed=0):
        return self.bound.run(self.feeds(last, seed))

    def kernels(self):
        ran = es.trace(self.session, lambda: self.run(3))
        return [each["name"] for each in ran if each["what"] == "kernel" and "CopyMany" not in each["name"]]

    def held(self):
        return {name: cache.numpy().astype(np.float32) for name, cache in self.caches.items()}


def same(got, wanted, dtype):
    assert got.keys() == wanted.keys()
    agree([got[name] for name in wanted], [wanted[name] for name in wanted], dtype)


def check(make_model, is_one=True, lasts=(0, 1, 7, 17, 38, 39), dtype="float16", **net):
    """Eager, captured and replayed, with any number of keys, and what is in the caches then."""
    net = Decoder(dtype, **net)
    model = net.model(make_model)
    one, apart = Steps(net, model, persistent_decode=1, auto_graph=1), Steps(net, model, auto_graph=0)
    if es.on_virtual_gpu():
        assert any(PERSISTENT in kernel for kernel in one.kernels()) == is_one, one.kernels()
        assert not any(PERSISTENT in kernel for kernel in apart.kernels())
    for seed, last in enumerate(lasts):
        same(one.run(last, seed), apart.run(last, seed), dtype)
    if dtype == "float16":  # which numpy has
        agree([one.held()[name] for name in one.caches], apart.held().values(), dtype)
    return one


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_weights_of_four_bits(encore, make_model, dtype, zeros):
    one = check(make_model, dtype=dtype, zeros=zeros)
    if es.on_virtual_gpu():
        assert len(one.kernels()) == 3, one.kernels()  # and the casts at both ends


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_as_they_are(encore, make_model, dtype):
    one = check(make_model, dtype=dtype, bits=16, heads=16, kv_heads=4)
    if es.on_virtual_gpu():
        assert len(one.kernels()) == 3, one.kernels()


@pytest.mark.parametrize("bits", [4, 16])
@pytest.mark.parametrize("heads,kv_heads,size", [(8, 8, 128), (8, 1, 128), (12, 6, 64), (16, 2, 80), (10, 5, 96)])
def test_heads(encore, make_model, bits, heads, kv_heads, size):
    check(make_model, bits=bits, heads=heads, kv_heads=kv_heads, size=size, rotated=size // 16 * 16)


@pytest.mark.parametrize(
    "how",
    [
        {"attention": {"softcap": 3.0}},
        {"attention": {"local_window_size": 9}},
        {"attention": {"scale": 0.3}},
        {"attention": {"smooth_softmax": 1}},
        {"sinks": True},
        {"rotated": 32},
        {"bias": True},
        {"block": 128, "zeros": True},
        {"block": 256, "width": 512},
        {"block": 64, "width": 320, "ffn": 448},  # rows that fill no unit
        {"ffn": 4096},
        {"layers": 5},
    ],
    ids=str,
)
def test_variants(encore, make_model, how):
    check(make_model, **how)


@pytest.mark.parametrize("how", [{"vocabulary": 3072}, {"vocabulary": 8512}, {"ffn": 4224}], ids=str)
def test_widths_of_weights_as_they_are(encore, make_model, how):
    """As wide as there are columns for."""
    check(make_model, bits=16, layers=1, heads=16, kv_heads=4, lasts=(0, 8, 9), **how)


def test_a_bias_of_weights_as_they_are(encore, make_model):
    check(make_model, bits=16, heads=16, kv_heads=4, bias=True)


def test_what_others_read_is_written(encore, make_model):
    """In the middle of the kernel, while it goes on with the same."""
    check(make_model, layers=3, shown=["1.out", "1.more.sum", "1.attended", "0.gated", "rows.sum"])


def test_more_layers_than_fit_into_one(encore, make_model):
    one = check(make_model, layers=42, width=128, ffn=128, heads=2, kv_heads=1, lasts=(0, 5, 6))
    if es.on_virtual_gpu():
        assert sum(PERSISTENT in kernel for kernel in one.kernels()) == 2


def test_layers_that_share_a_cache(encore, make_model):
    """The later one looks at keys that the earlier one puts there."""
    check(make_model, layers=4, reused={2: 0, 3: 1})


@pytest.mark.parametrize("how", [{"bits": 8}, {"kv_heads": 1, "heads": 9}, {"size": 256}, {"layers": 0}], ids=str)
def test_what_goes_on_apart(encore, make_model, how):
    check(make_model, is_one=False, **how)


def test_a_past_elsewhere_goes_on_apart(encore, make_model):
    net = Decoder()
    model = net.model(make_model)
    feeds = Steps(net, model).feeds(5, 1)
    pasts = {
        n: np.random.default_rng(2).standard_normal((1, 2, CAPACITY, 64)).astype(np.float16)
        for n in net.inputs
        if "past" in n
    }
    one, apart = es.make_session(model, persistent_decode=1), es.make_session(model)
    agree(one.run(None, feeds | pasts), apart.run(None, feeds | pasts), "float16")


def test_keys_that_there_are_not(encore, make_model):
    net = Decoder()
    steps = Steps(net, net.model(make_model), persistent_decode=1)
    wanted = steps.run(4, 1)
    for last in (-2, CAPACITY, 1 << 30):
        with pytest.raises((capi.Fail, RuntimeError), match="0.attended's"):
            steps.run(last)
    same(steps.run(4, 1), wanted, "float16")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_no_numbers(encore, make_model, bad):
    net = Decoder()
    model = net.model(make_model)
    one, apart = Steps(net, model, persistent_decode=1), Steps(net, model)
    feeds = one.feeds(4, 1)
    feeds["x"][0, 0, 3] = bad
    same(one.bound.run(feeds), apart.bound.run(feeds), "float16")


@es.only_if(es.ORT_VERSION >= (1, 25))  # which asks plugins for their profilers
def test_profiles_tell_of_each(encore, make_model, tmp_path):
    net = Decoder()
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    model = net.model(make_model)
    wanted = Steps(net, model, persistent_decode=1).run(4, 1)
    profiled = Steps(net, model, session_options=options, persistent_decode=1, regions=1)
    for _ in range(3):
        same(profiled.run(4, 1), wanted, "float16")
    with open(profiled.session.end_profiling()) as file:
        told = file.read()
    for name in "0.qkv", "0.attended", "1.down", "logits":
        assert f"{name}'s" in told, name


def test_threads(encore, make_model):
    """Each has its stream, and its caches."""
    net = Decoder()
    model = net.model(make_model)
    wanted = Steps(net, model).run(9, 1)

    def work(_):
        steps = Steps(net, model, persistent_decode=1)
        for _ in range(5):
            same(steps.run(9, 1), wanted, "float16")

    assert not es.in_threads(4, work)


@es.needs_graphs
def test_onnxruntimes_graphs(encore, make_model):
    net = Decoder()
    model = net.model(make_model)
    one, apart = Steps(net, model, persistent_decode=1, enable_cuda_graph=1), Steps(net, model)
    for seed, last in enumerate((0, 3, 11, 12)):
        same(one.run(last, seed), apart.run(last, seed), "float16")
    (report,) = onnxruntime_ep_encore.graph_report(one.session)
    assert report["state"] == "ready" and report["replays"] > 1
