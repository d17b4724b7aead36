"""What the options say of matrix products and convolutions reaches those who compute them."""

import json

import encore_session as es
import numpy as np
import pytest
from onnx import helper, numpy_helper

pytestmark = pytest.mark.core

NEARLY_ONE = np.float32(1 + 2**-12)  # which tensor cores read as one


def product_of(op, make_model):
    """A model y = 256 * NEARLY_ONE everywhere, and its input."""
    w = np.ones((256, 64), np.float32)
    x = np.full((64, 256), NEARLY_ONE)
    if op == "Conv":
        w, x = np.ones((64, 256, 1, 1), np.float32), np.full((1, 256, 16, 16), NEARLY_ONE)
    shapes = {"MatMul": [64, 64], "Gemm": [64, 64], "Conv": [1, 64, 16, 16]}
    node = helper.make_node(op, ["x", "w"], ["y"], op)
    return make_model([node], {"x": list(x.shape)}, {"y": shapes[op]}, [numpy_helper.from_array(w, "w")]), x


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Conv"])
def test_floats_are_rounded_for_tensor_cores_if_allowed(encore, make_model, op):
    model, x = product_of(op, make_model)
    exact, rounded = [es.make_session(model, use_tf32=tf32).run(None, {"x": x})[0] for tf32 in (0, 1)]
    np.testing.assert_array_equal(exact, np.full_like(exact, 256 * NEARLY_ONE))
    np.testing.assert_array_equal(rounded, np.full_like(rounded, 256))


def tuned(session, file):
    session.set_ep_dynamic_options({"ep.cuda.report_tuning": str(file)})
    return json.loads(file.read_text())


@pytest.mark.parametrize("tune", [0, 1])
def test_products_are_tuned_once_each(encore, make_model, tmp_path, tune):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "mm")
    w = numpy_helper.from_array(np.ones((32, 16), np.float32), "w")
    model = make_model([node], {"x": ["n", 32]}, {"y": ["n", 16]}, [w])
    options = {"tunable_op_enable": 1, "tunable_op_tuning_enable": tune}
    session = es.make_session(model, **options)
    for rows in (4, 64, 4, 64):
        session.run(None, {"x": np.ones((rows, 32), np.float32)})
    assert len(tuned(session, tmp_path / "tuned")) == 2 * tune


@es.needs_graphs
def test_nothing_is_tuned_in_a_capture(encore, make_model, tmp_path):
    model, x = product_of("MatMul", make_model)
    options = {"enable_cuda_graph": 1, "tunable_op_enable": 1, "tunable_op_tuning_enable": 1}
    bound = es.Bound(es.make_session(model, **options), {"x": x}, {"y": ((64, 64), np.float32)})
    for _ in range(4):  # two warm-ups, of which the first tunes; a capture; a replay
        np.testing.assert_array_equal(bound.run()["y"], np.full((64, 64), 256 * NEARLY_ONE))
    assert len(tuned(bound.session, tmp_path / "tuned")) == 1
