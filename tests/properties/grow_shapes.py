"""Movement, and what computes with shapes."""

import dataclasses
import math

import numpy as np
from hypothesis import strategies as st
from onnx import helper

from properties.grow_numbers import fits_beside, pair_of, times_errors
from properties.grown import FLOATS, NUMBERS, TYPES, Unfit, Value, always, broadcast
from properties.kinds import kind

# ---- movement


def moved(g, op, x, dims, *inputs, most=None, **attrs):
    return g.node(op, [x, *inputs], x.kind, dims, x.most if most is None else most, error=x.error, exact=True, **attrs)


@kind(3)
def transpose(g):
    x = g.any([*NUMBERS, "bool"], lambda x: x.rank > 1)
    perm = g(permutations(x.rank))
    moved(g, "Transpose", x, [x.dims[axis] for axis in perm], perm=perm)


def permutations(rank):
    return st.permutations(range(rank)).map(list)


@kind(2)
def concat(g):
    x = g.any([*NUMBERS, "bool"], lambda x: x.rank > 0)
    axis = g.axis(x)
    beside = lambda y: (
        y.rank == x.rank and all(a == b for i, (a, b) in enumerate(zip(x.dims, y.dims)) if i != axis % x.rank)
    )
    parts = [x] + [g.any([x.kind], beside) for _ in range(g.number(1, 2))]
    dims = list(x.dims)
    dims[axis] = tuple(map(sum, zip(*(part.dims[axis] for part in parts))))
    held = None
    if all(part.held for part in parts):
        held = tuple(np.concatenate(arrays, axis) for arrays in zip(*(part.held for part in parts)))
    most, error = (max(getattr(part, what) for part in parts) for what in ("most", "error"))
    g.node("Concat", parts, x.kind, dims, most, error=error, held=held, exact=True, axis=axis)


@kind(2)
def cut(g):
    """Slice with ends that are constant, or computed from a size."""
    x = g.any([*NUMBERS, "bool"], lambda x: x.rank > 0)
    axis = g.axis(x)
    start, step = g.pick((0, 1), (1, 1), (-1, -1), (0, 2))
    if step < 0:
        dims, stop = x.dims, g.ints(-100000)
    elif g.chance(2):
        half = arithmetic(g, "Div", size(g, x, axis), 2)
        stop = half if half.rank else unsqueezed(g, half)
        dims = after_cut(x, axis, start, [int(array.reshape(-1)[0]) for array in stop.held], step)
    else:
        stop = g.ints(g.pick(100000, 2))
        dims = after_cut(x, axis, start, [int(stop.held[0][0])] * 3, step)
    moved(g, "Slice", x, dims, g.ints(start), stop, g.ints(axis), g.ints(step))


def after_cut(x, axis, start, stops, step):
    dims = list(x.dims)
    dims[axis] = tuple(len(range(size)[start:stop:step]) for size, stop in zip(x.dims[axis], stops))
    return dims


@kind(1)
def split(g):
    x = g.any(NUMBERS, lambda x: any(x.is_fixed(axis) and x.dims[axis][0] > 1 for axis in range(x.rank)))
    axis = g.axis(x, lambda axis: x.is_fixed(axis) and x.dims[axis][0] > 1)
    first = g.number(1, x.dims[axis][0] - 1)
    parts = []
    for length in (first, x.dims[axis][0] - first):
        dims = list(x.dims)
        dims[axis] = always(length)[0]
        parts.append(Value(g.name(), x.kind, tuple(dims), x.most, x.error))
    g.emit("Split", [x, g.ints(first, x.dims[axis][0] - first)], parts, attrs={"axis": axis})


@kind(2)
def gather(g):
    x = g.any(NUMBERS, lambda x: x.rank > 0 and any(min(sizes) > 0 for sizes in x.dims))
    axis = g.axis(x, lambda axis: min(x.dims[axis]) > 0)
    at = g.pick(g.scalar("int64", 0), g.ints(-1), g.ints(0, -1), None)
    if at is None:
        index = g.any(["int64"], lambda y: y.rank < 3)
        by = g.scalar("int64", min(x.dims[axis]))
        at = g.node("Mod", [index, by], "int64", index.dims, max(1, by.most))
    place = axis % x.rank
    dims = (*x.dims[:place], *at.dims, *x.dims[place + 1 :])
    error = math.inf if at.error else x.error
    g.node("Gather", [x, at], x.kind, dims, x.most, error=error, exact=True, axis=axis)


