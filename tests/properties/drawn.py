"""A node as Hypothesis draws it, tried as the fuzzer tries its own: eagerly and captured, with its tolerances and what
it accepts."""

import numpy as np
from compose import NEWEST_OPSET, ROWS, case_of, row_of
from draw import Draw
from hypothesis import strategies as st
from reference import Computed
from sketch import Sketch
from trial import try_case
from written_model import FEED

SIZES = st.sampled_from([1, 2, 3, 0, 4, 5, 8, 17, 33])  # the first are what a failure shrinks to
MOST_ELEMENTS = 4096


class Drawn:
    """What a test draws for one node of `op`."""

    def __init__(self, data, op, since=1):
        self._data = data
        opsets = [opset for opset in range(since, NEWEST_OPSET + 1) if row_of(("", op), opset)]
        assert opsets, f"{op} is not in {sorted(ROWS)}"
        opset = self(st.sampled_from(opsets[::-1]))
        self.sketch = Sketch(Draw(self(st.integers(0, 9999))), opset, alone=True)  # draws contents and ways to run
        self.sketch.domain, self.sketch.op, self.sketch.row = "", op, row_of(("", op), opset)

    @property
    def opset(self):
        return self.sketch.opset

    def __call__(self, strategy):
        return self._data.draw(strategy)

    def pick(self, *some):
        return self(st.sampled_from(some))

    def maybe(self, *some):
        return self.pick(None, *some)

    def shape(self, low=0, high=5):
        shape = self(st.lists(SIZES, min_size=low, max_size=high))
        while np.prod(shape) > MOST_ELEMENTS:
            shape[int(np.argmax(shape))] //= 2
        return shape

    def operand_of(self, shape):
        """A shape that broadcasts to this one."""
        ones = self(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
        return [1 if one else size for one, size in zip(ones, shape)][self(st.integers(0, len(shape))) :]

    def axis(self, rank):
        """Mostly one that there is."""
        return self(st.integers(-rank, max(0, rank - 1)) | st.integers(-rank - 1, rank))

    def axes(self, rank):
        """Distinct ones, counted from either end."""
        if not rank:
            return []
        kept = self(st.lists(st.integers(0, rank - 1), unique=True, max_size=rank))
        return [axis - rank * self.pick(0, 1) for axis in kept]

    def numbers(self, low, high, count):
        return self(st.lists(st.integers(low, high), min_size=count, max_size=count))

    # ---- inputs of the node

    def type(self, index=0):
        return self.pick(*self.sketch.types(index))

    def tensor(self, kind, shape, mild=False):
        """Of the fuzzer's contents; `mild`: of a few units."""
        return self.sketch.new(self.sketch.draw.contents(kind, shape, mild), kind, constant=0.2)

    def tensor_of(self, array, kind, fixed=False):
        """`fixed`: replays get no other contents."""
        return self.sketch.new(np.asarray(array), kind, constant=0.3, fixed=fixed)

    def told(self, values, kind="int64"):
        """What says how: axes, pads, sizes; mostly a constant of the model."""
        return self.sketch.fixed(np.array(values, np.float64 if kind == "float" else np.int64), kind)

    # ---- the node

    def agrees(self, *inputs, reference=None, **more):
        """The node, of inputs and attributes as Sketch.node() takes them, gives the same on both, or is refused by
        both. `reference` computes the outputs where the CPU EP is not to be asked."""
        node = self.sketch.node(*inputs, **more)
        if reference:
            inputs[0].origin = FEED  # or onnxruntime asks the CPU EP, to fold the node
        case = case_of(self.sketch, node, reference and Computed(node, reference))
        outcome = try_case(case)
        assert outcome.finding is None, outcome.finding
        assert outcome.nodes_on_encore == outcome.nodes, f"not all on Encore: {case}"
