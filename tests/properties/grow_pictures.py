"""Convolutions and pools."""

from properties.grown import FLOATS, always
from properties.kinds import kind


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
