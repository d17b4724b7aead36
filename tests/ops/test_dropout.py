"""Dropout: nothing at inference; in training a mask that is new in each run, and in each replay of a graph."""

import numpy as np
import pytest
from encore_session import EAGER, Bound, assert_all_on_encore, needs_graphs
from harness import FLOATS, Case, Const, _Model, check, floats, session
from refusal import fails

MANY = 100_003  # values; a mean of as many strays by a few thousandths


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(
    "opset, dtype", [(7, "float32"), (10, "float16"), (12, "float64"), *((13, d) for d in FLOATS), (22, "float32")]
)
def test_at_inference(opset, outputs, dtype):
    check(Case("Dropout", [floats(3, 5)], dtype=dtype, opset=opset, outputs=outputs, family="exact"))


@pytest.mark.parametrize("ratio, training", [(0.5, False), (0, True), (0, False)])
def test_nothing_is_dropped(ratio, training):
    inputs = [floats(3, 5), Const(np.array(ratio, np.float32)), Const(np.array(training))]
    check(Case("Dropout", inputs, outputs=2, family="exact"))


def training(x, ratio=0.5, dtype="float32", opset=22, outputs=2, mode=True, **attrs):
    inputs = [x, None if ratio is None else Const(np.array(ratio, np.float64)), Const(np.array(mode))]
    case = Case("Dropout", inputs, attrs, dtype=dtype, opset=opset, outputs=outputs)
    model = _Model(case, dtype)
    sess = session(model.model)
    assert_all_on_encore(sess)
    return lambda: sess.run(model.outputs, model.feeds)


@pytest.mark.parametrize("ratio", [None, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", FLOATS)
def test_values_are_kept_or_dropped(dtype, ratio):
    x = floats(MANY, low=1, high=3)
    y, mask = training(x, ratio, dtype, seed=1)()  # or one of some thousand runs would stray further
    ratio = 0.5 if ratio is None else ratio
    assert mask.dtype == bool and mask.shape == y.shape
    assert abs(mask.mean() - (1 - ratio)) < 0.006
    assert not y[~mask].any()
    rounding = {"float32": 1e-6, "float64": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(y[mask].astype(np.float64), x[mask] / (1 - ratio), rtol=rounding)
    assert abs(np.corrcoef(mask[1:], mask[:-1])[0, 1]) < 0.015


@pytest.mark.parametrize("opset", [12, 13, 22])
@pytest.mark.parametrize("size", [0, 1, 3, 1025])
def test_sizes(opset, size):
    y, mask = training(np.ones(size, np.float32), opset=opset)()
    np.testing.assert_array_equal(y, mask * np.float32(2))
    (alone,) = training(np.ones(size, np.float32), opset=opset, outputs=1)()
    assert set(np.unique(alone)) <= {0.0, 2.0}


def test_what_is_no_number_stays_so():
    y, _ = training(np.full(1000, np.nan, np.float32))()
    assert np.isnan(y).all()  # as the CPU EP has it


def test_seeds():
    x = np.ones(1000, np.float32)
    first, same, other = training(x, seed=5), training(x, seed=5), training(x, seed=6)
    masks = [first()[1] for _ in range(3)]
    for mask in masks:
        np.testing.assert_array_equal(same()[1], mask)
        assert 300 < (other()[1] != mask).sum() < 700
    assert 300 < (masks[0] != masks[1]).sum() < 700
    assert (training(x)()[1] != training(x)()[1]).any()


@needs_graphs
def test_a_replay_drops_others():
    case = Case("Dropout", [np.ones(5000, np.float32), Const(np.float32(0.5)), Const(np.array(True))], outputs=2)
    model = _Model(case, "float32")
    sess = session(model.model, enable_cuda_graph=1, min_num_runs_before_cuda_graph_capture=1)
    assert_all_on_encore(sess)
    bound = Bound(sess, model.feeds, {"y0": ((5000,), np.float32), "y1": ((5000,), bool)})
    masks = [bound.run(graph_id=EAGER)["y1"]]
    for _ in range(5):
        got = bound.run()
        np.testing.assert_array_equal(got["y0"], got["y1"] * np.float32(2))
        masks.append(got["y1"])
    for i, mask in enumerate(masks):
        assert abs(mask.mean() - 0.5) < 0.05
        for before in masks[:i]:
            assert abs((mask != before).mean() - 0.5) < 0.05


def test_an_input_that_others_read_stays():
    """Dropout may write over its input only where nobody reads it afterwards."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Dropout", ["n", "", "t"], ["y"]),
        helper.make_node("Sub", ["n", "y"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1000])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1000]) for n in "yz"],
        [helper.make_tensor("t", TensorProto.BOOL, [], [True])],
    )
    sess = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10))
    y, z = sess.run(None, {"x": np.ones(1000, np.float32)})
    assert set(np.unique(y)) == {0.0, -2.0}
    np.testing.assert_array_equal(z, -1 - y)


@pytest.mark.parametrize("ratio", [1, 1.5, -0.1, np.nan])
def test_ratios_out_of_range(ratio):
    fails("Dropout", [floats(3), np.array(ratio, np.float32), np.array(True)], {}, "ratio is .* less than 1")
