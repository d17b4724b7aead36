"""Norms of rows that models spell out, made one step each."""

import encore_session as es
import numpy as np
import pytest
from onnx import TensorProto
from test_fused_attention import HALVES, Network, numbers, rounded

ROUNDING = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 1e-6}  # of a result, and of what it is made of


@pytest.mark.parametrize("dtype", [*HALVES, "float32"])
@pytest.mark.parametrize("least", [0.0, 0.25])
@pytest.mark.parametrize("width", [1, 7, 32, 1000, 5000])
def test_rows_over_their_lengths(encore, make_model, tmp_path, dtype, least, width):
    net = Network(dtype)
    x = net.input("x", ["n", width])
    length = net.node("Clip", [net.node("ReduceL2", [x, net.ints(-1)], keepdims=1), net.constant(least)])
    net.output(net.node("Div", [x, length]), ["n", width])
    session = es.make_session(net.model(make_model), regions=1, auto_graph=1, dump_regions=tmp_path)
    assert "encore.L2Norm(" in es.last_plan(tmp_path)
    for rows in (0, 1, 300, 300, 300):
        fed = numbers((rows, width), rows)
        fed[: rows // 2] *= 1e-3  # shorter than `least`
        fed[rows // 3 : rows // 3 + 1] = 0  # NaN where nothing limits it, as in the model
        fed[1:2, 0], fed[2:3, 0] = np.nan, np.inf
        told = rounded({"x": fed}, dtype)["x"].astype(np.float64)
        with np.errstate(invalid="ignore"):
            wanted = told / np.maximum(np.sqrt((told**2).sum(-1, keepdims=True)), least)
        (got,) = session.run(None, {"x": fed})
        np.testing.assert_allclose(got, wanted, rtol=ROUNDING[dtype], atol=1e-7)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [1, 7, 64, 1000])
def test_halves_by_a_scale_in_float(encore, make_model, tmp_path, dtype, width):
    """Gemma's: the norm reads halves, and nothing makes floats of them before."""
    net = Network(dtype)
    number = lambda value: net.constant(value, np.float32)
    x = net.node("Cast", [net.input("x", ["n", width])], to=TensorProto.FLOAT)
    mean = net.node("ReduceMean", [net.node("Pow", [x, number(2)]), net.ints(-1)])
    root = net.node("Sqrt", [net.node("Add", [mean, number(1e-3)])])
    gamma = numbers((width,), 3, 0.5, 1.5)
    normed = net.node("Mul", [net.node("Mul", [x, net.node("Reciprocal", [root])]), number(gamma)])
    net.output(net.node("Cast", [normed], to=net.kind), ["n", width])
    session = es.make_session(net.model(make_model), regions=1, auto_graph=1, dump_regions=tmp_path)
    plan = es.last_plan(tmp_path)
    assert "RMSNormalization(x.cast, " in plan and plan.count("Cast(") == 2  # those at the ends
    for rows in (0, 1, 50, 50, 50):
        fed = numbers((rows, width), rows)
        told = rounded({"x": fed}, dtype)["x"].astype(np.float64)
        wanted = told / np.sqrt((told**2).mean(-1, keepdims=True) + 1e-3) * gamma
        (got,) = session.run(None, {"x": fed})
        np.testing.assert_allclose(got, wanted, rtol=ROUNDING[dtype], atol=1e-7)


@pytest.mark.parametrize("dtype", [*HALVES, "float32"])
@pytest.mark.parametrize("width", [1, 8, 1000])
def test_rows_without_their_mean(encore, make_model, tmp_path, dtype, width):
    """Cohere's LayerNormalization: in float, by a scale in float."""
    net = Network(dtype)
    number = lambda value: net.constant(value, np.float32)
    x = net.node("Cast", [net.input("x", ["n", width])], to=TensorProto.FLOAT)
    rest = net.node("Sub", [x, net.node("ReduceMean", [x, net.ints(-1)])])
    variance = net.node("ReduceMean", [net.node("Pow", [rest, number(2)]), net.ints(-1)])
    root = net.node("Sqrt", [net.node("Add", [variance, number(1e-3)])])
    gamma = numbers((width,), 3, 0.5, 1.5)
    normed = net.node("Mul", [net.node("Div", [rest, root]), number(gamma)])
    net.output(net.node("Cast", [normed], to=net.kind), ["n", width])
    session = es.make_session(net.model(make_model), regions=1, auto_graph=1, dump_regions=tmp_path)
    plan = es.last_plan(tmp_path)
    assert "LayerNormalization" in plan and "ReduceMean" not in plan
    for rows in (0, 1, 50, 50, 50):
        fed = numbers((rows, width), rows)
        told = rounded({"x": fed}, dtype)["x"].astype(np.float64)
        rest = told - told.mean(-1, keepdims=True)
        wanted = rest / np.sqrt((rest**2).mean(-1, keepdims=True) + 1e-3) * gamma
        (got,) = session.run(None, {"x": fed})
        np.testing.assert_allclose(got, wanted, rtol=ROUNDING[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", [*HALVES, "float32"])
@pytest.mark.parametrize("scale", [None, (4, 1, 1), (1, 4, 1, 1), (1, 1), (2, 1, 1, 1), (4, 5, 1)])
@pytest.mark.parametrize("size", [1, 7, 32, 64, 160])
def test_heads_over_their_lengths(encore, make_model, tmp_path, dtype, size, scale):
    """Swin V2's: of queries, keys and values that one product has made, each head by a number of its own."""
    net = Network(dtype)
    heads = net.node("Reshape", [net.input("x", [2, "n", 3 * 4 * size]), net.ints(2, -1, 3, 4, size)])
    x = net.node("Transpose", [net.node("Gather", [heads, net.constant(1, np.int64)], axis=2)], perm=(0, 2, 1, 3))
    length = net.node("Clip", [net.node("ReduceL2", [x, net.ints(-1)], keepdims=1), net.constant(0.25)])
    y = net.node("Div", [x, length])
    factors = 1
    if scale:
        factors = numbers(scale, 5, 0.5, 1.5)
        y = net.node("Mul", [y, net.constant(factors)])
        factors = rounded({"f": factors}, dtype)["f"].astype(np.float64)
    net.output(y, [2, 4, "n", size])
    session = es.make_session(net.model(make_model), regions=1, auto_graph=1, dump_regions=tmp_path)
    plan = es.last_plan(tmp_path)
    assert "encore.L2Norm(" in plan and "Transpose(" not in plan and "View(" not in plan and "Gather(" not in plan
    # Of a number for each row nobody knows whether it widens the heads.
    assert ("Mul(" in plan or "Elementwise(" in plan) == (scale == (4, 5, 1)), plan
    for rows in (5,) if scale == (4, 5, 1) else (0, 1, 5, 40, 40, 40):
        fed = numbers((2, rows, 12 * size), rows)
        fed[:, : rows // 2] *= 1e-2
        told = rounded({"x": fed}, dtype)["x"].astype(np.float64).reshape(2, rows, 3, 4, size)[:, :, 1].swapaxes(1, 2)
        wanted = told / np.maximum(np.sqrt((told**2).sum(-1, keepdims=True)), 0.25) * factors
        (got,) = session.run(None, {"x": fed})
        np.testing.assert_allclose(got, wanted, rtol=2 * ROUNDING[dtype], atol=1e-7)
