"""Reductions, softmax and normalisation, products of matrices."""

from element_types import FLOATS
from proposals import MICROSOFT, proposes

SUMS = "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare".split()
# The CPU's exp is a polynomial. Logarithms of sums near one cancel.
SOFTMAX = {"float": (1e-5, 1e-6), "double": (1e-11, 1e-12), "float16": (2e-3, 2e-3), "bfloat16": (1.6e-2, 1.6e-2)}


@proposes("ReduceMax", "ReduceMin", family="exact")
@proposes(*SUMS, family="reduce", sums=True, steady=False)
def reduction(s):
    x = s.data(mild=s.draw.chance(0.6))
    keepdims = s.maybe(0.6, lambda: s.draw.pick([0, 1]))
    axes = s.maybe(0.75, lambda: s.draw.axes(x.array.ndim))
    if s.opset < (13 if s.op == "ReduceSum" else 18):
        return s.node(x, axes=axes, keepdims=keepdims)
    noop = s.maybe(0.4, lambda: s.draw.pick([0, 1]))
    return s.node(x, None if axes is None else s.fixed(axes), keepdims=keepdims, noop_with_empty_axes=noop)


@proposes("ArgMax", "ArgMin", family="exact", steady=False)
def extreme_place(s):
    x = s.data(low=1)
    last = s.maybe(0.5, lambda: s.draw.pick([0, 1])) if s.opset >= 12 else None
    axis = s.maybe(0.8, lambda: s.draw.axis(x.array.ndim))
    keepdims = s.maybe(0.5, lambda: s.draw.pick([0, 1]))
    return s.node(x, types=["int64"], axis=axis, keepdims=keepdims, select_last_index=last)


@proposes("LogSoftmax", tolerance=SOFTMAX | {"float": (1e-5, 5e-6)})  # of a sum of hundreds
@proposes("Softmax", tolerance=SOFTMAX)
def softmax(s):
    x = s.data(low=1)
    return s.node(x, axis=s.maybe(0.8, lambda: s.draw.axis(x.array.ndim)))


def _parameter(s, x, shape):
    """One that is broadcast to x: mostly of the normalised dimensions' own shape."""
    if s.draw.chance(0.3):
        shape = [1 if s.draw.chance(0.4) else size for size in shape]
        shape = shape[s.draw.number(0, len(shape)) :]
    return s.like(x, shape, mild=True)


@proposes("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", family="reduce", mild=True)
def layer_norm(s):
    x = s.data(low=1, mild=True)
    axis = s.maybe(0.7, lambda: s.draw.axis(x.array.ndim))
    shape = x.array.shape[-1 if axis is None else axis :]
    scale = _parameter(s, x, shape)
    bias = s.maybe(0.6, lambda: _parameter(s, x, shape)) if s.op == "LayerNormalization" else None
    epsilon = s.maybe(0.5, lambda: abs(s.draw.real()) + 1e-5)
    if s.op == "RMSNormalization":
        return s.node(x, scale, axis=axis, epsilon=epsilon)
    # Mean and deviation are floats, even of doubles in onnxruntime's operator before ONNX had one.
    wanted = s.draw.pick([[True], [True, s.draw.chance(0.5), True]]) if s.op == "LayerNormalization" else [True]
    like = 0 if s.opset >= 17 and s.op == "LayerNormalization" else 1
    types = [None, "float", "float"]
    return s.node(x, scale, bias, types=types, like=like, wanted=wanted, axis=axis, epsilon=epsilon)


