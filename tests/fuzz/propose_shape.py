"""Operators that move elements, and those that are about shapes."""

import numpy as np
from element_types import FLOATS, NUMPY, rounded
from onnx import helper
from proposals import proposes


@proposes("Shape", "Size", family="exact")
def shape_or_size(s):
    x = s.data()
    ends = {}
    if s.op == "Shape" and s.opset >= 15:
        ends = {key: s.maybe(0.4, lambda: s.draw.number(-10, 10)) for key in ("start", "end")}
    return s.node(x, types=["int64"], **ends)


@proposes("OptionalHasElement", family="exact")
def has_element(s):
    return s.node(s.data(), types=["bool"])


@proposes("Concat", family="exact")
def concat(s):
    x = s.data(low=1)
    axis = s.draw.axis(x.array.ndim)
    rest = []
    for _ in range(s.draw.number(0, 4)):
        shape = list(x.array.shape)
        shape[axis] = s.draw.pick([0, 1, 2, 3, shape[axis]])
        rest.append(s.like(x, shape))
    return s.node(*s.draw.shuffled([x, *rest]), axis=axis)


@proposes("ConstantOfShape", family="exact")
def constant_of_shape(s):
    kind = s.draw.pick(s.row.types(0, "out")) if s.draw.chance(0.8) else "float"
    number = rounded(s.draw.contents(kind, [1]), kind)

    def value(as_type):
        numpy = NUMPY[as_type(kind)]
        kind_of = helper.np_dtype_to_tensor_dtype(np.dtype(numpy))
        return helper.make_tensor("value", kind_of, [1], number.astype(numpy).tobytes(), raw=True)

    has_value = kind != "float" or s.draw.chance(0.6)
    return s.node(s.fixed(s.draw.shape()), types=[kind], value=value if has_value else None)


@proposes("Expand", family="exact")
def expand(s):
    x = s.data()
    shape = [s.draw.number(1, 4) if size == 1 else s.draw.pick([size, size, 1]) for size in x.array.shape]
    shape = s.draw.picks([1, 2, 3], s.draw.number(0, 2)) + shape[s.draw.number(0, len(shape)) * s.draw.chance(0.2) :]
    return s.node(x, s.fixed(shape))


@proposes("Flatten", family="exact")
def flatten(s):
    x = s.data()
    rank = x.array.ndim
    low = -rank if s.opset >= 11 else 0
    return s.node(x, axis=s.maybe(0.8, lambda: s.draw.number(low, rank)))


def _indices(s, kind, shape, size):
    low = -size if s.opset >= 11 and s.draw.chance(0.5) else 0
    values = s.draw.numpy.integers(low, size, shape) if size else np.zeros(shape)
    return s.new(values, kind, constant=0.4)


@proposes("Gather", family="exact")
def gather(s):
    x = s.data(low=1)
    axis = s.maybe(0.8, lambda: s.draw.axis(x.array.ndim))
    return s.node(x, _indices(s, s.draw.pick(s.types(1)), s.draw.shape(0, 3), x.array.shape[axis or 0]), axis=axis)


@proposes("GatherElements", family="exact")
def gather_elements(s):
    x = s.data(low=1)
    axis = s.maybe(0.8, lambda: s.draw.axis(x.array.ndim))
    shape = [s.draw.number(0, size) if s.draw.chance(0.3) else size for size in x.array.shape]
    shape[axis or 0] = s.draw.number(0, 5)
    return s.node(x, _indices(s, s.draw.pick(s.types(1)), shape, x.array.shape[axis or 0]), axis=axis)


@proposes("GatherND", family="exact")
def gather_nd(s):
    x = s.data(low=1)
    rank = x.array.ndim
    batch = s.draw.number(0, rank - 1) if s.opset >= 12 and s.draw.chance(0.4) else None
    length = s.draw.number(1, rank - (batch or 0))
    sizes = x.array.shape[batch or 0 :][:length]
    outer = [*x.array.shape[: batch or 0], *s.draw.shape(0, 2)]
    columns = [s.draw.numpy.integers(-size, size, outer) if size else np.zeros(outer, np.int64) for size in sizes]
    return s.node(x, s.new(np.stack(columns, -1), "int64", constant=0.4), batch_dims=batch)


@proposes("Pad", family="exact")
def pad(s):
    x = s.data()
    rank = x.array.ndim
    mode = s.draw.pick(["constant", "constant", "reflect", "edge", *["wrap"] * (s.opset >= 19)])
    axes = s.draw.axes(rank) if s.opset >= 18 and s.draw.chance(0.3) else None
    count = rank if axes is None else len(axes)
    pads = s.draw.picks([0, 0, 1, 1, 2, 3, -1], 2 * count)
    told = mode if mode != "constant" or s.draw.chance(0.5) else None
    if s.opset < 2:
        return s.node(x, paddings=pads, mode=told)
    if s.opset < 11:
        return s.node(x, pads=pads, mode=told, value=s.maybe(0.5, s.draw.real))
    value = s.maybe(0.5, lambda: s.fixed(s.draw.contents(x.type, []), x.type, constant=0.6))
    return s.node(x, s.fixed(pads), value, None if axes is None else s.fixed(axes), mode=told)


