"""Norms made one node with the product by quantized weights that alone reads their rows, or with the gate that does."""

import encore_session as es
import ml_dtypes
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi
from test_fusion import kernels_of, made_one, on_cpu

TYPES = {"float16": (TensorProto.FLOAT16, np.float16), "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}
NORMED = "RowsNormed"  # in the name of the kernel that norms on the way
SKIP = "SkipSimplifiedLayerNormalization"
NORMS = [SKIP, "SimplifiedLayerNormalization", "RMSNormalization"]


class Network:
    """A norm of x, or of x + skip, and what reads its rows. Ends are float32, all between them is of `dtype`."""

    def __init__(self, dtype, depth, norm=SKIP, epsilon=1e-5, seed=0):
        self.kind, self.dtype = TYPES[dtype]
        self.depth, self.random = depth, np.random.default_rng(seed)
        self.nodes, self.constants = [], []
        self.inputs, self.outputs = {"x": ["n", "m", depth]}, {}
        self.epsilon = {} if epsilon is None else {"epsilon": epsilon}
        skips = norm == SKIP
        ends = ["x", "skip"] if skips else ["x"]
        for end in ends:
            self.inputs[end] = ["n", "m", depth]
            self.node("Cast", [end], [f"{end}.cast"], to=self.kind)
        self.norm_inputs = [f"{end}.cast" for end in ends] + [self.constant("gamma", self.uniform(0.5, 1.5, depth))]
        self.norm_outputs = ["rows", "", "", "sum"] if skips else ["rows"]
        self.norm = self.node(norm, self.norm_inputs, self.norm_outputs, domain="com.microsoft" * skips, **self.epsilon)

    def uniform(self, low, high, *shape):
        return self.random.uniform(low, high, shape).astype(self.dtype)

    def constant(self, name, array):
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op, inputs, outputs, **attrs):
        self.nodes.append(helper.make_node(op, inputs, outputs, f"{outputs[0]}'s", **attrs))
        return self.nodes[-1]

    def output(self, value, width):
        self.outputs[f"{value}.out"] = ["n", "m", width]
        self.node("Cast", [value], [f"{value}.out"], to=TensorProto.FLOAT)
        return self

    def product(self, name, columns=24, bits=4, block=32, zeros=False, bias=False, rows="rows"):
        blocks = -(-self.depth // block)
        inputs = [rows, self.constant(f"{name}.codes", self.bytes(columns, blocks, block * bits // 8))]
        inputs.append(self.constant(f"{name}.scales", self.uniform(0.05, 0.15, columns, blocks)))
        if zeros or bias:
            inputs.append(
                self.constant(f"{name}.zeros", self.bytes(columns, (blocks * bits + 7) // 8)) if zeros else ""
            )
        if bias:
            inputs += ["", self.constant(f"{name}.bias", self.uniform(-3, 3, columns))]
        sizes = {"K": self.depth, "N": columns, "block_size": block, "bits": bits}
        self.node("MatMulNBits", inputs, [name], domain="com.microsoft", **sizes)
        return self

    def bytes(self, *shape):
        return self.random.integers(0, 256, shape, np.uint8)

    def gate(self, columns=24, **how):
        for name in ("gate", "up"):
            self.product(name, columns, **how)
        self.node("Sigmoid", ["gate"], ["sigmoid"])
        self.node("Mul", ["gate", "sigmoid"], ["silu"])
        self.node("Mul", ["silu", "up"], ["y"])
        return self

    def model(self, make_model):
        return make_model(self.nodes, self.inputs, self.outputs, self.constants, opset=23)

    def feeds(self, *rows, seed=1):
        random = np.random.default_rng(seed)
        rows = (1, *rows)[-2:]
        return {name: random.standard_normal((*rows, self.depth)).astype(np.float32) for name in self.inputs}


def agree(got, wanted, dtype):
    """As what is rounded to a type in between does."""
    tolerance = 3e-3 if dtype == "float16" else 2.4e-2
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        scale = np.abs(other[np.isfinite(other)]).max(initial=0)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * scale)


def check(model, feeds, dtype, capfd, sizes, on_the_way):
    """Against the same nodes apart; `on_the_way`: whether the product norms its rows."""
    session, made = made_one(capfd, lambda options: es.make_session(model, options))
    assert made == sizes
    es.assert_all_on_encore(session)
    agree(session.run(None, feeds), es.make_session(model, fuse_nodes=0).run(None, feeds), dtype)
    if es.on_virtual_gpu():
        assert any(NORMED in kernel for kernel in kernels_of(session, feeds)) == on_the_way


@pytest.mark.parametrize("rows", [1, 3, 8, 16, 17, 64])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", TYPES)
def test_rows(encore, make_model, capfd, dtype, norm, rows):
    model = Network(dtype, 2048, norm).product("y").output("y", 24).model(make_model)
    feeds = Network(dtype, 2048, norm).feeds(rows)
    check(model, feeds, dtype, capfd, [2], on_the_way=rows <= 8)


@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros,bias", [(False, False), (True, True)])
@pytest.mark.parametrize("dtype", TYPES)
def test_weights(encore, make_model, capfd, dtype, bits, block, zeros, bias):
    net = Network(dtype, 384)
    net.product("y", 40, bits, block, zeros, bias).output("y", 40).output("sum", 384)
    woven = block >= {2: 64, 4: 32, 8: 32}[bits]
    check(net.model(make_model), net.feeds(2, 2), dtype, capfd, [2], woven)


@pytest.mark.parametrize("depth", [8, 16, 96, 100, 264, 1000, 2050, 2880, 8192, 16384, 16392])
@pytest.mark.parametrize("rows", [1, 2])
def test_depths(encore, make_model, capfd, depth, rows):
    """Those that end within packs are none for the kernel, nor those of which threads would have to keep too much."""
    net = Network("float16", depth).product("y").output("y", 24).output("sum", depth)
    on_the_way = depth % 8 == 0 and rows * depth <= 16384
    check(net.model(make_model), net.feeds(rows), "float16", capfd, [2], on_the_way)


@pytest.mark.parametrize("columns", [1, 16, 2130, 8500])
def test_columns(encore, make_model, capfd, columns):
    """Blocks of sixteen warps, of eight, and of four."""
    net = Network("float16", 512, seed=3).product("y", columns).output("y", columns).output("sum", 512)
    for rows in (1, 8):
        check(net.model(make_model), net.feeds(rows), "float16", capfd, [2], True)


@pytest.mark.parametrize("epsilon", [None, 0.0, 0.25])
@pytest.mark.parametrize("norm", NORMS)
def test_epsilon(encore, make_model, capfd, norm, epsilon):
    net = Network("float16", 64, norm, epsilon).product("y").output("y", 24)
    feeds = {name: values * 0.25 for name, values in net.feeds(2).items()}
    check(net.model(make_model), feeds, "float16", capfd, [2], True)
    zeros = {name: values * 0 for name, values in feeds.items()}
    if epsilon != 0:
        check(net.model(make_model), zeros, "float16", capfd, [2], True)


@pytest.mark.parametrize("norm", NORMS)
def test_against_the_cpu(encore, make_model, norm):
    net = Network("float16", 256, norm).product("y", 40).output("y", 40)
    if norm == SKIP:
        net.output("sum", 256)
    model, feeds = net.model(make_model), net.feeds(3)
    agree(es.make_session(model).run(None, feeds), on_cpu(model, feeds), "float16")


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 30])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_gate_takes_the_norm_along(encore, make_model, capfd, dtype, norm, rows, zeros):
    net = Network(dtype, 256, norm).gate(zeros=zeros).output("y", 24)
    if norm == SKIP:
        net.output("sum", 256)
    model, feeds = net.model(make_model), net.feeds(rows)
    check(model, feeds, dtype, capfd, [6], on_the_way=rows <= 8)
    if es.on_virtual_gpu() and rows <= 8:
        session = es.make_session(model)
        assert len(kernels_of(session, feeds)) == len(feeds) + len(net.outputs) + 1


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes(encore, make_model, capfd, seed):
    random = np.random.default_rng([seed, 77])
    pick = lambda *some: some[random.integers(len(some))]
    dtype, norm, is_gate, bits = pick(*TYPES), pick(*NORMS), pick(False, True), pick(2, 4, 8)
    depth, block = 8 * int(random.integers(1, 260)), pick(64, 128, 256)
    net = Network(dtype, depth, norm, epsilon=pick(1e-6, 1e-5, 0.1), seed=seed)
    columns, zeros = 8 * int(random.integers(1, 60)), pick(False, True)
    if is_gate:
        net.gate(columns, bits=bits, block=block, zeros=zeros)
    else:
        net.product("y", columns, bits, block, zeros, bias=pick(False, True))
    net.output("y", columns)
    if norm == SKIP and pick(False, True):
        net.output("sum", depth)
    rows = [int(n) for n in (random.integers(1, 3), random.integers(1, 7))]
    sizes = [6] if is_gate else [2]
    check(net.model(make_model), net.feeds(*rows, seed=seed), dtype, capfd, sizes, on_the_way=np.prod(rows) <= 8)


@es.needs_graphs
@pytest.mark.parametrize("how", ["product", "gate"])
@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("dtype", TYPES)
def test_it_is_captured_and_replayed(encore, make_model, dtype, rows, how):
    net = Network(dtype, 320)
    (net.product("y") if how == "product" else net.gate()).output("y", 24).output("sum", 320)
    model = net.model(make_model)
    session, apart = es.make_session(model, enable_cuda_graph=1), es.make_session(model, fuse_nodes=0)
    forms = {name: ((1, rows, shape[-1]), np.float32) for name, shape in net.outputs.items()}
    bound = es.Bound(session, net.feeds(rows), forms)
    for seed in range(6):
        feeds = net.feeds(rows, seed=seed)
        agree([bound.run(feeds)[name] for name in forms], apart.run(None, feeds), dtype)
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["state"] == "ready"
    assert report["replays"] > 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 60000.0])
def test_rows_that_are_no_numbers(encore, make_model, capfd, bad):
    """They stay by themselves."""
    net = Network("float16", 64).product("y").output("y", 24).output("sum", 64)
    feeds = net.feeds(4)
    feeds["x"][0, 1, 5] = feeds["skip"][0, 1, 5] = bad
    model = net.model(make_model)
    check(model, feeds, "float16", capfd, [2], True)
    assert np.isfinite(es.make_session(model).run(["y.out"], feeds)[0][0, [0, 2, 3]]).all()


def test_the_rows_of_a_sum_that_are_wanted_inside_and_outside(encore, make_model, capfd):
    """A chain as in a model: each sum is the next norm's skip, and the head's norm has none."""
    net = Network("float16", 128)
    net.product("a", 128)
    net.node(SKIP, ["a", "sum", "gamma"], ["rows2", "", "", "sum2"], domain="com.microsoft", epsilon=1e-5)
    net.product("b", 128, rows="rows2")
    net.node(SKIP, ["b", "sum2", "gamma"], ["rows3"], domain="com.microsoft", epsilon=1e-5)
    net.product("y", rows="rows3").output("y", 24)
    model = net.model(make_model)
    for rows in (1, 40):
        check(model, net.feeds(rows), "float16", capfd, [2], rows == 1)  # what is said is said once
    if es.on_virtual_gpu():
        kernels = kernels_of(es.make_session(model), net.feeds(1))
        assert sum(NORMED in kernel for kernel in kernels) == 3


def test_zero_rows(encore, make_model):
    net = Network("float16", 64).product("y").output("y", 24).output("sum", 64)
    session = es.make_session(net.model(make_model))
    y, total = session.run(None, net.feeds(0))
    assert (y.shape, total.shape) == ((1, 0, 24), (1, 0, 64))
    agree(
        session.run(None, net.feeds(2)),
        es.make_session(net.model(make_model), fuse_nodes=0).run(None, net.feeds(2)),
        "float16",
    )


@pytest.mark.parametrize("gate", [False, True])
def test_what_takes_two_kernels(encore, make_model, capfd, gate):
    """A bias of the norm's, a skip that is the same for all of a batch."""
    sizes = [6] if gate else [2]
    net = Network("float16", 64)
    (net.gate() if gate else net.product("y")).output("y", 24).output("sum", 64)
    net.norm.input.append(net.constant("bias", net.uniform(-1, 1, 64)))
    check(net.model(make_model), net.feeds(3), "float16", capfd, sizes, False)
    net.norm.input.pop()
    net.inputs["skip"] = ["k", "m", 64]
    feeds = net.feeds(2, 3)
    check(net.model(make_model), feeds | {"skip": feeds["skip"][:1]}, "float16", capfd, sizes, False)
    check(net.model(make_model), feeds, "float16", capfd, sizes, True)


def test_misaligned(encore, make_model):
    """One end at a time, which an application has put there."""
    net = Network("float16", 64).product("y")
    del net.nodes[:2]  # the casts
    halves = lambda width: (["n", "m", width], TensorProto.FLOAT16)
    net.inputs, net.outputs = {"x.cast": halves(64), "skip.cast": halves(64)}, {"y": halves(24), "sum": halves(64)}
    model = net.model(make_model)
    session = es.make_session(model, auto_graph=0)  # which would copy what is misaligned
    apart = es.make_session(model, fuse_nodes=0)
    feeds = {name: values.astype(np.float16) for name, values in net.feeds(2).items()}
    wanted = dict(zip(net.outputs, apart.run(None, feeds), strict=True))
    for misaligned in (*feeds, *wanted):
        memory = {
            name: es.on_device(np.zeros(values.size + 1, np.float16)) for name, values in {**feeds, **wanted}.items()
        }
        binding, device = session.io_binding(), capi.OrtDevice(1, 0, es.NVIDIA, 0)
        for name, values in {**feeds, **wanted}.items():
            at = 1 if name == misaligned else 0
            if name in feeds:
                memory[name].update_inplace(np.roll(np.append(values, values.dtype.type(0)), at))
            bind = binding._iobinding.bind_input if name in feeds else binding._iobinding.bind_output
            bind(name, device, values.dtype, list(values.shape), memory[name].data_ptr() + 2 * at)
        work = lambda binding=binding: session.run_with_iobinding(binding)
        if es.on_virtual_gpu():
            kernels = [step["name"] for step in es.trace(session, work) if step["what"] == "kernel"]
            assert any(NORMED in kernel for kernel in kernels) == (misaligned in wanted)
        else:
            work()
        for name, values in wanted.items():
            at = 1 if name == misaligned else 0
            got = memory[name].numpy()[at : at + values.size].reshape(values.shape)
            agree([got.astype(np.float32)], [values.astype(np.float32)], "float16")


def test_norms_that_stay(encore, make_model, capfd):
    """Rows that others read or that are wanted outside, a scale that is computed, statistics, weights that come in."""
    nets = [Network("float16", 64).product("y").output("y", 24) for _ in range(5)]
    nets[0].output("rows", 64)
    nets[1].product("z").output("z", 24)
    nets[2].node("Cast", ["gammas"], ["computed"], to=TensorProto.FLOAT16)
    nets[2].nodes.insert(0, nets[2].nodes.pop())
    nets[2].norm.input[2] = "computed"
    nets[2].inputs["gammas"] = [64]
    nets[3].constants = [c for c in nets[3].constants if c.name != "y.scales"]
    nets[3].node("Cast", ["scales"], ["y.scales"], to=TensorProto.FLOAT16)
    nets[3].nodes.insert(0, nets[3].nodes.pop())
    nets[3].inputs["scales"] = [24, 2]
    nets[4] = Network("float16", 64, "SimplifiedLayerNormalization").product("y").output("y", 24)
    nets[4].norm.attribute.append(helper.make_attribute("axis", 1))
    for net in nets:
        feeds = net.feeds(3)
        if "scales" in net.inputs:
            feeds["scales"] = np.full((24, 2), 0.125, np.float32)
        if "gammas" in net.inputs:
            feeds["gammas"] = np.linspace(0.5, 1.5, 64, dtype=np.float32)
        check(net.model(make_model), feeds, "float16", capfd, [], False)


def test_values_of_others_are_float32(encore, make_model, capfd):
    net = Network("float16", 64)
    net.kind, net.dtype = TensorProto.FLOAT, np.float32
    del net.nodes[:]
    net.norm = net.node(SKIP, ["x", "skip", "g"], ["rows"], domain="com.microsoft", epsilon=1e-5)
    net.constant("g", net.uniform(0.5, 1.5, 64))
    model = net.product("y").output("y", 24).model(make_model)
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options))
    assert sizes == []
    feeds = net.feeds(2)
    np.testing.assert_allclose(session.run(None, feeds)[0], on_cpu(model, feeds)[0], rtol=1e-4, atol=1e-3)


