"""Operators of 8-bit integers with scales, as onnxruntime's quantizer writes them, and its LSTM."""

import numpy as np
from proposals import MICROSOFT, proposes
from propose_nn import window
from propose_quantize import BYTES, _scale, _zero
from propose_recurrent import BOUNDED


def _linear(s, name):
    return _scale(s, []), _zero(s, [], name)


@proposes("QLinearAdd", "QLinearMul", domain=MICROSOFT, family="exact", steady=False)
def binary(s):
    a = s.data(BYTES)
    b = s.partner(a)
    return s.node(a, *_linear(s, a.type), b, *_linear(s, a.type), *_linear(s, a.type))


@proposes("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT, family="exact", steady=False)
def curve(s):
    x = s.data(BYTES)
    alpha = s.maybe(s.op == "QLinearLeakyRelu" and 0.6, s.draw.real)
    return s.node(x, *_linear(s, x.type), *_linear(s, x.type), alpha=alpha)


@proposes("QLinearSoftmax", domain=MICROSOFT, family="exact", steady=False)
def softmax(s):
    x = s.data(BYTES, low=1)
    # Of int8 the CPU EP's largest results may be negative.
    steps, zero = s.draw.pick([(256, 0), (255, 0), (100, 3)] if x.type == "uint8" else [(200, -128), (100, 0)])
    opset, rank = s.draw.pick([12, 13, 21]), x.array.ndim
    axis = s.draw.number(0, rank - 1) - rank * s.draw.chance(0.3)
    to = s.fixed(1 / steps, "float"), s.fixed(zero, x.type)
    return s.node(x, *_linear(s, x.type), *to, axis=axis, opset=opset)


@proposes("QLinearConcat", domain=MICROSOFT, family="exact", steady=False)
def concat(s):
    first = s.data(BYTES, low=1)
    axis, shape = s.draw.number(0, first.array.ndim - 1), list(first.array.shape)
    inputs = [*_linear(s, first.type), first, *_linear(s, first.type)]
    for _ in range(s.draw.number(0, 3)):
        shape[axis] = s.draw.number(0, 5)
        inputs += [s.like(first, shape), *_linear(s, first.type)]
    return s.node(*inputs, like=2, axis=axis - len(shape) * s.draw.chance(0.3))


@proposes("QLinearGlobalAveragePool", domain=MICROSOFT, family="exact", steady=False)
def global_average(s):
    x = s.data(BYTES, low=3, high=5)
    return s.node(x, *_linear(s, x.type), *_linear(s, x.type), channels_last=s.draw.pick([None, 0, 1]))


@proposes("QLinearAveragePool", domain=MICROSOFT, family="exact", steady=False)
def average(s):
    x = s.data(BYTES, low=3, high=5)
    last = s.draw.pick([0, 1])
    kernel, attrs = window(s, x.array.shape[1:-1] if last else x.array.shape[2:], dilated=False)
    attrs |= {"count_include_pad": s.draw.pick([None, 0, 1]), "ceil_mode": s.maybe(0.2, lambda: 1)}
    return s.node(x, *_linear(s, x.type), *_linear(s, x.type), kernel_shape=kernel, channels_last=last, **attrs)


@proposes("QGemm", domain=MICROSOFT, family="exact", steady=False, tolerance={"float": (1e-5, 1e-5)})
def qgemm(s):
    a = s.data(BYTES, low=2, high=2)
    trans_a, trans_b = s.draw.chance(0.3), s.draw.chance(0.5)
    rows, depth = a.array.shape[:: -1 if trans_a else 1]
    columns = s.draw.number(1, 40)
    kind = s.draw.pick(BYTES) if a.type == "uint8" else "int8"  # which the CPU EP has
    b = s.data([kind], shape=[columns, depth] if trans_b else [depth, columns])
    each = s.draw.pick([[], [columns]])
    shapes = [[], [columns], [1, columns], [rows, 1], [rows, columns]]
    bias = s.maybe(0.6, lambda: s.fixed(s.draw.numpy.integers(-999, 999, s.draw.pick(shapes)), "int32"))
    inputs = [a, *_linear(s, a.type), b, _scale(s, each), _zero(s, each, kind), bias]
    floats = s.draw.chance(0.4)
    to = [] if floats else _linear(s, a.type)
    attrs = {"transA": int(trans_a), "transB": int(trans_b), "alpha": s.maybe(0.3, s.draw.real)}
    return s.node(*inputs, *to, types=["float" if floats else a.type], **attrs)


# Where a state differs in a last bit, it may be quantized to the next of 255 steps.
@proposes("DynamicQuantizeLSTM", domain=MICROSOFT, mild=True, steady=False, tolerance={"float": (2e-2, 2e-2)})
def lstm(s):
    steps, batch, size, hidden = (s.draw.number(1, most) for most in (5, 11, 9, 17))
    x = s.data(["float"], shape=[steps, batch, size], mild=True)
    direction = s.draw.pick(["forward", "reverse", "bidirectional"])
    count, rows, kind = 2 if direction == "bidirectional" else 1, 4 * hidden, s.draw.pick(BYTES)
    each = s.draw.pick([[count], [count, rows]])
    small = lambda *shape: s.new(s.draw.numpy.uniform(-0.5, 0.5, shape), "float", constant=0.5)
    weights = lambda depth: s.fixed(s.draw.contents(kind, [count, depth, rows]), kind)
    zero = 0 if kind == "int8" or len(each) == 1 else 7  # for channels the CPU EP has but one
    quantized = lambda: (s.fixed(s.draw.numpy.uniform(0.001, 0.005, each), "float"), s.fixed(np.full(each, zero), kind))
    inputs = [x, weights(size), weights(hidden), s.maybe(0.7, lambda: small(count, 2 * rows)), None]
    inputs += [s.maybe(0.5, lambda: small(count, batch, hidden)) for _ in range(2)]
    inputs += [s.maybe(0.3, lambda: small(count, 3 * hidden)), *quantized(), *quantized()]
    attrs = {"direction": direction, "hidden_size": hidden, "input_forget": s.maybe(0.2, lambda: 1)}
    if s.draw.chance(0.2):
        attrs["activations"] = names = s.draw.picks(BOUNDED, 3 * count)
        attrs["activation_alpha"] = [abs(s.draw.real()) / 2 for _ in names]
        attrs["activation_beta"] = [s.draw.real() / 2 for _ in names]
    return s.node(*inputs, wanted=3, **attrs)
