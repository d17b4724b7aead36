"""Writes nodes as an ONNX model that onnxruntime takes."""

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
from element_types import NUMPY, WITHOUT_ARRAYS, onnx_type
from element_types import wide as widened
from onnx import AttributeProto, helper

FEED, CONSTANT, MADE = "feed", "constant", "made"


@dataclasses.dataclass(eq=False)
class Value:
    name: str
    type: str
    array: np.ndarray  # in the type's carrier
    origin: str
    fixed: bool = False  # says how, not what: shapes and axes stay when contents change
    tame: bool = False  # a number so large that it takes forever is never put here
    dims: list | None = None  # as the model declares a feed; None for not even a rank


@dataclasses.dataclass(eq=False)
class Node:
    op: str
    domain: str
    name: str
    inputs: list  # of Values, or None for an absent one
    attrs: dict  # a callable makes a graph of its argument, a function from type to type
    outputs: list  # of Values, or None for an unwanted one
    captured: list = dataclasses.field(default_factory=list)  # Values of outside that bodies use
    follow: list = dataclasses.field(default_factory=list)  # outputs of the type of the input `like`
    like: int = 0

    def settle_types(self):
        if self.like < len(self.inputs) and self.inputs[self.like] is not None:
            for value in self.follow:
                value.type = self.inputs[self.like].type

    def reads(self):
        seen = {value.name: value for value in [*self.inputs, *self.captured] if value is not None}
        return list(seen.values())

    def makes(self):
        return [value for value in self.outputs if value is not None]

    def with_every_output(self):
        """The same with all outputs wanted: a Split of which nobody wants one, the CPU EP does not survive."""
        if self.op != "Split" or not self.inputs or self.inputs[0] is None:
            return self
        unwanted = lambda i: Value(f"{self.name}_unwanted{i}", self.inputs[0].type, None, MADE)
        outputs = [value if value is not None else unwanted(i) for i, value in enumerate(self.outputs)]
        return dataclasses.replace(self, outputs=outputs)


def write(nodes, outputs, opset, wide=False, numbers_fed=False):
    """The model's bytes, and the names of its outputs: of Values, which may also be feeds or constants.

    What no node makes is fed, unless it is a constant. `wide`: every half becomes a float. `numbers_fed`: so are the
    constants to compute with.
    """
    as_type = widened if wide else lambda name: name
    written = _Writer(as_type, numbers_fed)
    for node in nodes:
        for value in node.reads():
            written.add_source(value)
        written.add_node(node)
    names = [written.add_output(value) for value in outputs]
    graph = helper.make_graph(written.nodes, "fuzz", written.feeds, written.results, written.constants)
    newest = any(node.op == "TreeEnsemble" for node in nodes)  # which replaces others there
    domains = {"": opset, "com.microsoft": 1, "ai.onnx.ml": 5 if newest else 4}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), names


class _Writer:
    def __init__(self, as_type, numbers_fed):
        self.as_type, self.numbers_fed = as_type, numbers_fed
        self.nodes, self.feeds, self.constants, self.results = [], [], [], []
        self.known = set()

    def add_source(self, value):
        if value.name in self.known:
            return
        self.known.add(value.name)
        kind = self.as_type(value.type)
        if value.origin == CONSTANT and not (self.numbers_fed and not value.fixed):
            self.constants.append(onnx.numpy_helper.from_array(value.array.astype(NUMPY[kind]), value.name))
        elif kind in WITHOUT_ARRAYS:
            self.feeds.append(helper.make_tensor_value_info(f"{value.name}_fed", onnx_type("float"), value.dims))
            self._cast(f"{value.name}_fed", value.name, kind)
        else:
            self.feeds.append(helper.make_tensor_value_info(value.name, onnx_type(kind), value.dims))

    def add_node(self, node):
        for value in node.makes():
            self.known.add(value.name)
        inputs = [value.name if value is not None else "" for value in node.inputs]
        outputs = [value.name if value is not None else "" for value in node.outputs]
        made = helper.make_node(node.op, inputs, outputs, name=node.name, domain=node.domain)
        for key, given in node.attrs.items():
            value = given(self.as_type) if isinstance(given, Callable) else given
            kind = AttributeProto.INTS if value == [] else None
            made.attribute.append(helper.make_attribute(key, value, attr_type=kind))
        self.nodes.append(made)

    def add_output(self, value):
        kind, name = self.as_type(value.type), value.name
        if kind in WITHOUT_ARRAYS:
            name = f"{value.name}_out"
            self._cast(value.name, name, "float")
        # What a node makes onnxruntime types itself; of a feed or constant it wants to be told.
        told = value.origin != MADE and kind not in WITHOUT_ARRAYS
        self.results.append(
            helper.make_tensor_value_info(name, onnx_type(kind), None)
            if told
            else helper.make_empty_tensor_value_info(name)
        )
        return name

    def _cast(self, source, target, kind):
        as_it_is = {"saturate": 0} if kind.startswith("float8") else {}  # what is infinite stays so
        to = onnx_type(kind)
        self.nodes.append(helper.make_node("Cast", [source], [target], name=f"to_{target}", to=to, **as_it_is))
