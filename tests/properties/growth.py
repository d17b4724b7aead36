"""What a graph grows by: nodes of each kind, and patterns that Encore makes one of."""

import dataclasses
import math

import numpy as np
from hypothesis import strategies as st
from properties.grown import FLOATS, NUMBERS, TYPES, Unfit, Value, always, broadcast
from onnx import helper

KINDS = {}


def kind(weight):
    def add(grow):
        KINDS[grow.__name__] = grow, weight
        return grow

    return add


def grow(graph):
    names = [name for name, (_, weight) in KINDS.items() for _ in range(weight)]
    before = len(graph.nodes), len(graph.values)
    try:
        KINDS[graph.pick(*names)][0](graph)
    except Unfit:
        # What was made on the way stays, and is read by nobody or by others.
        assert (len(graph.nodes), len(graph.values)) >= before


# ---- numbers, one by one

SAME = lambda most: most
ONE = lambda most: 1
UNARY = {  # the largest number of what comes out, the slope, and whether nothing is rounded
    "Relu": (SAME, 1, True),
    "Neg": (SAME, 1, True),
    "Abs": (SAME, 1, True),
    "Identity": (SAME, 1, True),
    "Tanh": (ONE, 1, False),
    "Sigmoid": (ONE, 1, False),
    "Sin": (ONE, 1, False),
    "Cos": (ONE, 1, False),
    "Erf": (ONE, 2, False),
    "Softplus": (lambda most: most + 1, 1, False),
    "Softsign": (ONE, 1, False),
    "LeakyRelu": (SAME, 1, False),
    "Elu": (lambda most: max(1, most), 1, False),
    "HardSwish": (SAME, 2, False),
    "Floor": (lambda most: most + 1, math.inf, True),
    "Round": (lambda most: most + 1, math.inf, True),
    "Sign": (ONE, math.inf, True),
}


def unary_of(g, x):
    op = g.pick(*UNARY)
    most, slope, exact = UNARY[op]
    return g.node(op, [x], x.kind, x.dims, most(x.most), slope, exact=exact)


@kind(6)
def unary(g):
    unary_of(g, g.any(FLOATS))


@kind(1)
def exponential(g):
    x = g.any(FLOATS, lambda x: x.most <= 4)
    g.node("Exp", [x], x.kind, x.dims, math.exp(x.most), math.exp(x.most))


@kind(1)
def root(g):
    x = g.any(FLOATS)
    positive = g.node("Add", [g.node("Abs", [x], x.kind, x.dims, x.most, exact=True), g.scalar(x.kind, 0.25)], x.kind,
                      x.dims, x.most + 0.25)  # fmt: skip
    op = g.pick("Sqrt", "Reciprocal", "Log")
    g.node(op, [positive], x.kind, x.dims, max(4, positive.most), 16)


@kind(2)
def integers(g):
    x = g.any(["int64"])
    op = g.pick("Neg", "Abs", "Sign", "Identity")
    how = {"Neg": np.negative, "Abs": np.abs, "Sign": np.sign, "Identity": np.array}[op]
    g.node(op, [x], x.kind, x.dims, x.most, held=x.held and tuple(map(how, x.held)))


PAIRS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}


def pair_of(g, op, x, y):
    dims = broadcast(x.dims, y.dims)
    if op == "Mul":
        most, error = x.most * y.most, times_errors(x, y)
    elif op in ("Max", "Min"):
        most, error = max(x.most, y.most), max(x.error, y.error)
    else:
        most, error = x.most + y.most, x.error + y.error
    held = None
    if x.held and y.held:
        held = tuple(PAIRS[op](a, b) for a, b in zip(x.held, y.held))
        most = max([float(np.abs(array).max()) for array in held if array.size] or [0])
        if most > 3e4:
            raise Unfit
    pair = [x, y][:: g.pick(1, -1)] if op != "Sub" else [x, y]
    return g.node(op, pair, x.kind, dims, most, error=error, held=held, exact=op in ("Max", "Min"))


