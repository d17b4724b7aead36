"""Rotary embeddings as models spell them out, and keys and values that are repeated for groups of queries' heads."""

import re

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import TensorProto, helper
from test_fused_attention import HALVES, TOLERANCE, Network, attend, numbers, rounded
from test_fusion import kernels_of, on_cpu

ROWS = 7


def heads_of(net, x, heads, size):
    return net.node("Reshape", [x, net.ints(0, 0, heads, size)])


def turned(net, x):
    return net.node("Transpose", [x], perm=(0, 2, 1, 3))


def normed(net, x, size):
    squares = net.node("Pow", [x, net.constant(2)])
    mean = net.node("ReduceMean", [squares, net.ints(-1)])
    root = net.node("Sqrt", [net.node("Add", [mean, net.constant(1e-3)])])
    y = net.node("Mul", [x, net.node("Reciprocal", [root])])
    return net.node("Mul", [net.constant(numbers((size,), size, 0.5, 1.5)), y])


def halves_turned(net, x, size):
    last, zero, half, end = net.ints(3), net.ints(0), net.ints(size // 2), net.ints(2**63 - 1)
    low, high = net.node("Slice", [x, zero, half, last]), net.node("Slice", [x, half, end, last])
    return net.node("Concat", [net.node("Neg", [high]), low], axis=-1)


def neighbours_turned(net, x, size):
    """As Cohere and EVA have it."""
    zero, one, two, end, last, behind = (net.ints(number) for number in (0, 1, 2, 2**63 - 1, 3, 4))
    even, odd = net.node("Slice", [x, zero, end, last, two]), net.node("Slice", [x, one, end, last, two])
    pair = [net.node("Unsqueeze", [part, behind]) for part in (net.node("Neg", [odd]), even)]
    return net.node("Reshape", [net.node("Concat", pair, axis=-1), net.ints(0, 0, 0, size)])


def rotated(net, x, cos, sin, size, wide=False, turn=halves_turned):
    """[batch, head, row, size]; in floats if `wide`: "behind" what is turned, or "ahead" of that."""
    narrow = x
    if wide:
        x = net.node("Cast", [x], to=TensorProto.FLOAT)
    other = turn(net, narrow if wide == "behind" else x, size)
    if wide == "behind":
        other = net.node("Cast", [other], to=TensorProto.FLOAT)
    y = net.node("Add", [net.node("Mul", [x, cos]), net.node("Mul", [other, sin])])
    return net.node("Cast", [y], to=net.kind) if wide else y


def tables(net, size, shape=None, wide=False):
    """Cosines and sines, of which no two are alike."""
    shape = shape or ["n", size]
    return [net.wide_input(name, shape) if wide else net.input(name, shape) for name in ("cos", "sin")]


class Rotations(Network):
    def wide_input(self, name, shape):
        self.inputs[name] = shape
        return name


def alone(dtype, heads=3, size=16, norms=True, turns=True, wide=False, table=None, turn=halves_turned):
    net = Rotations(dtype)
    x = heads_of(net, net.input("x", ["b", "n", heads * size]), heads, size)
    if norms:
        x = normed(net, x, size)
    if turns:
        x = turned(net, x)
    y = rotated(net, x, *tables(net, size, table, wide), size, wide, turn)
    net.output(y, ["b", heads, "n", size] if turns else ["b", "n", heads, size])
    return net


def feeds_of(batch, rows, width, size, table=None):
    shape = [{"b": batch, "n": rows}.get(dim, dim) for dim in table or ["n", size]]
    return {"x": numbers((batch, rows, width), 1, -2, 2), "cos": numbers(shape, 2), "sin": numbers(shape, 3)}


def check(make_model, tmp_path, build, dtype, *all_feeds, steps="encore.Rotation(", wide=False, tolerance=None):
    """Eager, and by graphs that nobody asks for."""
    model, plain = build(dtype).model(make_model), build("float32").model(make_model)
    session = es.make_session(model, regions=1, auto_graph=1, use_tf32=0, dump_regions=tmp_path)
    es.assert_all_on_encore(session)
    plan = es.last_plan(tmp_path)
    assert steps in plan, plan
    for feeds in [*all_feeds] * 3:
        same = rounded(feeds, dtype) | ({name: feeds[name] for name in ("cos", "sin")} if wide else {})
        for got, wanted in zip(session.run(None, feeds), on_cpu(plain, same), strict=True):
            assert got.shape == wanted.shape
            largest = np.abs(wanted).max(initial=0)
            np.testing.assert_allclose(got, wanted, rtol=0, atol=2 * (tolerance or TOLERANCE[dtype]) * largest)
    return session, plan


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [4, 6, 16, 72, 128, 256])
@pytest.mark.parametrize("norms", [False, True])
def test_heads_of_any_size(encore, make_model, tmp_path, dtype, size, norms):
    feeds = [feeds_of(batch, rows, 3 * size, size) for batch, rows in ((1, 1), (2, ROWS), (0, 3), (3, 33))]
    check(make_model, tmp_path, lambda kind: alone(kind, 3, size, norms), dtype, *feeds)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [4, 6, 16, 72, 128, 256])
