"""Convolutions of one picture that are summed up, as RepVGG, MobileOne, RepViT and FastViT train them, made one."""

import functools
import re

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import numpy_helper
from test_fused_attention import TYPES, Network, numbers
from test_fusion import on_cpu
from test_vision_blocks import CHANNELS, PICTURE, agrees, plan_of


def branch(net, x, size, groups=CHANNELS, norm=True, made=CHANNELS, **attributes):
    """A convolution whose windows have the given places, and its norm."""
    seed = len(net.nodes)
    weights = net.constant(numbers((made, CHANNELS // groups, *size), seed, -0.4, 0.4))
    attributes.setdefault("pads", [(n - 1) * d // 2 for n, d in zip(size, attributes.get("dilations", [1] * 9))] * 2)
    y = net.node("Conv", [x, weights], group=groups, **attributes)
    return (
        norm_of(net, y, made) if norm else net.node("Add", [y, net.constant(numbers((made, *[1] * len(size)), seed))])
    )


def norm_of(net, x, channels=CHANNELS):
    rows = [numbers((channels,), len(net.nodes) + i, 0.5, 1.5) for i in range(4)]
    return net.node("BatchNormalization", [x, *(net.constant(row) for row in rows)], epsilon=1e-3)


def summed(net, *values):
    y = values[0]
    for value in values[1:]:
        y = net.node("Add", [y, value])
    return y


def repvgg(net, x):
    """A block that halves the picture, and one that leaves it."""
    x = net.node("Relu", [summed(net, *(branch(net, x, [n, n], 1, strides=[2, 2]) for n in (3, 1)))])
    return net.node("Relu", [summed(net, branch(net, x, [3, 3], 1), branch(net, x, [1, 1], 1), norm_of(net, x))])


def mobileone(net, x):
    for groups, size in (CHANNELS, 3), (1, 1):
        norm, scale = norm_of(net, x), branch(net, x, [1, 1], groups)
        branches = [branch(net, x, [size, size], groups) for _ in range(3)]
        x = net.node("Relu", [summed(net, scale, norm, *branches)])
    return x


def repvit(net, x):
    for _ in range(2):
        x = summed(net, branch(net, x, [3, 3]), branch(net, x, [1, 1], norm=False), x)
        x = net.node("Relu", [branch(net, x, [1, 1], 1)])
    return x


def fastvit(net, x):
    """Its mixer, which leaves out what its norm makes, and the large windows behind."""
    for _ in range(2):
        norm = norm_of(net, x)
        mixed = summed(net, branch(net, x, [1, 1]), norm, branch(net, x, [3, 3]))
        less = net.node("Sub", [mixed, norm])
        x = summed(net, x, net.node("Mul", [less, net.constant(numbers((CHANNELS, 1, 1), 5))]))
        x = net.node("Relu", [summed(net, branch(net, x, [7, 7]), branch(net, x, [3, 3]))])
    return x


def sparse(net, x):
    """UniRepLKNet's, of windows with holes."""
    wide = branch(net, x, [5, 5])
    return net.node("Relu", [summed(net, wide, *(branch(net, x, [3, 3], dilations=[d, d]) for d in (1, 2)))])


def asymmetric(net, x):
    """ACNet's."""
    return net.node("Relu", [summed(net, *(branch(net, x, size, 4) for size in ([3, 3], [1, 3], [3, 1])))])


BLOCKS = {repvgg: 2, mobileone: 2, repvit: 4, fastvit: 4, sparse: 1, asymmetric: 1}


def whole(block, shape=tuple(PICTURE)):
    def build(net):
        net.output(net.node("Identity", [block(net, net.input("x", shape))], "y"), [None] * len(shape))
        return net

    return build


def convolutions(plan):
    return len(re.findall(r"Conv(@\d+)?\(", plan))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("block", BLOCKS)
def test_blocks(encore, make_model, tmp_path, block, dtype):
    """Floats of regions whose convolutions have no tensor cores, too."""
    make = functools.partial(make_model, opset=22)  # which has bfloat16
    plan = plan_of(agrees(whole(block), make, dtype, use_tf32=int(dtype != "float32")), tmp_path)
    assert convolutions(plan) == BLOCKS[block], plan
    assert not re.search(r"(BatchNormalization|Add|Sub|Elementwise)(@\d+)?\(", plan), plan


@pytest.mark.parametrize("spatial", [[7], [3, 4, 5]], ids=str)
def test_lines_and_volumes(encore, make_model, tmp_path, spatial):
    def block(net, x):
        return summed(net, x, *(branch(net, x, [n] * len(spatial)) for n in (1, 3)))

    shape = (CHANNELS, *spatial)
    plan = plan_of(agrees(whole(block, ("n", *shape)), make_model, "float32", shape, use_tf32=0), tmp_path)
    assert convolutions(plan) == 1, plan


@pytest.mark.parametrize("fill", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [6, 7, "h"])
def test_where_padding_is_found(encore, make_model, tmp_path, fill, stride, size):
    """How much there is depends on how long x is, if the windows do not stop everywhere."""

    def block(net, x):
        more = {"pads": None, "auto_pad": fill, "strides": [stride] * 2}
        branches = [branch(net, x, [n, n], **more) for n in (4, 3, 1)]
        return net.node("Relu", [summed(net, *branches)])

    shape = ("n", CHANNELS, size, size)
    is_known = stride == 1 or size != "h"
    model = agrees(
        whole(block, shape), make_model, "float32", (CHANNELS, 7, 7) if size == "h" else shape[1:], use_tf32=0
    )
    plan = plan_of(model, tmp_path)
    assert convolutions(plan) == (1 if is_known else 3), plan


def test_any_size(encore, make_model, tmp_path):
    model = agrees(whole(repvgg, ("n", CHANNELS, "h", "w")), make_model, "float32", (CHANNELS, 7, 4), use_tf32=0)
    plan = plan_of(model, tmp_path)
    assert convolutions(plan) == 2, plan
    session = es.make_session(model, regions=1)
    for size in (1, 2, 5):
        feeds = {"x": numbers((1, CHANNELS, size, size + 1), size)}
        np.testing.assert_allclose(session.run(None, feeds)[0], on_cpu(model, feeds)[0], rtol=1e-5, atol=1e-5)


def test_with_channels_last(encore, make_model, tmp_path):
    model = whole(fastvit)(Network("float16")).model(make_model)
    session = es.make_session(model, regions=1, prefer_nhwc=1, dump_regions=tmp_path)
    es.assert_all_on_encore(session)
    assert convolutions(es.last_plan(tmp_path)) == BLOCKS[fastvit]
    feeds = {"x": numbers((2, *PICTURE[1:]))}
    wanted = on_cpu(whole(fastvit)(Network("float32")).model(make_model), feeds)[0]
    np.testing.assert_allclose(session.run(None, feeds)[0], wanted, rtol=0, atol=8e-3 * np.abs(wanted).max())


@es.needs_graphs
def test_captured_and_replayed(encore, make_model):
    model, shape = whole(repvit)(Network("float32")).model(make_model), (2, *PICTURE[1:])
    session = es.make_session(model, enable_cuda_graph=1, regions=1, use_tf32=0)
    bound = es.Bound(session, {"x": numbers(shape)}, {"y.out": (shape, np.float32)})
    for seed in range(5):
        feeds = {"x": numbers(shape, seed)}
        np.testing.assert_allclose(bound.run(feeds)["y.out"], on_cpu(model, feeds)[0], rtol=1e-5, atol=1e-5)
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["nodes"] > 0


# ---- what stays as it is


def stays(model, feeds, folder, count=2):
    """So many convolutions are left, and the sums are right."""
    session = es.make_session(model, regions=1, auto_graph=0, dump_regions=folder)
    assert sum(convolutions(sorted(one.glob("*.txt"))[-1].read_text()) for one in folder.iterdir()) == count
    for got, wanted in zip(session.run(None, feeds), on_cpu(model, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_weights_that_two_nodes_read(encore, make_model, tmp_path):
    net = Network("float32")
    x = net.input("x", PICTURE)
    weights = net.constant(numbers((CHANNELS, 1, 3, 3), 1))
    wide = net.node("Conv", [x, weights], group=CHANNELS, pads=[1] * 4)
    y = net.node("Relu", [summed(net, wide, branch(net, x, [1, 1]))])
    net.output(net.node("Conv", [y, weights], group=CHANNELS), ["n", CHANNELS, "h", "w"])
    stays(net.model(make_model), {"x": numbers((2, *PICTURE[1:]))}, tmp_path, 3)


def test_weights_that_are_fed(encore, make_model, tmp_path):
    """An initializer that is an input, too, is what a run feeds, or else what the model has."""
    net = Network("float32")
    x = net.input("x", PICTURE)
    given, fed = numbers((CHANNELS, 1, 1, 1), 1), numbers((CHANNELS, 1, 1, 1), 2)
    net.inputs["w"] = list(given.shape)
    net.constants.append(numpy_helper.from_array(given, "w"))
    narrow = net.node("Conv", [x, "w"], group=CHANNELS)
    net.output(net.node("Relu", [summed(net, branch(net, x, [3, 3]), narrow)]), PICTURE)
    model, x = net.model(make_model), numbers((2, *PICTURE[1:]))
    for i, feeds in enumerate(({"x": x}, {"x": x, "w": fed})):
        stays(model, feeds, tmp_path / str(i))


def test_sums_that_broadcast(encore, make_model, tmp_path):
    """The wider window stops once, and the narrower one everywhere."""
    net = Network("float32")
    x = net.input("x", ["n", CHANNELS, "h", "w"])
    y = summed(net, branch(net, x, [3, 3], pads=[0] * 4), branch(net, x, [1, 1]))
    net.output(net.node("Relu", [y]), ["n", CHANNELS, "h", "w"])
    stays(net.model(make_model), {"x": numbers((2, CHANNELS, 3, 3))}, tmp_path)


def test_a_picture_that_broadcasts(encore, make_model, tmp_path):
    net = Network("float32")
    x = net.input("x", ["n", CHANNELS, "h", "w"])
    y = net.node("Add", [branch(net, x, [3, 3], strides=[2, 2]), x])
    net.output(net.node("Relu", [y]), ["n", CHANNELS, "h", "w"])
    stays(net.model(make_model), {"x": numbers((2, CHANNELS, 1, 1))}, tmp_path, 1)


def test_weights_near_zero(encore, make_model, tmp_path):
    """Halves would lose the most of them."""
    net = Network("float16")
    x = net.input("x", PICTURE)
    y = net.node("Mul", [summed(net, branch(net, x, [3, 3]), branch(net, x, [1, 1])), net.constant(1e-6)])
    net.output(net.node("Mul", [net.node("Relu", [y]), net.constant(1e4)]), PICTURE)
    session = es.make_session(net.model(make_model), regions=1, dump_regions=tmp_path)
    assert convolutions(es.last_plan(tmp_path)) == 2
    assert np.isfinite(session.run(None, {"x": numbers((2, *PICTURE[1:]))})[0]).all()
