#!/usr/bin/env python3
"""Writes model.onnx, the small classifier that the other examples run: x [batch, 64] to probabilities y [batch, 10].

python examples/make_model.py [model.onnx]
"""

import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

FEATURES, HIDDEN, CLASSES = 64, 128, 10


def make_model():
    """y = softmax(relu(x @ w1) @ w2), with random weights."""
    rng = np.random.default_rng(0)
    w1 = rng.standard_normal((FEATURES, HIDDEN), np.float32)
    w2 = rng.standard_normal((HIDDEN, CLASSES), np.float32) / 16
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "layer1"),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "w2"], ["b"], "layer2"),
        helper.make_node("Softmax", ["b"], ["y"], "softmax"),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", FEATURES])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", CLASSES])
    weights = [numpy_helper.from_array(w1, "w1"), numpy_helper.from_array(w2, "w2")]
    graph = helper.make_graph(nodes, "classifier", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


if __name__ == "__main__":
    onnx.save(make_model(), sys.argv[1] if len(sys.argv) > 1 else "model.onnx")