@pytest.mark.parametrize("norms", [False, True])
def test_neighbours(encore, make_model, tmp_path, dtype, size, norms):
    feeds = [feeds_of(batch, rows, 3 * size, size) for batch, rows in ((1, 1), (2, ROWS), (0, 3), (3, 33))]
    _, plan = check(
        make_model, tmp_path, lambda kind: alone(kind, 3, size, norms, turn=neighbours_turned), dtype, *feeds
    )
    assert "interleaved = 1" in plan and "Elementwise(" not in plan and "Slice(" not in plan, plan


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("turn", [halves_turned, neighbours_turned])
@pytest.mark.parametrize("first", [1, 5])
def test_rows_behind_others(encore, make_model, tmp_path, dtype, turn, first):
    """A class token and registers, which stay, of queries and of keys."""
    rows, size = 9, 16

    def build(kind):
        net = Rotations(kind)
        cut, zero, end, axis = (net.ints(number) for number in (first, 0, 2**63 - 1, 2))
        cos, sin = tables(net, size, [rows - first, size])
        made = []
        for name in ("x", "z"):
            x = turned(net, heads_of(net, net.input(name, ["b", rows, 3 * size]), 3, size))
            ahead, own = net.node("Slice", [x, zero, cut, axis]), net.node("Slice", [x, cut, end, axis])
            made.append(net.node("Concat", [ahead, rotated(net, own, cos, sin, size, turn=turn)], axis=2))
        net.output(net.node("Sub", made), ["b", 3, rows, size])
        return net

    feeds = [
        {name: numbers(shape, seed, -2, 2) for seed, (name, shape) in enumerate(shapes.items())}
        for shapes in (
            {"x": (b, rows, 48), "z": (b, rows, 48), "cos": (rows - first, size), "sin": (rows - first, size)}
            for b in (1, 3)
        )
    ]
    _, plan = check(make_model, tmp_path, build, dtype, *feeds)
    assert plan.count("encore.Rotation(") == 1 and plan.count("Concat(") == 2 and "Slice(" not in plan, plan


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size,rest", [(16, 48), (6, 2), (8, 5), (128, 64), (64, 256)])
@pytest.mark.parametrize("splits", [False, True])
def test_first_part_of_heads(encore, make_model, tmp_path, dtype, size, rest, splits):
    """GPT-NeoX and Phi: what is behind it stays."""

    def build(kind):
        net = Rotations(kind)
        x = turned(net, heads_of(net, net.input("x", ["b", "n", 3 * (size + rest)]), 3, size + rest))
        zero, cut, end, last = (net.ints(number) for number in (0, size, 2**63 - 1, 3))
        if splits:
            net.nodes.append(helper.make_node("Split", [x, net.ints(size, rest)], ["own", "rest"], "cut", axis=-1))
            parts = "own", "rest"
        else:
            parts = net.node("Slice", [x, zero, cut, last]), net.node("Slice", [x, cut, end, last])
        y = rotated(net, parts[0], *tables(net, size), size)
        net.output(net.node("Concat", [y, parts[1]], axis=-1), ["b", 3, "n", size + rest])
        return net

    feeds = [feeds_of(batch, rows, 3 * (size + rest), size) for batch, rows in ((1, 1), (2, ROWS), (0, 3), (3, 33))]
    _, plan = check(make_model, tmp_path, build, dtype, *feeds)
    assert "Concat(" not in plan and "Slice(" not in plan and "Split(" not in plan


def test_larger_heads_are_elementwise(encore, make_model, tmp_path):
    check(
        make_model,
        tmp_path,
        lambda kind: alone(kind, 1, 512, False),
        "float16",
        feeds_of(2, 3, 512, 512),
        steps="encore.Elementwise(",
    )


