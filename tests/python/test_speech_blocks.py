"""Blocks of speech models, as exporters write them: lines have their channels last, as pictures do."""

import pytest
from onnx import helper
from test_fused_attention import TOLERANCE, numbers
from test_vision_blocks import CHANNELS, agrees, plan_of

LENGTH = 40
LINE = ["n", CHANNELS, LENGTH]


def conv(net, x, group=1, size=3, **attrs):
    weights = net.constant(numbers((CHANNELS, CHANNELS // group, size), len(net.nodes), -0.3, 0.3))
    return net.node("Conv", [x, weights, net.constant(numbers((CHANNELS,), len(net.nodes)))], group=group, **attrs)


def turned(net, x):
    return net.node("Transpose", [x], perm=[0, 2, 1])


def wav2vec(net):
    """Features of lines, and where they are: a convolution of groups that makes one position too many."""
    x = net.input("x", LINE)
    for _ in range(2):
        x = net.node("Tanh", [conv(net, x, strides=[2])])
    norm = [net.constant(numbers((CHANNELS,), i)) for i in range(2)]
    x = net.node("LayerNormalization", [turned(net, x), *norm])
    y = conv(net, turned(net, x), 2, 8, pads=[4, 4])
    y = net.node("Slice", [y, net.ints(0), net.ints(-1), net.ints(2)])
    y = net.node("Add", [x, turned(net, net.node("Tanh", [y]))])
    net.output(net.node("LayerNormalization", [y, *norm]), ["n", 9, CHANNELS])
    return net


def test_lines_have_their_channels_last(encore, make_model, tmp_path):
    plan = plan_of(agrees(wav2vec, make_model, shape=(CHANNELS, LENGTH)), tmp_path)
    assert plan.count("com.ms.internal.nhwc.") == 3 and plan.count(" Transpose(") == 1, plan


def pooled(net, x):
    return net.node("MaxPool", [x], kernel_shape=[3], strides=[2], pads=[1, 1])


def averaged(net, x):
    return net.node("AveragePool", [x], kernel_shape=[2], strides=[2])


def of_channels(net, x):
    return net.node("Mul", [x, net.constant(numbers((CHANNELS, 1), 3))])


def of_places(net, x):
    return net.node("Add", [x, net.constant(numbers((LENGTH,), 3))])


def normal(net, x):
    scale, bias, mean = (net.constant(numbers((CHANNELS,), i)) for i in range(3))
    return net.node("BatchNormalization", [x, scale, bias, mean, net.constant(numbers((CHANNELS,), 3, 0.5, 2))])


def split(net, x):
    net.nodes.append(helper.make_node("Split", [x], ["one", "two"], axis=1, num_outputs=2))
    return net.node("Concat", [net.node("Sigmoid", ["two"]), "one"], axis=-2)


def padded(net, x):
    return net.node("Pad", [x, net.ints(0, 0, 3, 0, 0, 2)])


def resized(net, x):
    return net.node("Resize", [x, "", "", net.ints(1, CHANNELS, 2 * LENGTH)], mode="nearest")


def gated(net, x):
    mean = net.node("GlobalAveragePool", [x])
    return net.node("Mul", [x, net.node("Sigmoid", [net.node("Add", [mean, net.node("ReduceMax", [x, net.ints(2)])])])])


def softmax(net, x):
    return net.node("Softmax", [x], axis=1)


def up(net, x):
    return net.node("ConvTranspose", [x, net.constant(numbers((CHANNELS, CHANNELS, 4), 7, -0.3, 0.3))], strides=[2])


BETWEEN = [pooled, averaged, of_channels, of_places, normal, split, padded, resized, gated, softmax, up]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("between", BETWEEN)
def test_what_is_between(encore, make_model, tmp_path, monkeypatch, between, dtype):
    def build(net):
        y = between(net, conv(net, net.input("x", LINE), pads=[1, 1]))
        net.output(conv(net, y), ["n", CHANNELS, "l"])
        return net

    monkeypatch.setitem(TOLERANCE, "float32", 1e-3)  # convolutions are in TF32 on a GPU
    batches = (1,) if between is resized else (1, 3)
    plan = plan_of(agrees(build, make_model, dtype, (CHANNELS, LENGTH), batches), tmp_path)
    assert plan.count("com.ms.internal.nhwc.") >= 2 and plan.count(" Transpose(") == 2, plan


def test_pictures_of_lines(encore, make_model, tmp_path):
    """A sum of both is a picture, whose channels are not the lines'."""

    def build(net):
        x = net.input("x", LINE)
        lines = conv(net, x, pads=[1, 1])
        picture = net.node("Unsqueeze", [net.node("Relu", [lines]), net.ints(2)])
        net.output(net.node("Add", [lines, picture]), ["n", CHANNELS, CHANNELS, LENGTH])
        return net

    agrees(build, make_model, shape=(CHANNELS, LENGTH), batches=(1,))
