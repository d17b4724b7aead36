"""What a model's nodes need not wait for they don't wait for in a graph: branches run side by side."""

import encore_session
import numpy as np
import onnxruntime_ep_encore as encore_python
import pytest
from encore_session import HAS_GRAPHS, in_new_process, make_session, on_cpu, only_if
from onnx import helper, numpy_helper

SIZE = 16


class Network:
    """Of convolutions on [1, 3, 16, 16]."""

    def __init__(self):
        self.random, self.nodes, self.weights = np.random.default_rng(0), [], []

    def weight(self, name, *shape):
        values = self.random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, op, inputs, output, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def convolution(self, x, name, channels, to, window=3):
        inputs = [x, self.weight(f"{name}_w", to, channels, window, window), self.weight(f"{name}_b", to)]
        return self.node("Conv", inputs, name, pads=[window // 2] * 4)

    def chain(self, x, name, channels, length):
        for i in range(length):
            x = self.node("Relu", [self.convolution(x, f"{name}_{i}", channels, channels)], f"{name}_{i}_r")
        return x

    def model(self, make_model, outputs):
        ends = {name: [1, channels, SIZE, SIZE] for name, channels in outputs.items()}
        return make_model(self.nodes, {"x": [1, 3, SIZE, SIZE]}, ends, self.weights)


def heads(make_model):
    """As a detector ends: three heads of three convolutions each, side by side in the channels."""
    net = Network()
    stem = net.chain(net.convolution("x", "stem", 3, 16), "neck", 16, 2)
    ends = [net.convolution(net.chain(stem, f"head{i}", 16, 3), f"end{i}", 16, 4, 1) for i in range(3)]
    net.convolution(net.node("Concat", ends, "all", axis=1), "y", 12, 8, 1)
    return net.model(make_model, {"y": 8})


def shortcuts(make_model):
    """Residual blocks whose shortcuts are convolutions, too."""
    net = Network()
    x = net.convolution("x", "stem", 3, 16)
    for i in range(3):
        main, short = net.chain(x, f"block{i}", 16, 2), net.convolution(x, f"short{i}", 16, 16, 1)
        x = net.node("Relu", [net.node("Add", [main, short], f"sum{i}")], f"y{i}")
    return net.model(make_model, {"y2": 16})


def resolutions(make_model):
    """Each branch goes on by what both were, to the end: one output of each."""
    net = Network()
    a, b = net.convolution("x", "a", 3, 8), net.convolution("x", "b", 3, 8, 1)
    for i in range(4):
        c, d = net.chain(a, f"a{i}", 8, 1 + i % 2), net.chain(b, f"b{i}", 8, 2)
        cross = net.convolution(d, f"from_b{i}", 8, 8, 1), net.convolution(c, f"from_a{i}", 8, 8, 1)
        a, b = net.node("Add", [c, cross[0]], f"c{i}"), net.node("Mul", [d, cross[1]], f"d{i}")
    return net.model(make_model, {a: 8, b: 8})


MODELS = [heads, shortcuts, resolutions]


def feeds(seed):
    return {"x": np.random.default_rng(seed).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)}


def is_near(session, reference, seed):
    for found, expected in zip(session.run(None, feeds(seed)), reference.run(None, feeds(seed))):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("options", [{"auto_graph": 1}, {"auto_graph": 0}, {"regions": "all", "auto_graph": 1}])
def test_models_of_branches(make_model, model, options):
    session, reference = make_session(model(make_model), **options), on_cpu(model(make_model))
    for seed in range(5):
        is_near(session, reference, seed)


@only_if(HAS_GRAPHS)
@pytest.mark.parametrize("model", MODELS)
def test_graphs_that_were_asked_for(make_model, model):
    made = model(make_model)
    session, reference = make_session(made, enable_cuda_graph=1), on_cpu(made)
    x = encore_session.on_device(feeds(0)["x"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    results = [encore_session.empty_on_device(y.shape, np.float32) for y in session.get_outputs()]
    for y, result in zip(session.get_outputs(), results):
        binding.bind_ortvalue_output(y.name, result)
    for seed in range(5):
        x.update_inplace(feeds(seed)["x"])
        session.run_with_iobinding(binding, encore_session.run_options(0))
        for found, expected in zip(results, reference.run(None, feeds(seed))):
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-3)


def test_a_graph_takes_no_more_memory_than_two_branches_do_at_a_time(make_model):
    """What a branch is through with it uses again; the others can't."""
    sizes = {}
    for length in (3, 12):
        net = Network()
        stem = net.convolution("x", "stem", 3, 16)
        ends = [net.chain(stem, f"branch{i}", 16, length) for i in range(2)]
        net.node("Add", ends, "y")
        session = make_session(net.model(make_model, {"y": 16}), auto_graph=1)
        for seed in range(3):
            session.run(None, feeds(seed))
        (region,) = encore_python.region_report(session)
        sizes[length] = region["scratch_bytes"]
    assert sizes[12] <= sizes[3], sizes


ORDERED = """
import json
import encore_session as e, numpy as np, onnx
from test_branches import feeds
session = e.make_session({model!r}, auto_graph=1)
for seed in range(3):
    session.run(None, feeds(seed))
ran = e.trace(session, lambda: session.run(None, feeds(3)))
print(json.dumps([kernel["label"] for kernel in ran if kernel["what"] == "kernel"]))
expected = e.on_cpu(onnx.load_from_string({model!r})).run(None, feeds(3))
for found, one in zip(session.run(None, feeds(3)), expected):
    np.testing.assert_allclose(found, one, rtol=1e-3, atol=1e-3)
"""


@only_if(encore_session.on_virtual_gpu())  # which runs a graph's nodes in any order that its edges allow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("order", ["reversed", "split"])
def test_any_order_of_branches(make_model, model, order):
    code = ORDERED.format(model=model(make_model).SerializeToString())
    ran = in_new_process(code, ENCORE_VIRTUAL_ORDER=order).stdout
    if model is heads and order == "reversed":
        assert ran.index("head0_0") < ran.index("head2_0"), ran
        assert ran.index("end0") < ran.index("head1_0"), ran
