"""Attention made one node where exporters have tensors on their way: turned by reshapes, or three in one."""

import re
from unittest.mock import ANY

import encore_session as es
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from test_fused_attention import (
    HEADS,
    SIZE,
    TOLERANCE,
    WIDTH,
    Network,
    attend,
    check,
    feeds_of,
    heads_of,
    numbers,
    rounded,
    rows_of,
    three,
)
from test_fusion import made_one, on_cpu


def turned_by_reshapes(net, k, dims):
    """Keys as torch's exporter turns them; the dimensions are of `dims`, or known."""
    turned = heads_of(net, k)
    if dims:
        shape = net.node("Shape", [turned])
        last, before = net.ints(-1), net.ints(-2)
        size = net.node("Slice", [shape, last, net.ints(2**63 - 1)])
        rows = net.node("Slice", [shape, before, last])
        lead = net.node("Slice", [shape, net.ints(-(2**63) + 1), before])
        flat, back = (
            net.node("Concat", [last, rows, size], axis=0),
            net.node("Concat", [lead, size, rows], axis=0),
        )
    else:
        flat, back = net.ints(-1, 7, SIZE), net.ints(-1, HEADS, SIZE, 7)
    flat = net.node("Reshape", [turned, flat])
    return net.node("Reshape", [net.node("Transpose", [flat], perm=(0, 2, 1)), back])


@pytest.mark.parametrize("computed", [True, False])
def test_keys_are_turned_by_reshapes(encore, make_model, capfd, computed):
    def build(dtype):
        net = Network(dtype)
        if computed:
            q, k, v = three(net)
        else:
            q, k, v = [net.input(name, [2, rows, WIDTH]) for name, rows in (("q", 5), ("k", 7), ("v", 7))]
        y = attend(net, heads_of(net, q), turned_by_reshapes(net, k, computed), heads_of(net, v))
        return rows_of(net, y, ("b", "q", WIDTH) if computed else (2, 5, WIDTH))

    check(make_model, capfd, build)


