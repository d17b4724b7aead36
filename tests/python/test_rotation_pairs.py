"""Rotations of two tensors by the same cosines and sines, which are one launch."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from test_fused_attention import HALVES, TOLERANCE, numbers
from test_fusion import kernels_of, on_cpu
from test_rotations import ROWS, Rotations, check, heads_of, normed, rotated, tables, turned

HEADS = {"x": 3, "z": 5}


def joined(net, values):
    """A step of these makes one region of what reads them."""
    return [net.node("Neg", [value]) for value in values]


def pair(dtype, size=16, norms="xz", turns="xz", wide=False, first_column=0, table=None):
    """Of a tensor of three heads and one of five, which begins at a column of its rows."""
    net = Rotations(dtype)
    cos, sin = joined(net, tables(net, size, table, wide))
    for name, heads in HEADS.items():
        skipped = first_column if name == "z" else 0
        x = net.input(name, [f"batch of {name}", "n", skipped + heads * size])
        if skipped:
            x = net.node("Slice", [x, net.ints(skipped), net.ints(2**63 - 1), net.ints(-1)])
        x = heads_of(net, x, heads, size)
        if name in norms:
            x = normed(net, x, size)
        if name in turns:
            x = turned(net, x)
        y = rotated(net, x, cos, sin, size, wide)
        net.output(y, [f"batch of {name}", *((heads, "n") if name in turns else ("n", heads)), size])
    return net


def feeds_of(size=16, batches=(2, 2), rows=ROWS, first_column=0, table=None):
    shape = [rows if dim == "n" else dim for dim in table or ["n", size]]
    widths = {"x": HEADS["x"] * size, "z": first_column + HEADS["z"] * size}
    feeds = {
        name: numbers((batch, rows, width), 1, -2, 2)
        for (name, width), batch in zip(widths.items(), batches, strict=True)
    }
    return feeds | {"cos": numbers(shape, 2), "sin": numbers(shape, 3)}


def check_pair(make_model, tmp_path, dtype, *all_feeds, wide=False, **how):
    session, plan = check(make_model, tmp_path, lambda kind: pair(kind, wide=wide, **how), dtype, *all_feeds, wide=wide)
    assert plan.count("encore.Rotation(") == 1, plan
    return session


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [4, 6, 16, 72, 128, 256])
@pytest.mark.parametrize("norms", ["", "x", "z", "xz"])
def test_heads_of_any_size(encore, make_model, tmp_path, dtype, size, norms):
    """Of one tensor there may be none."""
    feeds = [feeds_of(size, batches) for batches in ((2, 2), (1, 3), (0, 2), (2, 0), (0, 0))]
    check_pair(make_model, tmp_path, dtype, *feeds, feeds_of(size, (2, 1), 33), size=size, norms=norms)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("norms", ["", "z", "xz"])
def test_halves_are_rotated_in_floats(encore, make_model, tmp_path, dtype, norms):
    check_pair(make_model, tmp_path, dtype, feeds_of(64), feeds_of(64, rows=1), size=64, norms=norms, wide=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("first_column", [1, 16])
def test_of_other_columns(encore, make_model, tmp_path, dtype, first_column):
    """Packs may lie apart from where they can be read at once."""
    feeds = feeds_of(first_column=first_column)
    check_pair(make_model, tmp_path, dtype, feeds, first_column=first_column)


def test_only_one_is_turned(encore, make_model, tmp_path):
    """Rows are where the other one has heads: as many."""
    table = [1, 16]
    check_pair(make_model, tmp_path, "float16", feeds_of(table=table), table=table, turns="z")


def test_one_launch(encore, make_model, tmp_path):
    session = check_pair(make_model, tmp_path, "float16", feeds_of(128), size=128)
    if es.on_virtual_gpu():
        assert sum("RotateViewed" in name for name in kernels_of(session, feeds_of(128))) == 1


def of_floats():
    """Which is [batch, row, head, size] from one end to the other."""
    net = Rotations("float32")
    cos, sin = joined(net, [net.wide_input(name, ["n", 1, 16]) for name in ("cos", "sin")])
    for name in HEADS:
        y = rotated(net, net.wide_input(name, ["b", "n", 3, 16]), cos, sin, 16)
        net.outputs[y] = ["b", "n", 3, 16]
    return net


def feeds_of_floats(seed=0):
    feeds = {name: numbers((2, ROWS, 3, 16), seed + i) for i, name in enumerate(HEADS)}
    return feeds | {name: numbers((ROWS, 1, 16), seed + i) for i, name in enumerate(("cos", "sin"), 2)}


@es.needs_graphs
@pytest.mark.parametrize("shared", [(), ("x", "z"), ("z", "x"), ("z", None)], ids=str)
def test_it_is_captured_and_replayed(encore, make_model, shared):
    """Also where a result is put in the place of what the other one is made of."""
    net = of_floats()
    model = net.model(make_model)
    session = es.make_session(model, enable_cuda_graph=1, regions=1, use_tf32=0)
    es.assert_all_on_encore(session)
    bound = es.Bound(session, feeds_of_floats(), {name: ([2, ROWS, 3, 16], np.float32) for name in net.outputs})
    for output, name in zip(net.outputs, shared, strict=False):
        if name:
            bound.outputs[output] = bound.inputs[name]
            bound.binding.bind_ortvalue_output(output, bound.inputs[name])
    bound.run(feeds_of_floats())
    bound.run(feeds_of_floats())
    for seed in range(5):
        feeds = feeds_of_floats(seed)
        for got, wanted in zip(bound.run(feeds).values(), on_cpu(model, feeds), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=0, atol=4e-6)
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["state"] == "ready"


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_one_of_the_other(encore, make_model, tmp_path, dtype):
    """They stay two."""

    def build(kind):
        net = Rotations(kind)
        cos, sin = tables(net, 16)
        first = rotated(net, net.input("x", ["b", 3, "n", 16]), cos, sin, 16)
        second = rotated(net, net.node("Neg", [first]), cos, sin, 16)
        for y in (first, second):
            net.output(y, ["b", 3, "n", 16])
        return net

    feeds = {"x": numbers((2, 3, ROWS, 16)), "cos": numbers((ROWS, 16), 2), "sin": numbers((ROWS, 16), 3)}
    _, plan = check(make_model, tmp_path, build, dtype, feeds)
    assert plan.count("encore.Rotation(") == 2, plan
