"""Numbers one by one, products, and rows."""

import math

import numpy as np

from properties.grown import FLOATS, NUMBERS, TYPES, Unfit, Value, always, broadcast
from properties.kinds import kind

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


def fits_into(x):
    """Whether a value broadcasts to the dimensions of x."""
    return lambda y: fits_beside(x, y) and broadcast(x.dims, y.dims) == x.dims


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
    bias = g.weights(x.kind, *g.pick((width,), (1, width), (1,)))
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
    op = g.pick("Softmax", "Softmax", "LogSoftmax")
    for _ in range(g.number(1, 2)):  # perhaps the same but for the axis
        g.node(op, [x], x.kind, x.dims, 2 * x.most + 8, 2, axis=g.axis(x))


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
    for reverse in g.pick([0], [1], [0, 1]):
        g.node("CumSum", [x, g.scalar("int64", axis)], x.kind, x.dims, count * x.most, count, reverse=reverse)


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
