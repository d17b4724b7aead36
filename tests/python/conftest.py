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
    """make_application(**options): one that runs `layer` through the C API."""
    api, env = c_application.start(tmp_path_factory.mktemp("application"))
    model = layer[0].SerializeToString()
    return lambda **options: c_application.Application(api, env, model, **{"use_tf32": 0, **options})


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