def times_errors(x, y):
    return (x.most * y.error if y.error else 0) + (y.most * x.error if x.error else 0)


def partner(g, x):
    """A value that broadcasts with x, or a constant that does."""
    if g.chance(2):
        return constant_beside(g, x)
    return g.any([x.kind], lambda y: fits_beside(x, y))


def fits_beside(x, y):
    try:
        broadcast(x.dims, y.dims)
    except Unfit:
        return False
    return True


def constant_beside(g, x):
    """Of some of its last axes, as far as their sizes are known."""
    rank = g.number(0, x.rank)
    shape = [sizes[0] if len(set(sizes)) == 1 and g.chance(2) else 1 for sizes in x.dims[x.rank - rank :]]
    if x.kind == "int64":
        return g.constant(np.random.default_rng(g.number(0, 1)).integers(-4, 5, shape))
    return g.weights(x.kind, *shape) if not g.chance(3) else g.scalar(x.kind, g.pick(0.5, 2, -1, 0))


@kind(7)
def pair(g):
    x = g.any(NUMBERS)
    pair_of(g, g.pick(*PAIRS), x, partner(g, x))


@kind(2)
def quotient(g):
    x = g.any(NUMBERS)
    if x.kind == "int64":
        op, by = g.pick("Div", "Mod"), g.pick(2, 3, 7)
        if x.held:
            held = tuple((a // by if op == "Div" else a % by) if np.all(a >= 0) else None for a in x.held)
            held = None if any(a is None for a in held) else held
        else:
            held = None
        g.node(op, [x, g.scalar("int64", by)], x.kind, x.dims, x.most, held=held)
        return
    y = partner(g, x)
    below = g.node("Add", [g.node("Abs", [y], y.kind, y.dims, y.most), g.scalar(y.kind, 1)], y.kind, y.dims, y.most + 1)
    error = x.error + times_errors(x, below)
    g.node("Div", [x, below], x.kind, broadcast(x.dims, below.dims), x.most, error=error)


@kind(1)
def power(g):
    x = g.any(FLOATS, lambda x: x.most <= 8)
    g.node("Pow", [x, g.scalar(x.kind, 2)], x.kind, x.dims, x.most**2, 2 * x.most)


@kind(2)
def comparison(g):
    x = g.any(NUMBERS)
    y = partner(g, x)
    op = g.pick("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")
    g.node(op, [x, y], "bool", broadcast(x.dims, y.dims))


@kind(1)
def logic(g):
    x = g.any(["bool"])
    if g.chance(3):
        g.node("Not", [x], "bool", x.dims)
        return
    y = g.any(["bool"], lambda y: fits_beside(x, y))
    g.node(g.pick("And", "Or", "Xor"), [x, y], "bool", broadcast(x.dims, y.dims))


@kind(2)
def where(g):
    c = g.any(["bool"])
    x = g.any(NUMBERS, lambda x: fits_beside(c, x))
    y = partner(g, x)
    dims = broadcast(c.dims, broadcast(x.dims, y.dims))
    g.node("Where", [c, x, y], x.kind, dims, max(x.most, y.most), exact=True)


@kind(3)
def cast(g):
    x = g.any([*NUMBERS, "bool"])
    to = g.pick(*(kind for kind in (*NUMBERS, "bool") if kind != x.kind))
    g.node("Cast", [x], to, x.dims, 1 if "bool" in (x.kind, to) else x.most, exact=x.kind != "float32", to=TYPES[to])


@kind(1)
def clip(g):
    x = g.any(FLOATS)
    low, high = g.pick((-1, 1), (None, 0.5), (0, None))
    ends = [end if end is None else g.scalar(x.kind, end) for end in (low, high)]
    g.node("Clip", [x, *ends], x.kind, x.dims, x.most, exact=True)


# ---- products


def product_of(g, x, y, op="MatMul", dims=None, scale=1.0, **attrs):
    dims = dims or broadcast(x.dims[:-2], y.dims[:-2]) + (x.dims[-2], y.dims[-1])
    depth = max(x.dims[-1]) * scale
    return g.node(op, [x, y], x.kind, dims, depth * x.most * y.most, error=depth * times_errors(x, y), **attrs)


@kind(3)
def product(g):
    """By weights; with a bias, too, or as Gemm."""
    x = g.any(FLOATS, lambda x: x.has_rows() and x.rank > 1)
    depth, width = x.dims[-1][0], g.pick(4, 8, 3)
    w = g.weights(x.kind, depth, width, most=1 / math.sqrt(depth))
    bias = g.weights(x.kind, width)
    if x.rank == 2 and g.chance(3):
        most = depth * x.most * w.most + bias.most
        g.node("Gemm", [x, w, bias], x.kind, [*x.dims[:-1], always(width)[0]], most, depth * w.most)
        return
    y = product_of(g, x, w)
    if g.chance(2):
        pair_of(g, "Add", y, bias)


@kind(2)
def product_of_two(g):
    """x @ y, or by y transposed, perhaps with a scale."""
    x = g.any(FLOATS, lambda x: x.rank > 1)
    fits = lambda y: y.rank > 1 and y.dims[-1] == x.dims[-1] and fits_beside(Outer(x), Outer(y))
    y = g.any([x.kind], fits)
    perm = [*range(y.rank - 2), y.rank - 1, y.rank - 2]
    turned = g.node("Transpose", [y], y.kind, [y.dims[axis] for axis in perm], y.most, exact=True, perm=perm)
    z = product_of(g, x, turned)
    if g.chance(2):
        pair_of(g, "Mul", z, g.scalar(z.kind, 0.125))


class Outer:
    """A stack of matrices without these."""

    def __init__(self, x):
        self.dims = x.dims[:-2]


# ---- rows


@kind(3)
def reduction(g):
    x = g.any(NUMBERS, lambda x: x.rank > 0 and min(map(min, x.dims)) > 0)
    axes = sorted({g.axis(x) % x.rank for _ in range(g.number(1, 2))})
    keep = g.number(0, 1)
    dims = [sizes if axis not in axes else (1,) * len(sizes) for axis, sizes in enumerate(x.dims)]
    dims = [sizes for axis, sizes in enumerate(dims) if keep or axis not in axes]
    count = math.prod(max(x.dims[axis]) for axis in axes)
    op = g.pick("ReduceSum", "ReduceMax", "ReduceMin", *["ReduceMean", "ReduceL1"] * (x.kind in FLOATS))
    grows = count if op in ("ReduceSum", "ReduceL1") else 1
    given = g.ints(*(axis - x.rank * g.number(0, 1) for axis in axes))
    g.node(op, [x, given], x.kind, dims, grows * x.most, grows, exact=op in ("ReduceMax", "ReduceMin"), keepdims=keep)


@kind(2)
def softmax(g):
    x = g.any(FLOATS, lambda x: x.rank > 0)
    axis = g.axis(x)
    g.node(g.pick("Softmax", "Softmax", "LogSoftmax"), [x], x.kind, x.dims, 2 * x.most + 8, 2, axis=axis)


@kind(2)
def norm(g):
    x = g.any(FLOATS, lambda x: x.has_rows())
    norm_of(g, x)


def norm_of(g, x, epsilon=1e-2):
    width = x.dims[-1][0]
    weights = [g.weights(x.kind, width) for _ in range(g.number(1, 2))]
    slope = 2 / math.sqrt(epsilon)
    return g.node("LayerNormalization", [x, *weights], x.kind, x.dims, math.sqrt(width) + 1, slope, epsilon=epsilon)


@kind(1)
def running_sum(g):
    x = g.any(FLOATS, lambda x: x.rank > 0)
    axis = g.axis(x)
    count = max(x.dims[axis])
    g.node("CumSum", [x, g.scalar("int64", axis)], x.kind, x.dims, count * x.most, count, reverse=g.number(0, 1))


@kind(1)
def largest(g):
    x = g.any(FLOATS, lambda x: x.rank > 0 and min(map(min, x.dims)) > 0)
    axis = g.axis(x)
    if g.chance(2):
        dims = [sizes for i, sizes in enumerate(x.dims) if i != axis % x.rank]
        g.node("ArgMax", [x], "int64", dims, max(x.dims[axis]), axis=axis, keepdims=0)
        return
    count = min(2, min(x.dims[axis]))
    dims = list(x.dims)
    dims[axis] = always(count)[0]
    values = Value(g.name(), x.kind, tuple(dims), x.most, x.error)
    places = Value(g.name(), "int64", tuple(dims), max(x.dims[axis]), math.inf if x.error else 0)
    g.emit("TopK", [x, g.ints(count)], [values, places], attrs={"axis": axis})


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
    beside = lambda y: y.rank == x.rank and all(
        a == b for i, (a, b) in enumerate(zip(x.dims, y.dims)) if i != axis % x.rank
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
        dims, stop = x.dims, g.ints(-1000)
    elif g.chance(2):
        half = arithmetic(g, "Div", size(g, x, axis), 2)
        stop = half if half.rank else unsqueezed(g, half)
        dims = after_cut(x, axis, start, [int(array.reshape(-1)[0]) for array in stop.held], step)
    else:
        stop = g.ints(g.pick(1000, 2))
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
    moved(g, "Trilu", x, x.dims, upper=g.number(0, 1))


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
    real = g.node("Cast", [number], x.kind, number.dims, number.most, error=0, exact=True, to=TYPES[x.kind])
    if g.chance(2):
        real = g.node("Sqrt", [real], x.kind, real.dims, real.most)
    g.node("Div", [x, real], x.kind, broadcast(x.dims, real.dims), x.most, error=x.error + times_errors(x, real))


@kind(1)
def numbers_of_a_shape(g):
    """Among data."""
    x = g.any(["int64"], lambda x: x.held)
    pair_of(g, g.pick("Add", "Mul"), dataclasses.replace(x, held=None), g.any(["int64"], lambda y: fits_beside(x, y)))


# ---- pictures


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


# ---- what Encore makes one of


@kind(2)
def gelu(g):
    x = g.any(FLOATS, lambda x: x.most <= 8)
    scalar = lambda number: g.scalar(x.kind, number)
    node = lambda op, inputs, most, slope=1.0: g.node(op, inputs, x.kind, x.dims, most, slope)
    way = g.pick("erf", "tanh", "quick")
    if way == "quick":
        s = node("Sigmoid", [node("Mul", [x, scalar(1.702)], 2 * x.most, 2)], 1)
        pair_of(g, "Mul", x, s)
        return
    if way == "erf":
        e = node("Erf", [node("Div", [x, scalar(math.sqrt(2))], x.most)], 1, 2)
    else:
        cube = node("Mul", [node("Pow", [x, scalar(3)], x.most**3, 3 * x.most**2), scalar(0.044715)], x.most**3 / 20)
        if cube.kind == "float16" and cube.most > 60:
            raise Unfit
        e = node("Tanh", [node("Mul", [pair_of(g, "Add", x, cube), scalar(math.sqrt(2 / math.pi))], 64)], 1)
    pair_of(g, "Mul", pair_of(g, "Mul", x, node("Add", [e, scalar(1)], 2)), scalar(0.5))


@kind(2)
def residual(g):
    x = g.any(FLOATS, lambda x: x.has_rows())
    y = g.any([x.kind], lambda y: y.dims == x.dims)
    norm_of(g, pair_of(g, "Add", x, y))


@kind(1)
def gate(g):
    x = g.any(FLOATS)
    y = g.any([x.kind], lambda y: y.dims == x.dims)
    s = g.node("Sigmoid", [x], x.kind, x.dims)
    pair_of(g, "Mul", pair_of(g, "Mul", x, s), y)


@kind(2)
def attention(g):
    """Queries, keys and values are of the same rows, or of others of the same width."""
    q = g.any(FLOATS, lambda q: q.rank in (3, 4) and min(map(min, q.dims)) > 0)
    k = g.any([q.kind], lambda k: k.rank == q.rank and k.dims[:-2] == q.dims[:-2] and k.dims[-1] == q.dims[-1])
    v = g.any([q.kind], lambda v: v.rank == q.rank and v.dims[:-1] == k.dims[:-1])
    perm = [*range(q.rank - 2), q.rank - 1, q.rank - 2]
    turned = g.node("Transpose", [k], k.kind, [k.dims[axis] for axis in perm], k.most, exact=True, perm=perm)
    scores = pair_of(g, "Mul", product_of(g, q, turned), g.scalar(q.kind, 0.25))
    way = g.pick("", "mask", "where")
    if way == "mask":
        mask = g.any([q.kind], lambda m: fits_beside(scores, m) and broadcast(scores.dims, m.dims) == scores.dims)
        scores = pair_of(g, "Add", scores, mask)
    elif way == "where":
        fits = lambda m: fits_beside(scores, m) and broadcast(scores.dims, m.dims) == scores.dims
        mask = g.any(["bool"], fits)
        scores = g.node("Where", [mask, scores, g.scalar(q.kind, -50)], q.kind, scores.dims, max(50, scores.most))
    weights = g.node("Softmax", [scores], q.kind, scores.dims, 1, 2, axis=-1)
    product_of(g, weights, v)


@kind(1)
def there_and_back(g):
    """Casts and transpositions that cancel."""
    x = g.any(FLOATS)
    if g.chance(2) and x.rank > 1:
        perm = g(permutations(x.rank))
        y = moved(g, "Transpose", x, [x.dims[axis] for axis in perm], perm=perm)
        moved(g, "Transpose", y, x.dims, perm=[perm.index(i) for i in range(x.rank)])
        return
    wide = "float64" if x.kind == "float32" else "float32"
    y = g.node("Cast", [x], wide, x.dims, x.most, exact=True, to=TYPES[wide])
    g.node("Cast", [y], x.kind, x.dims, x.most, exact=True, to=TYPES[x.kind])


@kind(2)
def twice(g):
    g.again()


# ---- what stays between regions


@kind(1)
def counted(g):
    """How many are not zero: NonZero's size depends on data."""
    x = g.any(FLOATS, lambda x: x.rank > 0 and min(map(min, x.dims)) > 0)
    found = Value(g.name(), "int64", x.dims, 0)  # not its dimensions, which nobody may ask for
    g.emit("NonZero", [x], [found], repeatable=False)
    g.values.remove(found)
    most = float(max(x.counts))
    if most > 1000:
        raise Unfit
    error = math.inf if x.error else 0
    shape = g.node("Shape", [found], "int64", always(1), most, error=error, held=(), start=1)
    real = g.node("Cast", [shape], x.kind, always(1), most, error=error, held=(), exact=True, to=TYPES[x.kind])
    below = g.node("Add", [real, g.scalar(x.kind, 1)], x.kind, always(1), most + 1, held=())
    g.node("Div", [x, below], x.kind, broadcast(x.dims, always(1)), x.most, error=x.error + error)


@kind(1)
def elsewhere(g):
    """Sequences are onnxruntime's."""
    x = g.any([*NUMBERS, "bool"])
    y = g.any([x.kind])
    name = g.name()
    g.nodes.append(helper.make_node("SequenceConstruct", [x.name, y.name], [name], f"SequenceConstruct {name}"))
    at = g.number(0, 1)
    z = (x, y)[at]
    value = Value(g.name(), x.kind, z.dims, z.most, z.error)
    where = g.scalar("int64", at)
    g.nodes.append(helper.make_node("SequenceAt", [name, where.name], [value.name], f"SequenceAt {value.name}"))
    g.values.append(value)


@kind(1)
def sized_by_an_input(g):
    """A caller says how large; Encore reads that on the host."""
    axis = g.pick("n", "m")
    sizes = g.symbols[axis]
    to = g.input("int64", 1, held=tuple(np.array([size]) for size in sizes), most=max(sizes))
    x = g.any(FLOATS, lambda x: x.rank == 0 or x.dims[-1] in (always(1)[0], sizes))
    g.node("Expand", [x, to], x.kind, broadcast(x.dims, (sizes,)), x.most, error=x.error, exact=True)


@kind(1)
def dropout(g):
    x = g.any(FLOATS)
    made = [Value(g.name(), x.kind, x.dims, x.most, x.error), Value(g.name(), "bool", x.dims, 1)]
    g.emit("Dropout", [x], made[: g.number(1, 2)])


def chain(g, x):
    """A few nodes that keep a value's shape, and read others."""
    for _ in range(g.number(1, 3)):
        way = g.pick("unary", "pair", "softmax", "product")
        if way == "pair":
            fits = lambda y: fits_beside(x, y) and broadcast(x.dims, y.dims) == x.dims
            x = pair_of(g, g.pick(*PAIRS), x, g.any([x.kind], fits))
        elif way == "softmax" and x.rank:
            x = g.node("Softmax", [x], x.kind, x.dims, 1, 2, axis=-1)
        elif way == "product" and x.rank > 1 and x.has_rows():
            width = x.dims[-1][0]
            x = product_of(g, x, g.weights(x.kind, width, width, most=1 / width))
        else:
            x = unary_of(g, x)
    return x


def condition(g, x):
    found = [value for value in g.values if value.kind == "bool" and not value.rank]
    if found and not g.chance(3):
        return g.pick(*found)
    if not x.rank or min(map(min, x.dims)) == 0:
        raise Unfit
    total = g.node("ReduceMax", [x], x.kind, (), x.most, exact=True, keepdims=0)
    return g.node("Greater", [total, g.scalar(x.kind, 0.5)], "bool", ())


@kind(1)
def choice(g):
    x = g.any(FLOATS)
    c = condition(g, x)
    bodies, ends = {}, []
    for branch in ("then_branch", "else_branch"):
        with g.body() as nodes:
            ends.append(chain(g, x))
        bodies[branch] = helper.make_graph(nodes, g.name("body"), [], [g.end(ends[-1])])
    error = math.inf if c.error else max(end.error for end in ends)
    value = Value(g.name(), x.kind, x.dims, max(end.most for end in ends), error)
    g.emit("If", [c], [value], attrs=bodies, repeatable=False)


@kind(1)
def loop(g):
    """A state goes round, and what each iteration makes may be kept."""
    x = g.any(FLOATS)
    times = g.number(0, 3)
    counts = [value for value in g.values if value.kind == "int64" and not value.rank and value.most <= 4]
    count = g.pick(*counts) if counts and g.chance(2) else None
    number, go = Value(g.name(), "int64", (), 4), Value(g.name(), "bool", (), 1)
    state = Value(g.name(), x.kind, x.dims, max(1, x.most), math.inf)
    with g.body() as nodes:
        g.values += [number, state]
        made = chain(g, state)
        if g.chance(2):
            real = g.node("Cast", [number], x.kind, (), 4, error=math.inf, to=TYPES[x.kind])
            made = pair_of(g, "Add", made, real)
        made = g.node("Tanh", [made], x.kind, x.dims)
        on = g.node("Identity", [go], "bool", ())
    ends = [g.end(value) for value in (on, made)]
    outputs = [Value(g.name(), x.kind, x.dims, max(1, x.most), math.inf)]
    if count is None and times and g.chance(2):  # onnxruntime makes [0] of no iterations
        ends.append(g.end(made))
        # Two outputs of a body that are one value are another matter.
        kept = Value(g.name(), x.kind, made.dims, 1, math.inf)
        nodes.append(helper.make_node("Neg", [made.name], [kept.name], f"Neg {kept.name}"))
        ends[-1] = g.end(kept)
        outputs.append(Value(g.name(), x.kind, (*always(times), *x.dims), 1, math.inf))
    body = helper.make_graph(nodes, g.name("body"), [g.end(number, []), g.end(go, []), g.end(state)], ends)
    given = count or g.scalar("int64", times)
    g.emit("Loop", [given, None, x], outputs, attrs={"body": body}, repeatable=False)
