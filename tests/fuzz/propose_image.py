"""Normalisation across groups and channels, sampling, regions, and what turns windows into images."""

import numpy as np
from proposals import MICROSOFT, proposes


def _image(s, low=3, high=5):
    return s.data(low=low, high=high, mild=True)


def _epsilon(s):
    return s.maybe(0.5, lambda: abs(s.draw.real()) + 1e-3)


@proposes("InstanceNormalization", family="reduce", mild=True, steady=False)
def instances(s):
    x = _image(s)
    channels = x.array.shape[1]
    return s.node(x, s.like(x, [channels], mild=True), s.like(x, [channels], mild=True), epsilon=_epsilon(s))


@proposes("GroupNormalization", family="reduce", mild=True, steady=False)
def groups(s):
    x = _image(s)
    channels = x.array.shape[1]
    count = s.draw.pick([n for n in range(1, channels + 1) if channels % n == 0] or [1])
    shape = [channels if s.opset >= 21 else count]
    scale, bias = s.like(x, shape, mild=True), s.like(x, shape, mild=True)
    return s.node(x, scale, bias, num_groups=count, epsilon=abs(s.draw.real()) + 1e-2)


@proposes("MeanVarianceNormalization", family="reduce", mild=True, steady=False)
def mean_variance(s):
    x = _image(s, 4, 4)
    return s.node(x, axes=s.maybe(0.5, lambda: s.draw.axes(4) or [1]))


@proposes("LpNormalization", family="reduce", mild=True, steady=False)
def vectors(s):
    x = s.data(low=1, mild=True)
    p = s.maybe(0.6, lambda: s.draw.pick([1, 2]))
    return s.node(x, p=p, axis=s.maybe(0.6, lambda: s.draw.axis(x.array.ndim)))


@proposes("LRN", family="reduce", mild=True)
def across_channels(s):
    x = _image(s, 4, 4)
    alpha = s.maybe(0.6, lambda: abs(s.draw.real()))
    return s.node(x, size=s.draw.pick([1, 3, 5, 7]), alpha=alpha, beta=s.maybe(0.4, lambda: abs(s.draw.real())))


@proposes("GridSample", family="reduce", blends=True, steady=False, mild=True)
@proposes("GridSample", domain=MICROSOFT, family="reduce", blends=True, steady=False, mild=True)
def grid_sample(s):
    old = s.domain == MICROSOFT or s.opset < 20
    x = _image(s, 4, 4 if old else 5)
    spatial = x.array.ndim - 2
    grid = s.draw.numpy.uniform(-1.4, 1.4, [len(x.array), *s.draw.picks([1, 2, 5], spatial), spatial])
    modes = ["bilinear", "nearest", "bicubic"] if old else ["linear", "nearest", *["cubic"] * (spatial == 2)]
    return s.node(
        x,
        s.new(grid.astype(np.float32), x.type, constant=0.3, fixed=True),
        mode=s.maybe(0.8, lambda: s.draw.pick(modes)),
        padding_mode=s.maybe(0.7, lambda: s.draw.pick(["zeros", "border", "reflection"])),
        align_corners=s.maybe(0.6, lambda: s.draw.pick([0, 1])),
    )


@proposes("AffineGrid", family="reduce", mild=True)
def affine_grid(s):
    spatial = s.draw.pick([2, 2, 3])
    theta = s.data(shape=[s.draw.number(1, 3), spatial, spatial + 1], mild=True)
    size = [len(theta.array), s.draw.number(1, 3), *s.draw.picks([2, 3, 7], spatial)]
    return s.node(theta, s.fixed(size), align_corners=s.maybe(0.5, lambda: s.draw.pick([0, 1])))


def _corners(s, count, shape):
    """Regions that mostly lie in the image."""
    sides = np.array([shape[3], shape[2]])
    first = s.draw.numpy.uniform(-1, 1, (count, 2)) * sides
    return np.concatenate([first, first + s.draw.numpy.uniform(0.2, 1, (count, 2)) * sides], 1).astype(np.float32)


@proposes("RoiAlign", family="reduce", blends=True, steady=False, mild=True)
def align(s):
    x = _image(s, 4, 4)
    shape, count = x.array.shape, s.draw.number(1, 4)
    rois = s.new(_corners(s, count, shape), x.type, constant=0.3, fixed=True)
    images = s.fixed(s.draw.numpy.integers(0, max(1, shape[0]), count), constant=0.3)
    ways = ["half_pixel", "output_half_pixel"]
    return s.node(
        x,
        rois,
        images,
        mode=s.maybe(0.5, lambda: s.draw.pick(["avg", "max"])),
        output_height=s.draw.number(1, 4),
        output_width=s.draw.number(1, 4),
        sampling_ratio=s.maybe(0.7, lambda: s.draw.number(0, 3)),
        spatial_scale=s.maybe(0.4, lambda: s.draw.pick([0.5, 1.0, 2.0])),
        coordinate_transformation_mode=s.maybe(0.5, lambda: s.draw.pick(ways)) if s.opset >= 16 else None,
    )