TABLES = [["b", 1, "n", 16], [1, 1, "n", 16], ["n", 16], [1, 16], [1, 3, 1, 16], ["b", 3, "n", 16]]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_angles_are_broadcast(encore, make_model, tmp_path, table):
    feeds = [feeds_of(batch, rows, 48, 16, table) for batch, rows in ((2, 5), (1, 3))]
    check(make_model, tmp_path, lambda kind: alone(kind, table=table), "float16", *feeds)


def test_heads_are_broadcast_to_angles(encore, make_model, tmp_path):
    """Though the model's names promise that they are as many."""
    feeds = feeds_of(3, 5, 48, 16, ["b", 1, "n", 16])
    feeds["x"] = feeds["x"][:1]
    check(make_model, tmp_path, lambda kind: alone(kind, table=["c", 1, "n", 16]), "float16", feeds)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("size", [6, 64])
@pytest.mark.parametrize("turn", [halves_turned, neighbours_turned])
@pytest.mark.parametrize("wide", ["ahead", "behind"])
def test_halves_are_rotated_in_floats(encore, make_model, tmp_path, dtype, norms, size, turn, wide):
    feeds = [feeds_of(2, rows, 2 * size, size) for rows in (5, 9)]
    _, plan = check(
        make_model, tmp_path, lambda kind: alone(kind, 2, size, norms, wide=wide, turn=turn), dtype, *feeds, wide=True
    )
    assert "Elementwise(" not in plan, plan


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_rotated_in_others(encore, make_model, tmp_path, dtype):
    other = {"float16": TensorProto.BFLOAT16, "bfloat16": TensorProto.FLOAT16}[dtype]

    def build(kind):
        net = Rotations(kind)
        values = [net.input("x", ["b", 3, "n", 16]), *(net.wide_input(name, ["n", 16]) for name in ("cos", "sin"))]
        if kind != "float32":
            values = [net.node("Cast", [value], to=other) for value in values]
        y = rotated(net, *values, 16)
        net.output(y if kind == "float32" else net.node("Cast", [y], to=net.kind), ["b", 3, "n", 16])
        return net

    feeds = {"x": numbers((2, 3, ROWS, 16)), "cos": numbers((ROWS, 16), 2), "sin": numbers((ROWS, 16), 3)}
    session, _ = check(make_model, tmp_path, build, dtype, feeds, tolerance=max(TOLERANCE[kind] for kind in HALVES))
    if es.on_virtual_gpu():
        assert sum("RotateViewed" in name for name in kernels_of(session, feeds)) == 1


def test_heads_that_are_not_turned(encore, make_model, tmp_path):
    table = ["n", 1, 16]
    _, plan = check(
        make_model,
        tmp_path,
        lambda kind: alone(kind, turns=False, table=table),
        "float16",
        feeds_of(2, 5, 48, 16, table),
    )
    assert " Transpose(" not in plan, plan


def repeated(net, x, heads, group, size, how):
    """Each of [batch, head, row, size] for a group of neighbours."""
    x = net.node("Unsqueeze", [x, net.ints(2)])
    if how == "Tile":
        x = net.node("Tile", [x, net.ints(1, 1, group, 1, 1)])
    elif how == "computed":
        shape = net.node(
            "Concat", [net.node("Shape", [x], end=2), net.ints(group), net.node("Shape", [x], start=3)], axis=0
        )
        x = net.node("Expand", [x, shape])
    else:
        x = net.node("Expand", [x, net.ints(1, 1, group, 1, 1)])
    return net.node("Reshape", [x, net.ints(0, heads * group, -1, size)])


def decoder(dtype, heads=2, group=3, size=16, norms=True, how="Expand", masked=True):
    """What language models have ahead of attention, and attention."""
    net = Rotations(dtype)
    width = 32
    x = net.input("x", ["b", "n", width])
    cos, sin = tables(net, size)
    parts = {}
    for i, (name, count) in enumerate({"q": heads * group, "k": heads, "v": heads}.items()):
        weights = net.constant(numbers((width, count * size), i, -0.3, 0.3))
        y = heads_of(net, net.node("MatMul", [x, weights]), count, size)
        if norms and name != "v":
            y = normed(net, y, size)
        y = turned(net, y)
        parts[name] = y if name == "v" else rotated(net, y, cos, sin, size)
    k, v = (
        (repeated(net, parts[name], heads, group, size, how) for name in "kv")
        if group > 1
        else (parts["k"], parts["v"])
    )
    mask = net.input("mask", ["b", 1, "n", "n"]) if masked else None
    y = turned(net, attend(net, parts["q"], net.node("Transpose", [k], perm=(0, 1, 3, 2)), v, mask))
    net.output(net.node("Reshape", [y, net.ints(0, 0, heads * group * size)]), ["b", "n", heads * group * size])
    return net


