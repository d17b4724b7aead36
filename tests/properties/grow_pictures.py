"""Convolutions and pools."""

import math

import numpy as np

from properties.grow_numbers import pair_of
from properties.grow_shapes import moved
from properties.grown import FLOATS, Unfit, always
from properties.kinds import kind


def of_channels(g, *ranks):
    return g.any(FLOATS, lambda x: x.rank in ranks and x.is_fixed(1) and min(map(min, x.dims)) > 0)


def with_silu(g, x):
    return pair_of(g, "Mul", x, g.node("Sigmoid", [x], x.kind, x.dims, 1))


@kind(2)
def convolution(g):
    x = g.any(FLOATS, lambda x: x.rank == 4 and x.is_fixed(1) and min(map(min, x.dims)) > 0)
    channels, made, k = x.dims[1][0], g.pick(4, 2, 8), g.pick(3, 1)
    stride = g.pick(1, 2)
    w = g.weights(x.kind, made, channels, k, k, most=0.5)
    count = channels * k * k
    out = lambda sizes: tuple((size - 1) // stride + 1 for size in sizes)
    dims = [x.dims[0], always(made)[0], out(x.dims[2]), out(x.dims[3])]
    inputs = [x, w] + [g.weights(x.kind, made)] * g.number(0, 1)
    attrs = {"pads": [k // 2] * 4, "strides": [stride] * 2}
    g.node("Conv", inputs, x.kind, dims, count * w.most * x.most + 1, count * w.most, **attrs)


@kind(1)
def pool(g):
    x = g.any(FLOATS, lambda x: x.rank == 4 and min(map(min, x.dims)) > 0)
    if g.chance(3):
        g.node("GlobalAveragePool", [x], x.kind, [*x.dims[:2], *always(1, 1)], x.most)
        return
    dims = [*x.dims[:2], *(tuple((size + 1) // 2 for size in sizes) for sizes in x.dims[2:])]
    attrs = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}
    g.node(g.pick("MaxPool", "AveragePool"), [x], x.kind, dims, x.most, **attrs)


@kind(1)
def depthwise(g):
    """A convolution with a group for each channel, and an activation."""
    x = of_channels(g, 4)
    channels, k = x.dims[1][0], g.pick(3, 2)
    w = g.weights(x.kind, channels, 1, k, k, most=0.5)
    dims = [*x.dims[:2], *(tuple(size + k % 2 - 1 for size in sizes) for sizes in x.dims[2:])]
    if min(map(min, dims)) < 1:
        raise Unfit
    attrs = {"pads": [k // 2] * 4 if k % 2 else [0] * 4, "group": channels}
    y = g.node("Conv", [x, w], x.kind, dims, k * k * w.most * x.most, k * k * w.most, **attrs)
    if g.chance(2):
        with_silu(g, y)
    else:
        op = g.pick("Relu", "Sigmoid", "HardSwish")
        g.node(op, [y], y.kind, y.dims, max(y.most, 1), 1.5)


@kind(1)
def branches(g):
    """Convolutions of one picture or line, in groups or not, which are summed up, perhaps with what they are of."""
    x = of_channels(g, 3, 4)
    channels, spatial = x.dims[1][0], x.rank - 2
    groups = g.pick(channels, 1)
    sum = x if g.chance(2) else None
    for _ in range(g.number(1, 3)):
        k, dilation = g.pick(3, 1, 5), g.pick(1, 2)
        w = g.weights(x.kind, channels, channels // groups, *[k] * spatial, most=0.5)
        attrs = {"group": groups, "dilations": [dilation] * spatial, "pads": [k // 2 * dilation] * 2 * spatial}
        inputs = [x, w] + [g.weights(x.kind, channels)] * g.number(0, 1)
        gain = channels // groups * k**spatial * w.most
        y = g.node("Conv", inputs, x.kind, x.dims, gain * x.most + 1, gain, **attrs)
        if g.chance(3):
            y = pair_of(g, "Mul", y, g.weights(x.kind, channels, *[1] * spatial))
        sum = y if sum is None else pair_of(g, g.pick("Add", "Add", "Sub"), *g.pick((sum, y), (y, sum)))
    g.node("Relu", [sum], sum.kind, sum.dims, sum.most)


@kind(1)
def group_norm(g):
    """As it is spelled out."""
    x = of_channels(g, 3, 4)
    channels = x.dims[1][0]
    groups = g.pick(*(count for count in (1, 2, 4) if channels % count == 0))
    rest = tuple(channels // groups * math.prod(sizes) for sizes in zip(*x.dims[2:]))
    if max(rest) < 2:
        raise Unfit
    y = moved(g, "Reshape", x, [x.dims[0], always(groups)[0], rest], g.ints(0, groups, -1))
    row = lambda number: g.constant(np.full(groups, number, x.kind))
    most = math.sqrt(max(rest)) + 1
    y = g.node("InstanceNormalization", [y, row(1), row(0)], x.kind, y.dims, most, 20, epsilon=1e-2)
    if all(x.is_fixed(axis) for axis in range(1, x.rank)):
        shape = g.ints(0, *(sizes[0] for sizes in x.dims[1:]))
    else:
        shape = g.node("Shape", [x], "int64", always(x.rank), held=tuple(map(np.array, zip(*x.dims))))
    y = moved(g, "Reshape", y, x.dims, shape)
    of_channels_shape = (channels, *[1] * (x.rank - 2))
    if g.chance(2):
        y = pair_of(g, "Mul", y, g.weights(x.kind, *of_channels_shape))
    if g.chance(2):
        y = pair_of(g, "Add", y, g.weights(x.kind, *of_channels_shape))
    if g.chance(2):
        with_silu(g, y)


@kind(1)
def batch_norm(g):
    x = of_channels(g, 2, 3, 4)
    channels = x.dims[1][0]
    rows = [g.weights(x.kind, channels) for _ in range(3)]
    variance = g.constant(np.random.default_rng(g.number(0, 1)).uniform(0.5, 2, channels).astype(x.kind))
    most = 2 * (x.most + 1) + 1
    y = g.node("BatchNormalization", [x, *rows, variance], x.kind, x.dims, most, 2, epsilon=1e-2)
    if g.chance(2):
        g.node("Relu", [y], y.kind, y.dims, y.most)
