"""Products whose parts the norm behind adds up, where rows are few, and those that are made as a whole."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import TensorProto
from test_fused_attention import HALVES, TOLERANCE, Network, numbers, rounded
from test_fusion import kernels_of, on_cpu
from test_vision_blocks import plan_of

WIDTH, DEPTH, ROWS = 512, 1024, 197  # of which the library makes products of halves, too
DTYPES = ["float32", *HALVES]
STEP = "encore.ProductNorm("


def block(width=WIDTH, depth=DEPTH, norm="LayerNormalization", biased=True, residual=True, read=False, wide=False):
    """norm(x W + b + r), `wide`: in float, and the sum, too, if somebody reads it; ahead of both is something else."""

    def build(net):
        x = net.node("Relu", [net.input("x", ["b", "n", depth])])
        weights = net.constant(numbers((depth, width), 1, -0.3, 0.3))
        y = net.node("MatMul", [x, weights])
        if biased:
            y = net.node("Add", [y, net.constant(numbers((width,), 2))])
        if residual:
            y = net.node("Add", [net.node("Relu", [net.input("r", ["b", "n", width])]), y])
        if read:
            net.output(y, ["b", "n", width])
        kind = np.float32 if wide else net.dtype
        count = 2 if norm == "LayerNormalization" else 1
        rows = [net.constant(numbers((width,), i, 0.5, 1.5), kind) for i in range(count)]
        if wide:
            y = net.node("Cast", [y], to=TensorProto.FLOAT)
        y = net.node(norm, [y, *rows], epsilon=1e-5)
        if wide:
            y = net.node("Cast", [y], to=net.kind)
        net.output(y, ["b", "n", width])
        return net

    return build


def feeds_of(model, rows, seed=0):
    widths = {value.name: value.type.tensor_type.shape.dim[-1].dim_value for value in model.graph.input}
    return {name: numbers((1, rows, width), seed + i) for i, (name, width) in enumerate(widths.items())}


def agree(got, wanted, dtype, use_tf32=0):
    tolerance = max(TOLERANCE[dtype], 2e-3 if use_tf32 else 0)
    for one, other in zip(got, wanted, strict=True):
        scale = np.abs(other[np.isfinite(other)]).max(initial=0)
        np.testing.assert_allclose(one, other, rtol=0, atol=4 * tolerance * scale)


def adds_parts(session, feeds):
    return any("NormalizeFewRows" in kernel and ", 4>" in kernel for kernel in kernels_of(session, feeds))


def check(build, make_model, dtype, rows, in_parts, use_tf32=0, **options):
    """With graphs that nobody asks for, and without; `in_parts`: whether that is how the virtual GPU does it."""
    model, wide = (build(Network(one)).model(make_model, opset=23) for one in (dtype, "float32"))
    for auto_graph in (0, 1):
        session = es.make_session(model, regions=1, auto_graph=auto_graph, use_tf32=use_tf32, **options)
        es.assert_all_on_encore(session)
        for seed in range(4):
            feeds = feeds_of(model, rows, seed)
            agree(session.run(None, feeds), on_cpu(wide, rounded(feeds, dtype)), dtype, use_tf32)
        if es.on_virtual_gpu() and not auto_graph:
            assert adds_parts(session, feeds) == in_parts
    return model


@pytest.mark.parametrize("rows", [1, 7, 9, 16, 17, 128, 197, 600])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(encore, make_model, tmp_path, dtype, rows):
    """Of one to eight GEMV makes the product, of somewhat more halves tiles do, and 600 are many."""
    few = 8 if dtype == "float32" else 128
    model = check(block(), make_model, dtype, rows, few < rows < 600)
    assert STEP in plan_of(model, tmp_path)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("norm", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_added_and_read(encore, make_model, tmp_path, dtype, norm, biased, residual, read):
    joins = residual or not read
    model = check(block(norm=norm, biased=biased, residual=residual, read=read), make_model, dtype, ROWS, joins)
    assert (STEP in plan_of(model, tmp_path)) == joins


@pytest.mark.parametrize("rows,in_parts", [(1, False), (ROWS, True), (600, False)])
@pytest.mark.parametrize("norm", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("dtype", HALVES)
def test_halves_normed_in_float(encore, make_model, tmp_path, dtype, norm, rows, in_parts):
    model = check(block(norm=norm, wide=True), make_model, dtype, rows, in_parts)
    plan = plan_of(model, tmp_path)
    assert STEP in plan and plan.count("Cast(") == 1  # the one at the end


@pytest.mark.newest
@pytest.mark.parametrize(
    "rows,width,depth,in_parts",
    [
        (ROWS, 512, 1088, DTYPES),
        (ROWS, 512, 1040, []),
        (ROWS, 512, 960, []),
        (ROWS, 520, 1088, DTYPES),
        (ROWS, 516, 1088, ["float32"]),
        (ROWS, 511, 1088, []),
        (20, 64, 128, ["float32"]),
        (20, 8, 64, ["float32"]),
        (20, 1, 64, []),
        (20, 2056, 4160, ["float32"]),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(encore, make_model, dtype, rows, width, depth, in_parts):
    """Rows that packs don't fill are none for the norm of parts, and depths are parted where tiles may be."""
    check(block(width, depth), make_model, dtype, rows, dtype in in_parts)


