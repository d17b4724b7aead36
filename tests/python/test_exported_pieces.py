"""Pieces of models as torch's exporters leave them: gates of other activations than Silu, sums of halves in float, a
batch normalisation ahead of a sum, rotations that onnxruntime has turned, shapes that are asked for."""

import pytest
from onnx import TensorProto
from test_fused_attention import HALVES, Network, numbers
from test_rotations import check, heads_of, neighbours_turned, turned

ROWS, WIDTH = 7, 16


def rows_feeds(name="x", width=WIDTH):
    return [{name: numbers((2, rows, width), seed, -2, 2)} for rows, seed in ((ROWS, 1), (33, 9))]


def gate(activation):
    def build(kind):
        net = Network(kind)
        x = net.input("x", ["b", "n", WIDTH])
        left, right = (net.node("MatMul", [x, net.constant(numbers((WIDTH, 24), 2 + i, -0.5, 0.5))]) for i in range(2))
        y = net.node("Mul", [net.node(activation, [left]), right])
        net.output(net.node("MatMul", [y, net.constant(numbers((24, WIDTH), 5, -0.5, 0.5))]), ["b", "n", WIDTH])
        return net

    return build


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid"])
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_gates_of_other_activations(encore, make_model, tmp_path, dtype, activation):
    _, plan = check(
        make_model, tmp_path, gate(activation), dtype, *rows_feeds(), steps="part x1 along -1 from 24 to 48"
    )
    assert plan.count("MatMul(") == 2, plan


def summed(kind):
    net = Network(kind)
    x = net.node("Mul", [net.input("x", ["b", ROWS, WIDTH]), net.constant(numbers((WIDTH,), 3))])
    wide = net.node("Cast", [x], to=TensorProto.FLOAT)
    sums = net.node("ReduceSum", [wide, net.ints(1)], keepdims=0)
    net.output(net.node("Softmax", [net.node("Cast", [sums], to=net.kind)]), ["b", WIDTH])
    return net


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_of_halves_in_float(encore, make_model, tmp_path, dtype):
    _, plan = check(make_model, tmp_path, summed, dtype, *rows_feeds()[:1], steps="ReduceSum(")
    assert ": f32" not in plan.split("ReduceSum(")[0].rsplit("\n", 1)[1], plan


def normed_picture(kind):
    net = Network(kind)
    x = net.input("x", ["b", 8, 5, 5])
    y = net.node("Relu", [net.node("Conv", [x, net.constant(numbers((8, 8, 1, 1), 3))])])
    rows = [net.constant(numbers((8,), 5 + i, 0.5, 1.5)) for i in range(4)]
    net.output(net.node("Add", [net.node("BatchNormalization", [y, *rows]), x]), ["b", 8, 5, 5])
    return net


def test_batch_norms_ahead_of_a_sum(encore, make_model, tmp_path):
    feeds = [{"x": numbers((batch, 8, 5, 5), batch, -2, 2)} for batch in (1, 3)]
    _, plan = check(make_model, tmp_path, normed_picture, "float16", *feeds, steps="encore.Elementwise(")
    assert "BatchNormalization" not in plan, plan


def half_turned(kind):
    """A product with cosines that is turned behind, and pairs that are turned before."""
    net = Network(kind)
    heads = heads_of(net, net.input("x", ["b", ROWS, 3 * WIDTH]), 3, WIDTH)
    by_cos = turned(net, net.node("Mul", [heads, net.constant(numbers((1, ROWS, 1, WIDTH), 3))]))
    pairs = neighbours_turned(net, turned(net, heads), WIDTH)
    by_sin = net.node("Mul", [pairs, net.constant(numbers((ROWS, WIDTH), 5))])
    net.output(net.node("Add", [by_cos, by_sin]), ["b", 3, ROWS, WIDTH])
    return net


@pytest.mark.parametrize("dtype", HALVES)
def test_products_that_are_turned_behind(encore, make_model, tmp_path, dtype):
    _, plan = check(make_model, tmp_path, half_turned, dtype, *rows_feeds(width=3 * WIDTH)[:1])
    assert "Mul(" not in plan and "mul(" not in plan, plan


def asks_for_shapes(kind):
    """Parts of a third of the columns each, and heads, by shapes that are computed."""
    net = Network(kind)
    x = net.node("MatMul", [net.input("x", ["b", "n", WIDTH]), net.constant(numbers((WIDTH, 3 * WIDTH), 3, -0.3, 0.3))])
    sizes = net.node("Shape", [x])
    third = net.node("Div", [net.node("Gather", [sizes, net.ints(2)]), net.ints(3)])
    dims = [net.node("Gather", [sizes, net.ints(i)]) for i in range(2)]
    rows = net.node("Concat", [*dims, net.ints(2), net.ints(WIDTH // 2)], axis=0)
    ends = [net.ints(0), third, net.node("Mul", [third, net.ints(2)]), net.ints(2**63 - 1)]
    parts = [net.node("Slice", [x, ends[i], ends[i + 1], net.ints(2)]) for i in range(3)]
    q, k, v = (turned(net, net.node("Reshape", [part, rows])) for part in parts)
    p = net.node("Softmax", [net.node("MatMul", [q, net.node("Transpose", [k], perm=(0, 1, 3, 2))])])
    net.output(net.node("MatMul", [p, v]), ["b", 2, "n", WIDTH // 2])
    return net


@pytest.mark.parametrize("dtype", HALVES)
def test_shapes_that_are_asked_for(encore, make_model, tmp_path, dtype):
    _, plan = check(make_model, tmp_path, asks_for_shapes, dtype, *rows_feeds(), steps="encore.Attention(")
    for left in ("Shape(", "Slice(", "Gather(", "Reshape("):
        assert left not in plan, plan
