"""Whole models as torch exports them: every node on Encore, results as on the CPU, replays as eager runs to the bit."""

import functools

import encore_session as es
import numpy as np
import onnxruntime as ort
import pytest
import zoo

NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(bool)": bool}
# Largest relative distance (in the Euclidean norm) from float32 on the CPU: the order of sums, and for float16 the
# roundings of some hundred layers.
DISTANCE = {"f32": 2e-5, "f16": 1e-2}


def distance(got, wanted):
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)


def on_cpu(model):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return es.on_cpu(model, options)


@functools.cache
def wanted(stem):
    """What float32 gives on the CPU, of the inputs of two seeds."""
    reference = on_cpu(zoo.load(f"{stem}_f32", batch=1))
    return [reference.run(None, zoo.inputs(f"{stem}_f32", seed=seed)) for seed in range(2)]


NAMES = [n for n in zoo.names() if n != "chain_f32"]
COSTLY = ["bert_base_f16", "vit_b16_f32", "vit_b16_f16"]
VARIANTS = [(n, {}) for n in NAMES] + [(n, {"prefer_nhwc": 1}) for n in ("resnet50_f16", "mobilenet_v3_f32")]


@pytest.mark.parametrize(
    "name, options",
    [pytest.param(n, o, marks=[pytest.mark.newest] * (n in COSTLY)) for n, o in VARIANTS],
    ids=str,
)
def test_model(name, options):
    stem, precision = name.rsplit("_", 1)
    if es.HAS_GRAPHS:
        options = {**options, "enable_cuda_graph": 1, "min_num_runs_before_cuda_graph_capture": 1}
    session = es.make_session(zoo.load(name, batch=1), **options)
    placed = es.nodes_on(session)
    assert list(placed) == [es.EP_NAME], f"nodes are elsewhere: {placed}"
    if "prefer_nhwc" in options:
        transposes = placed[es.EP_NAME].count("Transpose")
        assert es.has_channels_last(session, "Conv")
        assert transposes <= 4, f"{transposes} transposes"

    outputs = {o.name: (o.shape, NUMPY[o.type]) for o in session.get_outputs()}
    bound = None
    for seed, outputs_on_cpu in enumerate(wanted(stem)):  # captured, and replayed with other contents
        feeds = zoo.inputs(name, seed=seed)
        bound = bound or es.Bound(session, feeds, outputs)
        got = bound.run(feeds)
        for (output, y), want in zip(got.items(), outputs_on_cpu, strict=True):
            assert distance(y, want) < DISTANCE[precision], f"{output}, inputs {seed}"
    for output, y in bound.run(graph_id=es.EAGER).items():
        assert np.array_equal(got[output], y), f"{output}: a replay differs from the eager run"


@pytest.mark.newest
@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith("f32")])
def test_batches_may_be_padded(name):
    session = es.make_session(str(zoo.path(name)), pad="batch:2,4")
    if name == "mobilenet_v3_f32":
        plain = es.make_session(str(zoo.path(name)))
        for batch in (1, 3, 4):
            feeds = zoo.inputs(name, batch=batch)
            (got,), (wanted,) = session.run(None, feeds), plain.run(None, feeds)
            assert got.shape == wanted.shape and distance(got, wanted) < DISTANCE["f32"]


def test_chain():
    session = es.make_session(zoo.chain(batch=8), **({"enable_cuda_graph": 1} if es.HAS_GRAPHS else {}))
    name = session.get_inputs()[0].name
    output = session.get_outputs()[0].name
    rng = np.random.default_rng(1)
    bound = es.Bound(session, {name: np.zeros((8, 256), np.float32)}, {output: ((8, 256), np.float32)})
    reference = on_cpu(zoo.chain(batch=8))
    for _ in range(3):
        x = rng.standard_normal((8, 256)).astype(np.float32)
        wanted = reference.run(None, {name: x})[0]
        np.testing.assert_allclose(bound.run({name: x})[output], wanted, rtol=1e-5, atol=1e-6)
