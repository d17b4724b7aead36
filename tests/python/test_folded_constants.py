"""What halves compute from constants alone, before the first run as each run would have."""

import encore_session as es
import numpy as np
import pytest
from test_fused_attention import HALVES, Network, numbers

STEPS = ["Add", "Sub", "Mul", "Div", "Min", "Max"]


def check(model, folder, feeds, gone):
    """The region has none of these operators, and makes the same, run as it is and captured."""
    (wanted,) = es.make_session(model, regions=0).run(None, feeds)
    for captures in (0, 1):
        session = es.make_session(model, regions=1, auto_graph=captures, dump_regions=folder / str(captures))
        plan = es.last_plan(folder / str(captures))
        assert not [op for op in gone if f"{op}(" in plan]
        for _ in range(3):
            np.testing.assert_array_equal(session.run(None, feeds)[0], wanted)


@pytest.mark.parametrize("dtype", HALVES)
def test_to_the_bit(encore, make_model, tmp_path, dtype):
    net = Network(dtype)
    x = net.input("x", ["n", 24, 40])
    made = net.constant(numbers((24, 1), 1, -3, 3))
    for i, op in enumerate(STEPS * 2):
        made = net.node(op, [made, net.constant(numbers((1, 40) if i % 2 else (24, 1), i + 2, -3, 3))])
    low = net.node("Where", [net.node("Less", [made, net.constant(0)]), made, net.constant(numbers((40,), 20))])
    turned = net.node("Transpose", [net.node("Neg", [low])], perm=(1, 0))
    made = net.node("Reshape", [net.node("Cast", [turned], to=net.kind), net.ints(1, 24, 40)])
    net.output(net.node("Mul", [x, made], "y"), ["n", 24, 40])
    check(net.model(make_model), tmp_path, {"x": np.ones((2, 24, 40), np.float32)}, ["Add", "Where", "Transpose"])


def test_weight_norm(encore, make_model, tmp_path):
    """As speech models have it: the weights of a convolution are g * v / |v|."""
    net = Network()
    x = net.input("x", ["n", 32, 24])
    v = net.constant(numbers((32, 8, 16), 1))
    norm = net.node("ReduceL2", [v, net.ints(0, 1)], keepdims=1)
    weights = net.node("Mul", [net.constant(numbers((1, 1, 16), 2)), net.node("Div", [v, norm])])
    net.output(net.node("Conv", [x, weights], "y", group=4, pads=[8, 8]), ["n", 32, 25])
    feeds = {"x": numbers((2, 32, 24), 3)}
    check(net.model(make_model), tmp_path, feeds, ["ReduceL2", "Div", "Mul", "encore.Elementwise"])


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("each", ["tensor", "column"])
def test_weights_of_eight_bits(encore, make_model, tmp_path, dtype, each):
    net = Network(dtype)
    x = net.input("x", ["n", 32])
    codes = net.constant(np.arange(32 * 16).reshape(32, 16) % 251 - 120, np.int8)
    scale = net.constant(0.02 if each == "tensor" else numbers((16,), 2, 0.01, 0.05))
    weights = net.node("DequantizeLinear", [codes, scale], axis=1)
    net.output(net.node("MatMul", [x, weights], "y"), ["n", 16])
    check(net.model(make_model, opset=21), tmp_path, {"x": numbers((3, 32), 4)}, ["DequantizeLinear"])


def test_weights_are_packed_before(encore, make_model):
    """A product that begins early reads them at once, which is too early in one of some twenty sessions."""
    x = np.zeros((1, 64), np.float32)
    for i in range(200):
        net = Network("bfloat16")
        row, scales = numbers((1, 64), i), numbers((64, 1), i + 1, 0.01, 0.02)
        codes = np.random.default_rng(i).integers(0, 256, (64, 1, 64))
        factors = [net.constant(row), net.constant(codes, np.uint8), net.constant(scales)]
        made = net.node("MatMulNBits", factors, domain="com.microsoft", K=64, N=64, bits=8, block_size=64)
        net.output(net.node("Add", [net.input("x", ["n", 64]), made], "y"), ["n", 64])
        (got,) = es.make_session(net.model(make_model), regions=1, auto_graph=0).run(None, {"x": x})
        wanted = row @ ((codes.reshape(64, 64) - 128.0) * scales).T
        np.testing.assert_allclose(got, wanted, rtol=5e-2, atol=5e-2)


def test_what_is_wrong_is_so_in_runs(encore, make_model):
    net = Network()
    x = net.input("x", ["n", 4])
    row = net.node("Gather", [net.constant(numbers((8, 4), 1)), net.ints(9)], "beyond")
    net.output(net.node("Add", [x, row], "y"), ["n", 4])
    session = es.make_session(net.model(make_model), regions=1)
    with pytest.raises(Exception, match="beyond.*index 9 is outside"):
        session.run(None, {"x": np.ones((1, 4), np.float32)})