def test_reshapes_that_turn_nothing_are_no_transposition(encore, make_model, capfd):
    """The same three nodes to other dimensions: sizes of heads become rows."""

    def build(dtype):
        net = Network(dtype)
        q, k, v = (net.input(name, [2, rows, WIDTH]) for name, rows in (("q", 5), ("k", SIZE), ("v", SIZE)))
        flat = net.node("Reshape", [heads_of(net, k), net.ints(-1, SIZE // 2, 2 * SIZE)])
        turned = net.node("Transpose", [flat], perm=(0, 2, 1))
        back = net.node("Reshape", [turned, net.ints(2, HEADS, SIZE, SIZE)])
        return rows_of(net, attend(net, heads_of(net, q), back, heads_of(net, v)), (2, 5, WIDTH))

    check(make_model, capfd, build, feeds_of(keys=SIZE), moves=True)


def older(dtype, swapped=False, shows=None, others=False, names=False):
    """As torch's older exporter writes it: each dimension is asked for by itself, of the tensor that was at hand."""
    net = Network(dtype)
    x = net.node("Relu", [net.input("x", ["b", "s", WIDTH])])

    def dims(value, *axes):
        shape = net.node("Shape", [value])
        places = [net.node("Gather", [shape, net.constant(axis, np.int64)]) for axis in axes]
        return [net.node("Unsqueeze", [place, net.ints(0)]) for place in places]

    rows = dims(x, *((1, 0) if swapped else (0, 1)))
    into = net.node("Concat", [*rows, net.ints(-1), net.ints(SIZE)], axis=0)
    parts = {}
    for i, (name, order) in enumerate({"q": (0, 2, 1, 3), "k": (0, 2, 3, 1), "v": (0, 2, 1, 3)}.items()):
        product = net.node("MatMul", [x, net.constant(numbers((WIDTH, WIDTH), i, -0.3, 0.3))])
        # The shape of one of these tensors is not asked for, but that of x.
        scaled = net.node("Mul", [product, net.constant([1.5])])
        parts[name] = net.node("Transpose", [net.node("Reshape", [scaled, into])], name, perm=order)
    y = attend(net, parts["q"], parts["k"], parts["v"])
    same = [*dims(y, 0), net.ints(-1), *dims(parts["q"], 2), *dims(parts["v"], 3)]
    y = net.node("Reshape", [y, net.node("Concat", same, axis=0)], "of the same shape")
    y = net.node("Transpose", [y], perm=(0, 2, 1, 3))
    y = net.node("Reshape", [y, net.node("Concat", [*rows, net.ints(-1)], axis=0)], "y")
    net.output(y, ["s", "b", WIDTH] if swapped else ["b", "s", WIDTH])
    if others:
        net.outputs["rows.out"] = [1]
        net.node("Cast", [rows[1]], "rows.out", to=TensorProto.FLOAT)
    if shows:
        net.output(net.node("Relu", [shows]), ["b", "h", "s", SIZE])
    return net


OLDER = [{}, {"swapped": True}, {"shows": "q"}, {"shows": "attended"}, {"others": True}, {"names": True}]


def with_names(model):
    """Each dimension that onnx cannot tell has a name of its own, as tools leave them behind."""
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("how", OLDER, ids=str)
@pytest.mark.parametrize("shape", [(2, 5), (1, 33), (3, 1)], ids=str)
def test_the_older_exporter(encore, make_model, capfd, how, shape):
    """Rows and batches may be the same numbers, and are not the same dimensions."""
    feeds = {"x": numbers((*shape, WIDTH), 9)}
    model, wide = (older(dtype, **how).model(make_model) for dtype in ("float16", "float32"))
    model = with_names(model) if how.get("names") else model
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options))
    assert sizes == [ANY]
    for got, wanted in zip(session.run(None, feeds), on_cpu(wide, rounded(feeds, "float16")), strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2 * TOLERANCE["float16"] * np.abs(wanted).max())


@es.needs_graphs
@pytest.mark.parametrize("how", [how for how in OLDER if "swapped" not in how], ids=str)
def test_the_older_exporter_with_graphs(encore, make_model, capfd, how):
    """Something that depends on a shape is wanted on the device, so that the whole model is one node; inside of it no
    heads are moved, unless others want to see them, or shapes that are asked of them."""

    def build(dtype):
        net = older(dtype, **how)
        net.nodes.pop(next(i for i, node in enumerate(net.nodes) if node.output[0] == "y.out"))
        by = net.node("Cast", [net.node("Gather", [net.node("Shape", ["y"]), net.ints(1)])], to=net.kind)
        net.node("Cast", [net.node("Mul", ["y", by])], "y.out", to=TensorProto.FLOAT)
        return net

    model, wide = (build(dtype).model(make_model) for dtype in ("float16", "float32"))
    model = with_names(model) if how.get("names") else model
    session, _ = made_one(capfd, lambda options: es.make_session(model, options, enable_cuda_graph=1))
    for graph_id, shape in enumerate([(2, 5), (1, 33)]):
        feeds = {"x": numbers((*shape, WIDTH), 9)}
        wanted = on_cpu(wide, rounded(feeds, "float16"))
        ends = {o.name: (w.shape, w.dtype) for o, w in zip(session.get_outputs(), wanted, strict=True)}
        bound = es.Bound(session, feeds, ends)
        for seed in range(3):
            feeds = {"x": numbers((*shape, WIDTH), seed)}
            got = bound.run(feeds, graph_id=graph_id)
            for name, array in zip(ends, on_cpu(wide, rounded(feeds, "float16")), strict=True):
                np.testing.assert_allclose(got[name], array, rtol=0, atol=3e-3 * np.abs(array).max())
    if es.on_virtual_gpu():
        lines = es.trace(session, lambda: session.run(None, feeds, es.run_options(es.EAGER)))
        kernels = [(line["name"], line["label"]) for line in lines if line["what"] == "kernel"]
        of_shapes = "rows.out's"
        moves = [name for name, label in kernels if label != of_shapes and re.search("Strided|Transpose", name)]
        assert not any("Softmax" in name for name, _ in kernels)
        assert len(moves) == {"q": 1, "attended": 1}.get(how.get("shows"), 0), kernels


@pytest.mark.parametrize("batch", [1, 3])
def test_queries_keys_and_values_in_one_tensor(encore, make_model, capfd, batch):
    """[batch, row, 3, head, size]: nothing is copied, whatever the order it is taken in."""

    def build(dtype):
        net = Network(dtype)
        x = net.input("x", ["b", "s", 3 * WIDTH])
        split = net.node("Reshape", [x, net.ints(0, -1, 3, HEADS, SIZE)])
        turned = net.node("Transpose", [split], perm=(2, 0, 3, 1, 4))
        q, k, v = (net.node("Gather", [turned, net.constant(i, np.int64)], axis=0) for i in (0, 1, -1))
        kt = net.node("Transpose", [k], perm=(0, 1, 3, 2))
        return rows_of(net, attend(net, q, kt, v), ("b", "s", WIDTH))

    feeds = {"x": numbers((batch, 9, 3 * WIDTH))}
    check(make_model, capfd, build, feeds)


@pytest.mark.parametrize("batch", [1, 2])
def test_rows_before_batches(encore, make_model, capfd, batch):
    """As torch's MultiheadAttention has it; heads and batches are one dimension for a while."""
    rows = 9

    def build(dtype):
        net = Network(dtype)
        x = net.input("x", [rows, "b", 3 * WIDTH])
        split = net.node("Unsqueeze", [net.node("Reshape", [x, net.ints(rows, -1, 3, WIDTH)]), net.ints(0)])
        turned = net.node("Squeeze", [net.node("Transpose", [split], perm=(3, 1, 2, 0, 4)), net.ints(-2)])
        parts = []
        for i in range(3):
            part = net.node("Gather", [turned, net.constant(i, np.int64)], axis=0)
            flat = net.node("Reshape", [part, net.ints(rows, -1, SIZE)])
            flat = net.node("Transpose", [flat], perm=(1, 0, 2))
            parts.append(net.node("Reshape", [flat, net.ints(-1, HEADS, rows, SIZE)]))
        q, k, v = parts
        y = attend(net, q, net.node("Transpose", [k], perm=(0, 1, 3, 2)), v)
        net.output(net.node("Transpose", [y], "y", perm=(2, 0, 1, 3)), [rows, "b", HEADS, SIZE])
        return net

    check(make_model, capfd, build, {"x": numbers((rows, batch, 3 * WIDTH))})


def test_without_a_batch(encore, make_model, capfd):
    def build(dtype):
        net = Network(dtype)
        q, k, v = (net.input(name, ["n", rows, SIZE]) for name, rows in (("q", "q"), ("k", "k"), ("v", "k")))
        kt = net.node("Transpose", [k], perm=(0, 2, 1))
        net.output(attend(net, q, kt, v, net.input("mask", ["n", 1, "k"])), ["n", "q", SIZE])
        return net

    feeds = feeds_of(6, 4, 11, SIZE) | {"mask": numbers((6, 1, 11), 5, -3, 3)}
    check(make_model, capfd, build, feeds)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 5, 16), (1, 1, 7, 16), (2, 3, 7, 16), (1, 1, 1, 1)),
        ((1, 3, 5, 16), (1, 3, 7, 16), (1, 1, 7, 16), (4, 1, 5, 7)),
        ((2, 3, 1, 16), (2, 3, 7, 16), (2, 3, 7, 16), (1, 1, 6, 7)),
        ((2, 3, 5, 16), (2, 3, 1, 16), (2, 3, 7, 24), (7,)),
        ((2, 3, 5, 16), (2, 3, 0, 16), (2, 3, 0, 16), (1,)),
        ((0, 3, 5, 16), (0, 3, 7, 16), (0, 3, 7, 16), (5, 7)),
    ],
    ids=str,
)
def test_what_is_there_once_is_there_for_all(encore, make_model, capfd, shapes):
    def build(dtype):
        net = Network(dtype)
        names = ("q", "k", "v", "mask")
        q, k, v, mask = (
            net.input(name, [f"{name}{i}" for i in range(len(shape) - 1)] + [shape[-1]])
            for name, shape in zip(names, shapes, strict=True)
        )
        kt = net.node("Transpose", [k], perm=(0, 1, 3, 2))
        net.output(attend(net, q, kt, v, mask), ["a", "b", "c", shapes[2][3]])
        return net

    feeds = {name: numbers(shape, i) for i, (name, shape) in enumerate(zip("q k v mask".split(), shapes, strict=True))}
    check(make_model, capfd, build, feeds)
