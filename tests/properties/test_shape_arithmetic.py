"""What models compute of their own shapes, wanted as sizes and among data: one node, in graphs."""

import encore_session as es
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

pytestmark = pytest.mark.newest

PAIRS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum}
TESTS = ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]
ONE_TO_ONE = ["Neg", "Abs", "Identity"]
KINDS = [
    "pair",
    "pair",
    "divide",
    "where",
    "one",
    "root",
    "gather",
    "slice",
    "concat",
    "lift",
    "expand",
    "fill",
    "range",
]
KINDS += ["reduce", "logic"]
LARGEST = 50  # of the numbers, whichever they come from


class Growing:
    """Arithmetic that Hypothesis draws; `ranks` has the values, by name: 0 for scalars and 1 for vectors."""

    def __init__(self, data):
        self.data = data
        self.nodes, self.constants, self.ranks = [], [], {}

    def pick(self, label, some):
        return self.data.draw(st.sampled_from(sorted(some)), label)

    def constant(self, value, dtype=np.int64):
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, op, *inputs, **attrs):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attrs))
        return name

    def add(self, value, rank):
        """Not too far from zero, so that sums and products stay numbers that sizes may be made of."""
        value = self.node("Mod", value, self.constant(LARGEST))
        self.ranks[value] = rank

    def any(self, rank=None):
        return self.pick("of", [name for name, own in self.ranks.items() if rank is None or own == rank])

    def with_one(self, op, value, other):
        """A vector goes with a number of another, whatever their lengths."""
        if self.ranks[value] and self.ranks[other]:
            other = self.node("ReduceMax", other, keepdims=0)
        return self.node(op, value, other), max(self.ranks[value], self.ranks[other] if other in self.ranks else 0)

    def grow(self):
        kind, x = self.pick("kind", set(KINDS)), self.any()
        rank = self.ranks[x]
        if kind == "pair":
            self.add(*self.with_one(self.pick("op", PAIRS), x, self.any()))
        elif kind == "divide":
            op = self.pick("op", ["Div", "Mod"])
            self.add(self.node(op, x, self.constant(self.pick("by", [-3, 2, 7]))), rank)
        elif kind == "where":
            test, found = self.with_one(self.pick("test", TESTS), x, self.any())
            self.add(self.node("Where", test, self.constant(5), self.constant(-2)), found)
        elif kind == "logic":
            above, below = (self.node("Greater", x, self.constant(n)) for n in (1, 3))
            both = self.node(self.pick("op", ["And", "Or", "Xor"]), above, self.node("Not", below))
            self.add(self.node("Cast", both, to=7), rank)
        elif kind == "one":
            self.add(self.node(self.pick("op", ONE_TO_ONE), x), rank)
        elif kind == "root":
            real = self.node("Cast", self.node("Abs", x), to=self.pick("type", [1, 11]))
            self.add(self.node("Cast", self.node(self.pick("op", ["Sqrt", "Floor", "Ceil"]), real), to=7), rank)
        elif kind == "gather" and rank:
            at = self.pick("at", [0, -1])
            whole = self.pick("whole", [False, True])
            self.add(self.node("Gather", x, self.constant([at, 0] if whole else at)), int(whole))
        elif kind == "slice" and rank:
            first, last, step = self.pick("slice", [(0, 2, 1), (-1, -9, -1), (0, 99, 2)])
            self.add(self.node("Slice", x, *(self.constant([n]) for n in (first, last, 0, step))), 1)
        elif kind == "concat" and rank:
            self.add(self.node("Concat", x, self.any(1), self.constant([4]), axis=self.pick("axis", [0, -1])), 1)
        elif kind == "lift":
            self.add(
                self.node("Unsqueeze", x, self.constant([0])) if not rank else self.node("Tile", x, self.constant([2])),
                1,
            )
        elif kind == "expand" and not rank:
            self.add(self.node("Expand", x, self.constant([3])), 1)
        elif kind in ("fill", "range") and not rank:
            size = self.node("Min", self.node("Abs", x), self.constant(6))
            made = self.node("Range", self.constant(1), self.node("Add", size, self.constant(1)), self.constant(1))
            self.add(
                made if kind == "range" else self.node("Expand", x, self.node("Unsqueeze", size, self.constant([0]))), 1
            )
            # Others are never empty, so that there is a largest.
            self.add(self.node("Concat", self.constant([2]), list(self.ranks)[-1], axis=0), 1)
            del self.ranks[list(self.ranks)[-2]]
        elif kind == "reduce" and rank:
            self.add(self.node(self.pick("op", ["ReduceProd", "ReduceSum", "ReduceMin"]), x, keepdims=0), 0)

    def model(self, rank):
        outputs = []
        element = self.node("ReduceMax", "x", keepdims=0)
        for value in self.data.draw(st.lists(st.sampled_from(sorted(self.ranks)), unique=True, min_size=1, max_size=3)):
            flat = self.node("Reshape", value, self.constant([-1]))
            sizes = self.node("Mod", self.node("Slice", flat, self.constant([0]), self.constant([3])), self.constant(5))
            outputs.append(self.node("Expand", element, sizes))
            outputs.append(self.node("Add", self.node("Cast", value, to=1), element))
        ends = (
            [helper.make_tensor_value_info("x", 1, [f"d{i}" for i in range(rank)])],
            [helper.make_tensor_value_info(name, 1, None) for name in outputs],
        )
        graph = helper.make_graph(self.nodes, "test", *ends, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@given(st.data())
def test_arithmetic(data):
    it = Growing(data)
    shapes = data.draw(
        st.integers(1, 4).flatmap(lambda rank: st.lists(st.tuples(*[st.integers(1, 5)] * rank), min_size=2, max_size=2))
    )
    shape = it.node("Shape", "x")
    it.add(shape, 1)
    it.add(it.node("Gather", shape, it.constant(0)), 0)
    for _ in range(data.draw(st.integers(1, 10), "nodes")):
        it.grow()
    model = it.model(len(shapes[0]))
    cpu = es.on_cpu(model)
    session = es.make_session(model, enable_cuda_graph=1)
    es.assert_all_on_encore(session)
    for graph_id, dims in enumerate(shapes):
        feeds = {"x": np.arange(np.prod(dims), dtype=np.float32).reshape(dims)}
        wanted = cpu.run(None, feeds)
        ends = {o.name: (array.shape, array.dtype) for o, array in zip(session.get_outputs(), wanted, strict=True)}
        bound = es.Bound(session, feeds, ends)
        for _ in range(2):
            got = bound.run(feeds, graph_id=graph_id)
            for name, array in zip(ends, wanted, strict=True):
                np.testing.assert_array_equal(got[name], array)
            feeds = {"x": feeds["x"] + 1}
            wanted = cpu.run(None, feeds)
