"""Norms that add their rows to a residual, equal to the bit, and those of such sums."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from test_bodies_in_regions import choice, model
from test_fused_attention import HALVES, Network, numbers, rounded
from test_fusion import kernels_of, on_cpu
from test_product_norms import agree
from test_vision_blocks import plan_of

WIDTH = 64
DTYPES = ["float32", *HALVES]
NORMS = ["LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"]


def block(net, width=WIDTH, norm=NORMS[0], biased=True, swapped=False, product=False, wide=False, apart=False):
    """x + norm(x * x), or of a product of x; `apart`: the norm's rows are wanted, too, so that it stays as it is."""
    x = net.input("x", ["b", "n", width])
    if product:
        rows = net.node("MatMul", [x, net.constant(numbers((width, width), 1, -0.3, 0.3))])
    else:
        rows = net.node("Mul", [x, x])
    kind = np.float32 if wide else net.dtype
    count = 2 if biased and norm == NORMS[0] else 1
    rows = net.node(norm, [rows, *(net.constant(numbers((width,), i, 0.5, 1.5), kind) for i in range(count))])
    net.output(net.node("Add", [rows, x] if swapped else [x, rows]), ["b", "n", width])
    if apart:
        net.output(rows, ["b", "n", width])
    return net


def models(make_model, dtype, **how):
    """As one step, and as two."""
    opset = 23 if how.get("norm") == "RMSNormalization" else 18
    return [block(Network(dtype), apart=apart, **how).model(make_model, opset=opset) for apart in (False, True)]


def check(make_model, tmp_path, dtype, shape, op, **how):
    one, two = models(make_model, dtype, width=shape[-1], **how)
    plan = plan_of(one, tmp_path)
    assert f"{op}(" in plan.replace("@1", "") and " Add(" not in plan and ": add(" not in plan, plan
    wide = models(make_model, "float32", width=shape[-1], **how)[0]
    for auto_graph in (0, 1):
        joined, apart = (es.make_session(m, regions=1, auto_graph=auto_graph, use_tf32=0) for m in (one, two))
        es.assert_all_on_encore(joined)
        for seed in range(3):
            feeds = {"x": numbers(shape, seed)}
            got, wanted = joined.run(None, feeds)[0], apart.run(None, feeds)[0]
            np.testing.assert_array_equal(got.view(np.int32), wanted.view(np.int32))
            agree([got], on_cpu(wide, rounded(feeds, dtype)), dtype)
    return joined


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(encore, make_model, tmp_path, dtype, norm, biased, swapped):
    session = check(make_model, tmp_path, dtype, (2, 7, WIDTH), norm, norm=norm, biased=biased, swapped=swapped)
    if es.on_virtual_gpu():
        kernels = kernels_of(session, {"x": numbers((2, 7, WIDTH))})
        assert sum("Normalize" in kernel for kernel in kernels) == 1


# Few rows, of one pack a thread and of two; many, in registers and not; and of widths that packs don't fill.
SIZES = [(1, 20, 8), (2, 301, 96), (1, 600, 8), (1, 600, 1), (1, 20, 63), (3, 200, 100), (3, 200, 259)]
LARGE = [(1, 9, 2056), (1, 600, 520), (1, 540, 2056), (1, 5, 2041), (1, 530, 1030), (1, 2, 12000), (1, 1, 18433)]