@kind(1)
def pad(g):
    x = g.any(FLOATS, lambda x: x.rank > 0)
    axis = g.axis(x) % x.rank
    pads = [0] * (2 * x.rank)
    pads[axis], pads[axis + x.rank] = g.pick((1, 0), (0, 2), (1, 1))
    dims = list(x.dims)
    dims[axis] = tuple(size + pads[axis] + pads[axis + x.rank] for size in x.dims[axis])
    moved(g, "Pad", x, dims, g.ints(*pads))


@kind(1)
def triangle(g):
    x = g.any(FLOATS, lambda x: x.rank > 1)
    for upper in g.pick([0], [1], [0, 1]):
        moved(g, "Trilu", x, x.dims, upper=upper)


@kind(2)
def one_more(g):
    x = g.any([*NUMBERS, "bool"], lambda x: x.rank < 5)
    axis = g.number(0, x.rank)
    y = moved(g, "Unsqueeze", x, [*x.dims[:axis], always(1)[0], *x.dims[axis:]], g.ints(axis))
    if g.chance(2):
        moved(g, "Squeeze", y, x.dims, g.ints(axis))


# ---- what computes with shapes


def arithmetic(g, op, x, by):
    how = {"Mul": np.multiply, "Add": np.add, "Div": np.floor_divide}[op]
    held = tuple(how(array, by) for array in x.held)
    return g.node(op, [x, g.scalar("int64", by)], "int64", x.dims, float(max(np.abs(a).max() for a in held)), held=held)


def unsqueezed(g, x):
    held = tuple(np.reshape(array, 1) for array in x.held)
    return g.node("Unsqueeze", [x, g.ints(0)], "int64", always(1), x.most, held=held)


def size(g, x, axis):
    """One of its sizes, a scalar or a vector of one."""
    axis %= x.rank
    whole = tuple(np.array(sizes) for sizes in zip(*x.dims))
    most = float(max(map(max, x.dims)))
    way = g.pick("gather", "gather one", "part", "slice")
    if way == "part":
        held = tuple(np.array([size]) for size in x.dims[axis])
        return g.node("Shape", [x], "int64", always(1), most, held=held, error=0, start=axis, end=axis + 1)
    shape = g.node("Shape", [x], "int64", always(x.rank), most, held=whole, error=0)
    at = axis if way == "gather" else [axis]
    held = tuple(np.array(array[at]) for array in whole)
    if way == "slice":
        return g.node("Slice", [shape, g.ints(axis), g.ints(axis + 1)], "int64", always(1), most, held=held)
    return g.node("Gather", [shape, g.constant(np.array(at))], "int64", always(*np.shape(at)), most, held=held)


def sizes_of(g, x, wanted):
    """A vector for Reshape: of each wanted axis the axes of x that it joins, or a number."""
    free = min(map(min, x.dims)) > 0 if x.rank else True
    parts = []
    for axes in wanted:
        if isinstance(axes, int):
            parts.append(g.ints(axes))
        elif free and g.chance(2):
            parts.append(g.ints(-1))
            free = False
        elif all(x.is_fixed(axis) for axis in axes) and g.chance(2):
            parts.append(g.ints(math.prod(x.dims[axis][0] for axis in axes)))
        else:
            part = None
            for axis in axes:
                one = size(g, x, axis)
                part = one if part is None else pair_of(g, "Mul", part, one)
            parts.append(part if part.rank else unsqueezed(g, part))
    if not parts:
        return g.constant(np.array([], np.int64))
    if len(parts) == 1:
        return parts[0]
    held = tuple(np.concatenate(arrays) for arrays in zip(*(part.held for part in parts)))
    return g.node("Concat", parts, "int64", always(len(parts)), max(p.most for p in parts), held=held, axis=0)


