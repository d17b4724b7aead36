"""Convolutions that read some of a wider picture's channels where they are."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import helper, numpy_helper
from test_convolutions import weights
from test_fusion import kernels_of

KINDS = {"float16": np.float16, "float32": np.float32}
# The channels of a part, which begin behind so many others, and the convolution of it.
PLAIN = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
LARGE = {"kernel_shape": [7, 7], "pads": [3, 3, 3, 3]}
POINT = {"kernel_shape": [1, 1]}
READS = {
    "tiles": (16, 32, {**PLAIN}),
    "tiles of few": (8, 8, {**PLAIN, "strides": [2, 2]}),
    "product": (24, 16, {**POINT}),
    "depthwise": (32, 24, {**PLAIN, "group": 24}),
    "depthwise, large": (8, 40, {**LARGE, "group": 40}),
    "depthwise, every other": (16, 16, {**PLAIN, "strides": [2, 2], "group": 16}),
    "depthwise, odd": (2, 12, {**PLAIN, "group": 12}),
    "depthwise of lines": (8, 16, {"kernel_shape": [1, 11], "pads": [0, 5, 0, 5], "group": 16}),
}
# These are copied first.
COPIES = {
    "misaligned": (3, 16, {**PLAIN}),
    "depthwise, misaligned": (3, 13, {**PLAIN, "group": 13}),
    "groups": (8, 16, {**PLAIN, "group": 4}),
    "every other": (8, 16, {**POINT, "strides": [2, 2]}),
}
WIDTH = 64


def network(make_model, how, dtype="float16", apart=False, residual=False, batch=2):
    """x by a convolution, of whose channels one reads some. `apart`: these are an output, too."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    first, channels, attributes = how
    dtype = KINDS[dtype]
    group = attributes.get("group", 1)
    sliced = [first, first + channels, 1]
    sizes = [first, channels, WIDTH - first - channels]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["wide"], "first", **PLAIN),
        helper.make_node("Split", ["wide", "sizes"], ["before", "part", "behind"], "split", axis=1),
        helper.make_node("Conv", ["part", "w1", "b1"], ["made"], "second", **attributes),
        helper.make_node("Relu", ["made"], ["rectified"], "relu"),
    ]
    if not residual and first % 8:  # of a Split the parts would be moved to where packs begin
        nodes[1] = helper.make_node("Slice", ["wide", "begin", "end", "axis"], ["part"], "split")
    if residual:
        nodes[3] = helper.make_node("Add", ["made", "before"], ["rectified"], "add")
    nodes += [
        helper.make_node("Conv", ["rectified", "w2"], ["third"], "third", **PLAIN),
        helper.make_node("Conv", ["third", "w3"], ["y"], "last", **PLAIN),
    ]
    constants = [
        numpy_helper.from_array(np.array(sizes, np.int64), "sizes"),
        *(
            numpy_helper.from_array(np.array([n]), name)
            for n, name in zip(sliced, ["begin", "end", "axis"], strict=True)
        ),
        weights("w0", WIDTH, 16, 3, 3, dtype=dtype),
        weights("w1", channels, channels // group, *attributes["kernel_shape"], dtype=dtype, seed=1),
        weights("b1", channels, dtype=dtype, seed=2),
        weights("w2", 32, channels, 3, 3, dtype=dtype, seed=3),
        weights("w3", 32, 32, 3, 3, dtype=dtype, seed=4),
    ]
    outputs = {"y": ([None] * 4, kind)} | ({"part": ([None] * 4, kind)} if apart else {})
    return make_model(nodes, {"x": ([batch, 16, 14, 14], kind)}, outputs, constants)


def pictures(dtype, seed, batch=2):
    return {"x": np.random.default_rng(seed).standard_normal((batch, 16, 14, 14)).astype(KINDS[dtype])}


def check(make_model, tmp_path, how, dtype, **more):
    options = {"regions": 1, "use_tf32": 1}
    model = network(make_model, how, dtype, **more)
    es.make_session(model, dump_regions=tmp_path, **options)
    plan = es.last_plan(tmp_path)
    assert f"first_channel = {how[0]}" in plan and "Slice(" not in plan, plan
    assert ("Split(" in plan) == bool(more.get("residual")), plan
    sessions = [es.make_session(model, auto_graph=auto_graph, **options) for auto_graph in (0, 1)]
    apart = es.make_session(network(make_model, how, dtype, apart=True, **more), auto_graph=0, **options)
    for seed in range(4):
        feeds = pictures(dtype, seed, more.get("batch") or 2)
        (got, others), (wanted, _) = [session.run(None, feeds)[0] for session in sessions], apart.run(None, feeds)
        np.testing.assert_array_equal(got, others)
        scale = np.abs(wanted.astype(np.float64)).max()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=scale * (4e-3 if dtype == "float16" else 2e-3))
    return sessions[0]


def copies(session, feeds):
    return sum("CopyStrided" in kernel or "FillParts" in kernel for kernel in kernels_of(session, feeds))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("how", READS)
def test_in_place(make_model, tmp_path, how, dtype):
    session = check(make_model, tmp_path, READS[how], dtype)
    if es.on_virtual_gpu() and dtype == "float16":
        assert copies(session, pictures(dtype, 0)) == 0


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("how", COPIES)
def test_copied_first(make_model, tmp_path, how, dtype):
    check(make_model, tmp_path, COPIES[how], dtype)


@pytest.mark.parametrize("batch", [1, "n"])
def test_any_batch(make_model, tmp_path, batch):
    for how in ("tiles", "product", "depthwise"):
        (folder := tmp_path / how).mkdir()
        model = network(make_model, READS[how], batch=batch)
        es.make_session(model, regions=1, dump_regions=folder)
        assert "first_channel" in es.last_plan(folder)
        session, apart = (es.make_session(network(make_model, READS[how], batch=batch, apart=a)) for a in (False, True))
        for size in (1, 1, 1) if batch == 1 else (3, 3, 0, 5, 3):
            feeds = pictures("float16", size, size)
            (got,), (wanted, _) = session.run(None, feeds), apart.run(None, feeds)
            np.testing.assert_allclose(got, wanted, rtol=0, atol=4e-3 * np.abs(wanted).max(initial=0))


def test_with_a_residual(make_model, tmp_path):
    check(make_model, tmp_path, (24, 24, PLAIN), "float16", residual=True)


@es.needs_graphs
@pytest.mark.parametrize("how", ["tiles", "product", "depthwise", "depthwise, large"])
def test_captured_and_replayed(make_model, how):
    session = es.make_session(network(make_model, READS[how]), enable_cuda_graph=1)
    apart = es.make_session(network(make_model, READS[how], apart=True), auto_graph=0)
    feeds = pictures("float16", 0)
    bound = es.Bound(session, feeds, {"y": (apart.run(None, feeds)[0].shape, np.float16)})
    for seed in range(4):
        feeds = pictures("float16", seed)
        np.testing.assert_array_equal(bound.run(feeds)["y"], apart.run(None, feeds)[0])
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["replays"] > 1
