"""Operators that pick, sort and place elements by indices, conditions and order."""

import numpy as np
from element_types import onnx_type
from proposals import MICROSOFT, proposes


def _distinct(s, size, count):
    """Indices, counted from either end; of one that is there twice ONNX leaves open what becomes of it."""
    values = s.draw.numpy.permutation(size)[:count]
    return np.where(s.draw.numpy.random(len(values)) < 0.3, values - size, values)


def _reduction(s):
    since = {16: ["none", "add", "mul"], 18: ["none", "add", "mul", "max", "min"]}
    known = [names for opset, names in since.items() if s.opset >= opset]
    return s.maybe(0.7, lambda: s.draw.pick(known[-1])) if known else None


@proposes("ScatterND", family="reduce", sums=True, ordered=False)
def scatter_nd(s):
    x = s.data(low=1, mild=True)
    reduction = _reduction(s)
    length = s.draw.number(1, x.array.ndim)
    sizes = x.array.shape[:length]
    if reduction in (None, "none"):
        places = _distinct(s, int(np.prod(sizes)), s.draw.number(0, 5))
        places %= max(1, int(np.prod(sizes)))
        indices = np.stack(np.unravel_index(places, sizes), -1) if np.prod(sizes) else np.zeros((0, length), np.int64)
    else:
        outer = s.draw.shape(1, 2)
        columns = [s.draw.numpy.integers(-size, size, outer) if size else np.zeros(outer, np.int64) for size in sizes]
        indices = np.stack(columns, -1)
    updates = s.like(x, [*indices.shape[:-1], *x.array.shape[length:]], mild=True)
    return s.node(x, s.fixed(indices), updates, reduction=reduction)


@proposes("ScatterElements", "Scatter", family="reduce", sums=True, ordered=False)
def scatter_elements(s):
    x = s.data(low=1, mild=True)
    axis = s.maybe(0.8, lambda: s.draw.axis(x.array.ndim))
    reduction = _reduction(s) if s.op == "ScatterElements" else None
    shape = [s.draw.number(0, size) if s.draw.chance(0.3) else size for size in x.array.shape]
    size = x.array.shape[axis or 0]
    if reduction in (None, "none"):
        along = _distinct(s, size, s.draw.number(0, 5))
        shape[axis or 0] = len(along)
        spread = [len(along) if d == (axis or 0) % len(shape) else 1 for d in range(len(shape))]
        indices = np.broadcast_to(along.reshape(spread), shape)
    else:
        shape[axis or 0] = s.draw.number(0, 9)
        indices = s.draw.numpy.integers(-size, size, shape) if size else np.zeros(shape)
    updates = s.like(x, shape, mild=True)
    return s.node(x, s.fixed(indices, s.draw.pick(s.types(1))), updates, axis=axis, reduction=reduction)


@proposes("TensorScatter", family="exact")
def tensor_scatter(s):
    x = s.data(low=2)
    axis = s.maybe(0.6, lambda: s.draw.pick([a for a in range(1, x.array.ndim)]))
    at = x.array.ndim - 2 if axis is None else axis
    axis = 1 if at == 0 else axis
    at = at or 1
    mode = s.maybe(0.6, lambda: s.draw.pick(["linear", "circular"]))
    shape = list(x.array.shape)
    steps = shape[at]
    shape[at] = s.draw.number(0, steps)
    most = 2 * steps if mode == "circular" else steps - shape[at]
    begins = s.maybe(0.7, lambda: s.fixed(s.draw.numpy.integers(0, most + 1, shape[0])))
    return s.node(x, s.like(x, shape), begins, axis=axis, mode=mode)


@proposes("TopK", family="exact")
def topk(s):
    x = s.data(low=1)
    axis = s.maybe(0.7, lambda: s.draw.axis(x.array.ndim))
    k = s.draw.number(0, x.array.shape[-1 if axis is None else axis])
    types = [None, "int64"]
    if s.opset < 10:
        return s.node(x, k=k, axis=axis, types=types, wanted=2)
    largest = s.maybe(0.6, lambda: s.draw.pick([0, 1])) if s.opset >= 11 else None
    return s.node(x, s.fixed([k]), axis=axis, largest=largest, types=types, wanted=2)


@proposes("CumSum", "CumProd", family="reduce", sums=True, mild=True)
def cumulate(s):
    x = s.data(low=1, mild=True)
    ways = {key: s.maybe(0.4, lambda: s.draw.pick([0, 1])) for key in ("exclusive", "reverse")}
    kind = s.draw.pick(["int64", "int32"])
    return s.node(x, s.fixed(np.array(s.draw.axis(x.array.ndim)), kind), **ways)


