"""What Encore makes one of."""

import math

from properties.grow_numbers import fits_into, norm_of, pair_of, product_of
from properties.grow_shapes import moved, permutations
from properties.grown import FLOATS, TYPES, Unfit, always
from properties.kinds import kind


@kind(2)
def gelu(g):
    x = g.any(FLOATS, lambda x: x.most <= 8)
    scalar = lambda number: g.scalar(x.kind, number if not g.chance(8) else 1.5 * number)
    node = lambda op, inputs, most, slope=1.0: g.node(op, inputs, x.kind, x.dims, most, slope)
    way = g.pick("erf", "tanh", "quick")
    if way == "quick":
        s = node("Sigmoid", [node("Mul", [x, scalar(1.702)], 2 * x.most, 2)], 1)
        pair_of(g, "Mul", x, s)
        return
    if way == "erf":
        e = node("Erf", [node("Div", [x, scalar(math.sqrt(2))], x.most)], 1, 2)
    else:
        cube = node(
            "Mul", [node("Pow", [x, g.scalar(x.kind, 3)], x.most**3, 3 * x.most**2), scalar(0.044715)], x.most**3 / 20
        )
        if cube.kind == "float16" and cube.most > 60:
            raise Unfit
        e = node("Tanh", [node("Mul", [pair_of(g, "Add", x, cube), scalar(math.sqrt(2 / math.pi))], 64)], 1)
    pair_of(g, "Mul", pair_of(g, "Mul", x, node("Add", [e, scalar(1)], 2)), scalar(0.5))


@kind(2)
def residual(g):
    x = g.any(FLOATS, lambda x: x.has_rows())
    norm_of(g, pair_of(g, "Add", x, g.any([x.kind], fits_into(x))))


@kind(1)
def gate(g):
    x = g.any(FLOATS)
    y = g.any([x.kind], fits_into(x))
    z = y if g.chance(4) else x
    s = g.node("Sigmoid", [z], z.kind, z.dims)
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
        scores = pair_of(g, "Add", scores, g.any([q.kind], fits_into(scores)))
    elif way == "where":
        mask = g.any(["bool"], fits_into(scores))
        scores = g.node("Where", [mask, scores, g.scalar(q.kind, -50)], q.kind, scores.dims, max(50, scores.most))
    weights = g.node("Softmax", [scores], q.kind, scores.dims, 1, 2, axis=g.pick(-1, -1, q.rank - 1, q.rank - 2))
    product_of(g, weights, v)


@kind(1)
def there_and_back(g):
    """Casts and transpositions that cancel, or do not."""
    x = g.any(FLOATS)
    if g.chance(2) and x.rank > 1:
        first = g(permutations(x.rank))
        y = moved(g, "Transpose", x, [x.dims[axis] for axis in first], perm=first)
        second = [first.index(i) for i in range(x.rank)] if g.chance(2) else g(permutations(x.rank))
        moved(g, "Transpose", y, [y.dims[axis] for axis in second], perm=second)
        return
    through = g.pick("float64", "float32", "float16", "int64")
    y = g.node("Cast", [x], through, x.dims, x.most, exact=through != "float16", to=TYPES[through])
    g.node("Cast", [y], x.kind, x.dims, x.most, error=math.inf if through == "int64" else None, to=TYPES[x.kind])


@kind(2)
def twice(g):
    g.again()


@kind(1)
def projections(g):
    """Queries, keys and values of the same rows, with heads; or one of them of other rows."""
    x = g.any(FLOATS, lambda x: x.rank == 3 and x.has_rows() and min(map(min, x.dims)) > 0)
    heads, size = g.pick(1, 2), 8
    made = []
    for _ in range(3):
        rows = x if not g.chance(6) else g.any([x.kind], lambda y: y.dims == x.dims)
        w = g.weights(x.kind, x.dims[-1][0], heads * size, most=1 / math.sqrt(x.dims[-1][0]))
        y = product_of(g, rows, w)
        if g.chance(2):
            y = pair_of(g, "Add", y, g.weights(x.kind, heads * size))
        made.append(moved(g, "Reshape", y, [*x.dims[:2], *always(heads, size)], g.ints(0, 0, heads, size)))
    outer = [x.dims[0], always(heads)[0]]
    turned = lambda y, rows, perm: moved(g, "Transpose", y, outer + rows, perm=perm)
    q = turned(made[0], [x.dims[1], always(size)[0]], [0, 2, 1, 3])
    k = turned(made[1], [always(size)[0], x.dims[1]], [0, 2, 3, 1])
    v = turned(made[2], [x.dims[1], always(size)[0]], [0, 2, 1, 3])
    scores = pair_of(g, "Mul", product_of(g, q, k), g.scalar(x.kind, 0.25))
    weights = g.node("Softmax", [scores], x.kind, scores.dims, 1, 2, axis=-1)
    y = product_of(g, weights, v)
    moved(g, "Transpose", y, [x.dims[0], x.dims[1], outer[1], always(size)[0]], perm=[0, 2, 1, 3])
