"""Operators that compute element by element."""

import numpy as np
from element_types import FLOATS, INTEGERS, NUMPY, onnx_type
from proposals import MICROSOFT, proposes

SMOOTH = "Exp Log Erf Sqrt Reciprocal Sigmoid Tanh Softplus HardSwish Softsign Mish".split()
TRIGONOMETRY = "Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh".split()
# The CPU EP's exp, erf and tanh are polynomials.
ROUGH = {"float": (3e-6, 1e-6), "double": (1e-11, 1e-12), "float16": (2e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5)}
ROUGHER = {**ROUGH, "float": (2e-5, 1e-6)}


@proposes("Abs", "Neg", "Relu", "Identity", "OptionalGetElement", "Not", family="exact")
@proposes("Sign", "Ceil", "Floor", "Round", family="exact", steady=False)
@proposes(*SMOOTH, tolerance=ROUGH)
@proposes(*TRIGONOMETRY, tolerance=ROUGH, steady=False)
@proposes("BitwiseNot", family="exact")
def unary(s):
    return s.node(s.data())


@proposes("IsNaN", family="exact", own_types=True, steady=False)
def is_nan(s):
    return s.node(s.data(), types=["bool"])


@proposes("IsInf", family="exact", own_types=True, steady=False)
def is_inf(s):
    ends = {name: s.maybe(0.4, lambda: s.draw.pick([0, 1])) for name in ("detect_negative", "detect_positive")}
    return s.node(s.data(), types=["bool"], **ends)


@proposes("Celu", "Swish", tolerance=ROUGH)
@proposes("ThresholdedRelu", family="exact", steady=False)
def with_alpha(s):
    return s.node(s.data(), alpha=s.maybe(0.7, s.draw.real))


@proposes("Shrink", steady=False)
def shrink(s):
    return s.node(s.data(), lambd=s.maybe(0.7, s.draw.real), bias=s.maybe(0.7, s.draw.real))


@proposes("Affine", "ParametricSoftplus", "ScaledTanh", tolerance=ROUGH)
def of_the_first_opset(s):
    return s.node(s.data(), alpha=s.draw.real(), beta=s.draw.real())


@proposes("ImageScaler")
def image_scaler(s):
    x = s.data(low=4, high=4)
    return s.node(x, scale=s.draw.real(), bias=[s.draw.real() for _ in range(x.array.shape[1])])


@proposes("Crop", family="exact")
def crop(s):
    x = s.data(low=4, high=4)
    border = s.draw.picks([0, 0, 1, 2], 4)
    return s.node(x, border=border, scale=s.maybe(0.4, lambda: s.draw.picks([1, 2, 3], 2)))


@proposes("Elu", "LeakyRelu", "Selu", "HardSigmoid", tolerance=ROUGH)
def with_factors(s):
    alpha = s.maybe(0.7, s.draw.real)
    second = {"Selu": "gamma", "HardSigmoid": "beta"}.get(s.op)
    return s.node(s.data(), alpha=alpha, **({second: s.maybe(0.7, s.draw.real)} if second else {}))


@proposes("Gelu", tolerance=ROUGHER)
def gelu(s):
    return s.node(s.data(), approximate=s.maybe(0.6, lambda: s.draw.pick(["none", "tanh"])))


@proposes("Gelu", "QuickGelu", domain=MICROSOFT, tolerance=ROUGHER)
def contrib_gelu(s):
    return s.node(s.data(), alpha=s.maybe(0.5, s.draw.real) if s.op == "QuickGelu" else None)


@proposes("BiasGelu", "FastGelu", domain=MICROSOFT, tolerance=ROUGHER)
def gelu_of_a_sum(s):
    x = s.data(low=1)
    bias = s.like(x, x.array.shape[-1:])
    return s.node(x, bias if s.op == "BiasGelu" or s.draw.chance(0.7) else None)


@proposes("SwiGLU", tolerance=ROUGH)
def swiglu(s):
    x = s.data()
    return s.node(x, s.like(x, x.array.shape), alpha=s.maybe(0.4, s.draw.real))


def other_of(s, x):
    """A second operand. Before opset 7 what broadcasts is said by attributes, which onnx's evaluator does not read."""
    return s.partner(x) if s.opset >= 7 else s.like(x, x.array.shape)


@proposes("BitShift", family="exact")
def shift(s):
    x = s.data()
    bits = s.like(x, s.draw.partner(list(x.array.shape)))
    if s.draw.chance(0.8):
        bits = s.new(bits.array % 8, bits.type, constant=0.3)
    return s.node(x, bits, direction=s.draw.pick(["LEFT", "RIGHT"]))


