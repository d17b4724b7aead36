"""What transformers consist of besides attention, made one node: a product and its bias, Gelu, a residual sum and its
norm."""

from unittest.mock import ANY

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from test_fused_attention import TOLERANCE, Network, agrees, numbers
from test_fusion import kernels_of, made_one

WIDTH, WIDE = 24, 40


def check(make_model, capfd, build, feeds, dtype, fused=True, kernels=1, **more):
    """That one node is made, or none, and computes the same as in float32; with so many kernels, but for the ends'."""
    model, wide = build(dtype).model(make_model, **more), build("float32").model(make_model, **more)
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options))
    assert sizes == [ANY] * fused
    agrees(session, wide, feeds, dtype)
    if fused and es.on_virtual_gpu():
        names = [name for name in kernels_of(session, feeds) if "CastTo" not in name and "CopyStrided" not in name]
        assert len(names) == kernels, names


def product(dtype, bias_shape=(WIDE,), swapped=False, shows=None, factor=None, depth=WIDTH):
    net = Network(dtype)
    x = net.input("x", ["n", "m", depth])
    weights = net.input(factor, [depth, WIDE]) if factor else net.constant(numbers((depth, WIDE), 3))
    y = net.node("MatMul", [x, weights], "product")
    bias = net.constant(numbers(bias_shape, 4, -4, 4))
    y = net.node("Add", [bias, y] if swapped else [y, bias], "y")
    if shows:
        y = net.node("Sub", [y, net.node("Relu", ["product"])])
    net.output(y, ["n", "m", WIDE])
    return net


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("shape", [(2, 5), (1, 1), (3, 70), (0, 4)], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_product_takes_its_bias_along(encore, make_model, capfd, dtype, shape, swapped):
    feeds = {"x": numbers((*shape, WIDTH))}
    kernels = 1 if np.prod(shape) else 0
    check(make_model, capfd, lambda dtype: product(dtype, swapped=swapped), feeds, dtype, kernels=kernels)


def test_a_product_of_nothing_is_its_bias(encore, make_model, capfd):
    check(make_model, capfd, lambda dtype: product(dtype, depth=0), {"x": numbers((2, 5, 0))}, "float16")


def test_weights_that_several_fused_nodes_read_are_kept_once(encore, make_model, capfd):
    """As in ALBERT, whose layers have theirs in common; under one name or several."""
    width, layers, kept = 512, 4, []
    for seeds in (None, [0] * layers, range(layers)):
        net = Network("float16")
        y = net.input("x", ["n", 2, width])
        made = lambda seed: (net.constant(numbers((width, width), seed) / 64), net.constant(numbers((width,), seed)))  # noqa: B023
        common = made(0)
        for layer in range(layers):
            weights, bias = made(seeds[layer]) if seeds else common
            y = net.node("Relu", [net.node("Add", [net.node("MatMul", [y, weights]), bias])])
        net.output(y, ["n", 2, width])
        session, sizes = made_one(capfd, lambda options: es.make_session(net.model(make_model), options))  # noqa: B023
        assert sizes == [2]  # said of all layers at once
        kept.append(onnxruntime_ep_encore.memory_report(session)["arena"]["in_use_bytes"])
    assert kept[0] == kept[1] < kept[2] / (layers - 1)


def ended(dtype, op, transposed=False):
    net = Network(dtype)
    x = net.input("x", ["n", WIDTH] if transposed else ["n", "m", WIDTH])
    bias = net.constant(numbers((WIDE,), 4))
    if transposed:
        y = net.node("Gemm", [x, net.constant(numbers((WIDE, WIDTH), 3)), bias], transB=1)
    else:
        y = net.node("Add", [net.node("MatMul", [x, net.constant(numbers((WIDTH, WIDE), 3))]), bias])
    if op == "Silu":
        y = net.node("Mul", [y, net.node("Sigmoid", [y])])
    else:
        y = add_gelu(net, y, ("x first", True)) if op == "Gelu" else net.node(op, [y])
    y = net.node("MatMul", [y, net.constant(numbers((WIDE, WIDTH), 5) / 8)])
    net.output(y, ["n", WIDTH] if transposed else ["n", "m", WIDTH])
    return net


@es.only_if(es.HAS_REGIONS)
@pytest.mark.parametrize("op", ["Relu", "Gelu", "Silu", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("shape", [(2, 5), (1, 1), (3, 70)], ids=str)
@pytest.mark.parametrize("dtype", [dtype for dtype in TOLERANCE if dtype != "float32"])
def test_a_product_ends_with_its_activation(encore, make_model, capfd, dtype, shape, op):
    """But for a single row's, which is no product by tiles: Relu alone is in the library."""
    kernels = 3 if np.prod(shape) == 1 and op != "Relu" else 2
    check(make_model, capfd, lambda dtype: ended(dtype, op), {"x": numbers((*shape, WIDTH))}, dtype, kernels=kernels)


@es.only_if(es.HAS_REGIONS)
@pytest.mark.parametrize("op", ["Gelu", "HardSwish"])
def test_a_gemm_ends_with_its_activation(encore, make_model, capfd, op):
    build = lambda dtype: ended(dtype, op, transposed=True)  # noqa: E731
    check(make_model, capfd, build, {"x": numbers((50, WIDTH))}, "float16", kernels=2)


@pytest.mark.parametrize(
    "how",
    [
        {"bias_shape": (1,)},
        {"bias_shape": (5, WIDE)},
        {"bias_shape": (1, 1, 1, WIDE)},
        {"shows": True},
        {"factor": "w"},
    ],
    ids=str,
)
def test_what_is_no_bias_of_a_product(encore, make_model, capfd, how):
    """Other shapes, one that would give the result more dimensions, a product that others read, and no constants."""
    feeds = {"x": numbers((2, 5, WIDTH))} | ({"w": numbers((WIDTH, WIDE), 2)} if "factor" in how else {})
    if how.get("bias_shape") == (1, 1, 1, WIDE):

        def build(dtype):
            net = product(dtype, **how)
            net.outputs = {"y.out": [1, "n", "m", WIDE]}
            return net

    else:
        build = lambda dtype: product(dtype, **how)
    check(make_model, capfd, build, feeds, "float16", fused=False)


def add_gelu(net, x, how):
    """In three orders; the root divides, or its inverse multiplies."""
    order, divides = how
    root = net.node("Div", [x, net.constant(2**0.5)]) if divides else net.node("Mul", [net.constant(0.5**0.5), x])
    sum = net.node("Add", [net.node("Erf", [root]), net.constant(1)])
    half = net.constant(0.5)
    if order == "half of x":
        return net.node("Mul", [net.node("Mul", [x, half]), sum], "y")
    first, second = (x, half) if order == "x first" else (half, x)
    return net.node("Mul", [second, net.node("Mul", [first, sum])], "y")


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("order", ["x first", "half first", "half of x"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gelu(encore, make_model, capfd, dtype, order, divides):
    def build(dtype):
        net = Network(dtype)
        net.output(add_gelu(net, net.input("x", ["n", WIDTH]), (order, divides)), ["n", WIDTH])
        return net

    check(make_model, capfd, build, {"x": numbers((33, WIDTH), 0, -6, 6)}, dtype)


@pytest.mark.parametrize("wrong", ["root", "one", "half", "x", "read"])
def test_what_is_no_gelu(encore, make_model, capfd, wrong):
    def build(dtype):
        net = Network(dtype)
        x, z = net.input("x", ["n", WIDTH]), net.input("z", ["n", WIDTH])
        erf = net.node("Erf", [net.node("Div", [x, net.constant(1.5 if wrong == "root" else 2**0.5)])])
        sum = net.node("Add", [erf, net.constant(1.5 if wrong == "one" else 1)])
        first = net.node("Mul", [z if wrong == "x" else x, sum])
        y = net.node("Mul", [first, net.constant(0.25 if wrong == "half" else 0.5)], "y")
        if wrong == "read":
            y = net.node("Add", [y, erf])
        net.output(y, ["n", WIDTH])
        return net

    feeds = {"x": numbers((7, WIDTH), 0, -3, 3), "z": numbers((7, WIDTH), 1)}
    if wrong != "x":
        del feeds["z"]

        def build(dtype, whole=build):
            net = whole(dtype)
            net.inputs.pop("z")
            net.nodes = [node for node in net.nodes if "z" not in node.input]
            return net

    check(make_model, capfd, build, feeds, "float16", fused=False)


def residual(dtype, rank=3, shows_sum=True, has_beta=True, skip_shape=None, axis=-1, epsilon=1e-3, width=WIDTH):
    net = Network(dtype)
    shape = [*"nmk"[: rank - 1], width]
    x, skip = net.input("x", shape), net.input("skip", skip_shape or shape)
    sum = net.node("Add", [x, skip], "sum")
    inputs = [sum, net.constant(numbers((width,), 5, 0.5, 1.5))] + [net.constant(numbers((width,), 6))] * has_beta
    y = net.node("LayerNormalization", inputs, "y", axis=axis, epsilon=epsilon)
    net.output(net.node("Sub", [y, sum]) if shows_sum else y, shape)
    return net


@pytest.mark.parametrize("shows_sum", [False, True])
@pytest.mark.parametrize("has_beta", [False, True])
@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_norm_takes_its_sum_along(encore, make_model, capfd, dtype, rank, has_beta, shows_sum):
    build = lambda dtype: residual(dtype, rank, shows_sum, has_beta, axis=-1 if has_beta else rank - 1)
    for rows in [(3, 7, 2), (0, 2, 5)]:
        shape = (*rows[: rank - 1], WIDTH)
        feeds = {"x": numbers(shape, 1, -3, 3), "skip": numbers(shape, 2)}
        check(make_model, capfd, build, feeds, dtype, kernels=(1 + shows_sum) * (rows[0] > 0))


@pytest.mark.parametrize("how", [{"skip_shape": [1, "m", WIDTH]}, {"skip_shape": ["o", "m", WIDTH]}], ids=str)
def test_what_is_no_residual(encore, make_model, capfd, how):
    """Sums that broadcast, or might."""
    shape = (3, 7, WIDTH)
    feeds = {"x": numbers(shape), "skip": numbers((1, *shape[1:]), 1)}
    check(make_model, capfd, lambda dtype: residual(dtype, **how), feeds, "float16", fused=False)


@es.needs_graphs
def test_a_whole_block_is_captured_and_replayed(encore, make_model, capfd):
    def build(dtype):
        net = Network(dtype)
        x = net.input("x", ["n", 5, WIDTH])
        first = net.node(
            "Add", [net.node("MatMul", [x, net.constant(numbers((WIDTH, WIDE), 1))]), net.constant(numbers((WIDE,), 2))]
        )
        wide = add_gelu(net, first, ("half first", True))
        back = net.node("MatMul", [wide, net.constant(numbers((WIDE, WIDTH), 3))])
        sum = net.node("Add", [net.node("Add", [back, net.constant(numbers((WIDTH,), 4))]), x])
        scale, shift = net.constant(numbers((WIDTH,), 5, 0.5, 1.5)), net.constant(numbers((WIDTH,), 6))
        net.output(net.node("LayerNormalization", [sum, scale, shift], "normed"), ["n", 5, WIDTH])
        return net

    model, wide = build("float16").model(make_model), build("float32").model(make_model)
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options, enable_cuda_graph=1))
    assert es.HAS_REGIONS or len(sizes) >= 3
    bound = es.Bound(session, {"x": numbers((2, 5, WIDTH))}, {"normed.out": ([2, 5, WIDTH], np.float32)})
    for seed in range(5):
        feeds = {"x": numbers((2, 5, WIDTH), seed, -2, 2)}

        class Replay:
            @staticmethod
            def run(_, feeds):
                return list(bound.run(feeds).values())

        agrees(Replay, wide, feeds, "float16")
