"""Convolutions, pools, resizing and dropout."""

import math

import numpy as np
from proposals import MICROSOFT, proposes


def _image(s, low=3, high=5):
    return s.data(low=low, high=high, mild=True)


def window(s, spatial, dilated):
    """Attributes of a window that mostly fits."""
    rank = len(spatial)
    kernel = [s.draw.number(1, min(3, max(1, size))) for size in spatial]
    attrs = {
        "strides": s.maybe(0.6, lambda: s.draw.picks([1, 1, 2, 3], rank)),
        "dilations": s.maybe(0.3, lambda: s.draw.picks([1, 1, 2], rank)) if dilated else None,
    }
    way = s.draw.pick(["none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    if way == "pads":
        attrs["pads"] = s.draw.picks([0, 0, 1, 1, 2], 2 * rank)
    elif way != "none":
        attrs["auto_pad"] = way
    return kernel, attrs


@proposes("Conv", family="matmul", sums=True)
def conv(s):
    inputs, attrs = _convolution(s)
    return s.node(*inputs, **attrs)


@proposes("FusedConv", domain=MICROSOFT, family="matmul", sums=True)
def fused_conv(s):
    inputs, attrs = _convolution(s)
    name, *params = s.draw.pick(
        [["Relu"], ["LeakyRelu", 0.5], ["Clip", -1.0, 2.0], ["HardSigmoid", 0.2, 0.5], ["Tanh"]]
    )
    return s.node(*inputs, activation=name, activation_params=params or None, **attrs)


def _convolution(s):
    x = _image(s)
    if not x.array.shape[1]:  # no channels: the CPU EP computes forever
        x = s.new(s.draw.contents(x.type, [2, 1, *x.array.shape[2:]], mild=True), x.type)
    channels, *spatial = x.array.shape[1:]
    kernel, attrs = window(s, spatial, dilated=True)
    groups = s.draw.pick([1, 1, channels or 1, *[2] * (channels % 2 == 0)])
    filters = groups * s.draw.number(1, 3)
    weight = s.like(x, [filters, channels // groups, *kernel], mild=True)
    bias = s.maybe(0.5, lambda: s.like(x, [filters], mild=True))
    told = s.maybe(0.6, lambda: kernel)
    attrs |= {"kernel_shape": told, "group": s.maybe(groups > 1, lambda: groups)}
    return (x, weight, bias), attrs


@proposes("ConvTranspose", family="matmul", sums=True)
def conv_transpose(s):
    x = _image(s)
    channels, *spatial = x.array.shape[1:]
    kernel, attrs = window(s, spatial, dilated=True)
    groups = s.draw.pick([1, 1, channels or 1, *[2] * (channels % 2 == 0)])
    filters = s.draw.number(1, 3)
    weight = s.like(x, [channels, filters, *kernel], mild=True)
    bias = s.maybe(0.5, lambda: s.like(x, [filters * groups], mild=True))
    attrs["output_padding"] = s.maybe(0.2, lambda: s.draw.picks([0, 0, 1], len(spatial)))
    if s.draw.chance(0.15):
        attrs.pop("pads", None)
        attrs["output_shape"] = [size * 2 + 1 for size in spatial]
    return s.node(x, weight, bias, kernel_shape=s.maybe(0.6, lambda: kernel), group=groups, **attrs)


@proposes("NhwcConv", domain=MICROSOFT, family="matmul", sums=True)
def conv_with_channels_last(s):
    (x, weight, bias), attrs = _convolution(s)

    def turned(value):
        return s.new(np.moveaxis(value.array, 1, -1), value.type, constant=0.3)

    # Without kernel_shape onnxruntime infers a shape as if the weights had their channels first.
    return s.node(turned(x), turned(weight), bias, **(attrs | {"kernel_shape": list(weight.array.shape[2:])}))


@proposes("ConvTransposeWithDynamicPads", domain=MICROSOFT, family="matmul", sums=True)
def conv_transpose_with_dynamic_pads(s):
    x = _image(s)
    channels, *spatial = x.array.shape[1:]
    kernel, attrs = window(s, spatial, dilated=True)
    filters = s.draw.number(1, 3)
    weight = s.like(x, [channels, filters, *kernel], mild=True)
    bias = s.maybe(0.5, lambda: s.like(x, [filters], mild=True))
    for name in ("pads", "auto_pad"):
        attrs.pop(name, None)
    pads = s.fixed(s.draw.picks([0, 0, 1], 2 * len(spatial)))
    return s.node(x, weight, pads, bias, kernel_shape=s.maybe(0.6, lambda: kernel), **attrs)


@proposes("AveragePool", family="reduce", sums=True)
@proposes("MaxPool", family="exact", steady=False)
def pool(s):
    x = _image(s)
    most = s.op == "MaxPool"
    kernel, attrs = window(s, x.array.shape[2:], dilated=s.opset >= (10 if most else 19))
    if s.opset >= 10:
        attrs["ceil_mode"] = s.maybe(0.4, lambda: s.draw.pick([0, 1]))
    if not most:
        count = s.maybe(0.5, lambda: s.draw.pick([0, 1])) if s.opset >= 7 else None
        return s.node(x, kernel_shape=kernel, count_include_pad=count, **attrs)
    two = s.opset >= 8 and s.draw.chance(0.4)
    order = s.maybe(0.3, lambda: s.draw.pick([0, 1])) if s.opset >= 8 else None
    return s.node(
        x, types=[None, "int64"][: 1 + two], wanted=1 + two, kernel_shape=kernel, storage_order=order, **attrs
    )


@proposes("GlobalAveragePool", family="reduce", sums=True)
@proposes("GlobalMaxPool", family="exact")
def global_pool(s):
    return s.node(_image(s))


@proposes("Dropout", family="exact")
def dropout(s):
    x = s.data()
    two = {"types": [None, "bool" if s.opset >= 10 else None], "wanted": 2} if s.draw.chance(0.4) else {}
    if s.opset < 12:
        return s.node(x, ratio=s.maybe(0.6, lambda: abs(s.draw.real()) / 2), **two)
    ratio = s.maybe(0.6, lambda: s.fixed(s.draw.pick([0.0, 0.3, 0.5]), s.draw.pick(["float", x.type])))
    # What training drops is random, so only where nothing is dropped there is something to compare.
    training = s.maybe(0.4, lambda: s.fixed(ratio is not None and not ratio.array.any(), "bool"))
    return s.node(x, ratio, training, **two)


def _scales(s, shape):
    return [1.0 if s.draw.chance(0.4) else s.draw.pick([0.5, 0.6, 1.5, 2.0, 2.3, 3.0]) for _ in shape]


@proposes("Upsample", family="reduce", blends=True, steady=False, mild=True)
def upsample(s):
    if s.opset < 7:
        height, width = s.draw.picks([1.0, 1.5, 2.0, 2.3, 3.0], 2)
        mode = s.maybe(0.7, lambda: s.draw.pick(["nearest", "bilinear"]))
        return s.node(s.data(low=4, high=4, mild=True), mode=mode, height_scale=height, width_scale=width)
    mode = s.draw.pick(["nearest", "linear"])
    x = s.data(low=4 if mode == "linear" else 1, high=4, mild=True)
    scales = [max(1.0, scale) for scale in _scales(s, x.array.shape)]
    if mode == "linear":
        scales[:2] = [1.0, 1.0]
    if s.opset < 9:
        return s.node(x, mode=mode, scales=scales)
    return s.node(x, s.fixed(scales, "float"), mode=mode)


COORDINATES = "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_crop_and_resize".split()


@proposes("Resize", family="reduce", blends=True, steady=False, mild=True)
def resize(s):
    mode = (
        s.draw.pick(["nearest", "nearest", "linear", "cubic"]) if s.opset >= 11 else s.draw.pick(["nearest", "linear"])
    )
    x = s.data(low=4 if mode != "nearest" else 1, high=4 if mode == "cubic" else 5, mild=True)
    shape = list(x.array.shape)
    scales = _scales(s, shape)
    if mode != "nearest":
        scales[:2] = [1.0, 1.0]
    if s.opset < 11:
        return s.node(x, s.fixed(scales, "float"), mode=mode)
    attrs = {"mode": mode}
    attrs["coordinate_transformation_mode"] = s.maybe(0.8, lambda: s.draw.pick(COORDINATES))
    if mode == "nearest":
        attrs["nearest_mode"] = s.maybe(
            0.7, lambda: s.draw.pick(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
        )
    if mode == "cubic":
        attrs["cubic_coeff_a"] = s.maybe(0.4, lambda: s.draw.pick([-0.5, -0.75]))
        attrs["exclude_outside"] = s.maybe(0.4, lambda: s.draw.pick([0, 1]))
    if mode != "nearest" and s.opset >= 18:
        attrs["antialias"] = s.maybe(0.3, lambda: s.draw.pick([0, 1]))
    kept = list(range(len(shape)))
    if s.opset >= 18 and s.draw.chance(0.3):
        kept = sorted(s.draw.random.sample(kept, s.draw.number(1, len(kept))))
        if mode != "nearest":
            kept = [axis for axis in kept if axis > 1] or [2, 3]
        attrs["axes"] = [axis - len(shape) * s.draw.chance(0.3) for axis in kept]
    crop = attrs["coordinate_transformation_mode"] == "tf_crop_and_resize"
    roi = None
    if crop:
        inner = [mode == "nearest" or axis > 1 for axis in kept]
        ends = [some * s.draw.pick([0.0, 0.1, -0.2]) for some in inner]
        ends += [s.draw.pick([1.0, 0.8, 1.3]) if some else 1.0 for some in inner]
        roi = s.fixed(ends, "float", constant=1)
        attrs["extrapolation_value"] = s.maybe(0.5, s.draw.real)
    empty = lambda: s.fixed([], "float", constant=1) if s.opset < 13 else None
    scales = [scales[axis] for axis in kept]
    if s.draw.chance(0.4):
        sizes = s.fixed([max(1, math.floor(shape[axis] * scale)) for axis, scale in zip(kept, scales)])
        if s.opset >= 18 and not crop:
            attrs["keep_aspect_ratio_policy"] = s.maybe(
                0.3, lambda: s.draw.pick(["stretch", "not_larger", "not_smaller"])
            )
        return s.node(x, roi or empty(), empty(), sizes, **attrs)
    return s.node(x, roi or empty(), s.fixed(scales, "float"), **attrs)
