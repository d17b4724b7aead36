"""A case in the making: what an operator's proposal draws its values from."""

import functools

import numpy as np
import onnx
from element_types import FLOATS, WITHOUT_ARRAYS, rounded
from written_model import CONSTANT, FEED, MADE, Node, Value


@functools.cache
def _in_onnx(op, opset, index):
    """The types that ONNX's operator takes there, if there is one."""
    try:
        inputs = onnx.defs.get_schema(op, opset, "").inputs
    except onnx.defs.SchemaError:
        return None
    kinds = inputs[min(index, len(inputs) - 1)].types if inputs else []
    return {kind.removeprefix("tensor(").removesuffix(")") for kind in kinds}


class Sketch:
    """Values and nodes so far. `op` and `row` are those of the node that is proposed now."""

    def __init__(self, draw, opset, alone):
        self.draw = draw
        self.opset = opset
        self.alone = alone  # a single node: nothing to be had from earlier ones
        self.values = []
        self.nodes = []
        self.op = self.domain = self.row = None
        self._count = 0

    # ---- values

    def types(self, index=0):
        """What the row takes there, and ONNX's operator in this opset. What is fed through a Cast needs one of it."""
        known = None if self.domain else _in_onnx(self.op, self.opset, index)
        fed = lambda name: name not in WITHOUT_ARRAYS or self.opset >= (19 if name.startswith("float8") else 13)
        names = self.row.types(index)
        return [name for name in names if fed(name) and (known is None or name in known)] or names

    def data(self, types=None, low=0, high=9, shape=None, mild=False):
        """A value to compute with: one that is here, or a new one. Its type is one that the row allows for input 0."""
        types = types or self.types()
        fits = [
            value
            for value in self.values
            if value.type in types
            and not value.fixed
            and (low <= value.array.ndim <= high if shape is None else list(value.array.shape) == list(shape))
        ]
        if fits and self.draw.chance(0.8):
            return self.draw.pick(fits[-4:])
        common = [name for name in types if name in FLOATS]
        name = self.draw.pick(common if common and self.draw.chance(0.5) else types)
        shape = self.draw.shape(low, high) if shape is None else shape
        return self.new(self.draw.contents(name, shape, mild), name, constant=0.3)

    def like(self, value, shape, mild=False):
        """Another of the same type."""
        return self.data([value.type], shape=shape, mild=mild)

    def partner(self, value):
        return self.like(value, self.draw.partner(list(value.array.shape)))

    def new(self, array, name, constant=0.0, fixed=False, tame=False):
        self._count += 1
        origin = CONSTANT if self.draw.chance(constant) else FEED
        array = rounded(array, name)
        if origin == FEED and name.startswith("float8"):  # fed as floats, of which a Cast makes nothing infinite
            array = np.where(np.isinf(array), np.float32(1), array)
        value = Value(f"v{self._count}", name, array, origin, fixed, tame, dims=self._declared(array.shape))
        self.values.append(value)
        return value

    def fixed(self, values, name="int64", constant=0.85, tame=False):
        """What says how: a shape, axes, pads; mostly a constant of the model."""
        return self.new(values, name, constant, fixed=True, tame=tame)

    def _declared(self, shape):
        way = self.draw.random.random()
        if way < 0.45:
            return list(shape)
        return [f"d{self._count}_{i}" for i in range(len(shape))] if way < 0.85 else None

    # ---- nodes

    def node(self, *inputs, types=None, like=0, wanted=1, captured=(), **attrs):
        """The proposed node. `types` are its outputs', where they are not that of the input `like`; `wanted` of them
        are, or those for which it says True."""
        inputs = list(inputs)
        while inputs and inputs[-1] is None:
            inputs.pop()
        wanted = [True] * wanted if isinstance(wanted, int) else wanted
        types = types or [None] * len(wanted)
        attrs = {key: value for key, value in attrs.items() if value is not None}
        outputs = []
        for kind, want in zip(types, wanted):
            self._count += 1
            outputs.append(Value(f"v{self._count}", kind, None, MADE) if want else None)
        follow = [value for value in outputs if value is not None and value.type is None]
        name = f"{self.op}_{len(self.nodes)}"
        node = Node(self.op, self.domain, name, inputs, attrs, outputs, list(captured), follow, like)
        node.settle_types()
        return node

    def maybe(self, probability, make):
        """make() or, else, None: for what may be absent."""
        return make() if self.draw.chance(probability) else None