@pytest.mark.newest
@pytest.mark.parametrize("shape", [*SIZES, *LARGE, (1, 2, 40000)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(encore, make_model, tmp_path, dtype, shape):
    check(make_model, tmp_path, dtype, shape, NORMS[0])


@pytest.mark.newest
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_of_products(encore, make_model, tmp_path, dtype, shape):
    check(make_model, tmp_path, dtype, shape, "encore.ProductNorm", product=True)


@pytest.mark.parametrize("rows", [1, 20, 600])
@pytest.mark.parametrize("norm", NORMS[:2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_of_products(encore, make_model, tmp_path, dtype, norm, rows):
    """Of one row GEMV makes the product, few come to the norm in parts, and many are made as a whole."""
    check(make_model, tmp_path, dtype, (1, rows, 256), "encore.ProductNorm", norm=norm, product=True)


@es.needs_graphs
@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize("rows", [20, 600])
@pytest.mark.parametrize("dtype", DTYPES)
def test_captured_and_replayed(encore, make_model, dtype, rows, product):
    one, two = models(make_model, dtype, product=product)
    session = es.make_session(one, regions=1, enable_cuda_graph=1, use_tf32=0)
    apart = es.make_session(two, regions=1, use_tf32=0)
    shape = (1, rows, WIDTH)
    bound = es.Bound(session, {"x": numbers(shape)}, {session.get_outputs()[0].name: (shape, np.float32)})
    for seed in range(5):
        feeds = {"x": numbers(shape, seed)}
        (got,) = bound.run(feeds).values()
        np.testing.assert_array_equal(got, apart.run(None, feeds)[0])
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["replays"] > 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_keep_their_signs_and_what_is_no_number_its_row(encore, make_model, tmp_path, dtype):
    one, two = models(make_model, dtype)
    feeds = {"x": numbers((1, 20, WIDTH))}
    feeds["x"][0, 3, 5], feeds["x"][0, 9, 0], feeds["x"][0, 11] = np.nan, np.inf, -0.0
    got, wanted = (es.make_session(m, regions=1).run(None, feeds)[0] for m in (one, two))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    there = ~np.isnan(got)
    np.testing.assert_array_equal(got[there].view(np.int32), wanted[there].view(np.int32))
    assert np.isnan(got[0, [3, 9]]).all() and not np.isnan(np.delete(got[0], [3, 9], axis=0)).any()


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("product", [False, True])
def test_no_rows(encore, make_model, rows, product):
    (got,) = es.make_session(models(make_model, "float16", product=product)[0], regions=1).run(
        None, {"x": numbers((1, rows, WIDTH))}
    )
    assert got.shape == (1, rows, WIDTH)


def of_two(net, dims=("b", "n", WIDTH), read=True):
    """r + norm(x)."""
    x, r = net.input("x", ["b", "n", WIDTH]), net.input("r", list(dims))
    rows = net.node("LayerNormalization", [x, net.constant(numbers((WIDTH,), 1, 0.5, 1.5))])
    net.output(net.node("Add", [r, rows]), ["b", "n", WIDTH])
    if read:
        net.output(net.node("Softmax", [r]), list(dims))
    return net


@pytest.mark.parametrize("dims", [["b", 1, WIDTH], ["b", "n", 1], [WIDTH]], ids=str)
def test_what_is_broadcast_stays(encore, make_model, tmp_path, dims):
    one = of_two(Network("float16"), dims).model(make_model, opset=18)
    assert ", r" not in plan_of(one, tmp_path).split("LayerNormalization(")[1].split(")")[0]
    feeds = {"x": numbers((2, 5, WIDTH)), "r": numbers([{"b": 2, "n": 5}.get(d, d) for d in dims], 1)}
    session = es.make_session(one, regions=1)
    es.assert_all_on_encore(session)
    wide = of_two(Network("float32"), dims).model(make_model, opset=18)
    agree(session.run(None, feeds), on_cpu(wide, rounded(feeds, "float16")), "float16")


def test_an_elementwise_step_takes_the_sum(encore, make_model, tmp_path):
    """The cast that alone makes the residual is one with the sum."""
    plan = plan_of(of_two(Network("float16"), read=False).model(make_model, opset=18), tmp_path)
    assert plan.count("LayerNormalization(") == 1 and ": float16 = add(" in plan, plan


def test_shapes_that_do_not_fit_are_refused(encore, make_model):
    session = es.make_session(of_two(Network("float16")).model(make_model, opset=18), regions=1)
    with pytest.raises(Exception, match=r"added to the result has type float16 and shape \[1,4,64\]"):
        session.run(None, {"x": numbers((1, 5, WIDTH)), "r": numbers((1, 4, WIDTH))})


def test_in_bodies(encore, tmp_path):
    text = choice(
        "t = Softmax(u) q = LayerNormalization(t, scale) p = Add(u, q)",
        "p = Sin(u)",
        inputs="float[n, 8] x",
        before="u = Exp(x)",
    ).replace("float[1] w = {1.5}", "float[1] w = {1.5}, float[8] scale = {1, 2, 3, 4, 5, 6, 7, 8}")
    session = es.make_session(model(text), regions=1, dump_regions=tmp_path)
    feeds = {"x": numbers((1, 8))}
    for got, wanted in zip(session.run(None, feeds), on_cpu(model(text), feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    last = [sorted(folder.glob("*.txt"))[-1].read_text() for folder in tmp_path.iterdir() if folder.is_dir()]
    assert any("LayerNormalization(t, scale, _, u)" in one for one in last)


def gemma(net, width=WIDTH, depth=128, wide=False, read=True):
    """norm(r + norm(x W)), and the sum if somebody reads it; `wide`: with scales in float."""
    x = net.node("Relu", [net.input("x", ["b", "n", depth])])
    r = net.node("Relu", [net.input("r", ["b", "n", width])])
    rows = net.node("MatMul", [x, net.constant(numbers((depth, width), 1, -0.3, 0.3))])

    def norm(rows, seed):
        scale = net.constant(numbers((width,), seed, 0.5, 1.5), np.float32 if wide else net.dtype)
        if wide:
            rows = net.node("Cast", [rows], to=1)
        rows = net.node("RMSNormalization", [rows, scale], epsilon=1e-3)
        return net.node("Cast", [rows], to=net.kind) if wide else rows

    y = net.node("Add", [r, norm(rows, 2)])
    net.output(norm(y, 3), ["b", "n", width])
    if read:
        net.output(y, ["b", "n", width])
    return net


def check_two(make_model, tmp_path, dtype, rows, width=WIDTH, strict=0, **how):
    one, wide = (gemma(Network(d), width, **how).model(make_model, opset=23) for d in (dtype, "float32"))
    plan = plan_of(one, tmp_path)
    assert "epsilon_ahead" in plan and " Add(" not in plan and "SkipSimplified" not in plan, plan
    feeds = {"x": numbers((1, rows, 128), 1), "r": numbers((1, rows, width), 2)}
    for auto_graph in (0, 1):
        session = es.make_session(
            one, regions=1, auto_graph=auto_graph, use_tf32=0, enable_skip_layer_norm_strict_mode=strict
        )
        es.assert_all_on_encore(session)
        for _ in range(4):
            agree(session.run(None, feeds), on_cpu(wide, rounded(feeds, dtype)), dtype)
    return sum("Normalize" in kernel for kernel in kernels_of(session, feeds)) if es.on_virtual_gpu() else None


@pytest.mark.parametrize("rows", [1, 20, 600])
@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_norms(encore, make_model, tmp_path, dtype, read, rows):
    """Of few rows of halves one kernel does both."""
    kernels = check_two(make_model, tmp_path, dtype, rows, read=read)
    assert kernels in (None, 2 if rows == 600 or dtype == "float32" else 1)


@pytest.mark.parametrize("width", [1, 63, 72, 2056, 4104])
@pytest.mark.parametrize("dtype", DTYPES)
def test_widths_of_two_norms(encore, make_model, tmp_path, dtype, width):
    check_two(make_model, tmp_path, dtype, 9, width)


@pytest.mark.parametrize("rows", [1, 20, 600])
@pytest.mark.parametrize("dtype", HALVES)
def test_two_norms_by_scales_in_float(encore, make_model, tmp_path, dtype, rows):
    check_two(make_model, tmp_path, dtype, rows, wide=True)


def test_two_strict_norms(encore, make_model, tmp_path):
    assert check_two(make_model, tmp_path, "float32", 20, strict=1) in (None, 2)


def test_two_norms_of_no_rows(encore, make_model):
    session = es.make_session(gemma(Network("float16")).model(make_model, opset=23), regions=1)
    for got in session.run(None, {"x": numbers((1, 0, 128)), "r": numbers((1, 0, WIDTH))}):
        assert got.shape == (1, 0, WIDTH)


@es.needs_graphs
@pytest.mark.parametrize("rows", [1, 20, 600])
def test_two_norms_captured_and_replayed(encore, make_model, rows):
    model = gemma(Network("float16")).model(make_model, opset=23)
    session, eager = (es.make_session(model, regions=1, **how) for how in ({"enable_cuda_graph": 1}, {"auto_graph": 0}))
    shapes = {"x": (1, rows, 128), "r": (1, rows, WIDTH)}
    forms = {one.name: ((1, rows, WIDTH), np.float32) for one in session.get_outputs()}
    bound = es.Bound(session, {name: numbers(shape) for name, shape in shapes.items()}, forms)
    for seed in range(5):
        feeds = {name: numbers(shape, seed) for name, shape in shapes.items()}
        for got, wanted in zip(bound.run(feeds).values(), eager.run(None, feeds), strict=True):
            np.testing.assert_array_equal(got, wanted)
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["replays"] > 2
