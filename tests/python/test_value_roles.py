"""A value that a node wants in host memory and as data: onnxruntime keeps a node's value in one place only."""

import encore_session as es
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

INT64 = TensorProto.INT64
pytestmark = pytest.mark.core


def plain():
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def on_cpu(model, feeds):
    session = ort.InferenceSession(model.SerializeToString(), plain(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def same_as_on_cpu(model, feeds, **options):
    session = es.make_session(model, plain(), **options)
    for got, wanted in zip(session.run(None, feeds), on_cpu(model, feeds), strict=True):
        np.testing.assert_array_equal(got, wanted)
    return es.nodes_on(session)


def vector(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


# What brings the value: a constant, an input, or a node on the device.
SOURCES = {
    "constant": ([], {}, [vector("v", 0)]),
    "input": ([], {"v": ([1], INT64)}, []),
    "node": ([helper.make_node("Neg", ["w"], ["v"], "source")], {"w": ([1], INT64)}, []),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_node_with_a_value_in_two_roles_is_left_to_the_cpu(encore, make_model, source, capfd):
    before, inputs, constants = SOURCES[source]
    nodes = [
        *before,
        helper.make_node("Squeeze", ["v", "v"], ["s"], "both"),
        helper.make_node("Add", ["s", "x"], ["y"], "sum"),
    ]
    model = make_model(nodes, {**inputs, "x": (["n"], INT64)}, {"y": (["n"], INT64)}, constants)
    feeds = {name: np.zeros(1, np.int64) for name in inputs} | {"x": np.arange(5)}
    placed = same_as_on_cpu(model, feeds, log_placement=1)
    assert "Squeeze" in placed["CPUExecutionProvider"] and "Add" in placed[es.EP_NAME]
    said = capfd.readouterr().err
    assert "Squeeze node 'both' is not on Encore: inputs 0 and 1 are the same value" in said


def test_two_nodes_may_want_it_in_two_places(encore, make_model):
    nodes = [
        helper.make_node("Abs", ["v"], ["a"], "source"),
        helper.make_node("Expand", ["x", "a"], ["e"], "expand"),
        helper.make_node("Cast", ["a"], ["f"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Add", ["e", "f"], ["y"], "sum"),
    ]
    model = make_model(nodes, {"x": [1, 1], "v": ([2], INT64)}, {"y": [None, None]})
    feeds = {"x": np.full((1, 1), 0.5, np.float32), "v": np.array([-3, 2])}
    placed = same_as_on_cpu(model, feeds)
    assert "Expand" in placed[es.EP_NAME] and "Add" in placed[es.EP_NAME]