@pytest.mark.parametrize("use_tf32", [0, 1])
def test_floats_on_tensor_cores(encore, make_model, use_tf32):
    check(block(), make_model, "float32", 20, True, use_tf32)


def test_strict_sums_of_floats(encore, make_model):
    check(block(), make_model, "float32", 20, False, enable_skip_layer_norm_strict_mode=1)


def contrib(net, in_norm=True, kind="SkipLayerNormalization"):
    """As onnxruntime's tools write it, which give the product's bias to the norm."""
    x, r = net.node("Relu", [net.input("x", ["n", 3, DEPTH])]), net.node("Relu", [net.input("r", ["n", 3, WIDTH])])
    y = net.node("MatMul", [x, net.constant(numbers((DEPTH, WIDTH), 1, -0.3, 0.3))])
    gamma, beta, bias = (net.constant(numbers((WIDTH,), i, 0.5, 1.5)) for i in range(3))
    inputs = [y, r, gamma] + [beta] * (kind == "SkipLayerNormalization") + [bias] * in_norm
    net.output(net.node(kind, inputs, domain="com.microsoft"), ["n", 3, WIDTH])
    return net


@pytest.mark.parametrize("kind", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_of_the_norm(encore, make_model, tmp_path, dtype, kind):
    model, wide = (contrib(Network(one), kind=kind).model(make_model) for one in (dtype, "float32"))
    session = es.make_session(model, regions=1)
    feeds = {"x": numbers((66, 3, DEPTH), 1), "r": numbers((66, 3, WIDTH), 2)}
    agree(session.run(None, feeds), on_cpu(wide, rounded(feeds, dtype)), dtype)
    assert STEP in plan_of(model, tmp_path)
    assert not es.on_virtual_gpu() or adds_parts(session, feeds)


@es.needs_graphs
@pytest.mark.parametrize("rows", [ROWS, 600])
@pytest.mark.parametrize("dtype", DTYPES)
def test_captured_and_replayed(encore, make_model, dtype, rows):
    model, wide = (block(read=True)(Network(one)).model(make_model, opset=23) for one in (dtype, "float32"))
    eager = es.make_session(model, regions=1, auto_graph=0)
    session = es.make_session(model, regions=1, enable_cuda_graph=1)
    forms = {one.name: ((1, rows, WIDTH), np.float32) for one in session.get_outputs()}
    bound = es.Bound(session, feeds_of(model, rows), forms)
    for seed in range(5):
        feeds = feeds_of(model, rows, seed)
        got = list(bound.run(feeds).values())
        agree(got, on_cpu(wide, rounded(feeds, dtype)), dtype)
        for one, other in zip(got, eager.run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, other)
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["replays"] > 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_a_number_stays_in_its_row(encore, make_model, dtype):
    model = block()(Network(dtype)).model(make_model, opset=23)
    session = es.make_session(model, regions=1)
    feeds = feeds_of(model, ROWS)
    clean = session.run(None, feeds)[0]
    feeds["r"][0, 3, 5], feeds["x"][0, 7, 200], feeds["r"][0, 9, 0] = np.nan, np.nan, np.inf
    (got,) = session.run(None, feeds)
    spoilt = np.isnan(got).all(axis=2)
    np.testing.assert_array_equal(np.argwhere(spoilt), [[0, 3], [0, 7], [0, 9]])
    np.testing.assert_array_equal(got[~spoilt], clean[~spoilt])


@pytest.mark.parametrize("tuned", [0, 1])
def test_tuning(encore, make_model, tuned):
    how = {"tunable_op_enable": 1, "tunable_op_tuning_enable": 1} if tuned else {}
    check(block(), make_model, "float16", ROWS, True, **how)


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows(encore, make_model, rows):
    model = block(read=True)(Network("float16")).model(make_model, opset=23)
    for got in es.make_session(model, regions=1).run(None, feeds_of(model, rows)):
        assert got.shape == (1, rows, WIDTH)


def test_shapes_that_do_not_fit_are_refused(encore, make_model):
    model = block()(Network("float16")).model(make_model, opset=23)
    feeds = feeds_of(model, 20)
    feeds["r"] = feeds["r"][:, :19]
    with pytest.raises(Exception, match="19"):
        es.make_session(model, regions=1).run(None, feeds)