@proposes("MaxRoiPool", family="exact", steady=False)
def pool_regions(s):
    x = _image(s, 4, 4)
    shape, count = x.array.shape, s.draw.number(1, 4)
    images = s.draw.numpy.integers(0, max(1, shape[0]), (count, 1))
    rois = np.concatenate([images, np.round(_corners(s, count, shape))], 1)
    scale = s.maybe(0.4, lambda: s.draw.pick([0.5, 1.0, 2.0]))
    return s.node(
        x, s.new(rois, x.type, constant=0.3, fixed=True), pooled_shape=s.draw.picks([1, 2, 3], 2), spatial_scale=scale
    )


@proposes("DeformConv", family="matmul", sums={0, 1, 3, 4}, blends=True, steady=False, mild=True)
def deform(s):
    x = _image(s, 4, 4)
    batch, channels, *spatial = x.array.shape
    kernel = [s.draw.number(1, min(3, max(1, size))) for size in spatial]
    groups = s.draw.pick([n for n in range(1, channels + 1) if channels % n == 0] or [1])
    offset_groups = s.draw.pick([n for n in range(1, channels + 1) if channels % n == 0] or [1])
    filters, strides, pads = groups * s.draw.number(1, 3), s.draw.picks([1, 2], 2), s.draw.picks([0, 0, 1], 4)
    size = [(spatial[i] + pads[i] + pads[2 + i] - kernel[i]) // strides[i] + 1 for i in range(2)]
    moved = offset_groups * kernel[0] * kernel[1]
    weight = s.like(x, [filters, channels // groups, *kernel], mild=True)
    offset = s.like(x, [batch, 2 * moved, *size], mild=True)
    bias = s.maybe(0.5, lambda: s.like(x, [filters], mild=True))
    mask = s.maybe(0.5, lambda: s.like(x, [batch, moved, *size], mild=True))
    attrs = {"group": groups, "offset_group": offset_groups, "strides": strides, "pads": pads}
    return s.node(x, weight, offset, bias, mask, kernel_shape=s.maybe(0.5, lambda: kernel), **attrs)


@proposes("Col2Im", family="reduce", sums=True)
def columns(s):
    spatial = s.draw.pick([1, 2, 2, 3])
    block, image = s.draw.picks([1, 2, 3], spatial), s.draw.picks([4, 5, 7], spatial)
    strides, pads = s.draw.picks([1, 1, 2], spatial), s.draw.picks([0, 0, 1], 2 * spatial)
    count = 1
    for i in range(spatial):
        count *= (image[i] + pads[i] + pads[spatial + i] - block[i]) // strides[i] + 1
    rows = int(np.prod(block)) * s.draw.number(1, 3)
    x = s.data(shape=[s.draw.number(1, 2), rows, count], mild=True)
    return s.node(x, s.fixed(image), s.fixed(block), strides=strides, pads=pads)


@proposes("CenterCropPad", family="exact")
def centre(s):
    x = s.data(low=1)
    rank = x.array.ndim
    axes = s.maybe(0.4, lambda: s.draw.axes(rank) or [0])
    wanted = [x.array.shape[axis] for axis in (range(rank) if axes is None else axes)]
    return s.node(x, s.fixed([max(0, size + s.draw.number(-3, 3)) for size in wanted]), axes=axes)


@proposes("LpPool", family="reduce", mild=True, steady=False)
def lengths_of_windows(s):
    x = _image(s)
    spatial = x.array.shape[2:]
    kernel = [s.draw.number(1, min(3, max(1, size))) for size in spatial]
    strides = s.maybe(0.6, lambda: s.draw.picks([1, 1, 2], len(spatial)))
    return s.node(x, kernel_shape=kernel, strides=strides, p=s.maybe(0.6, lambda: s.draw.pick([1, 2, 3])))


@proposes("GlobalLpPool", family="reduce", mild=True, steady=False)
def lengths_of_planes(s):
    return s.node(_image(s), p=s.maybe(0.6, lambda: s.draw.pick([1, 2, 3])))


@proposes("MaxUnpool", family="exact")
def unpool(s):
    x = _image(s)
    spatial = x.array.ndim - 2
    whole = int(np.prod(x.array.shape)) * 2**spatial
    places = s.fixed(s.draw.numpy.permutation(whole)[: x.array.size].reshape(x.array.shape), constant=0.3)
    return s.node(x, places, kernel_shape=[2] * spatial, strides=[2] * spatial)
