"""Scores to which a mask is added, their softmax, and zeros for rows of which all is masked: one kernel."""

import ml_dtypes
import numpy as np
import onnxruntime_ep_encore
import pytest
from encore_session import HAS_REGIONS, make_session, on_virtual_gpu
from onnx import TensorProto, helper, numpy_helper
from test_fusion import kernels_of, on_cpu

N, HEADS, QUERIES = 2, 3, 5
TYPES = {
    "float32": (TensorProto.FLOAT, np.float32, 1e-6),
    "float16": (TensorProto.FLOAT16, np.float16, 2e-3),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16, 1.6e-2),
}
MASKS = {
    "all": (N, HEADS, QUERIES, None),
    "of batches": (N, 1, QUERIES, None),
    "of keys": (N, 1, 1, None),
    "causal": (QUERIES, None),
    "one row": (None,),
    "of queries and heads": (HEADS, QUERIES, None),
}


def network(make_model, dtype, mask, keys, zeros=True, swapped=False):
    kind = TYPES[dtype][0]
    zero = numpy_helper.from_array(np.zeros((), TYPES[dtype][1]), "zero")
    nodes = [
        helper.make_node("Cast", ["scores"], ["s"], "cast scores", to=kind),
        helper.make_node("Cast", ["mask"], ["m"], "cast mask", to=kind),
        helper.make_node("Add", ["m", "s"] if swapped else ["s", "m"], ["masked"], "add"),
        helper.make_node("Softmax", ["masked"], ["weights"], "softmax", axis=-1),
        helper.make_node("IsNaN", ["weights"], ["nan"], "is nan"),
        helper.make_node("Where", ["nan", "zero", "weights"], ["filled"], "where"),
        helper.make_node("Cast", ["filled" if zeros else "weights"], ["y"], "cast y", to=TensorProto.FLOAT),
    ]
    if not zeros:
        del nodes[4:6]
    shape = ["n", HEADS, "queries", "keys"]
    free = {N: "n", QUERIES: "queries", None: "keys"}
    dims = [free.get(size, size) for size in mask]
    return make_model(nodes, {"scores": shape, "mask": dims}, {"y": shape}, [zero] if zeros else [], opset=20)


def feeds_for(mask, keys, seed=0):
    random = np.random.default_rng(seed)
    shape = [size or keys for size in mask]
    hidden = np.where(random.random(shape) < 0.3, -np.inf, random.standard_normal(shape))
    hidden[(0,) * (len(shape) - 1)] = -np.inf  # a row of which nothing is left
    scores = random.standard_normal((N, HEADS, QUERIES, keys))
    return {"scores": scores.astype(np.float32), "mask": hidden.astype(np.float32)}


def check(session, feeds, dtype, wanted):
    (got,) = session.run(None, feeds)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_allclose(got, wanted, rtol=TYPES[dtype][2], atol=TYPES[dtype][2])
    if on_virtual_gpu() and not HAS_REGIONS:
        kernels = kernels_of(session, feeds)
        assert len([name for name in kernels if "Softmax" in name]) == 1
        assert not [name for name in kernels if "Add" in name or "Chosen" in name or "Unordered" in name]


@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "nan"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", TYPES)
def test_masks(encore, make_model, dtype, mask, zeros):
    for keys in (8, 61, 1024):
        model = network(make_model, dtype, MASKS[mask], keys, zeros, swapped=keys == 61)
        feeds = feeds_for(MASKS[mask], keys)
        wanted = on_cpu(network(make_model, "float32", MASKS[mask], keys, zeros), feeds)[0]
        check(make_session(model), feeds, dtype, wanted)
        check(make_session(model, regions=1), feeds, dtype, wanted)


def test_infinity_and_nan(encore, make_model):
    feeds = feeds_for((N, 1, QUERIES, 64), 64)
    feeds["scores"][0, 1, 2, 3], feeds["scores"][1, 0, 0, 0] = np.nan, np.inf
    model = network(make_model, "float32", (N, 1, QUERIES, None), 64)
    check(make_session(model), feeds, "float32", on_cpu(model, feeds)[0])


def test_automatic_graphs(encore, make_model):
    model = network(make_model, "float16", (N, 1, QUERIES, None), 64)
    session, eager = make_session(model, auto_graph=1), make_session(model)
    for seed in range(4):
        feeds = feeds_for((N, 1, QUERIES, None), 64, seed)
        np.testing.assert_array_equal(session.run(None, feeds)[0], eager.run(None, feeds)[0])
    assert onnxruntime_ep_encore.region_report(session)[0]["replays"] == 2


def test_a_mask_that_turns_out_not_to_fit(encore, make_model):
    """A dimension of the mask's that the model calls as the scores' is another one when it runs."""
    session = make_session(network(make_model, "float32", (N, 1, QUERIES, None), 64))
    feeds = feeds_for((N, 1, QUERIES, 64), 64)
    feeds["mask"] = feeds["mask"][:, :, :3]
    with pytest.raises(Exception, match="softmax.*mask|add|Got invalid dimensions"):
        session.run(None, feeds)