@proposes("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT, family="reduce", mild=True)
def skip_layer_norm(s):
    x = s.data(low=2, high=3, mild=True)
    shape = list(x.array.shape)
    skip = s.like(x, shape if s.draw.chance(0.8) or len(shape) < 3 else [1, *shape[1:]], mild=True)
    along = [s.like(x, shape[-1:], mild=True) for _ in range(3)]
    gamma, *rest = [along[0], *[p if s.draw.chance(0.6) else None for p in along[1:]]]
    if s.op == "SkipSimplifiedLayerNormalization":
        rest = rest[:1]
    wanted = s.draw.pick([[True], [True, False, False, True]])
    return s.node(
        x, skip, gamma, *rest, types=[None, "float", "float", None], wanted=wanted, epsilon=abs(s.draw.real()) + 1e-5
    )


@proposes("BiasSoftmax", domain=MICROSOFT, family="reduce", mild=True)
def bias_softmax(s):
    x = s.data(low=2, high=5, mild=True)
    shape = list(x.array.shape)
    axis = s.draw.number(1, len(shape) - 1)
    bias = [1 if i < axis and s.draw.chance(0.6) else size for i, size in enumerate(shape)]
    return s.node(x, s.like(x, bias, mild=True), axis=axis, is_inner_broadcast=s.draw.pick([0, 1]))


@proposes("BatchNormalization", family="reduce", mild=True)
def batch_norm(s):
    x = s.data(low=2, high=5, mild=True)
    channels = x.array.shape[1:2]
    scale, bias, mean = (s.like(x, channels, mild=True) for _ in range(3))
    # Where the operator's versions let the statistics have a type of their own, let them.
    other = s.draw.pick(s.types(1)) if s.opset >= 15 and s.draw.chance(0.3) else x.type
    if other != x.type:
        mean = s.data([other], shape=channels, mild=True)
    variance = s.new(abs(s.draw.contents(other, channels, mild=True)) + s.draw.pick([0, 1]), other, constant=0.5)
    training = s.draw.pick([0, 0, 1]) if s.opset >= 14 and s.draw.chance(0.3) else None
    outputs = {"types": [None, other, other], "wanted": 3} if training and s.draw.chance(0.5) else {}
    epsilon, momentum = (s.maybe(0.5, lambda: abs(s.draw.real()) + 1e-5) for _ in range(2))
    return s.node(x, scale, bias, mean, variance, epsilon=epsilon, momentum=momentum, training_mode=training, **outputs)


# ---- products


def _matrices(s, mild):
    x = s.data(low=1, high=5, mild=mild)
    *batch, inner = x.array.shape
    rows = batch.pop() if batch else None
    columns = s.draw.shape(1, 1)
    batch = s.draw.partner(batch) if batch else []
    return x, batch, rows, inner, columns


@proposes("MatMul", family="matmul", sums=True)
def matmul(s):
    x, batch, _, inner, columns = _matrices(s, s.draw.chance(0.8))
    shape = [inner] if s.draw.chance(0.15) else [*batch, inner, *columns]
    return s.node(x, s.like(x, shape))


@proposes("FusedMatMul", "TransposeMatMul", domain=MICROSOFT, family="matmul", sums=True)
def fused_matmul(s):
    x = s.data(low=2, high=4, mild=True)
    turned = [s.draw.pick([0, 1]) for _ in range(2)]
    shape = list(x.array.shape)
    inner = shape[-2] if turned[0] else shape[-1]
    last = [inner, *s.draw.shape(1, 1)]
    y = s.like(x, [*shape[:-2], *(last[::-1] if turned[1] else last)], mild=True)
    return s.node(x, y, transA=turned[0], transB=turned[1], alpha=s.maybe(0.5, s.draw.real))


@proposes("Gemm", family="matmul", sums=True)
def gemm(s):
    x = s.data([name for name in s.types() if name in FLOATS], low=2, high=2, mild=True)
    turned = [s.draw.pick([None, 0, 1]) for _ in range(2)]
    rows, inner = x.array.shape[:: -1 if turned[0] else 1]
    columns = s.draw.pick([1, 2, 3, 5, 8, 16, 33])
    y = s.like(x, [columns, inner] if turned[1] else [inner, columns], mild=True)
    added = s.draw.partner([rows, columns])[-2:]
    c = s.like(x, added, mild=True) if s.opset < 11 or s.draw.chance(0.7) else None
    scalars = {key: s.maybe(0.5, s.draw.real) for key in ("alpha", "beta")}
    return s.node(x, y, c, transA=turned[0], transB=turned[1], **scalars)
