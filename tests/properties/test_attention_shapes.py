"""Attention behind Reshapes whose dimensions are asked of whatever tensors: what looks like a view is one."""

import encore_session as es
import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi

pytestmark = pytest.mark.newest

HEADS, SIZE = 2, 8
WIDTH = HEADS * SIZE
HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


class Growing:
    """A model that Hypothesis draws, for halves and for float. `dims` has what dimensions are in the first run."""

    def __init__(self, data, sizes):
        self.data = data
        self.nodes, self.constants, self.dims = [], [], {}
        self.sizes = sizes

    def pick(self, label, *some):
        return self.data.draw(st.sampled_from(some), label)

    def constant(self, value, dtype=np.int64):
        name = f"k{len(self.constants)}"
        self.constants.append((name, np.asarray(value, dtype)))
        return name

    def node(self, op, inputs, dims=None, output=None, **attrs):
        name = output or f"v{len(self.nodes)}"
        self.nodes.append((op, inputs, name, attrs))
        if dims:
            self.dims[name] = tuple(dims)
        return name

    def input(self, name, *dims):
        return self.node("Cast", [name], [*(self.sizes[dim] for dim in dims), WIDTH], to="kind")

    def dim(self, wanted, at, x):
        """Something that is this number in the first run."""
        asked = [(name, axis) for name, dims in self.dims.items() for axis, dim in enumerate(dims) if dim == wanted]
        how = self.pick(f"dimension {at}", "number", "kept", "asked", "asked", "asked")
        if how == "kept" and at < len(self.dims[x]) and self.dims[x][at] == wanted:
            return self.constant([0])
        if how != "asked" or not asked:
            return self.constant([wanted])
        name, axis = self.pick("of", *asked)
        return self.node(
            "Unsqueeze", [self.node("Gather", [self.node("Shape", [name]), self.constant(axis)]), self.constant([0])]
        )

    def reshaped(self, x, dims):
        parts = [self.dim(dim, at, x) for at, dim in enumerate(dims)]
        if self.pick("open", True, False):
            parts[self.pick("where", *range(len(dims)))] = self.constant([-1])
        return self.node("Reshape", [x, self.node("Concat", parts, axis=0)], dims)

    def heads(self, x, keys):
        batch, rows, _ = self.dims[x]
        seed = len(self.constants)
        weights = np.random.default_rng(seed).uniform(-0.3, 0.3, (WIDTH, WIDTH))
        for step in self.data.draw(
            st.lists(st.sampled_from(["product", "bias", "Relu", "scale"]), max_size=3), label="steps"
        ):
            if step == "product":
                x = self.node("MatMul", [x, self.constant(weights, float)], self.dims[x])
            elif step == "Relu":
                x = self.node("Relu", [x], self.dims[x])
            else:
                with_one = [x, self.constant(weights[0] if step == "bias" else 0.5, float)]
                x = self.node("Add" if step == "bias" else "Mul", with_one, self.dims[x])
        x = self.reshaped(x, (batch, rows, HEADS, SIZE))
        if keys:
            return self.node("Transpose", [x], (batch, HEADS, SIZE, rows), perm=[0, 2, 3, 1])
        return self.node("Transpose", [x], (batch, HEADS, rows, SIZE), perm=[0, 2, 1, 3])

    def model(self, kind, inputs):
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        made = [
            helper.make_node(op, ends, [out], out, **{k: kind if v == "kind" else v for k, v in attrs.items()})
            for op, ends, out, attrs in self.nodes
        ]
        constants = [
            numpy_helper.from_array(value.astype(dtype) if value.dtype == float else value, name)
            for name, value in self.constants
        ]
        ends = (
            [helper.make_tensor_value_info(name, FLOAT, [*dims, WIDTH]) for name, dims in inputs.items()],
            [helper.make_tensor_value_info("y", FLOAT, None)],
        )
        graph = helper.make_graph(made, "test", *ends, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def quiet():
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def on_cpu(session, feeds):
    """What the model gives, or nothing if it fails with these shapes."""
    try:
        return session.run(None, feeds)[0]
    except Exception:  # noqa: BLE001
        return None


@given(st.data())
def test_heads(data):
    inputs = {"x": ("b", "s"), "z": ("p", "r")}
    batch, rows = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 4)), label="sizes")
    it = Growing(data, {"b": batch, "s": rows, "p": batch, "r": data.draw(st.sampled_from([rows, 2, 5]), label="keys")})
    of = {name: it.input(name, *dims) for name, dims in inputs.items()}
    q = it.heads(of["x"], keys=False)
    other = of[it.pick("keys and values of", "x", "z")]
    k, v = it.heads(other, keys=True), it.heads(other, keys=False)
    _, _, queries, _ = it.dims[q]
    scores = it.node("MatMul", [q, k], (batch, HEADS, queries, it.dims[k][3]))
    p = it.node("Softmax", [it.node("Mul", [scores, it.constant(0.5, float)])], axis=-1)
    y = it.node("MatMul", [p, v], (batch, HEADS, queries, SIZE))
    if it.pick("same", True, False):
        y = it.reshaped(y, (batch, HEADS, queries, SIZE))
    y = it.node("Transpose", [y], (batch, queries, HEADS, SIZE), perm=[0, 2, 1, 3])
    y = it.reshaped(y, (batch, queries, WIDTH))
    graphs = es.HAS_GRAPHS and it.pick("graphs", True, False)
    if graphs:  # and something that is computed of shapes, so that the model is one node
        size = it.node("Gather", [it.node("Shape", ["x"]), it.constant([1])])
        y = it.node("Mul", [y, it.node("Cast", [size], to="kind")])
    it.node("Cast", [y], output="y", to=FLOAT)
    try:
        cpu = es.on_cpu(it.model(FLOAT, inputs), quiet())
    except capi.Fail:  # onnxruntime takes some dimensions that it cannot tell for zero
        reject()
    session = es.make_session(it.model(HALF, inputs), quiet(), **({"enable_cuda_graph": 1} if graphs else {}))
    first = dict(it.sizes)
    # Dimensions that were the same numbers are others now.
    for sizes in (first, {"b": 2, "s": 3, "p": 2, "r": 4}, {"b": 1, "s": 4, "p": 1, "r": 2}):
        rng = np.random.default_rng(sizes["s"])
        feeds = {
            name: rng.uniform(-1, 1, (*(sizes[dim] for dim in dims), WIDTH)).astype(np.float16).astype(np.float32)
            for name, dims in inputs.items()
        }
        wanted = on_cpu(cpu, feeds)
        if wanted is None:
            assert sizes != first
            continue
        (got,) = session.run(None, feeds, es.run_options(es.EAGER) if graphs else None)
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=0, atol=6e-3 * max(1e-3, np.abs(wanted).max()))