def decoder_feeds(batch, rows, size=16, masked=True):
    feeds = feeds_of(batch, rows, 32, size)
    if masked:
        mask = np.where(np.tri(rows, dtype=bool), 0, -1e4).astype(np.float32)
        feeds["mask"] = np.broadcast_to(mask, (batch, 1, rows, rows)).copy()
    return feeds


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("how", ["Expand", "Tile", "computed"])
@pytest.mark.parametrize("heads", [1, 2])
def test_groups_of_heads(encore, make_model, tmp_path, dtype, how, heads):
    feeds = [decoder_feeds(*shape) for shape in ((2, 5), (1, 40), (1, 1))]
    _, plan = check(
        make_model,
        tmp_path,
        lambda kind: decoder(kind, heads, how=how),
        dtype,
        *feeds,
        steps="encore.Attention(",
    )
    assert not re.search(r"Expand\(|Tile\(|View\(|Transpose\(", plan), plan
    assert plan.count("encore.Rotation(") == 1 and plan.count("MatMul(") == 1, plan


def test_nothing_is_moved(encore, make_model, tmp_path):
    feeds = decoder_feeds(2, 9)
    session, _ = check(make_model, tmp_path, decoder, "float16", feeds, steps="encore.Attention(")
    if es.on_virtual_gpu():
        kernels = kernels_of(session, feeds)
        assert not any("Strided" in name or "Fill" in name for name in kernels), kernels


@pytest.mark.parametrize("masked", [False, True])
def test_one_head_of_keys_by_broadcast(encore, make_model, tmp_path, masked):
    """As MatMul has it, without a step that repeats."""

    def build(kind):
        net = Rotations(kind)
        q, k, v = (net.input(name, ["b", heads, "n", 16]) for name, heads in (("q", 4), ("k", 1), ("v", 1)))
        mask = net.input("mask", ["b", 1, "n", "n"]) if masked else None
        net.output(attend(net, q, net.node("Transpose", [k], perm=(0, 1, 3, 2)), v, mask), ["b", 4, "n", 16])
        return net

    feeds = {name: numbers((2, heads, 6, 16), heads) for name, heads in (("q", 4), ("k", 1), ("v", 1))}
    if masked:
        feeds["mask"] = decoder_feeds(2, 6)["mask"]
    check(make_model, tmp_path, build, "float16", feeds, steps="encore.Attention(")


def test_only_keys_are_repeated(encore, make_model, tmp_path):
    def build(kind):
        net = Rotations(kind)
        q, k, v = (net.input(name, ["b", heads, "n", 16]) for name, heads in (("q", 4), ("k", 2), ("v", 4)))
        kt = net.node("Transpose", [repeated(net, k, 2, 2, 16, "Expand")], perm=(0, 1, 3, 2))
        net.output(attend(net, q, kt, v), ["b", 4, "n", 16])
        return net

    feeds = {name: numbers((2, heads, 6, 16), heads) for name, heads in (("q", 4), ("k", 2), ("v", 4))}
    check(make_model, tmp_path, build, "float16", feeds, steps="encore.Attention(")


@es.needs_graphs
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_it_is_captured_and_replayed(encore, make_model, dtype):
    model, plain = decoder(dtype).model(make_model), decoder("float32").model(make_model)
    session = es.make_session(model, enable_cuda_graph=1, regions=1, use_tf32=0)
    bound = es.Bound(session, decoder_feeds(2, ROWS), ends_of(session))
    for seed in range(5):
        feeds = decoder_feeds(2, ROWS) | {"x": numbers((2, ROWS, 32), seed)}
        (wanted,) = on_cpu(plain, rounded(feeds, dtype))
        (got,) = bound.run(feeds).values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2 * TOLERANCE[dtype] * np.abs(wanted).max())
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["state"] == "ready"


def ends_of(session):
    (output,) = session.get_outputs()
    return {output.name: ([2, ROWS, 96], np.float32)}