@kind(4)
def reshape(g):
    """Joins two axes, or makes two of one, or one of all."""
    x = g.any([*NUMBERS, "bool"], lambda x: x.rank > 0)
    way = g.pick("join", "divide", "flat")
    if way == "join" and x.rank > 1:
        at = g.number(0, x.rank - 2)
        wanted = [[axis] for axis in range(x.rank)]
        wanted[at : at + 2] = [[at, at + 1]]
        dims = [*x.dims[:at], tuple(a * b for a, b in zip(*x.dims[at : at + 2])), *x.dims[at + 2 :]]
    elif way == "divide" and x.rank < 5:
        axis = g.axis(x, lambda axis: all(size % 2 == 0 for size in x.dims[axis])) % x.rank
        halves = tuple(size // 2 for size in x.dims[axis])
        if len(set(halves)) > 1 or not halves[0]:
            raise Unfit
        wanted = [[i] for i in range(x.rank)]
        wanted[axis : axis + 1] = [2, halves[0]]
        dims = [*x.dims[:axis], always(2)[0], halves, *x.dims[axis + 1 :]]
    else:
        wanted, dims = [list(range(x.rank))], [tuple(x.counts)]
    moved(g, "Reshape", x, dims, sizes_of(g, x, wanted), allowzero=int(any(0 in sizes for sizes in x.dims)))


@kind(1)
def expand(g):
    y = g.any([*NUMBERS, "bool"], lambda y: y.rank > 0)
    x = g.any(NUMBERS, lambda x: fits_beside(x, y))
    held = tuple(np.array(sizes) for sizes in zip(*y.dims))
    shape = g.node("Shape", [y], "int64", always(y.rank), float(max(map(max, y.dims))), held=held, error=0)
    moved(g, "Expand", x, broadcast(x.dims, y.dims), shape)


@kind(1)
def tile(g):
    x = g.any(NUMBERS, lambda x: x.rank > 0)
    axis = g.axis(x) % x.rank
    repeats = g.pick(1, 2)
    dims = list(x.dims)
    dims[axis] = tuple(repeats * size for size in x.dims[axis])
    moved(g, "Tile", x, dims, g.ints(*(repeats if i == axis else 1 for i in range(x.rank))))


@kind(1)
def positions(g):
    """Numbers from zero up to a size."""
    x = g.any([*NUMBERS, "bool"], lambda x: x.rank > 0)
    axis = g.axis(x)
    stop = size(g, x, axis)
    if stop.rank:
        held = tuple(np.reshape(array, ()) for array in stop.held)
        stop = g.node("Squeeze", [stop, g.ints(0)], "int64", (), stop.most, held=held)
    g.node("Range", [g.scalar("int64", 0), stop, g.scalar("int64", 1)], "int64", [x.dims[axis]], stop.most)


@kind(1)
def filled(g):
    x = g.any([*NUMBERS, "bool"], lambda x: x.rank > 0)
    held = tuple(np.array(sizes) for sizes in zip(*x.dims))
    shape = g.node("Shape", [x], "int64", always(x.rank), float(max(map(max, x.dims))), held=held, error=0)
    value = helper.make_tensor("value", TYPES["float32"], [1], [g.pick(0.5, -1.0)])
    g.node("ConstantOfShape", [shape], "float32", x.dims, 1, exact=True, value=value)


@kind(2)
def scaled_by_a_size(g):
    """By the root of a size, as exported attention is."""
    x = g.any(FLOATS, lambda x: x.rank > 0 and min(map(min, x.dims)) > 0)
    number = size(g, x, g.axis(x))
    # As it is, not made smaller: a divisor of at least one.
    real = g.node("Cast", [number], x.kind, number.dims, number.most, error=0, held=(), exact=True, to=TYPES[x.kind])
    if g.chance(2):
        real = g.node("Sqrt", [real], x.kind, real.dims, real.most, held=())
    g.node("Div", [x, real], x.kind, broadcast(x.dims, real.dims), x.most, error=x.error + times_errors(x, real))


@kind(1)
def numbers_of_a_shape(g):
    """Among data."""
    x = g.any(["int64"], lambda x: x.held)
    pair_of(g, g.pick("Add", "Mul"), dataclasses.replace(x, held=None), g.any(["int64"], lambda y: fits_beside(x, y)))
