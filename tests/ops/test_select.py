"""Outputs of which the data decides how large they are: no graph holds them."""

import numpy as np
import pytest
from encore_session import make_session, needs_graphs, registered
from harness import FLOATS, INTEGERS, Case, bools, check, floats, integers
from onnx import TensorProto, helper
from refusal import declined, fails, unranked_session

NO_BFLOAT16 = [t for t in FLOATS if t != "bfloat16"]  # which some of the schemas lack


def exact(op, inputs, attrs=None, **rest):
    return Case(op, inputs, attrs or {}, family="exact", capture=False, **rest)


def mostly(zeros, *shape):
    """Mostly zeros, or other values."""
    x = floats(*shape)
    return np.where(np.abs(x) < 3 * zeros, np.float32(0), x)


def nonzero(x):
    return [np.array(np.nonzero(np.atleast_1d(x)), np.int64)]


NONZERO = [
    *[exact("NonZero", [mostly(0.6, 5, 7)], dtype=t, reference=nonzero) for t in FLOATS],
    *[exact("NonZero", [integers(t, 6, 4, low=0, high=2)], name=t, reference=nonzero) for t in INTEGERS],
    exact("NonZero", [bools(3, 4, 5)]),
    exact("NonZero", [np.array([0.0, -0.0, np.nan, np.inf, 1e-40], np.float32)], name="special"),
    exact("NonZero", [np.zeros((4, 5), np.float32)], name="none"),
    exact("NonZero", [floats(0, 3)], name="empty"),
    exact("NonZero", [mostly(0.5, 70000)], name="vector"),
    exact("NonZero", [mostly(0.5, 300, 101)], name="large"),
    exact("NonZero", [bools(2, 1, 2, 3, 1, 2, 2, 3, 2, 1)], name="many"),
    exact("NonZero", [mostly(0.5, 3, 4)], opset=9),
]

COMPRESS = [
    *[exact("Compress", [floats(5, 4), bools(5)], {"axis": 0}, dtype=t) for t in NO_BFLOAT16],
    *[exact("Compress", [integers(t, 5, 4), bools(4)], {"axis": -1}, name=t) for t in INTEGERS],
    exact("Compress", [bools(5, 4), bools(20)]),
    exact("Compress", [floats(5, 4), bools(7)], name="flat-shorter"),
    exact("Compress", [floats(5, 4), np.ones(9, bool)], {"axis": 0}, name="longer"),
    exact("Compress", [floats(5, 4), np.zeros(5, bool)], {"axis": 0}, name="none"),
    exact("Compress", [floats(0, 4), bools(3)], {"axis": 0}, name="empty"),
    exact("Compress", [floats(5000, 33), bools(5000)], {"axis": 0}, dtype="float16", name="large"),
    exact("Compress", [floats(64, 32), bools(64)], {"axis": 0}, dtype="float16", misaligned=True),
    exact("Compress", [floats(3, 4, 5), bools(4)], {"axis": 1}, opset=9),
]


def twice(x):
    """Each slice two times, apart from one another."""
    return np.concatenate([x, x[::-1]])


def unique(x, attrs=None, **rest):
    return exact("Unique", [x], attrs, outputs=4, reference=lambda x: by_numpy(x, **(attrs or {})), **rest)


def by_numpy(x, axis=None, sorted=1):
    y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        rank = np.argsort(order)
        y, first, counts = np.take(y, order, axis or 0), first[order], counts[order]
        inverse = rank[inverse]
    return [y, first, inverse, counts]


UNIQUE = [
    *[unique(np.round(floats(40)), {"sorted": s}, dtype=t, name=f"{s}") for t in NO_BFLOAT16 for s in (0, 1)],
    *[
        unique(integers(t, 50, low=0, high=9), {"sorted": s}, name=f"{t}-{s}")
        for t in INTEGERS
        for s in (0, 1)
    ],
    unique(integers("int32", 60)),
    unique(bools(9)),
    unique(np.round(floats(6, 7)), name="flat"),
    *[
        unique(integers("int64", 9, 3, low=0, high=1), {"axis": axis, "sorted": s}, name=f"{axis}-{s}")
        for axis in (0, 1, -1)
        for s in (0, 1)
    ],
    unique(integers("int8", 2, 9, 2, low=-1, high=0), {"axis": 1}, name="inner"),
    *[unique(twice(integers(t, 20, 35, low=0, high=1)), {"axis": 0}, name=f"wide-{t}") for t in INTEGERS],
    *[unique(twice(np.round(floats(20, 35))), {"axis": 0}, dtype=t, name="wide") for t in NO_BFLOAT16],
    unique(twice(integers("int64", 3000, 5, low=0, high=3)), {"axis": 0, "sorted": 0}, name="large-wide"),
    unique(integers("int32", 20000, low=-3000, high=3000), {"sorted": 0}, name="large"),
    unique(integers("int32", 20000, low=-3000, high=3000), name="large"),
    unique(np.float32(3), name="scalar"),
    unique(floats(0), name="empty"),
    unique(np.array([3, np.nan, 1, np.nan, -0.0, 0.0, np.inf], np.float32), name="special"),
    exact("Unique", [integers("int64", 30, low=0, high=5)], {"sorted": 0}, outputs=[True, False, True]),
    exact("Unique", [integers("int64", 30, low=0, high=5)], outputs=[True, False, False, True]),
    exact("Unique", [np.round(floats(30))], name="values"),
]  # fmt: skip


