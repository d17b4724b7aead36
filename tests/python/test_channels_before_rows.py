"""Attention of pictures whose heads have their channels before their rows, as YOLO, CoAtNet and EfficientViT have them:
the channels of a convolution are heads, and what comes of them goes to another one."""

import pytest
from test_fused_attention import Network, numbers
from test_rotations import check

BATCH, HEADS, SIZE, SIDE = 2, 3, 16, 5
WIDTH, ROWS = HEADS * SIZE, SIDE * SIDE


def pointwise(net, x, columns, rows, seed):
    return net.node("Conv", [x, net.constant(numbers((rows, columns, 1, 1), seed, -0.3, 0.3))])


def picture(values, bias=False, dynamic=False):
    """`values`: multiplied from the "left" by turned probabilities, or from the "right", and turned behind."""

    def build(kind):
        net = Network(kind)
        batch = "b" if dynamic else BATCH
        x = net.input("x", [batch, 8, SIDE, SIDE])
        made = pointwise(net, x, 8, 3 * WIDTH, 3)
        heads = net.node("Reshape", [made, net.ints(0, HEADS, 3 * SIZE, ROWS)])
        cuts = [net.ints(i * SIZE) for i in range(4)]
        q, k, v = (net.node("Slice", [heads, cuts[i], cuts[i + 1], net.ints(2)]) for i in range(3))
        scores = net.node("MatMul", [net.node("Transpose", [q], perm=(0, 1, 3, 2)), k])
        scores = net.node("Mul", [scores, net.constant(0.25)])
        if bias:
            scores = net.node("Add", [scores, net.constant(numbers((HEADS, ROWS, ROWS), 5))])
        p = net.node("Softmax", [scores], axis=-1)
        if values == "left":
            y = net.node("MatMul", [v, net.node("Transpose", [p], perm=(0, 1, 3, 2))])
        else:
            y = net.node("MatMul", [p, net.node("Transpose", [v], perm=(0, 1, 3, 2))])
            y = net.node("Transpose", [y], perm=(0, 1, 3, 2))
        y = net.node("Reshape", [y, net.ints(0, WIDTH, SIDE, SIDE)])
        net.output(pointwise(net, y, WIDTH, 8, 7), [batch, 8, SIDE, SIDE])
        return net

    return build


FEEDS = [{"x": numbers((BATCH, 8, SIDE, SIDE), seed, -2, 2)} for seed in (1, 9)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("values", ["left", "right"])
def test_one_attention(encore, make_model, tmp_path, values, bias, dynamic):
    _, plan = check(make_model, tmp_path, picture(values, bias, dynamic), "float16", *FEEDS, steps="encore.Attention(")
    for left in ("Softmax", "MatMul(", "Add("):
        assert left not in plan, plan


@pytest.mark.parametrize("values", ["left", "right"])
def test_floats(encore, make_model, tmp_path, values):
    check(make_model, tmp_path, picture(values), "float32", *FEEDS, steps="encore.Attention(")


def without_heads(kind):
    """[batch, channel, row], as of one head."""
    net = Network(kind)
    q, k, v = (net.input(name, [BATCH, SIZE, ROWS]) for name in "qkv")
    p = net.node("Softmax", [net.node("MatMul", [net.node("Transpose", [q], perm=(0, 2, 1)), k])], axis=-1)
    net.output(net.node("MatMul", [v, net.node("Transpose", [p], perm=(0, 2, 1))]), [BATCH, SIZE, ROWS])
    return net


def test_of_one_head(encore, make_model, tmp_path):
    feeds = [{name: numbers((BATCH, SIZE, ROWS), seed + i) for i, name in enumerate("qkv")} for seed in (1, 9)]
    check(make_model, tmp_path, without_heads, "float16", *feeds, steps="encore.Attention(")