def test_errors_name_both_nodes(encore, make_model):
    net = Network("float16", 64).product("y").output("y", 24)
    net.inputs = {"x": None, "skip": None}
    net.outputs["y.out"] = None
    session = es.make_session(net.model(make_model))
    both = f"{SKIP} and MatMulNBits node 'rows's and y's'"
    numbers = lambda *shape: np.ones(shape, np.float32)
    for x, skip, words in (
        ((2, 3, 64), (2, 4, 64), "skip .* does not fit input"),
        ((2, 3, 63), (2, 3, 63), r"gamma has shape \[64\]"),
        ((3, 2, 3, 64), (3, 2, 3, 64), "must have two or three dimensions"),
    ):
        with pytest.raises(Exception, match=f"{both}: .*{words}"):
            session.run(None, {"x": numbers(*x), "skip": numbers(*skip)})
    assert session.run(None, net.feeds(2))[0].shape == (1, 2, 24)


def test_it_need_not(encore, make_model, capfd):
    model = Network("float16", 64).gate().output("y", 24).model(make_model)
    assert made_one(capfd, lambda options: es.make_session(model, options, fuse_nodes=0))[1] == []


def test_a_scale_of_another_size_is_an_error_as_ever(encore, make_model, capfd):
    net = Network("float16", 64).product("y").output("y", 24)
    net.constants[0] = numpy_helper.from_array(np.ones(32, np.float16), "gamma")
    try:
        session, sizes = made_one(capfd, lambda options: es.make_session(net.model(make_model), options))
    except (capi.Fail, AssertionError):
        return  # onnxruntime sees it, too
    assert sizes == []
    with pytest.raises(Exception, match="gamma"):
        session.run(None, net.feeds(2))
