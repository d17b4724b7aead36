"""QuantizeLinear and DequantizeLinear by one scale: parts of elementwise programs, and none where bytes become the same
bytes again."""

import encore_session as es
import numpy as np
import pytest
from onnx import TensorProto, helper
from test_fused_attention import Network, numbers
from test_vision_blocks import plan_of

BYTES = {"uint8": (np.uint8, 100), "int8": (np.int8, -3)}
SCALE = 0.0625
SPECIAL = [np.nan, np.inf, -np.inf, 1e30, -1e30, 0.03125, 0.09375, -0.0]  # two are between two bytes


class QuantizedNetwork(Network):
    def __init__(self, dtype="float32", kind="uint8"):
        super().__init__(dtype)
        self.bytes, self.zero = BYTES[kind]

    def quantized(self, x, scale=SCALE):
        numbers = [self.constant(scale), self.constant(self.zero, self.bytes)]
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [x, *numbers]), *numbers])


def runs(model, batches, shape, **options):
    """Of graphs that nobody asks for, and without."""
    for auto_graph in (0, 1):
        session = es.make_session(model, auto_graph=auto_graph, **options)
        es.assert_all_on_encore(session)
        for batch in batches * 3:
            x = numbers((batch, *shape), batch, -12, 12)
            x.reshape(-1)[: len(SPECIAL)] = SPECIAL[: x.size]
            yield x, session.run(None, {"x": x})[0]


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_programs_quantize_as_operators_do(encore, make_model, tmp_path, kind, dtype):
    net = QuantizedNetwork(dtype, kind)
    x = net.quantized(net.input("x", ["n", 5, 8]))
    y = net.quantized(net.node("Mul", [x, net.constant(0.75)]), 0.03125)
    y = net.node("Add", [net.node("Sigmoid", [y]), net.constant(numbers((8,)))])
    net.output(net.quantized(y, 0.0078125), ["n", 5, 8])
    model = net.model(make_model, opset=19)
    plan = plan_of(model, tmp_path)
    assert plan.count("encore.Elementwise(") == 1 and plan.count(f"to_{kind}[") == 3, plan
    by_operators = [y for _, y in runs(model, [1, 3], (5, 8), regions=0)] if es.HAS_REGIONS else None
    for at, (x, got) in enumerate(runs(model, [1, 3], (5, 8))):
        if by_operators:
            np.testing.assert_array_equal(got, by_operators[at])
        if dtype == "float16" and es.ORT_VERSION < (1, 32):
            continue  # whose CPU provider quantizes halves otherwise
        wanted = es.on_cpu(model).run(None, {"x": x})[0]
        # A number between two bytes, or nearly, may become either.
        np.testing.assert_allclose(got, wanted, rtol=0, atol=0.0078125 * 1.01)
        assert (got != wanted).mean() < 0.02


