"""RandomNormal, RandomUniform and their kin: what they draw has the law that was asked for, and is new in each run."""

import numpy as np
import pytest
from encore_session import EAGER, Bound, assert_all_on_encore, needs_graphs
from harness import FLOATS, INTEGERS, Case, _Model, _onnx_type, check, session
from onnx import TensorProto, helper
from refusal import declined, fails

MANY = 100_003  # values; a mean of as many strays by a few thousandths
SAME = {"seed": 1.0}  # where something is counted: of a hundred other draws one would stray further than a bound allows


def one_node(op, inputs, attrs, opset=22, kind="float32", narrow=False, **options):
    """A session of it. `narrow`: it makes bfloat16, which a Cast turns to float."""
    nodes = [helper.make_node(op, list(inputs), ["r" if narrow else "y"], name="it", **attrs)]
    if narrow:
        nodes.append(helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT))
    values = [helper.make_tensor_value_info(n, _onnx_type(x.dtype), x.shape) for n, x in inputs.items()]
    result = helper.make_tensor_value_info("y", _onnx_type(kind), None)
    graph = helper.make_graph(nodes, "g", values, [result])
    sess = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), **options)
    assert_all_on_encore(sess)
    return sess


def drawn(op, kind="float32", shape=(MANY,), opset=22, **attrs):
    """Of the shape of an input, or of an attribute."""
    narrow = kind == "bfloat16"
    dtype = TensorProto.BFLOAT16 if narrow else _onnx_type(kind)
    inputs = {"x": np.zeros(shape, np.int8)} if op.endswith("Like") else {}
    if not inputs:
        attrs["shape"] = list(shape)
    sess = one_node(op, inputs, {"dtype": dtype, **attrs}, opset, "float32" if narrow else kind, narrow)
    return lambda: sess.run(None, inputs)[0]


NORMAL, UNIFORM = ["RandomNormal", "RandomNormalLike"], ["RandomUniform", "RandomUniformLike"]


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("op", NORMAL)
def test_normal(op, kind):
    y = drawn(op, kind, mean=2.0, scale=3.0, **SAME)().astype(np.float64)
    z = (y - 2) / 3
    assert y.shape == (MANY,) and abs(z.mean()) < 0.02 and abs(z.std() - 1) < 0.02
    assert abs((z**3).mean()) < 0.05 and abs((z**4).mean() - 3) < 0.15  # neither skew nor heavy-tailed
    assert abs((np.abs(z) < 1).mean() - 0.6827) < 0.01
    assert abs(np.corrcoef(z[1:], z[:-1])[0, 1]) < 0.015


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("op", UNIFORM)
def test_uniform(op, kind):
    y = drawn(op, kind, low=-1.0, high=3.0, **SAME)().astype(np.float64)
    assert y.min() >= -1 and y.max() <= 3
    counts = np.histogram(y, 16, (-1, 3))[0] / MANY
    assert np.abs(counts - 1 / 16).max() < (0.02 if kind == "bfloat16" else 0.004)
    assert abs(np.corrcoef(y[1:], y[:-1])[0, 1]) < 0.015


def test_doubles_have_all_their_digits():
    y = drawn("RandomUniform", "float64")()
    assert (y.astype(np.float32) != y).mean() > 0.99
    y = drawn("RandomNormal", "float64")()
    assert (y.astype(np.float32) != y).mean() > 0.99


@pytest.mark.parametrize("op", NORMAL + UNIFORM)
@pytest.mark.parametrize("opset", [7, 21, 22])
def test_sizes(op, opset):
    for shape in [(), (0, 3), (1,), (3,), (5, 1025)]:
        if not shape and not op.endswith("Like"):
            continue  # an empty list is an attribute of no type
        y = drawn(op, shape=shape, opset=opset)()
        assert y.shape == shape and np.isfinite(y).all()


@pytest.mark.parametrize("op", NORMAL + UNIFORM)
def test_seeds(op):
    first, same, other, any_one = drawn(op, seed=5.0), drawn(op, seed=5.0), drawn(op, seed=6.0), drawn(op)
    runs = [first() for _ in range(3)]
    for run in runs:
        np.testing.assert_array_equal(same(), run)
        assert (other() != run).mean() > 0.99
    assert (runs[0] != runs[1]).mean() > 0.99
    assert (any_one() != drawn(op)()).mean() > 0.99


def test_like_has_the_inputs_type():
    sess = one_node("RandomNormalLike", {"x": np.zeros((3, 5), np.float64)}, {}, kind="float64")
    (y,) = sess.run(None, {"x": np.zeros((3, 5))})
    assert y.dtype == np.float64 and y.shape == (3, 5)


def test_like_of_no_float():
    declined("RandomNormalLike", [np.zeros(3, np.int32)], {}, opset=22)


def test_shapes_that_are_none():
    declined("RandomNormal", [], {"shape": [3, -1]}, opset=22)
    declined("RandomUniform", [], {"shape": [2**40, 2**40]}, opset=22)


@needs_graphs
@pytest.mark.parametrize("op", NORMAL + UNIFORM + ["Bernoulli", "Multinomial"])
def test_a_replay_draws_others(op):
    x = {} if op in ("RandomNormal", "RandomUniform") else {"x": np.full((50, 100), 0.5, np.float32)}
    attrs = {"shape": [50, 100]} if not x else {"sample_size": 100} if op == "Multinomial" else {}
    kind = "int32" if op == "Multinomial" else "float32"
    sess = one_node(op, x, attrs, kind=kind, enable_cuda_graph=1, min_num_runs_before_cuda_graph_capture=1)
    bound = Bound(sess, x, {"y": ((50, 100), np.dtype(kind))})
    runs = [bound.run(graph_id=EAGER)["y"].copy()] + [bound.run()["y"].copy() for _ in range(5)]
    for i, run in enumerate(runs):
        for before in runs[:i]:
            assert (run != before).mean() > (0.4 if op == "Bernoulli" else 0.9)


