"""Quantization: scales and zero points of a tensor, an axis or blocks, and products of 8-bit integers."""

import numpy as np
from element_types import INTEGERS
from proposals import MICROSOFT, proposes
from propose_nn import window

BYTES = ["int8", "uint8"]
SCALES = ["float", "float16", "bfloat16"]


def _scale(s, shape, name="float"):
    return s.fixed(2.0 ** s.draw.numpy.integers(-6, 2, shape) * 1.25, name, constant=0.5)


def _zero(s, shape, name):
    if name not in INTEGERS:
        return s.fixed(np.zeros(shape), name)
    info = np.iinfo(name)
    low, high = (0, 0) if name == "int32" else (max(info.min, -100), min(info.max, 100))
    return s.fixed(s.draw.numpy.integers(low, high, shape, endpoint=True), name, constant=0.5)


def _granularity(s, shape):
    """The shape of the scale, and attributes."""
    attrs, way = {}, s.draw.random.random()
    if way < 0.4 or not shape or s.opset < 13:
        return [], attrs
    axis = s.draw.number(0, len(shape) - 1)
    attrs["axis"] = axis - len(shape) * s.draw.chance(0.3)
    if way < 0.75 or s.opset < 21 or 0 in shape:
        return [shape[axis]], attrs
    attrs["block_size"] = block = s.draw.number(1, max(1, shape[axis]))
    return [-(-size // block) if i == axis else size for i, size in enumerate(shape)], attrs


def _scale_type(s, own=None):
    return "float" if s.opset < 19 else own if own in SCALES else s.draw.pick(SCALES)


@proposes("QuantizeLinear", family="exact", own_types=True, steady=False)
def quantize(s):
    x = s.data(SCALES if s.opset >= 19 else ["float"])
    to = s.draw.pick([*BYTES, *(["int16", "uint16"] if s.opset >= 21 else [])])
    shape, attrs = _granularity(s, list(x.array.shape))
    zero = _zero(s, shape, to) if to != "uint8" or s.draw.chance(0.7) else None
    return s.node(x, _scale(s, shape, _scale_type(s, x.type)), zero, types=[to], **attrs)


@proposes("DequantizeLinear", steady=False)
def dequantize(s):
    wide = ["int16", "uint16"] if s.opset >= 21 else []
    x = s.data([*BYTES, "int32", *wide])
    shape, attrs = _granularity(s, list(x.array.shape))
    kind = _scale_type(s)
    return s.node(x, _scale(s, shape, kind), s.maybe(0.7, lambda: _zero(s, shape, x.type)), types=[kind], **attrs)


def _with_halves(s):
    return ["float", "float16"] if s.opset >= 6 else ["float"]  # older ones' Cast is not what the CPU EP puts before it


@proposes("QuantizeLinear", domain=MICROSOFT, family="exact", own_types=True, steady=False)
def quantize_for_microsoft(s):
    x, to = s.data(_with_halves(s)), s.draw.pick(BYTES)
    return s.node(x, _scale(s, [], x.type), _zero(s, [], to), types=[to])


@proposes("DequantizeLinear", domain=MICROSOFT, steady=False)
def dequantize_for_microsoft(s):
    x, kind = s.data(BYTES), s.draw.pick(_with_halves(s))
    return s.node(x, _scale(s, [], kind), _zero(s, [], x.type), types=[kind])


@proposes("DynamicQuantizeLinear", family="exact", steady=False)
def dynamic(s):
    return s.node(s.data(["float"], mild=True), types=["uint8", "float", "uint8"], wanted=3)


def _matrices(s):
    a = s.data(BYTES, low=2, high=4)
    *_, depth = a.array.shape
    columns = s.draw.number(1, 40)
    b = s.data(BYTES, shape=[depth, columns])
    return a, b, columns


@proposes("MatMulInteger", family="exact")
def matmul_integer(s):
    a, b, columns = _matrices(s)
    a_zero = s.maybe(0.7, lambda: _zero(s, [], a.type))
    b_zero = s.maybe(0.7, lambda: _zero(s, s.draw.pick([[], [columns]]), b.type))
    return s.node(a, b, a_zero, b_zero, types=["int32"])


@proposes("QLinearMatMul", family="exact", steady=False)
def qlinear_matmul(s):
    a, b, columns = _matrices(s)
    each = s.draw.pick([[], [columns]])
    y_zero = _zero(s, [], s.draw.pick(BYTES))
    left = [a, _scale(s, []), _zero(s, [], a.type)]
    return s.node(*left, b, _scale(s, each), _zero(s, each, b.type), _scale(s, []), y_zero, types=[y_zero.type])


def _convolution(s):
    x = s.data(BYTES, low=3, high=5)
    channels, *spatial = x.array.shape[1:]
    kernel, attrs = window(s, spatial, dilated=True)
    groups = s.draw.pick([1, 1, channels or 1, *[2] * (channels % 2 == 0)])
    filters = groups * s.draw.number(1, 20)
    w = s.data(BYTES, shape=[filters, channels // groups, *kernel])
    return x, w, filters, {"group": groups, **attrs}


@proposes("ConvInteger", family="exact")
def conv_integer(s):
    x, w, _, attrs = _convolution(s)
    x_zero = s.maybe(0.7, lambda: _zero(s, [], x.type))
    w_zero = s.maybe(0.5, lambda: _zero(s, [], w.type))  # the CPU EP has one for all filters
    return s.node(x, w, x_zero, w_zero, types=["int32"], **attrs)


@proposes("QLinearConv", family="exact", steady=False)
def qlinear_conv(s):
    x, w, filters, attrs = _convolution(s)
    each = s.draw.pick([[], [filters]])
    y_zero = _zero(s, [], x.type)
    inputs = [x, _scale(s, []), _zero(s, [], x.type), w, _scale(s, each), _zero(s, each, w.type), _scale(s, []), y_zero]
    bias = s.maybe(0.5, lambda: s.fixed(s.draw.numpy.integers(-999, 999, [filters]), "int32"))
    return s.node(*inputs, bias, types=[y_zero.type], **attrs)
