"""What the end-to-end tests share: the registered library, and models of a few nodes."""

import c_application
import encore_session
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture(scope="session")
def encore():
    """The name of the execution provider; its library is registered."""
    return encore_session.registered()


@pytest.fixture(autouse=True)
def let_go():
    """Of sessions that had to outlive a test's values."""
    yield
    encore_session.OUTLIVING.clear()


@pytest.fixture(scope="session")
def make_model():
    """make_model(nodes, inputs, outputs, ...): a model; its ends are {name: (shape, type)} or {name: shape}."""

    def values(forms):
        for name, form in forms.items():
            shape, kind = form if isinstance(form, tuple) else (form, TensorProto.FLOAT)
            yield helper.make_tensor_value_info(name, kind, shape)

    def make(nodes, inputs, outputs, initializers=(), opset=18, domains=("com.microsoft",)):
        graph = helper.make_graph(nodes, "test", list(values(inputs)), list(values(outputs)), list(initializers))
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    return make


@pytest.fixture(scope="session")
def make_application(layer, tmp_path_factory):
    """make_application(**options): one that runs `layer`, or another model's bytes, through the C API."""
    api, env = c_application.start(tmp_path_factory.mktemp("application"))
    layer = layer[0].SerializeToString()
    make = lambda model=layer, **options: c_application.Application(api, env, model, **{"use_tf32": 0, **options})
    return make


@pytest.fixture(scope="session")
def layer(make_model):
    """y = relu(x @ w) + x, and what it should be."""
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "mm"),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Add", ["r", "x"], ["y"], "add"),
    ]
    model = make_model(nodes, {"x": ["n", 8]}, {"y": ["n", 8]}, [numpy_helper.from_array(w, "w")])
    return model, lambda x: np.maximum(x @ w, 0) + x


@pytest.fixture(scope="session")
def chain(make_model):
    """y = -|-(x @ w)| + b, elementwise but for the product; and what it should be."""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    b = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
        helper.make_node("Neg", ["p"], ["n"], "negative"),
        helper.make_node("Abs", ["n"], ["a"], "absolute"),
        helper.make_node("Neg", ["a"], ["m"], "minus"),
        helper.make_node("Add", ["m", "b"], ["y"], "sum"),
    ]
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")]
    model = make_model(nodes, {"x": ["n", 64]}, {"y": ["n", 64]}, constants)
    return model, lambda x: b - np.abs(x @ w)


@pytest.fixture(scope="session", params=["MatMul", "Conv"])
def heavy(make_model, request):
    """y = -(w @ x), by a product or a convolution, with a w of a MiB or more; and what it should be."""
    w = weights = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    node = helper.make_node("MatMul", ["w", "x"], ["a"], "heavy")
    if request.param == "Conv":  # whose kernel has three places, of which the middle one meets x
        node = helper.make_node("Conv", ["x", "w"], ["a"], "heavy", pads=[1, 1])
        weights = np.pad(w[:, :, None], ((0, 0), (0, 0), (1, 1)))
    nodes = [node, helper.make_node("Neg", ["a"], ["y"], "minus")]
    model = make_model(nodes, {"x": ["n", 512, 1]}, {"y": ["n", 512, 1]}, [numpy_helper.from_array(weights, "w")])
    return model, lambda x: -(w @ x)


@pytest.fixture(scope="module")
def pair(make_model):
    """total = x + 2 y, and difference = x - y."""
    nodes = [
        helper.make_node("Add", ["x", "y"], ["t"], "add"),
        helper.make_node("Add", ["t", "y"], ["total"], "add_again"),
        helper.make_node("Sub", ["x", "y"], ["the.difference"], "subtract"),
    ]
    shape = ["n", 4]
    return make_model(nodes, {"x": shape, "y": shape}, {"total": shape, "the.difference": shape})


@pytest.fixture(scope="module")
def negation(make_model):
    """y = -x, by way of nodes enough for a run to take a moment."""
    names = ["x", *(f"t{i}" for i in range(8)), "y"]
    nodes = [helper.make_node("Neg", [a], [b], f"neg{i}") for i, (a, b) in enumerate(zip(names, names[1:]))]
    return make_model(nodes, {"x": ["n", 256]}, {"y": ["n", 256]})