# ---- Bernoulli


def tossed(p, kind=None, opset=22, **attrs):
    attrs = attrs if kind is None else {"dtype": _onnx_type(kind), **attrs}
    sess = one_node("Bernoulli", {"x": p}, attrs, opset, kind or str(p.dtype))
    return lambda: sess.run(None, {"x": p})[0]


@pytest.mark.parametrize("opset", [15, 22])
@pytest.mark.parametrize("kind", [None, "bool", "float16", "float32", "float64", *INTEGERS])
@pytest.mark.parametrize("given", ["float16", "float32", "float64"])
def test_tosses(given, kind, opset):
    p = np.full(MANY, 0.25, given)
    y = tossed(p, kind, opset, **SAME)()
    assert y.dtype == np.dtype(kind or given) and set(np.unique(y.astype(int))) == {0, 1}
    assert abs(y.astype(np.float64).mean() - 0.25) < 0.006
    assert abs(np.corrcoef(y[1:].astype(float), y[:-1].astype(float))[0, 1]) < 0.015


def test_tosses_of_bfloat16():
    p = np.full(MANY, 0.25, np.float32)
    model = _Model(Case("Bernoulli", [p], SAME, opset=22), "bfloat16")
    sess = session(model.model)
    assert_all_on_encore(sess)
    (y,) = sess.run(None, model.feeds)
    assert set(np.unique(y)) == {0, 1} and abs(y.mean() - 0.25) < 0.006


def test_certainties():
    p = np.array([0, 1, 0, 1, np.nan, 2, -1] * 300, np.float32)
    np.testing.assert_array_equal(tossed(p)(), [0, 1, 0, 1, 0, 1, 0] * 300)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 3)])
def test_shapes_of_tosses(shape):
    assert tossed(np.full(shape, 0.5, np.float32))().shape == shape


def test_seeds_of_tosses():
    p = np.full(1000, 0.5, np.float32)
    first, same, other = tossed(p, seed=5.0), tossed(p, seed=5.0), tossed(p, seed=6.0)
    for _ in range(3):
        y = first()
        np.testing.assert_array_equal(y, same())
        assert 300 < (y != other()).sum() < 700


# ---- Multinomial


def picked(x, kind="int32", opset=22, **attrs):
    sess = one_node("Multinomial", {"x": x}, {"dtype": _onnx_type(kind), **attrs}, opset, kind)
    return lambda: sess.run(None, {"x": x})[0]


@pytest.mark.parametrize("opset", [7, 22])
@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("given", ["float16", "float32", "float64"])
def test_picks(given, kind, opset):
    odds = np.array([[0.1, 0.2, 0.3, 0.4], [0.97, 0.01, 0.01, 0.01], [0.25, 0.25, 0.25, 0.25]])
    x = (np.log(odds) + np.array([[0], [5], [-300]])).astype(given)  # but for a factor
    y = picked(x, kind, opset, sample_size=50_000, **SAME)()
    assert y.dtype == np.dtype(kind) and y.shape == (3, 50_000)
    got = np.stack([np.bincount(row, minlength=4) for row in y]) / 50_000
    assert np.abs(got - odds).max() < (0.1 if given == "float16" else 0.01)


def test_picks_of_bfloat16():
    x = np.log(np.array([[0.1, 0.2, 0.3, 0.4]], np.float32))
    model = _Model(Case("Multinomial", [x], {"sample_size": 50_000, **SAME}, opset=22), "bfloat16")
    sess = session(model.model)
    assert_all_on_encore(sess)
    got = np.bincount(sess.run(None, model.feeds)[0][0], minlength=4) / 50_000
    assert np.abs(got - [0.1, 0.2, 0.3, 0.4]).max() < 0.02


def test_picks_of_many_classes():
    x = np.full((2, 1000), -np.inf, np.float32)
    x[0, [3, 300, 999]] = 1.5
    x[1, 777] = np.nan  # nothing at all
    x[1, 500] = -1000
    y = picked(x, sample_size=3000, **SAME)()
    assert set(np.unique(y[0])) == {3, 300, 999} and set(np.unique(y[1])) == {500}
    even = picked(np.zeros((1, 1000), np.float32), sample_size=100_000, **SAME)()
    counts = np.bincount(even[0], minlength=1000)
    assert len(counts) == 1000 and counts.min() > 40 and counts.max() < 180


def test_a_seed_of_picks():
    x = np.zeros((3, 7), np.float32)
    first, same = picked(x, seed=5.0, sample_size=100), picked(x, seed=5.0, sample_size=100)
    for _ in range(2):
        np.testing.assert_array_equal(first(), same())


def test_no_rows():
    assert picked(np.zeros((0, 7), np.float32), sample_size=3)().shape == (0, 3)


def test_what_nothing_can_be_picked_of():
    fails("Multinomial", [np.zeros((2, 0), np.float32)], {}, "no classes", opset=22)
    fails("Multinomial", [np.zeros((2,), np.float32)], {}, r"\[rows, classes\] is wanted", opset=22, ranks=False)
    declined("Multinomial", [np.zeros((2, 3), np.float32)], {"sample_size": 0}, opset=22)


def test_nothing_is_kept_of_the_input():
    """The shape alone counts."""
    check(
        Case(
            "RandomUniformLike",
            [np.full((4, 5), np.nan, np.float32)],
            {"low": 2.0, "high": 2.0},
            opset=22,
            reference=lambda x: [np.full(x.shape, 2, np.float32)],
        )
    )
