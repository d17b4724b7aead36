"""Random elementwise graphs as one kernel, to the bit what they are node by node: eager, captured and replayed."""

import encore_session as es
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.newest  # what programs compute depends on no onnxruntime

FLOATS = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
}
INTEGERS = {
    TensorProto.INT64: np.int64,
    TensorProto.INT32: np.int32,
}
NUMBERS = FLOATS | INTEGERS
UNARY = ["Abs", "Neg", "Sign", "Exp", "Sqrt", "Reciprocal", "Erf", "Ceil", "Floor", "Round", "Relu", "LeakyRelu"]
UNARY += ["Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Tanh", "Mish", "Gelu"]
BINARY = ["Add", "Sub", "Mul", "Div", "Min", "Max", "Pow"]
OF_INTEGERS = ["Add", "Sub", "Mul", "Min", "Max"]
COMPARED = ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]
LOGIC = ["And", "Or", "Xor"]
# Shapes that are broadcast to one, among them those that fill no packs and lie otherwise in each dimension.
SPACES = [
    ([8], [[8], [1], []]),
    ([3, 64], [[3, 64], [64], [3, 1], [1, 1], []]),
    ([5, 7], [[5, 7], [7], [5, 1]]),
    ([2, 3, 4, 8], [[2, 3, 4, 8], [3, 1, 8], [2, 1, 4, 1], [4, 8], [1, 3, 1, 1]]),
    ([2, 3, 2, 3, 2], [[2, 3, 2, 3, 2], [2, 1, 2, 1, 2], [3, 1, 3, 1], [2]]),
    ([0, 4], [[0, 4], [4]]),
    ([1 << 15, 12], [[1 << 15, 12], [12]]),
]


