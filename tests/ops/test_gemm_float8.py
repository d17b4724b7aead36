"""GemmFloat8, which the CPU EP does not have, against double: where the device's products of narrow floats take the
problem, and where they don't."""

import ml_dtypes
import numpy as np
import pytest
from encore_session import (
    assert_all_on_encore,
    needs_graphs,
    on_device,
    on_virtual_gpu,
    only_if,
    run_options,
    trace,
)
from harness import floats, session
from onnx import TensorProto, helper
from refusal import declined, fails

MICROSOFT = "com.microsoft"
NUMPY = {
    "float": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e5m2": ml_dtypes.float8_e5m2,
}
ONNX = {
    "float": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float8e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8e5m2": TensorProto.FLOAT8E5M2,
}
# Of the result's magnitude: one rounding to its type.
UNIT = {"float": 3e-6, "float16": 1e-3, "bfloat16": 8e-3, "float8e4m3fn": 0.0625, "float8e5m2": 0.125}
# Of all magnitudes that are added up: float's rounding; Hopper's tensor cores keep some 13 bits of products of float8.
SUMS = 3e-6 if on_virtual_gpu() else 2**-12


class Product:
    def __init__(self, a, b, y="float", m=32, n=48, k=64, c=None, scales=(), trans_a=0, trans_b=1, **attrs):
        self.types, self.y, self.c = (a, b), y, c
        self.attrs = {"transA": trans_a, "transB": trans_b, "dtype": ONNX[y]} | attrs
        shapes = [(k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)]
        self.feeds = {name: floats(*shape, low=-2, high=2) for name, shape in zip("ab", shapes)}
        if c:
            self.feeds["c"] = floats(*(c[1]), low=-2, high=2)
        for name, value in zip(("scale_a", "scale_b", "scale_y"), scales):
            if value is not None:
                self.feeds[name] = np.array([value], np.float32)

    def model(self):
        types = {"a": self.types[0], "b": self.types[1], "c": self.c and self.c[0]}
        nodes, names, values = [], [], []
        for name in ("a", "b", "c", "scale_a", "scale_b", "scale_y"):
            names.append("")
            if name not in self.feeds:
                continue
            values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, self.feeds[name].shape))
            names[-1] = name
            if name in types:
                nodes.append(helper.make_node("Cast", [name], [f"{name}_as"], to=ONNX[types[name]]))
                names[-1] = f"{name}_as"
        nodes.append(helper.make_node("GemmFloat8", names, ["y"], "it", domain=MICROSOFT, **self.attrs))
        nodes.append(helper.make_node("Cast", ["y"], ["wide"], to=TensorProto.FLOAT))
        results = [helper.make_tensor_value_info("wide", TensorProto.FLOAT, None)]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        graph = helper.make_graph(nodes, "float8", values, results)
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def wanted(self):
        """And the sums of magnitudes."""
        exact = lambda name, kind: self.feeds[name].astype(NUMPY[kind]).astype(np.float64)
        a, b = (exact(name, kind) for name, kind in zip("ab", self.types))
        a, b = a.T if self.attrs["transA"] else a, b.T if self.attrs["transB"] else b
        scale_a, scale_b, scale_y = (self.feeds.get(n, [1])[0] for n in ("scale_a", "scale_b", "scale_y"))
        factor = self.attrs.get("alpha", 1.0) * float(scale_a) * float(scale_b)
        y, most = factor * (a @ b), abs(factor) * (abs(a) @ abs(b))
        if self.c:
            c = self.attrs.get("beta", 0.0) * exact("c", self.c[0])
            y, most = y + c, most + abs(c)
        if self.attrs.get("activation") == "RELU":
            y = np.maximum(y, 0)
        if self.attrs.get("activation") == "GELU":
            y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        return y * float(scale_y), most * abs(float(scale_y))

    def check(self):
        ours = session(self.model())
        assert_all_on_encore(ours)
        (got,) = ours.run(None, self.feeds)
        wanted, most = self.wanted()
        top = float(ml_dtypes.finfo(NUMPY[self.y]).max)
        wanted = np.clip(wanted, -top, top) if "8" in self.y.removesuffix("16") else wanted
        assert got.shape == wanted.shape
        slack = UNIT[self.y] * abs(wanted) + SUMS * most + (2e-3 if "float8" in self.y else 1e-6)
        wrong = ~(abs(got - wanted) <= slack)
        assert not wrong.any(), f"{got[wrong][:4]}, not {wanted[wrong][:4]}"
        return ours


@pytest.mark.parametrize("a", NUMPY)
@pytest.mark.parametrize("b", NUMPY)
def test_types(a, b):
    for y in NUMPY:
        Product(a, b, y, m=5, n=16, k=32).check()


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("m, n, k", [(16, 32, 48), (3, 5, 7), (17, 16, 8), (1, 64, 256)])
def test_layouts(trans_a, trans_b, m, n, k):
    for a, b in (("float8e4m3fn", "float8e5m2"), ("float8e5m2", "float8e5m2"), ("float16", "float8e4m3fn")):
        Product(a, b, "float16", m, n, k, trans_a=trans_a, trans_b=trans_b, alpha=0.5).check()


