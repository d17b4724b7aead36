"""What stays between regions, as others run it or its size depends on data."""

import math

import numpy as np
from onnx import helper

from properties.grow_numbers import PAIRS, fits_into, pair_of, product_of, unary_of
from properties.grown import FLOATS, NUMBERS, TYPES, Unfit, Value, always, broadcast
from properties.kinds import kind


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
            x = pair_of(g, g.pick(*PAIRS), x, g.any([x.kind], fits_into(x)))
        elif way == "softmax" and x.rank:
            x = g.node("Softmax", [x], x.kind, x.dims, 1, 2, axis=-1)
        elif way == "product" and x.rank > 1 and x.has_rows():
            width = x.dims[-1][0]
            x = product_of(g, x, g.weights(x.kind, width, width, most=1 / width))
        else:
            x = unary_of(g, x)
    return x


def condition(g, x):
    if x.rank and not g.chance(2):
        return condition_of_sizes(g, x)
    found = [value for value in g.values if value.kind == "bool" and not value.rank]
    if found and not g.chance(3):
        return g.pick(*found)
    if not x.rank or min(map(min, x.dims)) == 0:
        raise Unfit
    total = g.node("ReduceMax", [x], x.kind, (), x.most, exact=True, keepdims=0)
    return g.node("Greater", [total, g.scalar(x.kind, 0.5)], "bool", ())


def condition_of_sizes(g, x):
    """Which regions choose a branch by, on the host."""
    axis = g.number(0, x.rank - 1)
    shape = g.node("Shape", [x], "int64", always(x.rank), max(map(max, x.dims)), error=0)
    size = g.node("Gather", [shape, g.scalar("int64", axis)], "int64", (), shape.most, error=0)
    return g.node(g.pick("Equal", "Less"), [size, g.scalar("int64", g.pick(*x.dims[axis]))], "bool", (), error=0)


@kind(2)
def choice(g):
    choice_of(g, g.any(FLOATS))


@kind(1)
def scan(g):
    """Along the first dimension, which has to have elements, and with a state that is one of them."""
    x = g.any(FLOATS, lambda x: x.rank > 0 and min(x.dims[0]) > 0)
    row = Value(g.name(), x.kind, x.dims[1:], x.most, x.error)
    state = Value(g.name(), x.kind, x.dims[1:], 1, math.inf)
    with g.body() as nodes:
        g.values += [row, state]
        made = g.node("Tanh", [pair_of(g, "Add", chain(g, row), state)], x.kind, row.dims)
        kept = g.node("Neg", [made], x.kind, row.dims)
    first = g.node("ReduceMean", [x, g.ints(0)], x.kind, row.dims, x.most, keepdims=0)
    outputs = [Value(g.name(), x.kind, dims, 1, math.inf) for dims in (row.dims, x.dims)]
    shape = [None] * row.rank  # onnxruntime wants the rank
    ends = [[g.end(value, shape) for value in values] for values in ((state, row), (made, kept))]
    body = helper.make_graph(nodes, g.name("body"), *ends)
    backwards = {"scan_input_directions": [1]} if g.chance(2) else {}
    g.emit("Scan", [first, x], outputs, attrs={"body": body, "num_scan_inputs": 1, **backwards}, repeatable=False)


def choice_of(g, x):
    c = condition(g, x)
    bodies, ends = {}, []
    for branch in ("then_branch", "else_branch"):
        with g.body() as nodes:
            end = chain(g, x)
            if g.may_loop and g.chance(4):
                end = loop_of(g, end)
            ends.append(end)
        bodies[branch] = helper.make_graph(nodes, g.name("body"), [], [g.end(ends[-1])])
    error = math.inf if c.error else max(end.error for end in ends)
    value = Value(g.name(), x.kind, x.dims, max(end.most for end in ends), error)
    g.emit("If", [c], [value], attrs=bodies, repeatable=False)
    return value


@kind(1)
def loop(g):
    loop_of(g, g.any(FLOATS))


def loop_of(g, x):
    """A state goes round, and what each iteration makes may be kept."""
    times = g.number(0, 3)
    counts = [value for value in g.values if value.kind == "int64" and not value.rank and value.most <= 4]
    count = g.pick(*counts) if counts and g.chance(2) else None
    number, go = Value(g.name(), "int64", (), 4), Value(g.name(), "bool", (), 1)
    state = Value(g.name(), x.kind, x.dims, max(1, x.most), math.inf)
    flags = [value for value in g.values if value.kind == "bool" and not value.rank]
    with g.body() as nodes:
        g.values += [number, state]
        made = chain(g, state)
        if g.chance(2):
            real = g.node("Cast", [number], x.kind, (), 4, error=math.inf, to=TYPES[x.kind])
            made = pair_of(g, "Add", made, real)
        if g.chance(3):
            # No loop in a loop: onnxruntime 1.30 to 1.32 may crash while it makes a session of such.
            g.may_loop = False
            try:
                made = choice_of(g, made)
            finally:
                g.may_loop = True
        made = g.node("Tanh", [made], x.kind, x.dims)
        if g.chance(2):
            on = g.node("Identity", [go], "bool", ())
        elif flags and g.chance(2):  # data, as a rule
            on = g.node("And", [go, g.pick(*flags)], "bool", ())
        else:
            on = g.node("Less", [number, g.scalar("int64", 5)], "bool", ())
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
    return outputs[0]
