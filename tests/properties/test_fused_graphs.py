"""Networks of convolutions and what may stand between and beside them, as one node and as many."""

import encore_session as es
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

pytestmark = pytest.mark.newest

UNARY = ["Relu", "Clip", "LeakyRelu", "HardSwish", "Sigmoid", "Neg", "Identity", "Tanh"]
KINDS = [
    "conv",
    "conv",
    "conv",
    "unary",
    "add",
    "gate",
    "pool",
    "constant",
    "concat",
    "mean",
    "resize",
    "outside",
    "pad",
]


class Growing:
    """A graph of pictures that Hypothesis draws node by node."""

    def __init__(self, data):
        self.data = data
        self.nodes, self.constants = [], []
        self.batch = self("n", st.integers(1, 3))
        self.pictures = {"x": (self("channels", st.integers(1, 8)), *self("size", st.tuples(*[st.integers(1, 9)] * 2)))}
        self.rng = np.random.default_rng(self("seed", st.integers(0, 99)))

    def __call__(self, label, strategy):
        return self.data.draw(strategy, label)

    def pick(self, label, *some):
        return self(label, st.sampled_from(some))

    def constant(self, array):
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def numbers(self, *shape):
        return self.constant(self.rng.integers(-1, 2, shape).astype(np.float32))

    def node(self, op, inputs, picture, **attrs):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attrs))
        if picture:
            self.pictures[name] = picture
        return name

    def any_picture(self):
        return self(f"input of {len(self.nodes)}", st.sampled_from(sorted(self.pictures)))

    def like(self, picture):
        return self("another", st.sampled_from([name for name, shape in self.pictures.items() if shape == picture]))

    def grow(self):
        x = self.any_picture()
        channels, height, width = self.pictures[x]
        kind = self.pick("kind", *KINDS)
        if kind == "conv":
            group = self.pick("group", 1, channels)
            out = channels if group > 1 else self("out", st.integers(1, 8))
            k, s = self.pick("kernel", 1, 3), self.pick("stride", 1, 2)
            inputs = [x, self.numbers(out, channels // group, k, k)]
            inputs += [self.numbers(out)] if self.pick("bias", True, False) else []
            shape = (out, (height - 1) // s + 1, (width - 1) // s + 1)
            self.node("Conv", inputs, shape, pads=[k // 2] * 4, strides=[s, s], group=group)
        elif kind == "unary":
            op = self.pick("op", *UNARY)
            limits = [self.constant(np.float32(value)) for value in (-1, 2)] if op == "Clip" else []
            self.node(op, [x, *limits], self.pictures[x])
        elif kind == "add":
            op = self.pick("op", "Add", "Mul", "Max", "Sub")
            self.node(op, [x, self.like(self.pictures[x])], self.pictures[x])
        elif kind == "gate":
            gate = self.node("GlobalMaxPool", [x], (channels, 1, 1))
            self.node("Mul", [x, gate], self.pictures[x])
        elif kind == "pool" and min(height, width) > 1:
            op = self.pick("op", "MaxPool", "AveragePool")
            self.node(op, [x], (channels, height // 2, width // 2), kernel_shape=[2, 2], strides=[2, 2])
        elif kind == "constant":
            shape = self.pick("shape", (channels, 1, 1), (height, width), (1, 1, height, 1), (1,), (width,))
            pair = [x, self.numbers(*shape)]
            self.node("Add", pair[:: self.pick("order", 1, -1)], self.pictures[x])
        elif kind == "concat" and channels <= 16:
            self.node(
                "Concat", [x, self.like(self.pictures[x])], (2 * channels, height, width), axis=self.pick("axis", 1, -3)
            )
        elif kind == "mean":
            self.node("ReduceMean", [x, self.constant(np.array([2, 3]))], (channels, 1, 1))
        elif kind == "resize" and height * width < 100:
            scales = self.constant(np.array([1, 1, 2, 1], np.float32))
            self.node("Resize", [x, "", scales], (channels, 2 * height, width), mode="nearest")
        elif kind == "outside":
            self.node("Softmax", [x], self.pictures[x], axis=self.pick("axis", 2, 3))
        elif kind == "pad":
            pads = self.constant(np.array([0, 0, 1, 0, 0, 0, 0, 2]))
            self.node("Pad", [x, pads], (channels, height + 1, width + 2))

    def model(self):
        made = [name for name in self.pictures if name != "x"]
        outputs = self("outputs", st.lists(st.sampled_from(made), unique=True, max_size=2)) if made else []
        if made and made[-1] not in outputs:
            outputs.append(made[-1])
        ends = [
            [helper.make_tensor_value_info(name, 1, ["n", *self.pictures[name]]) for name in names]
            for names in (["x"], outputs)
        ]
        graph = helper.make_graph(self.nodes, "test", *ends, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("layout", [{}, {"prefer_nhwc": 1}], ids=str)
@given(st.data())
def test_networks(layout, data):
    it = Growing(data)
    for _ in range(it("nodes", st.integers(2, 12))):
        it.grow()
    if len(it.pictures) == 1:
        return
    model = it.model()
    feeds = {"x": it.rng.integers(-2, 3, (it.batch, *it.pictures["x"])).astype(np.float32)}
    cpu = es.on_cpu(model)
    # The same numbers in one order or another: networks of these are steep, and TF32 would not agree with anything.
    session = es.make_session(model, use_tf32=1, deterministic=1, **layout)
    for got, wanted in zip(session.run(None, feeds), cpu.run(None, feeds), strict=True):
        assert got.shape == wanted.shape
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(got, wanted, rtol=0.02, atol=0.02 * scale)