@proposes("BitCast", family="exact", own_types=True, steady=False)
def bit_cast(s):
    x = s.data()
    sizes = {name: np.dtype(NUMPY[name]).itemsize for name in s.row.types(0, "out")}
    to = s.draw.pick([name for name, size in sizes.items() if size == sizes[x.type] and name != "bool"])
    return s.node(x, types=[to], to=onnx_type(to))


@proposes("Add", "Sub", "Mul", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", family="exact")
def binary(s):
    x = s.data()
    return s.node(*s.draw.shuffled([x, other_of(s, x)]))


@proposes("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", family="exact", steady=False)
def comparison(s):
    x = s.data()
    return s.node(*s.draw.shuffled([x, other_of(s, x)]), types=["bool"])


@proposes("Div", "Mod", steady=False)
def division(s):
    x = s.data()
    y = other_of(s, x)
    if y.type in INTEGERS and s.draw.chance(0.9):  # zero is an error, so rarely
        y = s.new(y.array + (y.array == 0).astype(y.array.dtype), y.type, constant=0.3)
    fmod = None
    if s.op == "Mod":
        fmod = 1 if x.type in FLOATS and s.draw.chance(0.95) else s.draw.pick([None, 0, 1])
    return s.node(x, y, fmod=fmod)


@proposes("Pow", tolerance={**ROUGH, "float": (4e-6, 1e-6)}, steady=False)
def power(s):
    x = s.data(mild=True)
    # Before opset 12 both have one type.
    allowed = [x.type] if s.opset < 12 or s.draw.chance(0.5) else s.types(1)
    kind = s.draw.pick([name for name in allowed if (name in INTEGERS) >= (x.type in INTEGERS)] or [x.type])
    shape = s.draw.partner(list(x.array.shape)) if s.draw.chance(0.6) else []
    if s.opset < 7:
        shape = list(x.array.shape)
    if kind in INTEGERS:
        return s.node(x, s.new(s.draw.numpy.integers(0, 4, shape), kind, constant=0.5))
    return s.node(x, s.data([kind], shape=shape, mild=True))


@proposes("PRelu")
def prelu(s):
    x = s.data()
    if s.opset < 7:
        return s.node(x, s.like(x, [1]))
    shape = [1 if s.draw.chance(0.4) else size for size in x.array.shape]
    return s.node(x, s.like(x, shape[s.draw.number(0, len(shape)) :]))


@proposes("Max", "Min", family="exact")
@proposes("Sum", "Mean", sums=True)
def variadic(s):
    x = s.data()
    rest = [s.partner(x) if s.opset >= 8 else s.like(x, x.array.shape) for _ in range(s.draw.number(0, 3))]
    return s.node(*s.draw.shuffled([x, *rest]))


@proposes("Clip", family="exact")
def clip(s):
    x = s.data()
    low, high = sorted([s.draw.real(), s.draw.real()])
    if s.opset < 11:
        return s.node(x, min=s.maybe(0.7, lambda: low), max=s.maybe(0.7, lambda: high))
    bounds = [s.maybe(0.7, lambda b=b: s.new(s.draw.contents(x.type, []), x.type, constant=0.6)) for b in "lh"]
    return s.node(x, *bounds)


@proposes("Where", family="exact")
def where(s):
    x = s.data(s.types(1))
    condition = s.data(["bool"], shape=s.draw.partner(list(x.array.shape)))
    y = s.partner(x)
    return s.node(condition, *s.draw.shuffled([x, y]), like=1)


@proposes("Cast", family="exact", own_types=True, steady=False)
def cast(s):
    to = s.draw.pick(s.row.types(0, "out"))
    saturate = s.draw.pick([0, 1]) if s.opset >= 19 and s.draw.chance(0.2) else None
    return s.node(s.data(), types=[to], to=onnx_type(to), saturate=saturate)


@proposes("CastLike", family="exact", own_types=True, steady=False)
def cast_like(s):
    return s.node(s.data(), s.data(s.types(1)), like=1)


@proposes("SwiGLU", domain=MICROSOFT, tolerance=ROUGH)
def clamped_swiglu(s):
    gate = s.data(low=1)
    shape = list(gate.array.shape)
    both = shape[-1] % 2 == 0 and s.draw.chance(0.4)
    attrs = {"limit": s.maybe(0.4, s.draw.real), "activation_beta": s.maybe(0.4, s.draw.real)}
    attrs["activation_alpha"] = s.maybe(0.4, lambda: abs(s.draw.real()))
    return s.node(gate, None if both else s.like(gate, shape), **attrs)
