"""What the end-to-end tests share: the registered library, and models of a few nodes."""

import encore_session
import pytest
from onnx import TensorProto, helper


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