E4M3 = ("float8e4m3fn", "float8e4m3fn")


@pytest.mark.parametrize("n", [48, 21])
@pytest.mark.parametrize("y", NUMPY)
@pytest.mark.parametrize(
    "how",
    [
        {"scales": (0.5, 3.0)},
        {"scales": (0.5, None, 0.125)},
        {"scales": (2.0, 0.25, 4.0), "activation": "RELU"},
        {"activation": "GELU", "alpha": 0.05},
        {"beta": 0.5, "c": ("float16", (32, 1)), "scales": (0.5, 0.5)},
        {"beta": -1.5, "c": ("bfloat16", (1, 1)), "activation": "RELU", "alpha": -1.0},
        {"c": ("float", (32, 1))},
    ],
    ids=str,
)
def test_scales_and_what_follows(how, y, n):
    Product(*E4M3, y, n=n, **how).check()


def test_an_addend_of_every_shape():
    for shape in ((32, 48), (1, 48), (48,), (32, 1), (1,), ()):
        Product(*E4M3, "float16", c=("float16", shape), beta=2.0).check()


def kernels_of(product):
    ours = session(product.model())
    return {k["name"] for k in trace(ours, lambda: ours.run(None, product.feeds)) if k["what"] == "kernel"}


@only_if(on_virtual_gpu())
@pytest.mark.parametrize(
    "takes, changes",
    [
        (True, {}),
        (True, {"m": 1, "y": "float16", "scales": (0.5, 0.5)}),
        (True, {"b": "float8e5m2", "y": "float8e5m2", "scales": (0.5, 0.5, 2.0)}),
        (False, {"a": "float8e5m2", "b": "float8e5m2"}),
        (False, {"n": 40}),
        (False, {"k": 40}),
        (False, {"trans_b": 0}),
        (False, {"a": "float16"}),
    ],
    ids=str,
)
def test_narrow_products_are_used_where_they_fit(takes, changes):
    product = Product(**{"a": "float8e4m3fn", "b": "float8e4m3fn"} | changes)
    assert ("float8 product" in kernels_of(product)) == takes
    product.check()


@needs_graphs
@pytest.mark.parametrize("n", [48, 21])
def test_a_graph(n):
    product = Product(*E4M3, "float16", n=n, scales=(0.5, 0.25, 2.0), c=("float16", (1, n)), beta=1.0)
    ours = session(product.model(), enable_cuda_graph=1, min_num_runs_before_cuda_graph_capture=1)
    inputs = {name: on_device(value) for name, value in product.feeds.items()}
    binding = ours.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    y = on_device(np.zeros((32, n), np.float32))
    binding.bind_ortvalue_output("wide", y)
    for factor in (1, 2, 4):
        inputs["a"].update_inplace(product.feeds["a"] * factor)
        ours.run_with_iobinding(binding, run_options())
        base = product.wanted()[0] - added(product)
        np.testing.assert_allclose(y.numpy(), base * factor + added(product), rtol=2e-3, atol=2e-2)


def added(product):
    return product.feeds["c"].astype(np.float16).astype(np.float64) * 2.0


def test_nothing_and_no_depth():
    Product("float8e4m3fn", "float16", m=0).check()
    Product(*E4M3, "float16", k=0, c=("float16", (48,)), beta=1.0).check()


def test_numbers_beyond_the_range_saturate():
    Product(*E4M3, "float8e4m3fn", scales=(64.0, 64.0)).check()


@pytest.mark.parametrize("attrs", [{"activation": "TANH"}, {"dtype": 7}, {"dtype": -1}, {"dtype": 2**32 + 1}], ids=str)
def test_attributes_that_are_none_are_declined(attrs):
    declined("GemmFloat8", [floats(16, 32), floats(16, 32)], {"transB": 1} | attrs, domain=MICROSOFT)


@pytest.mark.parametrize(
    "shapes, words",
    [
        (((16, 32), (16, 31)), "inner dimensions differ"),
        (((1, 16, 32), (16, 32)), "must be matrices"),
        (((16, 32), (16, 32), (3, 16)), "cannot be broadcast"),
        (((16, 32), (16, 32), (1,), (2,)), "scaleA has shape"),
        (((16, 32), (16, 32), (1,), (1,), (0,)), "scaleB has shape"),
    ],
)
def test_what_does_not_fit_fails(shapes, words):
    arrays = [floats(*shape) for shape in shapes]
    fails("GemmFloat8", arrays, {"transB": 1, "beta": 1.0}, words, ranks=False, domain=MICROSOFT)
