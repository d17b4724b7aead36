"""Rows of halves that are clipped by bounds which the device chooses, as T5 has them, and their norms."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import TensorProto
from test_fused_attention import Network, numbers
from test_fusion import kernels_of
from test_vision_blocks import plan_of

LESS, MOST = 64504, 65504  # what T5's are clipped to where any is infinite, and else


def any_infinite(net, x, how):
    """A bool, as exporters spell it."""
    wide = net.node("Cast", [x], to=TensorProto.DOUBLE if how == "old" else TensorProto.FLOAT)
    bools = net.node("IsInf", [wide])
    ints = net.node("Cast", [bools], to=TensorProto.INT64)
    if how == "new":
        return net.node("Cast", [net.node("ReduceMax", [ints], keepdims=0)], to=TensorProto.BOOL)
    return net.node("Greater", [net.node("ReduceSum", [ints], keepdims=0), net.constant(0, np.int64)])


def clipped(net, x, is_so, how, less=LESS, most=MOST):
    limit = net.node("Where", [is_so, net.constant(less, np.float32), net.constant(most, np.float32)])
    low, high = (net.node("Cast", [bound], to=net.kind) for bound in (net.node("Neg", [limit]), limit))
    if how == "old":
        return net.node("Clip", [x, low, high])
    return net.node("Min", [net.node("Max", [x, low]), high])


def block(dtype="float16", width=64, how="old", centred=False, wide=False, apart=False, asked=False, **limits):
    """The sum of x and itself, clipped and normed. `wide`: that is in float. `apart`: between both are two steps that
    undo each other, of which the norm knows nothing. `asked`: whether any was infinite is an output."""
    net = Network(dtype)
    x = net.input("x", ["b", "n", width])
    x = net.node("Add", [x, x])
    is_so = any_infinite(net, x, how)
    c = clipped(net, x, is_so, how, **limits)
    kind = np.float32 if wide else net.dtype
    parameters = [net.constant(numbers((width,), i, 0.5, 1.5), kind) for i in range(2 if centred else 1)]
    rows = net.node("Neg", [net.node("Neg", [c])]) if apart else c
    if wide:
        rows = net.node("Cast", [rows], to=TensorProto.FLOAT)
    normed = net.node("LayerNormalization" if centred else "RMSNormalization", [rows, *parameters])
    if wide:
        normed = net.node("Cast", [normed], to=net.kind)
    net.output(normed, ["b", "n", width])
    net.output(c, ["b", "n", width])
    if asked:
        net.output(is_so, [])
    return net


def models(make_model, **how):
    """As one step, and as several."""
    return [block(apart=apart, **how).model(make_model, opset=23) for apart in (False, True)]


# Of x, which is doubled: nothing, what is beyond halves, what is infinite or no number.
BAD = [{}, {(0, 0, 1): 50000}, {(0, -1, 3): -np.inf}, {(0, 0, 0): np.nan}, {(0, 0, 0): np.nan, (0, -1, 0): np.inf}, {}]


def feeds_of(shape, seed, bad):
    x = numbers(shape, seed, -1e4, 1e4)
    x[0, 0, 2] = 32750  # doubled, the largest that half T5 clips
    for at, value in bad.items():
        x[at] = value
    return {"x": x}


def same(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
        there = ~np.isnan(one)
        np.testing.assert_array_equal(one[there].view(np.int32), other[there].view(np.int32))


def check(make_model, tmp_path, shape, **how):
    one, two = models(make_model, width=shape[-1], **how)
    plan = plan_of(one, tmp_path)
    assert "encore.ClippedNorm(" in plan and "IsInf(" not in plan, plan
    for auto_graph in (0, 1):
        joined, apart = (es.make_session(m, regions=1, auto_graph=auto_graph) for m in (one, two))
        es.assert_all_on_encore(joined)
        by_itself = es.make_session(one, regions=0)
        for seed, bad in enumerate(BAD):
            feeds = feeds_of(shape, seed, bad)
            got = joined.run(None, feeds)
            same(got, apart.run(None, feeds))
            same(got[1:2], by_itself.run(None, feeds)[1:2])
            if how.get("asked"):
                assert got[2] == any(np.isinf(v) or v == 50000 for v in bad.values())
            most = np.float16(LESS if any(np.isinf(v) or v == 50000 for v in bad.values()) else MOST)
            assert np.nanmax(np.abs(got[1])) <= most
    return joined


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("how", ["old", "new"])
def test_norms(make_model, tmp_path, how, centred, wide, asked):
    session = check(make_model, tmp_path, (2, 7, 64), how=how, centred=centred, wide=wide, asked=asked)
    if es.on_virtual_gpu():
        kernels = kernels_of(session, feeds_of((2, 7, 64), 0, {}))
        assert sum("Normalize" in kernel for kernel in kernels) == 1
        assert sum("FindTogether" in kernel for kernel in kernels) == asked


# Few rows, which ask by themselves or not; many; and of widths that packs don't fill. What one cluster asks, and more.
SIZES = [(1, 1, 8), (1, 20, 512), (1, 100, 512), (3, 200, 64), (1, 20, 63), (1, 300, 100), (1, 9, 8200)]


@pytest.mark.parametrize("shape", [*SIZES, (1, 600, 3504)], ids=str)
def test_sizes(make_model, tmp_path, shape):
    check(make_model, tmp_path, shape)


@pytest.mark.parametrize("shape", [(1, 100, 512), (1, 700, 64)], ids=str)
def test_others_are_clipped_to_other_numbers(make_model, tmp_path, shape):
    check(make_model, tmp_path, shape, less=3, most=60000)


def test_bounds_of_a_number_and_of_rows_that_are_none(make_model):
    one, two = models(make_model)
    joined, apart = (es.make_session(m, regions=1) for m in (one, two))
    x = np.zeros((0, 3, 64), np.float32)
    assert [y.shape for y in joined.run(None, {"x": x})] == [(0, 3, 64)] * 2
    zeros = np.array([0.0, -0.0] * 32, np.float32).reshape(1, 1, 64)
    same(joined.run(None, {"x": zeros}), apart.run(None, {"x": zeros}))


def test_floats_and_bfloat16_stay(make_model, tmp_path):
    """Which T5 does not clip."""
    for dtype in ("float32", "bfloat16"):
        (folder := tmp_path / dtype).mkdir()
        assert "ClippedNorm" not in plan_of(block(dtype, less=3, most=4).model(make_model, opset=23), folder)


@es.needs_graphs
@pytest.mark.parametrize("rows", [3, 100, 600])
def test_captured_and_replayed(make_model, rows):
    one, two = models(make_model, width=512)
    session = es.make_session(one, regions=1, enable_cuda_graph=1)
    apart = es.make_session(two, regions=1)
    shape = (1, rows, 512)
    outputs = {output.name: (shape, np.float32) for output in session.get_outputs()}
    bound = es.Bound(session, feeds_of(shape, 0, {}), outputs)
    for seed, bad in enumerate(BAD):
        feeds = feeds_of(shape, seed, bad)
        same(list(bound.run(feeds).values()), apart.run(None, feeds))
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["replays"] > 2
