"""Attention of windows, as vision transformers have it, made one node."""

import encore_session as es
import numpy as np
import pytest
from test_fused_attention import HALVES, Network, agrees, numbers

WINDOWS, HEADS, ROWS, SIZE = 4, 3, 9, 16
WIDTH = HEADS * SIZE
BATCHES = (1, 3)


def projections(net, x, count=3):
    """Queries, keys and values of the same rows."""
    for i in range(count):
        weights = net.constant(numbers((WIDTH, WIDTH), i, -0.2, 0.2))
        yield net.node("Add", [net.node("MatMul", [x, weights]), net.constant(numbers((WIDTH,), 10 + i))])


def shifted(dtype):
    """Swin's: the batch is images and windows while the windows' mask is added."""
    net = Network(dtype)
    x = net.node("Reshape", [net.input("x", ["n", WINDOWS, ROWS, WIDTH]), net.ints(-1, ROWS, WIDTH)])
    heads = net.ints(-1, ROWS, HEADS, SIZE)
    q, k, v = (net.node("Reshape", [each, heads]) for each in projections(net, x))
    q, v = (net.node("Transpose", [each], perm=(0, 2, 1, 3)) for each in (q, v))
    scores = net.node("MatMul", [q, net.node("Transpose", [k], perm=(0, 2, 3, 1))])
    scores = net.node("Mul", [scores, net.constant(0.25)])
    scores = net.node("Add", [scores, net.constant(numbers((1, HEADS, ROWS, ROWS), 5))])
    mask = np.where(numbers((1, WINDOWS, 1, ROWS, ROWS), 6) > 0.5, -100, 0)
    apart = net.node("Reshape", [scores, net.ints(-1, WINDOWS, HEADS, ROWS, ROWS)])
    scores = net.node("Reshape", [net.node("Add", [apart, net.constant(mask)]), net.ints(-1, HEADS, ROWS, ROWS)])
    y = net.node("MatMul", [net.node("Softmax", [scores], axis=-1), v])
    y = net.node("Reshape", [net.node("Transpose", [y], perm=(0, 2, 1, 3)), net.ints(-1, WINDOWS, ROWS, WIDTH)])
    net.output(y, ["n", WINDOWS, ROWS, WIDTH])
    return net


def by_cosines(dtype, least=1e-3):
    """Swin V2's: queries and keys have length one, and each head multiplies the scores by a number of its own."""
    net = Network(dtype)
    x = net.node("Reshape", [net.input("x", ["n", WINDOWS, ROWS, WIDTH]), net.ints(-1, ROWS, WIDTH)])
    heads = net.ints(-1, ROWS, HEADS, SIZE)
    q, k, v = (net.node("Reshape", [each, heads]) for each in projections(net, x))

    def unit(each):
        turned = net.node("Transpose", [each], perm=(0, 2, 1, 3))
        length = net.node("Clip", [net.node("ReduceL2", [each, net.ints(3)], keepdims=1), net.constant(least)])
        return net.node("Div", [turned, net.node("Transpose", [length], perm=(0, 2, 1, 3))])

    q, k, v = (
        unit(q),
        net.node("Transpose", [unit(k)], perm=(0, 1, 3, 2)),
        net.node("Transpose", [v], perm=(0, 2, 1, 3)),
    )
    scores = net.node("Mul", [net.node("MatMul", [q, k]), net.constant([[[10.0]], [[4.0]], [[0.5]]])])
    scores = net.node("Add", [scores, net.constant(numbers((1, HEADS, ROWS, ROWS), 5))])
    y = net.node("MatMul", [net.node("Softmax", [scores], axis=-1), v])
    y = net.node("Reshape", [net.node("Transpose", [y], perm=(0, 2, 1, 3)), net.ints(-1, WINDOWS, ROWS, WIDTH)])
    net.output(y, ["n", WINDOWS, ROWS, WIDTH])
    return net


def of_five_dimensions(dtype):
    """MaxViT's, whose products are Einsum."""
    net = Network(dtype)
    x = net.input("x", ["n", WINDOWS, ROWS, WIDTH])
    heads = net.ints(0, 0, ROWS, HEADS, SIZE)
    q, k, v = (
        net.node("Transpose", [net.node("Reshape", [each, heads])], perm=(0, 1, 3, 2, 4))
        for each in projections(net, x)
    )
    k = net.node("Mul", [k, net.constant(0.25)])
    scores = net.node("Einsum", [q, k], equation="B G H I D, B G H J D -> B G H I J")
    scores = net.node("Add", [scores, net.constant(numbers((1, 1, HEADS, ROWS, ROWS), 5))])
    p = net.node("Softmax", [scores], axis=-1)
    y = net.node("Einsum", [p, v], equation="B G H I J, B G H J D -> B G H I D")
    y = net.node("Reshape", [net.node("Transpose", [y], perm=(0, 1, 3, 2, 4)), net.ints(0, 0, ROWS, WIDTH)])
    net.output(y, ["n", WINDOWS, ROWS, WIDTH])
    return net


@pytest.mark.parametrize(
    "build, dtype",
    [
        *((shifted, dtype) for dtype in HALVES),
        *((by_cosines, dtype) for dtype in HALVES),
        (of_five_dimensions, "float16"),
    ],  # Einsum has no bfloat16 before opset 28
)
def test_windows_are_attended_at_once(encore, make_model, tmp_path, build, dtype):
    feeds = [{"x": numbers((batch, WINDOWS, ROWS, WIDTH), batch)} for batch in BATCHES]
    es.make_session(build(dtype).model(make_model), regions=1, dump_regions=tmp_path)
    steps = es.last_plan(tmp_path)
    assert steps.count("encore.Attention(") == 1 and "Softmax(" not in steps, steps
    # Queries, keys and values are made together, if nothing is between.
    assert steps.count("MatMul(") == (3 if build is by_cosines else 1), steps
    assert steps.count("encore.L2Norm(") == (2 if build is by_cosines else 0), steps
    model, wide = (build(one).model(make_model) for one in (dtype, "float32"))
    for regions in (0, 1):
        session = es.make_session(model, regions=regions)
        es.assert_all_on_encore(session)
        for fed in feeds * 3:
            agrees(session, wide, fed, dtype)


def test_a_mask_of_each_image_is_not_one_of_windows(encore, make_model):
    """What is added has other images' masks, too."""

    def build(dtype):
        net = shifted(dtype)
        (mask,) = [c for c in net.constants if list(c.dims) == [1, WINDOWS, 1, ROWS, ROWS]]
        net.constants.remove(mask)
        net.inputs["mask"] = ["n", WINDOWS, 1, ROWS, ROWS]
        net.node("Cast", ["mask"], mask.name, to=net.kind)
        net.nodes.insert(0, net.nodes.pop())
        return net

    feeds = {
        "x": numbers((2, WINDOWS, ROWS, WIDTH)),
        "mask": np.where(numbers((2, WINDOWS, 1, ROWS, ROWS), 6) > 0.5, -100, 0).astype(np.float32),
    }
    for regions in (0, 1):
        session = es.make_session(build("float16").model(make_model), regions=regions)
        agrees(session, build("float32").model(make_model), feeds, "float16")
