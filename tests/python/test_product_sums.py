"""Products that take residual sums and layer scales along."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from test_fused_attention import HALVES, TOLERANCE, Network, numbers, rounded
from test_fusion import on_cpu
from test_vision_blocks import agrees, plan_of

WIDTH, DEPTH, PLACES = 24, 40, 6
ROWS = ["n", PLACES, WIDTH]


def product(net, x, columns, depth, seed=9, biased=True):
    y = net.node("MatMul", [x, net.constant(numbers((depth, columns), seed, -0.3, 0.3))])
    return net.node("Add", [y, net.constant(numbers((columns,), seed + 1))]) if biased else y


def block(biased, gamma=None):
    """x + gamma * (W relu(V x)), twice."""

    def build(net):
        x = net.input("x", ROWS)
        for _ in range(2):
            y = net.node("Relu", [product(net, x, DEPTH, WIDTH)])
            y = product(net, y, WIDTH, DEPTH, biased=biased)
            if gamma is not None:
                y = net.node("Mul", [net.constant(gamma), y])
            x = net.node("Add", [x, y])
        net.output(x, ROWS)
        return net

    return build


DTYPES = ["float32", *HALVES]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("biased", [False, True])
def test_residual_sums(encore, make_model, tmp_path, dtype, biased):
    model = agrees(block(biased), make_model, dtype, shape=(PLACES, WIDTH), use_tf32=0)
    plan = plan_of(model, tmp_path)
    assert plan.count("MatMul(") == 4 and " Add(" not in plan and "Elementwise" not in plan, plan


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", [0, 1])
def test_residual_sums_of_gemm(encore, make_model, tmp_path, dtype, turned):
    """torch's layers of rows have weights with a row for each column."""

    def build(net):
        x = net.input("x", ["n", WIDTH])
        weights, bias = net.constant(numbers((WIDTH, WIDTH), 1, -0.3, 0.3)), net.constant(numbers((WIDTH,), 2))
        y = net.node("Gemm", [net.node("Relu", [x]), weights, bias], transB=turned)
        net.output(net.node("Add", [y, x]), ["n", WIDTH])
        return net

    plan = plan_of(agrees(build, make_model, dtype, shape=(WIDTH,), use_tf32=0), tmp_path)
    assert plan.count("MatMul(") == 1 and "Gemm(" not in plan and " Add(" not in plan, plan


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1, 1e-3])
def test_layer_scales(encore, make_model, tmp_path, dtype, scale):
    gamma = scale * numbers((WIDTH,), 4, 0.1, 1)
    model = agrees(block(True, gamma), make_model, dtype, shape=(PLACES, WIDTH), use_tf32=0)
    plan = plan_of(model, tmp_path)
    assert plan.count("MatMul(") == 4 and " Add(" not in plan and "Elementwise" not in plan, plan


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_few_rows_of_large_matrices(encore, make_model, dtype, rows):
    """For which there are kernels of Encore's own."""

    def build(net):
        x = net.input("x", ["n", 1024])
        net.output(net.node("Add", [x, product(net, net.node("Relu", [x]), 1024, 1024)]), ["n", 1024])
        return net

    agrees(build, make_model, dtype, shape=(1024,), batches=(rows,), use_tf32=0)


@es.needs_graphs
@pytest.mark.parametrize("dtype", DTYPES)
def test_they_are_captured_and_replayed(encore, make_model, dtype):
    build = block(True, numbers((WIDTH,), 4, 0.1, 1))
    model, wide = build(Network(dtype)).model(make_model), build(Network("float32")).model(make_model)
    session = es.make_session(model, regions=1, enable_cuda_graph=1, use_tf32=0)
    forms = {one.name: ((2, PLACES, WIDTH), np.float32) for one in session.get_outputs()}
    bound = es.Bound(session, {"x": numbers((2, PLACES, WIDTH), 0)}, forms)
    for seed in range(6):
        feeds = {"x": numbers((2, PLACES, WIDTH), seed)}
        (got,), (wanted,) = bound.run(feeds).values(), on_cpu(wide, rounded(feeds, dtype))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=4 * TOLERANCE[dtype] * np.abs(wanted).max())
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["replays"] > 1


@pytest.mark.parametrize("exported", ["numbers", "shapes"])
def test_behind_batch_norms(encore, make_model, tmp_path, exported):
    """LeViT's rows are seen without their batch between product and sum."""

    def build(net):
        x = net.input("x", ROWS)
        y = product(net, net.node("HardSwish", [x]), WIDTH, WIDTH, biased=False)
        rows = [numbers((WIDTH,), i, 0.5, 1.5) for i in range(4)]
        if exported == "numbers":
            shape, flat = net.ints(-1, PLACES, WIDTH), net.node("Reshape", [y, net.ints(-1, WIDTH)])
        else:
            shape, flat = net.node("Shape", [y]), net.node("Flatten", [y], axis=2)
        y = net.node("BatchNormalization", [flat, *(net.constant(row) for row in rows)], epsilon=1e-3)
        x = net.node("Add", [x, net.node("Reshape", [y, shape])])
        net.output(net.node("HardSwish", [x]), ROWS)
        return net

    plan = plan_of(agrees(build, make_model, shape=(PLACES, WIDTH)), tmp_path)
    assert "BatchNormalization" not in plan and " Add(" not in plan and plan.count("MatMul(") == 1, plan