def boxes(count, batch=1, center=False):
    corner, size = floats(batch, count, 2, low=0, high=10), floats(batch, count, 2, low=0.5, high=4)
    return np.concatenate([corner, size if center else corner + size], -1).astype(np.float32)


def suppression(count, classes=1, most=10, overlap=0.5, score=None, batch=1, center=0, **rest):
    inputs = [boxes(count, batch, center), floats(batch, classes, count, low=0, high=1), np.array([most])]
    inputs += [np.array([overlap], np.float32)] if overlap is not None or score is not None else []
    inputs += [np.array([score], np.float32)] if score is not None else []
    return exact("NonMaxSuppression", inputs, {"center_point_box": center} if center else {}, **rest)


FLIPPED = np.float32([[[1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0], [5, 5, 6, 6], [3, 3, 3, 3], [3, 3, 3, 3]]])

SUPPRESSION = [
    suppression(7),
    suppression(300, 3, 40, 0.3, 0.2, batch=2),
    suppression(300, 3, 1000, 0.4, 0.2, center=1),
    suppression(1000, 1, 1000, 0.1, name="large"),
    suppression(20, 2, 5, 0.0, name="zero"),
    suppression(20, 2, 5, 1.0, name="one"),
    suppression(20, 2, 5, None, name="without"),
    suppression(20, 1, 20, 0.5, 2.0, name="none"),
    suppression(20, 1, 0, 0.5, name="most-0"),
    suppression(20, 1, -3, 0.5, name="most-negative"),
    suppression(20, 1, 2**60, 0.5, name="most-huge"),
    suppression(9, opset=10),
    exact("NonMaxSuppression", [boxes(4), floats(1, 2, 4)], name="absent"),
    exact("NonMaxSuppression", [boxes(0), floats(1, 2, 0), np.array([3])], name="empty"),
    exact("NonMaxSuppression", [FLIPPED, np.float32([[[0.5] * 6]]), np.array([9]), np.float32([0.5])], name="flipped"),
    exact("NonMaxSuppression", [boxes(600), np.float32([[[0.5] * 600]]), np.array([99]), np.float32([0.2])],
          name="ties"),
]  # fmt: skip


@pytest.mark.parametrize("case", NONZERO, ids=str)
def test_nonzero(case):
    check(case)


@pytest.mark.parametrize("x, wanted", [(3, [[0]]), (0, np.zeros((1, 0)))])
def test_a_scalar_is_a_vector_of_one(x, wanted):
    """For onnx it has no coordinate, so that no output can be bound."""
    session = unranked_session("NonZero", [np.array(x, np.float32)])
    np.testing.assert_array_equal(session.run(None, {"x0": np.array(x, np.float32)})[0], wanted, strict=False)


@pytest.mark.parametrize("case", COMPRESS, ids=str)
def test_compress(case):
    check(case)


@pytest.mark.parametrize("case", UNIQUE, ids=str)
def test_unique(case):
    check(case)


@pytest.mark.parametrize("case", SUPPRESSION, ids=str)
def test_non_max_suppression(case):
    check(case)


def test_nan_is_no_score_above_a_threshold():
    scores = np.float32([[[np.nan, 0.4, 0.9, np.nan, 0.1]]])
    apart = np.float32([[[i, i, i + 0.5, i + 0.5] for i in range(0, 50, 10)]])
    check(exact("NonMaxSuppression", [apart, scores, np.array([9]), np.float32([0.5]), np.float32([0.2])],
                reference=lambda *_: [np.array([[0, 0, 2], [0, 0, 1]])]))  # fmt: skip


@pytest.mark.parametrize(
    "inputs, words",
    [
        ([boxes(4), floats(1, 1, 5), np.array([3])], "scores have shape"),
        ([boxes(4), floats(2, 1, 4), np.array([3])], "scores have shape"),
        ([floats(1, 4, 5), floats(1, 1, 4), np.array([3])], "boxes have shape"),
        ([boxes(4), floats(1, 1, 4), np.array([3]), np.float32([1.5])], "iou_threshold is 1.5"),
        ([boxes(4), floats(1, 1, 4), np.array([3, 3])], "max_output_boxes_per_class has 2"),
    ],
)
def test_boxes_that_do_not_fit_are_refused(inputs, words):
    fails("NonMaxSuppression", inputs, {}, words, ranks=False)


def test_boxes_of_another_kind_are_declined():
    declined("NonMaxSuppression", [boxes(4), floats(1, 1, 4), np.array([3])], {"center_point_box": 2})


def model():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("NonZero", ["r"], ["y"], "where"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 300])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2, "count"])
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@needs_graphs
def test_graphs_are_refused_with_the_name_of_the_node(capfd):
    said = r"enable_cuda_graph=1 is impossible .*NonZero node 'where': an output's size depends on data"
    with pytest.raises(Exception, match=said + ".*graph_on_error=eager"):
        make_session(model(), enable_cuda_graph=1)
    assert "E:" in capfd.readouterr().err


@needs_graphs
def test_graphs_are_switched_off_with_one_warning_if_so_asked(capfd):
    registered()  # at which the virtual GPU says what it is
    capfd.readouterr()
    session = make_session(model(), enable_cuda_graph=1, graph_on_error="eager")
    for _ in range(3):
        x = floats(4, 300)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.array(np.nonzero(np.maximum(x, 0))))
    warnings = [line for line in capfd.readouterr().err.splitlines() if "W:" in line and "Encore]" in line]
    assert len(warnings) == 1 and "NonZero node 'where': an output's size depends on data" in warnings[0]
