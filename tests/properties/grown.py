"""A graph that Hypothesis draws node by node, with what is known of its values: their sizes in a few settings of the
dimensions, and how far rounding may lead them."""

import contextlib
import dataclasses
import math

import numpy as np
from hypothesis import strategies as st
from onnx import helper, numpy_helper

FLOATS = ("float32", "float16")
NUMBERS = (*FLOATS, "int64")
TYPES = {"float32": 1, "int64": 7, "bool": 9, "float16": 10, "float64": 11}
# What an operator's result may be off, of its magnitude: kernels and polynomials for exp and the like.
UNITS = {"float32": 2e-6, "float16": 2e-3, "float64": 1e-12}
MOST = {"float32": 64, "float16": 64, "float64": 64, "int64": 64}  # beyond it numbers are made smaller
MOST_ELEMENTS = 20000
SETTINGS = 3
CONTENTS = 3  # for each setting


class Unfit(Exception):
    """There is no value for what was to grow."""


@dataclasses.dataclass(eq=False)
class Value:
    name: str
    kind: str
    dims: tuple  # of each axis its size in each setting
    most: float  # no number is larger
    error: float = 0  # how far it may be off where sums have another order; infinite: anywhere
    held: tuple = None  # its numbers in each setting, if they follow from shapes

    rank = property(lambda self: len(self.dims))
    counts = property(lambda self: [math.prod(sizes) for sizes in zip(*self.dims)] or [1] * SETTINGS)

    def is_fixed(self, axis):
        return len(set(self.dims[axis])) == 1

    def has_rows(self):
        """Of a length that is known."""
        return self.rank > 0 and self.is_fixed(-1) and self.dims[-1][0] > 0


def always(*sizes):
    return tuple((size,) * SETTINGS for size in sizes)


def broadcast(a, b):
    rank = max(len(a), len(b))
    made = []
    for x, y in zip(*(always(*[1] * (rank - len(dims))) + tuple(dims) for dims in (a, b))):
        if any(i != j and 1 not in (i, j) for i, j in zip(x, y)):
            raise Unfit
        made.append(tuple(j if i == 1 else i for i, j in zip(x, y)))
    return tuple(made)


def reads(node):
    """The names of values that a node and its bodies read."""
    bodies = [attribute.g.node for attribute in node.attribute if attribute.HasField("g")]
    return set(node.input).union(*(reads(inner) for body in bodies for inner in body))


def times(a, b):
    return 0 if not a or not b else a * b


