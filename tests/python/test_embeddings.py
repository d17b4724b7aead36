"""Gathers of embeddings, their sum and its norm as one kernel."""

import encore_session as es
import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

KINDS = {"float16": np.float16, "float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
NEAR = {"float16": 4e-3, "float32": 1e-5, "bfloat16": 3e-2}
WORDS = 50


def opening(make_model, kind, width, summands, norm="LayerNormalization", ids="int64", length="s"):
    """Words and `summands`: "kinds" of tokens, "places" that are constant; "scaled" words; a "sum" that others read."""
    random = np.random.default_rng(0)
    of_ids = helper.np_dtype_to_tensor_dtype(np.dtype(ids))

    def constant(name, *shape, kind=kind):
        constants.append(numpy_helper.from_array(random.standard_normal(shape).astype(KINDS[kind]), name))
        return name

    constants, nodes, inputs, x = [], [], {"words": (["b", length], of_ids)}, "w"
    nodes.append(helper.make_node("Gather", [constant("table", WORDS, width), "words"], ["w"], "pick"))
    if "scaled" in summands:
        nodes.append(helper.make_node("Mul", [x, constant("root")], ["scaled"], "scale"))
        x = "scaled"
    if "kinds" in summands:
        inputs["kinds"] = (["b", length], of_ids)
        nodes.append(helper.make_node("Gather", [constant("of_kinds", 2, width), "kinds"], ["k"], "pick_kinds"))
        nodes.append(helper.make_node("Add", [x, "k"], ["with_kinds"], "add_kinds"))
        x = "with_kinds"
    if "places" in summands:
        nodes.append(helper.make_node("Add", [constant("places", 1, length, width), x], ["with_places"], "add_places"))
        x = "with_places"
    if norm == "in float":
        nodes.append(helper.make_node("Cast", [x], ["x.wide"], "to_float", to=TensorProto.FLOAT))
        wide = constant("gamma", width, kind="float32")
        nodes.append(helper.make_node("RMSNormalization", ["x.wide", wide], ["y.wide"], "norm", epsilon=1e-5))
        of = helper.np_dtype_to_tensor_dtype(np.dtype(KINDS[kind]))
        nodes.append(helper.make_node("Cast", ["y.wide"], ["y"], "back", to=of))
    else:
        rows = [constant("gamma", width)] + ([constant("beta", width)] if norm == "LayerNormalization" else [])
        nodes.append(helper.make_node(norm, [x, *rows], ["y"], "norm", epsilon=1e-5))
    made = ["y", x] if "sum" in summands else ["y"]
    nodes += [helper.make_node("Cast", [one], [f"{one}.float"], f"{one}_float", to=TensorProto.FLOAT) for one in made]
    return make_model(nodes, inputs, {f"{one}.float": ["b", length, width] for one in made}, constants, opset=23)


def fed(session, rows, length, ids="int64", seed=0):
    random = np.random.default_rng(seed)
    most = {"words": (-WORDS, WORDS), "kinds": (0, 2)}
    return {one.name: random.integers(*most[one.name], (rows, length)).astype(ids) for one in session.get_inputs()}


CASES = [
    (768, ["kinds", "places"], "LayerNormalization"),
    (64, ["places", "sum"], "LayerNormalization"),
    (1024, ["scaled", "sum"], "RMSNormalization"),
    (20, ["scaled", "kinds", "sum"], "LayerNormalization"),
    (7, ["kinds"], "RMSNormalization"),
    (5120, ["places"], "LayerNormalization"),
    (40000, [], "LayerNormalization"),
    (256, ["scaled", "sum"], "in float"),
    (9, ["places"], "in float"),
]


@pytest.mark.parametrize("ids", ["int64", "int32"])
@pytest.mark.parametrize("width, summands, norm", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_one_kernel(make_model, tmp_path, kind, width, summands, norm, ids):
    model = opening(make_model, kind, width, summands, norm, ids, length=12)
    joined = es.make_session(model, regions=1, auto_graph=1, dump_regions=tmp_path)
    apart = es.make_session(model, regions=0, auto_graph=0)
    plan = es.last_plan(tmp_path)
    assert plan.count("encore.EmbeddingNorm(") == 1 and "Gather(" not in plan and " = Add(" not in plan, plan
    for seed, rows in enumerate((2, 2, 2, 1, 0)):
        feeds = fed(joined, rows, 12, ids, seed)
        for want, got in zip(apart.run(None, feeds), joined.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=NEAR[kind], atol=4 * NEAR[kind])


def test_many_rows(make_model):
    model = opening(make_model, "float16", 768, ["kinds", "places", "sum"], length=300)
    joined = es.make_session(model, regions=1, auto_graph=1)
    apart = es.make_session(model, regions=0, auto_graph=0)
    feeds = fed(joined, 4, 300)
    for want, got in zip(apart.run(None, feeds), joined.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=4e-3, atol=2e-2)


def test_the_sum_is_the_models_own(make_model):
    """Rounded after each step, to the bit."""
    model = opening(make_model, "float16", 96, ["scaled", "kinds", "places", "sum"], length=12)
    joined = es.make_session(model, regions=1)
    apart = es.make_session(model, regions=0)
    feeds = fed(joined, 3, 12)
    np.testing.assert_array_equal(joined.run(None, feeds)[1], apart.run(None, feeds)[1])


@pytest.mark.parametrize("word", [WORDS, -WORDS - 1])
def test_a_word_that_is_not_there_fails_the_run(make_model, word):
    session = es.make_session(opening(make_model, "float16", 64, ["kinds"]), regions=1, auto_graph=1)
    feeds = fed(session, 2, 12)
    bad = feeds | {"words": np.full((2, 12), word)}
    for one in (bad, feeds, feeds, bad):
        if one is feeds:
            session.run(None, one)
        else:
            with pytest.raises(Exception, match=f"norm.*{word}"):
                session.run(None, one)


def test_dimensions_that_are_not_what_they_are_called(make_model):
    """Of two inputs that the model says are alike."""
    session = es.make_session(opening(make_model, "float32", 64, ["kinds"]), regions=1)
    feeds = fed(session, 2, 12)
    assert session.run(None, feeds | {"kinds": feeds["kinds"][:1]})[0].shape == (2, 12, 64)
    with pytest.raises(Exception, match="norm.*last dimensions"):
        session.run(None, feeds | {"kinds": feeds["kinds"][:, :1]})
