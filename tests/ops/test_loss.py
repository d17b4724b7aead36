"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss, against the functions that onnxruntime makes of them."""

import numpy as np
import pytest
from encore_session import EP_NAME, nodes_on
from harness import FLOATS, Case, check, floats, integers, session
from onnx import TensorProto, helper
from refusal import fails

LOSSES = ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"]
SHAPES = [(5, 7), (1, 3), (3, 5, 4), (2, 5, 3, 4), (2, 3, 2, 2, 3), (300, 17), (2, 40, 1000)]


def log_softmax(x):
    top = x - x.max(axis=1, keepdims=True)
    return top - np.log(np.exp(top).sum(axis=1, keepdims=True))


def reference(op, reduction="mean", ignore_index=None, outputs=1):
    def of(x, labels, weights=None):
        wide = x.astype(np.float64)
        logs = log_softmax(wide) if op == LOSSES[1] else wide
        counted = labels != (-(10**9) if ignore_index is None else ignore_index)
        classes = np.where(counted, labels, 0)
        weight = np.ones(x.shape[1]) if weights is None else weights.astype(np.float64)
        weight = weight[classes] * counted
        loss = -np.take_along_axis(logs, np.expand_dims(classes, 1), 1).squeeze(1)
        loss = np.where(counted, loss * weight, 0)
        with np.errstate(all="ignore"):
            total = {"none": loss, "sum": loss.sum(), "mean": loss.sum() / weight.sum()}[reduction]
        return [np.asarray(made, x.dtype) for made in (total, logs)[:outputs]]

    return of


def case(op, shape, dtype="float32", weighed=False, kind="int64", labels=None, outputs=1, opset=22, **more):
    low, high = (-5, -0.1) if op == LOSSES[0] else (-3, 3)
    x = floats(*shape, low=low, high=high)
    if labels is None:
        labels = integers(kind, shape[0], *shape[2:], low=0, high=shape[1] - 1)
    weights = [floats(shape[1], low=0.2, high=2)] if weighed else []
    attrs = {k: v for k, v in more.items() if k in ("reduction", "ignore_index")}
    more = {k: v for k, v in more.items() if k not in attrs}
    more.setdefault("reference", reference(op, outputs=outputs, **attrs))
    return Case(op, [x, labels, *weights], attrs, dtype=dtype, outputs=outputs, opset=opset, family="reduce", **more)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weighed", [True, False])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("op", LOSSES)
def test_types(op, reduction, weighed, dtype):
    check(case(op, (3, 5, 4), dtype, weighed, reduction=reduction))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("op", LOSSES)
def test_shapes(op, reduction, shape):
    check(case(op, shape, weighed=True, reduction=reduction))


@pytest.mark.parametrize("op", LOSSES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [2, -100, -1])
def test_ignored_labels(op, ignored, reduction):
    labels = integers("int64", 40, 3, low=0, high=4)
    labels[::3] = ignored
    for weighed in (False, True):
        check(case(op, (40, 5, 3), labels=labels, weighed=weighed, reduction=reduction, ignore_index=ignored))


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("op", LOSSES)
def test_one_label(op, reduction, kind):
    """What lies beside it is none."""
    check(case(op, (1, 4), kind=kind, reduction=reduction))
    check(case(op, (1, 4), kind=kind, reduction=reduction, misaligned=True))


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("op", LOSSES)
def test_labels_of_either_type(op, kind):
    check(case(op, (30, 5), kind=kind, name=kind))


@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("op", LOSSES)
def test_as_the_function_does(op, reduction, opset):
    check(case(op, (4, 5, 6), weighed=True, reduction=reduction, opset=opset, reference=None))
    check(case(op, (4, 5), ignore_index=2, reduction=reduction, opset=opset, reference=None))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(30, 7), (2, 5, 3, 4)], ids=str)
def test_log_probabilities(shape, dtype):
    check(case(LOSSES[1], shape, dtype, outputs=2, name="logs"))


@pytest.mark.parametrize("op", LOSSES)
def test_many_labels(op):
    check(case(op, (3, 4, 300, 301), weighed=True))
    check(case(op, (3, 4, 300, 301), reduction="none"))


@pytest.mark.parametrize("op", LOSSES)
def test_nothing_to_lose(op):
    check(case(op, (0, 5), reduction="none"))
    check(case(op, (0, 5), reduction="sum"))
    check(case(op, (0, 5), reduction="mean"))  # NaN: nothing divided by nothing
    labels = np.full(4, 1, np.int64)
    check(case(op, (4, 5), labels=labels, ignore_index=1, name="all ignored"))


@pytest.mark.parametrize("op", LOSSES)
def test_labels_beyond_the_classes(op):
    for label in (5, -6, 2**62):
        labels = np.array([0, label, 1], np.int64)
        fails(op, [floats(3, 5), labels], {}, f"index {label}.* 5", opset=13)


@pytest.mark.parametrize("op", LOSSES)
def test_shapes_that_do_not_fit(op):
    labels = np.zeros(3, np.int64)
    fails(op, [floats(4, 5), labels], {}, r"labels of shape \[3\] do not fit an input of \[4,5\]", opset=13)
    fails(op, [floats(3, 5), labels, floats(4)], {}, r"weights have shape \[4\] for 5 classes", opset=13)
    fails(op, [floats(3), labels], {}, "it must have a batch and classes", opset=13, ranks=False)
    fails(op, [floats(3, 0), labels], {}, "there are labels, and no classes", opset=13)


@pytest.mark.parametrize("op", LOSSES)
def test_another_reduction_is_declined(op):
    """onnxruntime then runs the function's body."""
    attrs = {"reduction": "product"}
    node = helper.make_node(op, ["x", "labels"], ["y"], name="it", **attrs)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 5]),
        helper.make_tensor_value_info("labels", TensorProto.INT64, [3]),
    ]
    graph = helper.make_graph([node], "loss", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10)
    assert op not in nodes_on(session(model)).get(EP_NAME, [])