@proposes("NonZero", family="exact")
def nonzero(s):
    return s.node(s.data(), types=["int64"])


@proposes("Compress", family="exact")
def compress(s):
    x = s.data(low=1)
    axis = s.maybe(0.6, lambda: s.draw.axis(x.array.ndim))
    size = x.array.size if axis is None else x.array.shape[axis]
    size = s.draw.pick([size, size, max(0, size - 2), 1])
    return s.node(x, s.fixed(s.draw.numpy.integers(0, 2, size).astype(bool), "bool"), axis=axis)


@proposes("Unique", family="exact")
def unique(s):
    x = s.data(low=1)
    while not x.array.size:  # which the CPU EP does not survive
        x = s.new(s.draw.contents(s.draw.pick(s.types()), [3, 4]), "float")
    axis = s.maybe(0.4, lambda: s.draw.axis(x.array.ndim))
    wanted = [True, *(s.draw.chance(0.8) for _ in range(3))]
    return s.node(
        x, axis=axis, sorted=s.maybe(0.6, lambda: s.draw.pick([0, 1])), wanted=wanted, types=[None] + 3 * ["int64"]
    )


@proposes("NonMaxSuppression", family="exact")
def non_max_suppression(s):
    batch, classes, count = s.draw.number(1, 2), s.draw.number(1, 3), s.draw.number(0, 40)
    boxes = s.draw.numpy.uniform(0, 5, (batch, count, 4))
    scores = s.draw.numpy.permutation(batch * classes * count).reshape(batch, classes, count) / 100
    most = s.maybe(0.9, lambda: s.fixed([s.draw.pick([0, 1, 3, 10, 100])]))
    overlap = s.maybe(0.8, lambda: s.fixed([s.draw.pick([0.0, 0.3, 0.55, 1.0])], "float"))
    score = s.maybe(0.5, lambda: s.fixed([s.draw.pick([-1.0, 0.1, 0.335, 9.0])], "float"))
    center = s.maybe(0.5, lambda: s.draw.pick([0, 1]))
    boxes, scores = s.new(boxes, "float", fixed=True), s.new(scores, "float", fixed=True)
    return s.node(boxes, scores, most, overlap, score, center_point_box=center, types=["int64"])


@proposes("OneHot", family="exact")
def one_hot(s):
    depth = s.draw.number(1, 9)
    indices = s.data(s.draw.pick([["int64"], ["int32"], ["float"]]), high=4)
    values = s.fixed(s.draw.picks([0, 1, 2, -1], 2), s.draw.pick(["float", "int64", "float16"]))
    axis = s.maybe(0.6, lambda: s.draw.axis(indices.array.ndim + 1))
    kind = s.draw.pick(["int64", "int32", "float"])
    return s.node(indices, s.fixed(np.array(depth), kind), values, axis=axis, like=2)


@proposes("EyeLike", family="exact")
def eye_like(s):
    x = s.data(low=2, high=2)
    kind = s.maybe(0.6, lambda: s.draw.pick(s.row.types(0, "out")))
    k = s.maybe(0.6, lambda: s.draw.number(-5, 5))
    return s.node(x, types=[kind], k=k, dtype=None if kind is None else lambda as_type: onnx_type(as_type(kind)))


@proposes("Trilu", family="exact")
@proposes("Trilu", domain=MICROSOFT, family="exact")
def trilu(s):
    x = s.data(low=2)
    k = s.maybe(0.6, lambda: s.fixed(np.array(s.draw.number(-5, 5))))
    return s.node(x, k, upper=s.maybe(0.6, lambda: s.draw.pick([0, 1])))


@proposes("ReverseSequence", family="exact")
def reverse_sequence(s):
    x = s.data(low=2)
    time = s.maybe(0.6, lambda: s.draw.pick([0, 1]))
    steps, batch = x.array.shape[time or 0], x.array.shape[1 - (time or 0)]
    lengths = s.draw.numpy.integers(0, steps + 1, batch)
    return s.node(x, s.fixed(lengths), time_axis=time, batch_axis=None if time is None else 1 - time)


@proposes("DepthToSpace", "SpaceToDepth", family="exact")
def blocks(s):
    block, small = s.draw.number(1, 3), [s.draw.number(1, 3) for _ in range(4)]
    if s.op == "DepthToSpace":
        small[1] *= block * block
        x = s.data(shape=small)
        return s.node(
            x, blocksize=block, mode=s.maybe(0.6, lambda: s.draw.pick(["DCR", "CRD"])) if s.opset >= 11 else None
        )
    x = s.data(shape=[small[0], small[1], small[2] * block, small[3] * block])
    return s.node(x, blocksize=block)
