"""Dimensions padded to a few lengths (pad): the same answers, of few shapes; or a reason why not."""

import numpy as np
import onnxruntime_ep_encore
import pytest
from encore_session import Bound, in_threads, make_session, needs_graphs
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.core

FLOAT = np.float32
WIDTH = 8
PAD = "batch:2,4,8"


def constant(name, shape, seed=0, dtype=FLOAT):
    values = np.random.default_rng(seed).standard_normal(shape)
    return numpy_helper.from_array(values.astype(dtype) if dtype == FLOAT else (values * 9).astype(dtype), name)


@pytest.fixture(scope="module")
def model(make_model):
    """Rows of a table, multiplied and normed, and how long each is."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], "look_up"),
        helper.make_node("MatMul", ["rows", "w"], ["p"], "product"),
        helper.make_node("Softmax", ["p"], ["y"], "softmax"),
        helper.make_node("ReduceSum", ["rows", "last"], ["sums"], "sum", keepdims=0),
    ]
    constants = [constant("table", (50, WIDTH)), constant("w", (WIDTH, WIDTH), 1)]
    constants.append(numpy_helper.from_array(np.array([-1]), "last"))
    ins = {"ids": (["batch", 3], TensorProto.INT64)}
    return make_model(nodes, ins, {"y": ["batch", 3, WIDTH], "sums": ["batch", 3]}, constants)


def ids(rows, seed=0):
    return {"ids": np.random.default_rng(seed).integers(0, 50, (rows, 3))}


def agrees(session, plain, feeds):
    for got, wanted in zip(session.run(None, feeds), plain.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def keys(session):
    return [region["keys"] for region in onnxruntime_ep_encore.region_report(session)]


@pytest.mark.parametrize("auto_graph", [0, 1])
def test_few_shapes_are_run(encore, model, auto_graph):
    session, plain = make_session(model, pad=PAD, auto_graph=auto_graph), make_session(model)
    for seed in range(3):
        for rows in (1, 2, 3, 4, 5, 7, 8):
            agrees(session, plain, ids(rows, seed))
    assert keys(session) == [3]
    if auto_graph:
        assert onnxruntime_ep_encore.region_report(session)[0]["replays"] > 10


def test_what_no_length_suits_stays_as_it_is(encore, model):
    session, plain = make_session(model, pad=PAD), make_session(model)
    for rows in (0, 9, 100):
        agrees(session, plain, ids(rows))
    assert keys(session) == [3]


def test_tensors_on_the_device(encore, model):
    session, plain = make_session(model, pad=PAD, auto_graph=1), make_session(model)
    wanted = {rows: plain.run(None, ids(rows)) for rows in (3, 4)}
    for _ in range(3):
        for rows in (3, 4):
            bound = Bound(session, ids(rows), {"y": ((rows, 3, WIDTH), FLOAT), "sums": ((rows, 3), FLOAT)})
            made = bound.run()
            np.testing.assert_allclose(made["y"], wanted[rows][0], rtol=1e-6)
            np.testing.assert_allclose(made["sums"], wanted[rows][1], rtol=1e-6)


@needs_graphs
def test_graphs_by_id_are_padded_too(encore, model):
    session, plain = make_session(model, pad=PAD, enable_cuda_graph=1), make_session(model)
    bound = Bound(session, ids(3), {"y": ((3, 3, WIDTH), FLOAT), "sums": ((3, 3), FLOAT)})
    for seed in range(5):
        np.testing.assert_allclose(
            bound.run(ids(3, seed), graph_id=1)["y"], plain.run(None, ids(3, seed))[0], rtol=1e-6
        )


def test_threads(encore, model):
    session, plain = make_session(model, pad=PAD, auto_graph=1), make_session(model)
    wanted = {rows: plain.run(None, ids(rows)) for rows in range(1, 9)}

    def work(number):
        for turn in range(20):
            rows = (number + turn) % 8 + 1
            np.testing.assert_allclose(session.run(None, ids(rows))[0], wanted[rows][0], rtol=1e-6)

    in_threads(4, work)


def test_two_dimensions(encore, make_model):
    nodes = [
        helper.make_node("Add", ["x", "z"], ["s"], "add"),
        helper.make_node("Transpose", ["s"], ["t"], "turn", perm=[1, 0, 2]),
        helper.make_node("LayerNormalization", ["t", "scale"], ["y"], "norm"),
    ]
    ins = {"x": ["batch", "sequence", WIDTH], "z": ["sequence", WIDTH]}
    model = make_model(nodes, ins, {"y": ["sequence", "batch", WIDTH]}, [constant("scale", WIDTH)])
    session, plain = make_session(model, pad="batch:4;sequence:16,32"), make_session(model)
    for batch, sequence in ((3, 7), (4, 9), (1, 17), (4, 16), (2, 33)):
        random = np.random.default_rng(batch)
        x = {"x": random.standard_normal((batch, sequence, WIDTH)), "z": random.standard_normal((sequence, WIDTH))}
        agrees(session, plain, {name: array.astype(FLOAT) for name, array in x.items()})
    assert keys(session) == [3]


# What is added has a last row's values: others might be faults that no run without them has.
def test_nothing_that_is_added_is_a_fault(encore, make_model):
    nodes = [
        helper.make_node("Sub", ["ids", "ten"], ["i"], "less"),
        helper.make_node("Gather", ["table", "i"], ["y"], "look_up"),
    ]
    constants = [constant("table", (5, WIDTH)), numpy_helper.from_array(np.array(10), "ten")]
    model = make_model(nodes, {"ids": (["batch"], TensorProto.INT64)}, {"y": ["batch", WIDTH]}, constants)
    session, plain = make_session(model, pad="batch:8"), make_session(model)
    agrees(session, plain, {"ids": np.array([10, 14, 12])})
    with pytest.raises(Exception, match="Gather node 'look_up'"):
        session.run(None, {"ids": np.array([10, 15, 12])})
    agrees(session, plain, {"ids": np.array([13])})


def test_inputs_that_disagree_are_the_models_error(encore, make_model):
    nodes = [helper.make_node("Add", ["x", "z"], ["s"], "add"), helper.make_node("Relu", ["s"], ["y"], "relu")]
    model = make_model(nodes, {"x": ["batch", 4], "z": ["batch", 4]}, {"y": ["batch", 4]})
    session, plain = make_session(model, pad="batch:4,8"), make_session(model)
    one = {"x": np.ones((1, 4), FLOAT), "z": np.ones((3, 4), FLOAT)}
    agrees(session, plain, one)  # broadcasting, which the names deny
    with pytest.raises(Exception, match="Add node 'add'"):
        session.run(None, {"x": np.ones((2, 4), FLOAT), "z": np.ones((3, 4), FLOAT)})


def refusal(model, **options):
    with pytest.raises(Exception) as raised:
        make_session(model, **options)
    return str(raised.value)


def test_a_node_that_brings_rows_together_is_named(encore, make_model):
    nodes = [helper.make_node("Relu", ["x"], ["r"], "relu"), helper.make_node("Softmax", ["r"], ["y"], "over", axis=0)]
    model = make_model(nodes, {"x": ["batch", 4]}, {"y": ["batch", 4]})
    said = refusal(model, pad="batch:4")
    assert "'pad' can't pad 'batch'" in said and "Softmax node 'over' goes along it" in said, said


@pytest.mark.parametrize(
    "pad, says",
    [
        ("bach:4", "names a dimension 'bach', which no input has; theirs are batch"),
        ("batch", "it must be dimensions of the model's inputs with lengths"),
        ("batch:", "it must be dimensions"),
        ("batch:0", "it must be dimensions"),
        ("batch:2,x", "it must be dimensions"),
        ("batch:2;batch:4", "it must be dimensions"),
        (":4", "it must be dimensions"),
    ],
)
def test_mistakes(encore, model, pad, says):
    assert says in refusal(model, pad=pad)


def test_padding_is_for_regions(encore, model):
    assert "'pad' is for regions, which 'regions=0'" in refusal(model, pad=PAD, regions=0, auto_graph=0)


def test_lengths_as_python_has_them(encore, model):
    session = onnxruntime_ep_encore.session(model.SerializeToString(), pad={"batch": [4, 2]}, use_tf32=False)
    agrees(session, make_session(model), ids(3))
    assert keys(session) == [1]