@pytest.mark.parametrize("kind", BYTES)
def test_what_is_read_as_bytes_is_there(encore, make_model, kind):
    net = QuantizedNetwork(kind=kind)
    x = net.node("Relu", [net.input("x", ["n", 5, 8])])
    numbers = [net.constant(SCALE), net.constant(net.zero, net.bytes)]
    q = net.node("QuantizeLinear", [x, *numbers])
    net.output(net.node("DequantizeLinear", [q, *numbers]), ["n", 5, 8])
    net.output(net.node("Transpose", [q], perm=[1, 0, 2]), [5, "n", 8])
    model = net.model(make_model, opset=19)
    session = es.make_session(model)
    for batch in (1, 3, 1, 3, 1, 3):
        x = numbers_of(batch)
        for got, wanted in zip(session.run(None, {"x": x}), es.on_cpu(model).run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(got, wanted)


def numbers_of(batch):
    """Of which none is near the middle of two bytes."""
    return (np.random.default_rng(batch).integers(-200, 200, (batch, 5, 8)) * SCALE + 0.01).astype(np.float32)


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_that_become_the_same_bytes_stay_numbers(encore, make_model, tmp_path, kind):
    """As onnxruntime has its own optimizer write it: around all that only moves them."""
    net = QuantizedNetwork(kind=kind)
    x = net.quantized(net.input("x", ["n", 6, 8]))
    x = net.quantized(net.node("Reshape", [x, net.ints(0, 6, 2, 4)]))
    x = net.quantized(net.node("Transpose", [x], perm=[0, 2, 1, 3]))
    x = net.quantized(net.node("Concat", [x, net.node("Relu", [x])], axis=1))
    net.output(net.node("Mul", [x, net.constant(2)]), ["n", 4, 6, 4])
    model = net.model(make_model, opset=19)
    plan = plan_of(model, tmp_path)
    assert plan.count(f"to_{kind}[") == 1, plan
    for x, got in runs(model, [1, 2], (6, 8)):
        np.testing.assert_array_equal(got, es.on_cpu(model).run(None, {"x": x})[0])


@pytest.mark.parametrize("kind", BYTES)
def test_products(encore, make_model, tmp_path, kind):
    """What quantizers make of a layer: of weights numbers once, and programs between the products."""
    net = QuantizedNetwork(kind=kind)
    x = net.quantized(net.input("x", ["n", 5, 16]))
    for layer in range(2):
        bytes_ = net.constant(np.random.default_rng(layer).integers(-127, 128, (16, 16)), np.int8)
        w = net.node("DequantizeLinear", [bytes_, net.constant(0.002), net.constant(0, np.int8)])
        x = net.quantized(net.node("MatMul", [x, w]))
        x = net.quantized(net.node("Relu", [net.node("Add", [x, net.constant(numbers((16,), layer))])]))
    net.output(x, ["n", 5, 16])
    model = net.model(make_model, opset=19)
    plan = plan_of(model, tmp_path)
    assert plan.count("MatMul(") == 2 and plan.count("encore.Elementwise(") == 3 and "QuantizeLinear(" not in plan, plan
    for batch in (1, 3):
        for auto_graph in (0, 1):
            session = es.make_session(model, auto_graph=auto_graph)
            for seed in range(3):
                x = numbers((batch, 5, 16), seed, -4, 4)
                got, wanted = session.run(None, {"x": x})[0], es.on_cpu(model).run(None, {"x": x})[0]
                assert np.abs(got - wanted).max() <= 2.01 * SCALE and (got != wanted).mean() < 0.05


def dynamic_layer(net, x, rows, columns, kind, each_column, biased):
    """As onnxruntime's quantize_dynamic writes it."""
    bytes_, _ = BYTES[kind]
    info = np.iinfo(bytes_)
    w = net.constant(np.random.default_rng(rows).integers(info.min, info.max + 1, (rows, columns)), bytes_)
    scale = net.constant(numbers((columns,), 5, 0.001, 0.002) if each_column else 0.001)
    at = len(net.nodes)
    names = [f"q{at}", f"s{at}", f"z{at}"]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], names, f"dynamic {at}"))
    product = net.node("MatMulInteger", [names[0], w, names[2], net.constant(info.max // 2, bytes_)])
    both = net.node("Mul", [names[1], scale])
    y = net.node("Mul", [net.node("Cast", [product], to=TensorProto.FLOAT), both])
    return net.node("Add", [y, net.constant(numbers((columns,), 6))]) if biased else y


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("each_column", [True, False])
@pytest.mark.parametrize("kind", BYTES)
def test_layers_of_rows_that_are_quantized_as_they_come(encore, make_model, tmp_path, kind, each_column, biased):
    net = Network("float32")
    x = net.input("x", ["n", "r", 48])
    x = net.node("Tanh", [dynamic_layer(net, x, 48, 72, kind, each_column, biased)])
    net.output(dynamic_layer(net, x, 72, 40, kind, each_column, biased), ["n", "r", 40])
    model = net.model(make_model, opset=19)
    plan = plan_of(model, tmp_path)
    assert plan.count("encore.ScaledIntegerProduct(") == 2 and "MatMulInteger(" not in plan, plan
    plain = es.make_session(model, regions=0) if es.HAS_REGIONS else None
    for auto_graph in (0, 1):
        session = es.make_session(model, auto_graph=auto_graph)
        es.assert_all_on_encore(session)
        for shape in [(1, 1), (2, 5), (3, 64)] * 3:
            feeds = {"x": numbers((*shape, 48), shape[1], -3, 3)}
            (got,) = session.run(None, feeds)
            if plain:
                np.testing.assert_array_equal(got, plain.run(None, feeds)[0])
            np.testing.assert_allclose(got, es.on_cpu(model).run(None, feeds)[0], rtol=0, atol=2e-2)
