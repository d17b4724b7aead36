"""Convolutions and what is between them, made one node with the channels last inside; gates, made one, too."""

from unittest.mock import ANY

import encore_session as es
import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from onnx import helper, numpy_helper

TYPES = {"float16": {}, "float32": {"use_tf32": 1}}
MADE = "Encore makes one of "


def numbers(*shape, seed=0, dtype=np.float32):
    """Small whole ones: products and sums of them are exact in every type, TF32 too."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


class Network:
    """Nodes in float16 or float32, and their constants."""

    def __init__(self, dtype="float32"):
        self.dtype = np.dtype(dtype)
        self.nodes, self.constants = [], []

    def constant(self, name, array):
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op, inputs, output, **attrs):
        self.nodes.append(helper.make_node(op, inputs, [output], f"{output}'s", **attrs))
        return output

    def conv(self, x, output, channels, kernel=3, bias=True, group=1, **attrs):
        seed = len(self.constants)
        shape = (channels[1], channels[0] // group, kernel, kernel)
        inputs = [x, self.constant(f"{output}.w", numbers(*shape, seed=seed, dtype=self.dtype))]
        if bias:
            inputs.append(self.constant(f"{output}.b", numbers(channels[1], seed=seed + 1, dtype=self.dtype)))
        attrs.setdefault("pads", [kernel // 2] * 4)
        return self.add("Conv", inputs, output, group=group, **attrs)

    def model(self, make_model, inputs, outputs, **more):
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        forms = [{name: (shape, kind) for name, shape in ends.items()} for ends in (inputs, outputs)]
        return make_model(self.nodes, *forms, self.constants, **more)


def on_cpu(model, feeds):
    return es.on_cpu(model).run(None, feeds)


def made_one(capfd, make):
    """What make() returns, and of how many nodes Encore made one, for each time: anything where these are parts."""
    options = ort.SessionOptions()
    options.log_severity_level = 0
    capfd.readouterr()
    made = make(options)
    lines = capfd.readouterr().err.splitlines()
    return made, ANY if es.HAS_REGIONS else [int(line.split(MADE)[1].split()[0]) for line in lines if MADE in line]


def agrees(session, model, feeds, tolerance=0):
    for got, wanted in zip(session.run(None, feeds), on_cpu(model, feeds), strict=True):
        assert got.shape == wanted.shape
        assert np.abs(wanted).max() > 0
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted.astype(float)).max())


def block(dtype="float32"):
    """What residual networks consist of."""
    net = Network(dtype)
    net.conv("x", "c1", (4, 8))
    net.add("Relu", ["c1"], "r1")
    net.conv("r1", "c2", (8, 8), group=8)
    net.add("Clip", ["c2", net.constant("low", net.dtype.type(0)), net.constant("high", net.dtype.type(6))], "r2")
    net.conv("r2", "c3", (8, 8), kernel=1, bias=False)
    net.add("Add", ["r1", "c3"], "s")
    net.add("Relu", ["s"], "r3")
    net.add("MaxPool", ["r3"], "y", kernel_shape=[2, 2], strides=[2, 2])
    return net


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", [{}, {"prefer_nhwc": 1}], ids=str)
def test_a_block_is_one_node(encore, make_model, capfd, dtype, layout):
    model = block(dtype).model(make_model, {"x": ["n", 4, 9, 8]}, {"y": ["n", 8, 4, 4]})
    make = lambda options: es.make_session(model, options, **TYPES[dtype], **layout)
    session, sizes = made_one(capfd, make)
    assert sizes == [8]
    es.assert_all_on_encore(session, layout_asked=bool(layout))
    for batch in (1, 3):
        agrees(session, model, {"x": numbers(batch, 4, 9, 8, seed=batch, dtype=dtype)})


@pytest.mark.parametrize("dtype", TYPES)
def test_it_need_not(encore, make_model, capfd, dtype):
    model = block(dtype).model(make_model, {"x": ["n", 4, 9, 8]}, {"y": ["n", 8, 4, 4]})
    make = lambda options: es.make_session(model, options, fuse_nodes=0, **TYPES[dtype])
    session, sizes = made_one(capfd, make)
    assert sizes == []
    agrees(session, model, {"x": numbers(2, 4, 9, 8, dtype=dtype)})


def test_floats_without_tensor_cores_stay_as_they_are(encore, make_model, capfd):
    model = block().model(make_model, {"x": ["n", 4, 9, 8]}, {"y": ["n", 8, 4, 4]})
    assert made_one(capfd, lambda options: es.make_session(model, options, use_tf32=0))[1] == []


@es.needs_graphs
def test_it_is_captured_and_replayed(encore, make_model):
    model = block("float16").model(make_model, {"x": [2, 4, 9, 8]}, {"y": [2, 8, 4, 4]})
    session = es.make_session(model, enable_cuda_graph=1)
    bound = es.Bound(session, {"x": numbers(2, 4, 9, 8, dtype=np.float16)}, {"y": ([2, 8, 4, 4], np.float16)})
    for seed in range(6):
        x = numbers(2, 4, 9, 8, seed=seed, dtype=np.float16)
        np.testing.assert_array_equal(bound.run({"x": x})["y"], on_cpu(model, {"x": x})[0])
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["state"] == "ready"
    assert report["replays"] > 0


ACTIVATIONS = {
    "Relu": {},
    "LeakyRelu": {"alpha": 0.25},
    "HardSigmoid": {"alpha": 0.25, "beta": 0.5},
    "HardSwish": {},
    "Sigmoid": {},
    "Tanh": {},
    "Clip": {},
    "Elu": {},
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("op", ACTIVATIONS)
def test_activations(encore, make_model, capfd, op, residual, dtype):
    net = Network(dtype)
    value = net.conv("x", "c1", (4, 6), pads=[1, 0, 0, 1])
    if residual:
        net.conv("x", "c2", (4, 6), pads=[1, 0, 0, 1])
        value = net.add("Add", ["c1", "c2"], "s")
    limits = [net.constant("low", net.dtype.type(-1)), net.constant("high", net.dtype.type(3))]
    net.add(op, [value, *(limits if op == "Clip" else [])], "y", **ACTIVATIONS[op])
    model = net.model(make_model, {"x": [2, 4, 7, 5]}, {"y": [2, 6, 6, 4]})
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options, **TYPES[dtype]))
    assert sizes == [4 if residual else 2]
    agrees(
        session, model, {"x": numbers(2, 4, 7, 5, seed=3, dtype=dtype)}, tolerance=2e-3 if dtype == "float16" else 1e-5
    )


def test_a_clip_whose_limits_are_turned(encore, make_model, capfd):
    net = Network("float32")
    net.conv("x", "c", (4, 6))
    net.add("Clip", ["c", net.constant("low", np.float32(3)), net.constant("high", np.float32(-1))], "y")
    model = net.model(make_model, {"x": [2, 4, 7, 5]}, {"y": [2, 6, 7, 5]})
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options, **TYPES["float32"]))
    assert sizes == [2]
    agrees(session, model, {"x": numbers(2, 4, 7, 5, seed=3, dtype="float32")}, tolerance=0)


@pytest.mark.parametrize("dtype", TYPES)
def test_x_times_its_sigmoid(encore, make_model, dtype):
    net = Network(dtype)
    net.conv("x", "c", (4, 4))
    net.add("Sigmoid", ["c"], "g")
    net.add("Mul", ["g", "c"], "m")
    net.conv("m", "y", (4, 2), kernel=1)
    model = net.model(make_model, {"x": ["n", 4, 6, 7]}, {"y": ["n", 2, 6, 7]})
    session = es.make_session(model, **TYPES[dtype])
    agrees(session, model, {"x": numbers(2, 4, 6, 7, dtype=dtype)}, tolerance=2e-3)


# What is between convolutions: a network that makes y of c, which has 8 channels and 6 x 5 places.
BETWEEN = {
    "gate": lambda net: net.add("Mul", ["c", net.add("GlobalMaxPool", ["c"], "g")], "m"),
    "mean": lambda net: net.add("ReduceMax", ["c", net.constant("axes", np.array([2, -1]))], "m"),
    "channels": lambda net: net.add("ReduceMax", ["c", net.constant("axes", np.array([1]))], "m"),
    "concat": lambda net: net.add("Concat", ["c", net.add("Neg", ["c"], "n"), "c"], "m", axis=-3),
    "beside": lambda net: net.add("Concat", ["c", net.add("Neg", ["c"], "n")], "m", axis=2),
    "scale": lambda net: net.add("Mul", ["c", net.constant("k", numbers(8, 1, 1, seed=9, dtype=net.dtype))], "m"),
    "places": lambda net: net.add("Sub", [net.constant("k", numbers(6, 5, seed=9, dtype=net.dtype)), "c"], "m"),
    "number": lambda net: net.add("Add", ["c", net.constant("k", np.array([[3]], net.dtype))], "m"),
    "slopes": lambda net: net.add("PRelu", ["c", net.constant("k", numbers(8, 1, 1, seed=9, dtype=net.dtype))], "m"),
    "blocks": lambda net: net.add("DepthToSpace", ["c"], "m", blocksize=2),
    "pad": lambda net: net.add("Pad", ["c", net.constant("p", np.array([0, 1, 2, 0, 0, 0, 1, 3]))], "m"),
    "resize": lambda net: net.add(
        "Resize", ["c", "", net.constant("s", np.array([1, 1, 2, 3], np.float32))], "m", mode="nearest"
    ),
    "sizes": lambda net: net.add(
        "Resize", ["c", "", "", net.constant("s", np.array([2, 8, 12, 5]))], "m", mode="nearest"
    ),
    "transposed": lambda net: net.add(
        "ConvTranspose", ["c", net.constant("k", numbers(8, 4, 2, 2, dtype=net.dtype))], "m", strides=[2, 2]
    ),
    "normalised": lambda net: net.add(
        "BatchNormalization",
        ["c", *(net.constant(f"n{i}", np.full(8, value, net.dtype)) for i, value in enumerate((2, 1, 3, 4)))],
        "m",
        epsilon=0.0,
    ),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("between", BETWEEN)
def test_what_is_between(encore, make_model, capfd, between, dtype):
    net = Network(dtype)
    net.conv("x", "c", (4, 8))
    BETWEEN[between](net)
    shape = {
        "concat": (24, 6, 5),
        "beside": (8, 12, 5),
        "mean": (8, 1, 1),
        "channels": (1, 6, 5),
        "blocks": (2, 12, 10),
    }
    shape |= {"pad": (9, 9, 8), "resize": (8, 12, 15), "sizes": (8, 12, 5), "transposed": (4, 12, 10)}
    channels, height, width = shape.get(between, (8, 6, 5))
    net.conv("m", "y", (channels, 3), kernel=1)
    model = net.model(make_model, {"x": [2, 4, 6, 5]}, {"y": [2, 3, height, width]})
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options, **TYPES[dtype]))
    assert sizes == [ANY]
    es.assert_all_on_encore(session)
    agrees(session, model, {"x": numbers(2, 4, 6, 5, seed=5, dtype=dtype)}, tolerance=1e-3)


def test_no_node_waits_for_itself(encore, make_model, capfd):
    """A path leaves the convolutions and comes back: what is before and what is behind cannot be one."""
    net = Network("float16")
    net.conv("x", "c1", (4, 4))
    net.add("Hardmax", ["c1"], "outside", axis=2)
    net.conv("c1", "c2", (4, 4))
    net.add("Add", ["c2", "outside"], "s")
    net.conv("s", "c3", (4, 4))
    net.conv("c3", "y", (4, 4))
    model = net.model(make_model, {"x": [2, 4, 6, 5]}, {"y": [2, 4, 6, 5]})
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options))
    assert sizes in ([2, 3], [3, 2])
    agrees(session, model, {"x": numbers(2, 4, 6, 5, dtype=np.float16)}, tolerance=1e-2)


@pytest.mark.parametrize("dtype", TYPES)
def test_values_that_are_wanted_outside(encore, make_model, dtype):
    net = Network(dtype)
    net.conv("x", "c1", (4, 4))
    net.add("Relu", ["c1"], "r1")
    net.conv("r1", "c2", (4, 4))
    net.add("Add", ["c2", "r1"], "s")
    net.add("GlobalMaxPool", ["s"], "g")
    net.add("Flatten", ["g"], "f")
    ends = {"x": ["n", 4, 6, 5]}, {"c1": ["n", 4, 6, 5], "s": ["n", 4, 6, 5], "f": ["n", 4], "g": ["n", 4, 1, 1]}
    model = net.model(make_model, *ends)
    agrees(es.make_session(model, **TYPES[dtype]), model, {"x": numbers(3, 4, 6, 5, dtype=dtype)})


def test_a_summand_that_is_broadcast_is_no_residual(encore, make_model):
    """Nothing says that both batches are as large."""
    net = Network("float16")
    net.conv("x", "c", (4, 4))
    net.add("Add", ["z", "c"], "s")
    net.add("Relu", ["s"], "y")
    model = net.model(make_model, {"x": ["n", 4, 6, 5], "z": ["m", 4, 6, 5]}, {"y": ["k", 4, 6, 5]})
    session = es.make_session(model)
    for n, m in ((1, 1), (3, 1), (1, 3), (2, 2)):
        feeds = {"x": numbers(n, 4, 6, 5, dtype=np.float16), "z": numbers(m, 4, 6, 5, seed=1, dtype=np.float16)}
        agrees(session, model, feeds)


def test_an_error_names_the_node_and_leaves_the_session(encore, make_model):
    net = Network("float16")
    net.conv("x", "c", (4, 4))
    net.add("Relu", ["c"], "r")
    net.conv("r", "y", (4, 4))
    model = net.model(make_model, {"x": ["n", "channels", "h", "w"]}, {"y": ["n", 4, "h", "w"]})
    session = es.make_session(model)
    with pytest.raises(Exception, match="Conv node 'c's': X has 5 channels"):
        session.run(None, {"x": numbers(1, 5, 6, 5, dtype=np.float16)})
    agrees(session, model, {"x": numbers(1, 4, 6, 5, dtype=np.float16)})


def test_weights_that_several_share(encore, make_model):
    net = Network("float16")
    w = net.constant("w", numbers(4, 4, 3, 3, dtype=np.float16))
    net.add("Conv", ["x", w], "c", pads=[1, 1, 1, 1])
    net.add("Relu", ["c"], "r")
    net.add("Conv", ["r", w], "y", pads=[1, 1, 1, 1])
    net.add("Neg", [w], "v")
    model = net.model(make_model, {"x": [1, 4, 6, 5]}, {"y": [1, 4, 6, 5], "v": [4, 4, 3, 3]})
    agrees(es.make_session(model), model, {"x": numbers(1, 4, 6, 5, dtype=np.float16)})


def test_weights_that_are_inputs(encore, make_model, capfd):
    net = Network("float16")
    net.add("Conv", ["x", "w"], "c", pads=[1, 1, 1, 1])
    net.add("Relu", ["c"], "y")
    model = net.model(make_model, {"x": [1, 4, 6, 5], "w": [4, 4, 3, 3]}, {"y": [1, 4, 6, 5]})
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options))
    assert sizes == []
    feeds = {"x": numbers(1, 4, 6, 5, dtype=np.float16), "w": numbers(4, 4, 3, 3, seed=1, dtype=np.float16)}
    agrees(session, model, feeds)


def test_an_empty_batch(encore, make_model):
    model = block("float16").model(make_model, {"x": ["n", 4, 9, 8]}, {"y": ["n", 8, 4, 4]})
    session = es.make_session(model)
    assert session.run(None, {"x": numbers(0, 4, 9, 8, dtype=np.float16)})[0].shape == (0, 8, 4, 4)
    agrees(session, model, {"x": numbers(1, 4, 9, 8, dtype=np.float16)})


@es.needs_graphs
def test_memory_is_used_again_inside(encore, make_model):
    """A chain needs the memory of a few of its values, not of all."""
    net, value = Network("float16"), "x"
    for i in range(12):
        value = net.add("Relu", [net.conv(value, f"c{i}", (8, 8), kernel=1)], "y" if i == 11 else f"r{i}")
    model = net.model(make_model, {"x": [1, 8, 256, 256]}, {"y": [1, 8, 256, 256]})
    session = es.make_session(model, cudnn_conv_algo_search="HEURISTIC")  # to time candidates takes memory, too
    session.run(None, {"x": numbers(1, 8, 256, 256, dtype=np.float16)})
    one = 8 * 256 * 256 * 2
    assert onnxruntime_ep_encore.memory_report(session)["arena"]["peak_in_use_bytes"] < 6 * one


def kernels_of(session, feeds):
    """Which run, on the virtual GPU."""
    ran = [k["name"] for k in es.trace(session, lambda: session.run(None, feeds)) if k["what"] == "kernel"]
    return [name for name in ran if "CopyMany" not in name]  # of what a graph has elsewhere


# What a gate begins with, in the opset that has it, and of how many operators it is.
GATES = {"Sigmoid": (18, 3), "Swish": (24, 2), "SwiGLU": (28, 1)}
KNOWN_GATES = [how for how, (opset, _) in GATES.items() if opset <= es.NEWEST_OPSET]


def add_gate(net, x, up, how="Sigmoid", swapped=False):
    if how == "SwiGLU":
        return net.add(how, [x, up], "y")
    silu = net.add(how, [x], "g")
    if how == "Sigmoid":
        silu = net.add("Mul", ["g", x] if swapped else [x, "g"], "s")
    return net.add("Mul", [up, silu] if swapped else [silu, up], "y")


def gate(dtype, swapped=False, how="Sigmoid"):
    net = Network(dtype)
    add_gate(net, "x", "up", how, swapped)
    return net


@pytest.mark.parametrize("how", KNOWN_GATES)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_gate_is_one_node(encore, make_model, capfd, dtype, swapped, how):
    ends, (opset, size) = ({"x": ["n", 33], "up": ["n", 33]}, {"y": ["n", 33]}), GATES[how]
    model = gate(dtype, swapped, how).model(make_model, *ends, opset=opset)
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options))
    assert sizes == [size] * (size > 1)
    plain = gate(dtype).model(make_model, *ends)
    for rows in (7, 8):  # that fill packs or do not
        x = (numbers(rows, 33, dtype=dtype) * np.linspace(0, 60, 33)).astype(dtype)
        feeds = {"x": x, "up": numbers(rows, 33, seed=1, dtype=dtype)}
        agrees(session, plain, feeds, tolerance=2e-3 if dtype == "float16" else 1e-6)
    if es.on_virtual_gpu():
        kernels = kernels_of(session, feeds)
        assert len(kernels) == 1, kernels


def gated_products(dtype, op="MatMul", columns=24, up_of="x", zeros=False, how="Sigmoid", halves=False):
    """Of 64 values of x, the second product of `up_of`; or both are halves of one, as Phi-3 has them."""
    depth = 64
    net = Network(dtype)
    columns = columns * 2 if halves else columns
    for name, of in (("both", "x"),) if halves else (("gate", "x"), ("up", up_of)):
        seed = len(net.constants) + 1
        inputs = [of]
        if op == "MatMul":
            inputs.append(net.constant(f"{name}.w", numbers(depth, columns, seed=seed, dtype=dtype)))
            net.add(op, inputs, name)
            continue
        block, blocks = 32, depth // 32
        random = np.random.default_rng(seed)
        codes = random.integers(0, 256, (columns, blocks, block // 2), np.uint8)
        inputs.append(net.constant(f"{name}.codes", codes))
        scales = 0.1 * np.abs(numbers(columns, blocks, seed=seed, dtype=dtype))
        inputs.append(net.constant(f"{name}.scales", scales.astype(dtype)))
        if zeros:
            packed = random.integers(0, 256, columns * ((blocks + 1) // 2), np.uint8)
            inputs.append(net.constant(f"{name}.zeros", packed))
        sizes = {"K": depth, "N": columns, "block_size": block, "bits": 4}
        net.add(op, inputs, name, domain="com.microsoft", **sizes)
    if halves:
        sizes = net.constant("sizes", np.full(2, columns // 2))
        net.nodes.append(helper.make_node("Split", ["both", sizes], ["gate", "up"], "halves", axis=-1))
    add_gate(net, "gate", "up", how)
    return net


@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("how", [{}, {"op": "MatMulNBits"}, {"op": "MatMulNBits", "zeros": True}], ids=str)
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_gate_takes_its_products_along(encore, make_model, capfd, dtype, how, halves, rows):
    model = gated_products(dtype, halves=halves, **how).model(make_model, {"x": ["n", "m", 64]}, {"y": ["n", "m", 24]})
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options, use_tf32=0))
    assert sizes == [5]
    feeds = {"x": numbers(1, rows, 64, dtype=dtype)}
    agrees(session, model, feeds, tolerance=1e-2 if dtype == "float16" else 1e-5)
    if es.on_virtual_gpu() and (not how or rows == 1):
        kernels = kernels_of(session, feeds)
        assert len(kernels) <= (1 if how and dtype != "float32" else 2), kernels


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("dtype", TYPES)
def test_gated_products_keep_what_norms_add(encore, make_model, dtype, rows):
    """Batch norms of products go into weights and a bias, which a gate leaves there."""
    net = Network(dtype)
    for seed, name in enumerate(("gate", "up")):
        net.add("MatMul", ["x", net.constant(f"{name}.w", numbers(64, 24, seed=seed, dtype=dtype))], f"{name} product")
        of_norm = [np.full(24, value, dtype) for value in (0.5, 1 + seed, 2, 1)]
        norm = [net.constant(f"{name}.{i}", row) for i, row in enumerate(of_norm)]
        net.add("BatchNormalization", [f"{name} product", *norm], name, epsilon=0.0)
    add_gate(net, "gate", "up", "Sigmoid")
    model = net.model(make_model, {"x": ["n", 64]}, {"y": ["n", 24]})
    session = es.make_session(model, use_tf32=0)
    agrees(session, model, {"x": numbers(rows, 64, dtype=dtype)}, tolerance=1e-2 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("op", ["MatMul", "MatMulNBits"])
@pytest.mark.parametrize("how", KNOWN_GATES)
def test_a_gate_of_fewer_operators_takes_its_products_along(encore, make_model, capfd, how, op):
    ends, (opset, size) = ({"x": ["n", "m", 64]}, {"y": ["n", "m", 24]}), GATES[how]
    model = gated_products("float16", op, how=how).model(make_model, *ends, opset=opset)
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options))
    assert sizes == [2 + size]
    plain = gated_products("float16", op).model(make_model, *ends)
    for rows in (1, 5):
        agrees(session, plain, {"x": numbers(1, rows, 64, dtype="float16")}, tolerance=1e-2)


@es.only_if(len(KNOWN_GATES) > 1)
@pytest.mark.parametrize("how", KNOWN_GATES[1:])
def test_products_that_a_steeper_gate_leaves(encore, make_model, capfd, how):
    net = gated_products("float32", how=how)
    next(node for node in net.nodes if node.op_type == how).attribute.append(helper.make_attribute("alpha", 1.5))
    model = net.model(make_model, {"x": ["n", 64]}, {"y": ["n", 24]}, opset=GATES[how][0])
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options, use_tf32=0))
    assert sizes == []
    plain, constants = Network(), net.constants
    for name in ("gate", "up"):
        plain.add("MatMul", ["x", f"{name}.w"], name)
    plain.add("Mul", ["gate", plain.constant("alpha", np.float32(1.5))], "steeper")
    plain.add("Sigmoid", ["steeper"], "sigmoid")
    plain.add("Mul", ["gate", "sigmoid"], "silu")
    plain.add("Mul", ["silu", "up"], "y")
    plain.constants += constants
    agrees(session, plain.model(make_model, {"x": ["n", 64]}, {"y": ["n", 24]}), {"x": numbers(3, 64)}, tolerance=1e-5)


@pytest.mark.parametrize("op", ["MatMul", "MatMulNBits"])
def test_products_that_a_gate_leaves(encore, make_model, capfd, op):
    """Columns that are no whole packs, another input, values that others read, constants that others read."""
    ends = {"x": ["n", 64], "z": ["n", 64]}
    nets = [gated_products("float32", op, columns=20), gated_products("float32", op, up_of="z")]
    read = gated_products("float32", op)
    read.add("Neg", ["up"], "also")
    shared = gated_products("float32", op)
    shared.nodes.append(onnx.NodeProto.FromString(shared.nodes[0].SerializeToString()))
    shared.nodes[-1].MergeFrom(onnx.NodeProto(name="third"))
    shared.nodes[-1].input[0], shared.nodes[-1].output[0] = "z", "also"
    for net in (*nets, read, shared):
        outputs = {node.output[0]: None for node in net.nodes if node.output[0] in ("y", "also")}
        model = net.model(make_model, ends, outputs)
        session, sizes = made_one(capfd, lambda options, model=model: es.make_session(model, options, use_tf32=0))
        assert sizes == [3]
        agrees(session, model, {"x": numbers(3, 64), "z": numbers(3, 64, seed=9)}, tolerance=1e-5)


def test_an_error_in_joined_products_names_both(encore, make_model):
    model = gated_products("float32").model(make_model, {"x": ["n", "k"]}, {"y": ["n", 24]})
    session = es.make_session(model, use_tf32=0)
    with pytest.raises(Exception, match="MatMul node 'gate's and up's': inner dimensions differ"):
        session.run(None, {"x": numbers(2, 63)})
    agrees(session, model, {"x": numbers(2, 64)}, tolerance=1e-5)


def test_a_gate_broadcasts(encore, make_model, capfd):
    model = gate("float16").model(make_model, {"x": ["n", 8], "up": ["m", 3, "k"]}, {"y": ["m", "l", "j"]})
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options))
    assert sizes == [3]
    for x, up in (((3, 8), (2, 3, 8)), ((1, 8), (4, 3, 1)), ((3, 8), (0, 3, 8))):
        feeds = {"x": numbers(*x, dtype=np.float16), "up": numbers(*up, seed=1, dtype=np.float16)}
        got, wanted = session.run(None, feeds)[0], on_cpu(model, feeds)[0]
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=2e-3)
    with pytest.raises(Exception, match="Gate node 'y's'"):
        session.run(None, {"x": numbers(3, 8, dtype=np.float16), "up": numbers(2, 3, 7, dtype=np.float16)})


def test_what_is_no_gate(encore, make_model, capfd):
    """Values that are wanted outside, another factor, one that is constant."""
    ends = {"x": ["n", 8], "up": ["n", 8]}
    nets = []
    for outputs in ("gy", "sy"):
        nets.append((gate("float32"), {name: ["n", 8] for name in outputs}))
    net = gate("float32")
    net.add("Neg", ["s"], "z")
    nets.append((net, {"y": ["n", 8], "z": ["n", 8]}))
    net = Network()
    net.add("Sigmoid", ["x"], "g")
    net.add("Mul", ["g", "up"], "s")
    net.add("Mul", ["s", "x"], "y")
    nets.append((net, {"y": ["n", 8]}))
    net = Network()
    net.add("Sigmoid", ["x"], "g")
    net.add("Mul", ["g", "x"], "s")
    net.add("Mul", ["s", net.constant("k", numbers(8, seed=5))], "r")
    net.add("Add", ["r", "up"], "y")
    nets.append((net, {"y": ["n", 8]}))
    for net, outputs in nets:
        model = net.model(make_model, ends, outputs)
        session, sizes = made_one(capfd, lambda options, model=model: es.make_session(model, options))
        assert sizes == []
        agrees(session, model, {"x": numbers(3, 8), "up": numbers(3, 8, seed=1)}, tolerance=1e-6)