@st.composite
def graphs(draw):
    """Nodes, inputs by type and shape, outputs, and constants; all values are floats, int32, int64 or bools."""
    space, shapes = draw(st.sampled_from(SPACES))
    inputs, kinds = {}, draw(st.sampled_from([list(FLOATS), list(INTEGERS), list(NUMBERS)]))
    for i in range(draw(st.integers(1, 5))):
        shape = space if i == 0 else draw(st.sampled_from(shapes))
        inputs[f"x{i}"] = (draw(st.sampled_from(kinds)), shape)
    types = {name: form[0] for name, form in inputs.items()}
    # Only what has the whole shape may go out. Parts of it are not read but by what puts them together.
    whole, cut, nodes, constants = {"x0"}, set(), [], []

    def one_of(kind, among=None):
        found = [
            name for name, of in types.items() if of == kind and name not in cut and (among is None or name in among)
        ]
        return draw(st.sampled_from(found)) if found else None

    def add(op, reads, kind, **attributes):
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, reads, [name], f"node{len(nodes)}", **attributes))
        types[name] = kind
        if any(read in whole for read in reads):
            whole.add(name)

    def roll(x, axis, shift, negative):
        """Two parts, mostly the other way round, of which one may be negated."""
        places = [numpy_helper.from_array(np.array([at]), f"at{len(constants)}_{at}") for at in (0, shift, space[axis])]
        axes = numpy_helper.from_array(np.array([axis - len(space)]), f"axes{len(constants)}")
        constants.extend([*places, axes])
        begin, border, end = (place.name for place in places)
        parts = []
        for first, last in ((border, end), (begin, border)):
            add("Slice", [x, first, last, axes.name], types[x])
            parts.append(nodes[-1].output[0])
        if negative < 2:
            add("Neg", [parts[negative]], types[x])
            parts[negative] = nodes[-1].output[0]
        cut.update(node.output[0] for node in nodes[-3 if negative < 2 else -2 :])
        if draw(st.integers(0, 2)) == 0:
            parts.reverse()
        add("Concat", parts, types[x], axis=axis)
        whole.add(nodes[-1].output[0])

    for _ in range(draw(st.integers(2, 24))):
        kind = draw(st.sampled_from(kinds))
        is_integer = kind in INTEGERS
        a, b, c = one_of(kind), one_of(kind), one_of(TensorProto.BOOL)
        way = draw(st.integers(0, 9))
        if a is None:
            add("Cast", [one_of(next(t for t in types.values()))], kind, to=kind)
        elif way <= 1:
            add(draw(st.sampled_from(["Abs", "Neg", "Sign"] if is_integer else UNARY)), [a], kind)
        elif way <= 4:
            add(draw(st.sampled_from(OF_INTEGERS if is_integer else BINARY)), [a, b], kind)
        elif way == 5 and is_integer:
            number = draw(st.sampled_from([1, -1, 7, -3, 2**31 - 1, -(2**31), 2**40 + 1, -(2**63)]))
            number = np.full([1] * draw(st.integers(0, len(space))), number).astype(INTEGERS[kind])
            constants.append(numpy_helper.from_array(number, f"c{len(constants)}"))
            if draw(st.booleans()) and number.any():
                op = draw(st.sampled_from(["Div", "Mod"]))
                add(op, [a, constants[-1].name], kind, **({"fmod": draw(st.integers(0, 1))} if op == "Mod" else {}))
            else:
                add(
                    draw(st.sampled_from(OF_INTEGERS)), [a, constants[-1].name][:: draw(st.sampled_from([1, -1]))], kind
                )
        elif way == 5:
            number = np.full([1] * draw(st.integers(0, len(space))), draw(st.sampled_from([0.5, -2.0, 3.0, -np.inf])))
            constants.append(numpy_helper.from_array(number.astype(FLOATS[kind]), f"c{len(constants)}"))
            reads = [a, constants[-1].name]
            add(draw(st.sampled_from(BINARY)), reads[:: draw(st.sampled_from([1, -1]))], kind)
        elif way == 9:
            x, axes = one_of(kind, whole), [axis for axis, size in enumerate(space) if size > 1]
            if x and axes:
                axis = draw(st.sampled_from(axes))
                roll(x, axis, draw(st.integers(1, space[axis] - 1)), draw(st.integers(0, 3)))
        elif way == 6:
            to = draw(st.sampled_from([*kinds, TensorProto.BOOL]))
            add("Cast", [a], to, to=to)
        elif way == 7 or c is None:
            add(draw(st.sampled_from(COMPARED)), [a, b], TensorProto.BOOL)
        elif draw(st.booleans()):
            add("Where", [c, a, b], kind)
        else:
            add(draw(st.sampled_from(LOGIC)), [c, one_of(TensorProto.BOOL)], TensorProto.BOOL)
    made = [node.output[0] for node in nodes if node.output[0] in whole - cut]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True)) if made else []
    return nodes, inputs, {name: (types[name], space) for name in outputs}, constants


def feeds(inputs, seed):
    random = np.random.default_rng(seed)
    made = {}
    for name, (kind, shape) in inputs.items():
        if kind in INTEGERS:
            limits = np.iinfo(INTEGERS[kind])
            edges = [limits.min, limits.min + 1, -1, 0, 1, 1 << 24, (1 << 24) + 1, limits.max - 1, limits.max]
            wide = random.integers(limits.min, limits.max, shape, INTEGERS[kind], endpoint=True)
            some = np.where(random.random(shape) < 0.3, random.choice(np.array(edges, INTEGERS[kind]), shape), wide)
            values = np.where(seed == 0, random.integers(-9, 9, shape, INTEGERS[kind]), some)
        else:
            with np.errstate(over="ignore"):
                values = np.asarray(random.standard_normal(shape) * 10.0 ** (3 * seed * seed)).astype(FLOATS[kind])
            if values.size > 4 and seed:
                values.reshape(-1)[:4] = [np.nan, np.inf, -np.inf, -0.0]
        made[name] = values
    return made


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype != bool)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_the_same_to_the_bit(graph):
    nodes, inputs, outputs, constants = graph
    if not outputs:
        return
    info = lambda forms: [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in forms.items()]
    made = helper.make_graph(nodes, "random", info(inputs), info(outputs), constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    apart = es.make_session(model, regions=0, auto_graph=0)
    joined = es.make_session(model, regions=1, auto_graph=1)
    for seed in (0, 1, 2, 3):
        fed = feeds(inputs, seed)
        for one, other in zip(apart.run(None, fed), joined.run(None, fed), strict=True):
            assert same(one, other), (seed, one, other)