class Graph:
    def __init__(self, data, opset):
        self._data, self.opset = data, opset
        self.nodes, self.constants, self.values, self.inputs = [], [], [], []
        self.made = []  # calls of node(), which may be repeated
        self.may_loop = True
        self._count = 0
        self.rng = np.random.default_rng(self.number(0, 99))
        sizes = st.sampled_from([2, 3, 1, 5, 4, 8, 17] + [0] * self.chance(6))
        self.symbols = {name: tuple(self(sizes) for _ in range(SETTINGS)) for name in "nm"}

    # ---- what is drawn

    def __call__(self, strategy):
        return self._data.draw(strategy)

    def pick(self, *some):
        return self(st.sampled_from(some))

    def number(self, low, high):
        return self(st.integers(low, high))

    def chance(self, of):
        """Once in so many times."""
        return self.number(0, of - 1) == of - 1

    def any(self, kinds, fits=lambda value: True):
        found = [value for value in self.values if value.kind in kinds and fits(value)]
        if not found:
            raise Unfit
        by_name = {value.name: value for value in (found[-4:] if self.chance(2) else found)}
        return by_name[self.pick(*by_name)]

    def axis(self, x, fits=lambda axis: True):
        """One of the axes, from either end."""
        found = [axis for axis in range(x.rank) if fits(axis)]
        if not found:
            raise Unfit
        return self.pick(*found) - x.rank * self.number(0, 1)

    # ---- what it is made of

    def name(self, letter="v"):
        self._count += 1
        return f"{letter}{self._count}"

    def input(self, kind, *dims, held=None, most=2):
        sizes = tuple(self.symbols[dim] if isinstance(dim, str) else (dim,) * SETTINGS for dim in dims)
        value = Value(self.name("x"), kind, sizes, most, held=held)
        self.inputs.append((value, dims))
        self.values.append(value)
        return value

    def constant(self, array):
        """One that is there, if it is the same."""
        array = np.asarray(array)
        for value, other in self.constants:
            if other.dtype == array.dtype and np.array_equal(other, array) and not self.chance(3):
                return value
        most = float(np.abs(array.astype(np.float64)).max()) if array.size else 0
        held = (array,) * SETTINGS if array.dtype == np.int64 else None
        value = Value(self.name("c"), array.dtype.name, always(*array.shape), most, held=held)
        self.constants.append((value, array))
        return value

    def ints(self, *numbers):
        return self.constant(np.array(numbers, np.int64))

    def scalar(self, kind, number):
        return self.constant(np.array(number, kind))

    def weights(self, kind, *shape, most=1.0):
        """Often the same ones."""
        rng = np.random.default_rng(self.number(0, 1))
        return self.constant(rng.uniform(-most, most, shape).astype(kind))

    def node(self, op, inputs, kind, dims, most=1.0, slope=1.0, error=None, held=None, exact=False, domain="", **attrs):
        """The value that an operator makes of others. Their errors count `slope` times."""
        value = Value(self.name(), kind, tuple(map(tuple, dims)), most, held=held)
        if max(value.counts) > MOST_ELEMENTS:
            raise Unfit
        read = [x for x in inputs if x]
        value.error = sum(times(slope, x.error) for x in read) if error is None else error
        if kind in ("int64", "bool") and value.error:
            value.error = math.inf
        value.error += 0 if exact else UNITS.get(kind, 0) * most
        self.emit(op, inputs, [value], domain, attrs)
        if kind in NUMBERS and most > MOST[kind] and held is None:
            return self.smaller(value)
        return value

    def emit(self, op, inputs, outputs, domain="", attrs=None, repeatable=True):
        names = [x.name if x else "" for x in inputs]
        made = [y.name if y else "" for y in outputs]
        self.nodes.append(helper.make_node(op, names, made, f"{op} {self.name('')}", domain=domain, **(attrs or {})))
        self.values += [y for y in outputs if y]
        if repeatable:
            self.made.append((op, inputs, outputs, domain, attrs))

    def again(self):
        """A node twice, under another name."""
        if not self.made:
            raise Unfit
        op, inputs, outputs, domain, attrs = self.made[self.number(0, len(self.made) - 1)]
        self.emit(op, inputs, [y and dataclasses.replace(y, name=self.name()) for y in outputs], domain, attrs)

    def smaller(self, x):
        if x.kind == "int64":
            return self.node("Mod", [x, self.scalar(x.kind, MOST[x.kind])], x.kind, x.dims, MOST[x.kind])
        if self.chance(2):
            return self.node("Tanh", [x], x.kind, x.dims)
        by = 2.0 ** -math.ceil(math.log2(x.most))
        return self.node("Mul", [x, self.scalar(x.kind, by)], x.kind, x.dims, x.most * by, by)

    @contextlib.contextmanager
    def body(self):
        """Nodes go to another graph meanwhile, whose values are not seen outside."""
        kept = self.nodes, self.values, self.made
        self.nodes, self.values, self.made = [], list(self.values), []
        try:
            yield self.nodes
        finally:
            self.nodes, self.values, self.made = kept

    def end(self, value, dims=None):
        return helper.make_tensor_value_info(value.name, TYPES[value.kind], dims)

    # ---- the whole

    def outputs(self):
        """What nobody reads, mostly all of it, and some of what is read inside, too."""
        names = {value.name for value, _ in self.inputs}
        made = [value for value in self.values if value.name not in names]
        read = set().union(*map(reads, self.nodes))
        whole = not self.chance(4)  # or there are nodes for nothing
        some = self(st.lists(st.sampled_from(range(len(made))), unique=True, max_size=4))
        ends = [v for i, v in enumerate(made) if i in some or v is made[-1] or whole and v.name not in read]
        return (
            [*ends, self.constants[self.number(0, len(self.constants) - 1)][0]]
            if self.constants and self.chance(8)
            else ends
        )

    def model(self, outputs):
        inputs = [self.end(value, self.pick(dims, dims, [None] * len(dims))) for value, dims in self.inputs]
        # One that a caller may change is no constant. Before 1.30 onnxruntime's optimizer crashes where it is a half.
        changeable = [constant for constant in self.constants if constant[0].kind != "float16"]
        if changeable and self.chance(8):
            value, array = changeable[self.number(0, len(changeable) - 1)]
            inputs.append(self.end(value, array.shape))
        constants = [numpy_helper.from_array(array, value.name) for value, array in self.constants]
        graph = helper.make_graph(self.nodes, "grown", inputs, [self.end(value) for value in outputs], constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self, setting, seed):
        """With the last seed those of one form are alike."""
        rng, feeds = np.random.default_rng(seed), {}
        for value, _ in self.inputs:
            shape = [sizes[setting] for sizes in value.dims]
            if value.held:
                feeds[value.name] = value.held[setting]
            elif value.kind in FLOATS:
                feeds[value.name] = rng.uniform(-value.most, value.most, shape).astype(value.kind)
            else:
                feeds[value.name] = np.asarray(rng.integers(0, value.most + 1, shape)).astype(value.kind)
            if seed == CONTENTS - 1 and not value.held:
                forms = {(array.shape, array.dtype): array for array in reversed(feeds.values())}
                feeds[value.name] = forms[feeds[value.name].shape, feeds[value.name].dtype]
        return feeds