@proposes("Range", family="exact", own_types=True)
def range_(s):
    kind = s.draw.pick(s.types())
    start, count, step = s.draw.number(-9, 9), s.draw.number(-2, 40), s.draw.pick([-3, -1, 1, 2, 5])
    divisor = s.draw.pick([1, 2, 4]) if kind in FLOATS else 1
    ends = [np.array(n / divisor) for n in (start, start + count * step, step)]
    return s.node(*[s.fixed(end, kind, tame=True) for end in ends])


@proposes("Reshape", family="exact")
def reshape(s):
    x = s.data()
    count, shape = x.array.size, []
    for prime in [2, 2, 2, 3, 3, 5]:
        if count % prime == 0 and count and s.draw.chance(0.6):
            shape.append(prime)
            count //= prime
    shape = s.draw.shuffled([*shape, *[count] * (count > 1 or s.draw.chance(0.7)), *[1] * s.draw.number(0, 2)])
    if shape and s.draw.chance(0.3):
        shape[s.draw.number(0, len(shape) - 1)] = -1
    same = [i for i, size in enumerate(shape) if i < x.array.ndim and x.array.shape[i] == size]
    zero_is_zero = s.maybe(0.3, lambda: s.draw.pick([0, 1])) if s.opset >= 14 else None
    if same and s.draw.chance(0.3) and not zero_is_zero:
        shape[s.draw.pick(same)] = 0
    if s.opset < 5:
        return s.node(x, shape=shape)
    return s.node(x, s.fixed(shape), allowzero=zero_is_zero)


def _ranges(s, x):
    axes = s.draw.axes(x.array.ndim)
    starts = [s.draw.number(-size - 1, size + 1) for size in (x.array.shape[a] for a in axes)]
    ends = [s.draw.number(-size - 1, size + 2) for size in (x.array.shape[a] for a in axes)]
    ends = [s.draw.pick([2**31 - 1, 2**63 - 1, -(2**63)]) if s.draw.chance(0.15) else end for end in ends]
    return axes, starts, ends, "int64" if max([*map(abs, ends), 0]) >= 2**31 else s.draw.pick(["int64", "int32"])


@proposes("DynamicSlice", family="exact")
def dynamic_slice(s):
    x = s.data(low=1)
    axes, starts, ends, kind = _ranges(s, x)
    named = len(axes) == x.array.ndim and s.draw.chance(0.3)
    return s.node(x, s.fixed(starts, kind), s.fixed(ends, kind), None if named else s.fixed(axes, kind))


@proposes("Slice", family="exact")
def slice_(s):
    x = s.data(low=1)
    axes, starts, ends, kind = _ranges(s, x)
    if s.opset < 10:
        return s.node(x, starts=starts, ends=ends, axes=axes)
    named = len(axes) == x.array.ndim and s.draw.chance(0.3)
    if named:
        axes = list(range(len(axes)))
    steps = s.maybe(0.6, lambda: s.fixed(s.draw.picks([1, 1, 2, 3, -1, -2], len(axes)), kind))
    return s.node(x, s.fixed(starts, kind), s.fixed(ends, kind), None if named else s.fixed(axes, kind), steps)


@proposes("Split", family="exact")
def split(s):
    x = s.data(low=1)
    axis = s.maybe(0.8, lambda: s.draw.axis(x.array.ndim))
    size, parts = x.array.shape[axis or 0], s.draw.number(1, 4)
    cuts = sorted(s.draw.number(0, size) for _ in range(parts - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size])]
    more = {"wanted": [True, *(s.draw.chance(0.85) for _ in range(parts - 1))], "axis": axis}
    if s.draw.chance(0.3) and (size % parts == 0 or s.opset >= 18):
        return s.node(x, num_outputs=parts if s.opset >= 18 else None, **more)
    return s.node(x, split=sizes, **more) if s.opset < 13 else s.node(x, s.fixed(sizes), **more)


@proposes("Squeeze", family="exact")
def squeeze(s):
    x = s.data()
    ones = [i - x.array.ndim * s.draw.chance(0.3) for i, size in enumerate(x.array.shape) if size == 1]
    axes = s.maybe(0.7, lambda: s.draw.random.sample(ones, s.draw.number(0, len(ones))))
    if s.opset < 13:
        return s.node(x, axes=axes)
    return s.node(x, None if axes is None else s.fixed(axes))


@proposes("Unsqueeze", family="exact")
def unsqueeze(s):
    x = s.data()
    count = s.draw.number(1, 2)
    axes = s.draw.axes(x.array.ndim + count)[:count]
    return s.node(x, axes=axes) if s.opset < 13 else s.node(x, s.fixed(axes))


@proposes("Tile", family="exact")
def tile(s):
    if s.opset < 6:  # along one axis, said in the type of the data
        x = s.data(low=1)
        told = [s.draw.pick([1, 2, 3, 0]), s.draw.axis(x.array.ndim)]
        return s.node(x, *[s.fixed(np.array(number), x.type) for number in told])
    x = s.data()
    return s.node(x, s.fixed(s.draw.picks([1, 1, 2, 3, 0], x.array.ndim)))


@proposes("Transpose", family="exact")
def transpose(s):
    x = s.data()
    return s.node(x, perm=s.maybe(0.8, lambda: s.draw.shuffled(range(x.array.ndim))))
