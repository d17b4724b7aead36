"""Squeeze and excite, as exporters write it, made one step of one kernel or two."""

import encore_session as es
import numpy as np
import pytest
from test_fused_attention import TOLERANCE, Network, numbers, rounded
from test_fusion import on_cpu
from test_vision_blocks import plan_of

STEP = "encore.SqueezeExcite("
PLACES = 6


def activated(net, x, op):
    if op == "Silu":
        return net.node("Mul", [x, net.node("Sigmoid", [x])])
    return net.node(op, [x], **({"alpha": 1 / 6} if op == "HardSigmoid" else {})) if op else x


def weights(net, rows, columns, *ones):
    return net.constant(numbers((rows, columns, *ones), len(net.nodes), -0.4, 0.4))


def bias(net, count):
    return [net.constant(numbers((count,), len(net.nodes), -0.5, 0.5))]


def by_convolutions(net, x, channels, squeezed, first="Relu", second="Sigmoid", has_bias=True, pooled=None):
    """torchvision's. timm's takes the mean by ReduceMean."""
    y = pooled or net.node("GlobalAveragePool", [x])
    for rows, columns, op in ((squeezed, channels, first), (channels, squeezed, second)):
        more = bias(net, rows) if has_bias else []
        y = activated(net, net.node("Conv", [y, weights(net, rows, columns, 1, 1), *more]), op)
    return net.node("Mul", [x, y])


def by_means(net, x, channels, squeezed, first="Silu", second="Sigmoid"):
    mean = net.node("ReduceMean", [x, net.ints(2, 3)], keepdims=1)
    return by_convolutions(net, x, channels, squeezed, first, second, pooled=mean)


def by_layers(net, x, channels, squeezed):
    """SENet's, of rows."""
    y = net.node("Flatten", [net.node("GlobalAveragePool", [x])])
    y = net.node("Gemm", [y, weights(net, squeezed, channels), *bias(net, squeezed)], transB=1)
    y = net.node("Gemm", [net.node("Relu", [y]), weights(net, channels, squeezed), *bias(net, channels)], transB=1)
    y = net.node("Reshape", [net.node("Sigmoid", [y]), net.ints(-1, channels, 1, 1)])
    return net.node("Mul", [x, y])


def hard(net, x, channels, squeezed):
    return by_convolutions(net, x, channels, squeezed, "HardSwish", "HardSigmoid")


def without_biases(net, x, channels, squeezed):
    return by_convolutions(net, x, channels, squeezed, "LeakyRelu", "Tanh", has_bias=False)


def by_gelu(net, x, channels, squeezed):
    """GC-ViT's."""
    mean = net.node("ReduceMean", [x, net.ints(2, 3)], keepdims=1)
    y = net.node("Conv", [mean, weights(net, squeezed, channels, 1, 1)])
    root = net.node("Div", [y, net.constant(2**0.5)])
    half = net.node("Mul", [net.constant(0.5), net.node("Add", [net.node("Erf", [root]), net.constant(1)])])
    y = net.node("Conv", [net.node("Mul", [y, half]), weights(net, channels, squeezed, 1, 1)])
    return net.node("Mul", [x, net.node("Sigmoid", [y])])


def before_norm(net, x, channels, squeezed):
    """timm's, in blocks whose norms come first."""
    rows = [net.constant(numbers((channels,), i, 0.5, 1.5)) for i in range(4)]
    y = net.node("BatchNormalization", [by_means(net, x, channels, squeezed, "Relu"), *rows], epsilon=1e-3)
    return activated(net, y, "Silu")


def before_activation(net, x, channels, squeezed):
    return net.node("Relu", [by_convolutions(net, x, channels, squeezed)])


FORMS = [by_convolutions, by_means, by_layers, hard, without_biases, by_gelu, before_norm, before_activation]


def network(form, channels=16, squeezed=4, places=PLACES, width=None):
    """Between two convolutions, for which pictures have their channels last."""
    shape = ["n", 8, places, width or places]

    def build(net):
        conv = lambda x, rows, columns: net.node("Conv", [x, weights(net, rows, columns, 1, 1), *bias(net, rows)])
        x = net.node("Relu", [conv(net.input("x", shape), channels, 8)])
        net.output(conv(form(net, x, channels, squeezed), 8, channels), shape)
        return net

    return build, shape[1:]


def in_place(channels, squeezed, dims, keeps=True):
    """Pictures whose channels are last in the model: products of their rows."""
    shape = ["n", *dims, channels]

    def build(net):
        x = net.input("x", shape)
        axes = net.ints(*range(1, 1 + len(dims)))
        y = net.node("ReduceMean", [x, axes], keepdims=int(keeps))
        for rows, columns, op in ((channels, squeezed, "Silu"), (squeezed, channels, "Sigmoid")):
            y = net.node("Add", [net.node("MatMul", [y, weights(net, rows, columns)]), *bias(net, columns)])
            y = activated(net, y, op)
        y = y if keeps else net.node("Unsqueeze", [y, axes])
        net.output(net.node("Mul", [y, x]), shape)
        return net

    return build, shape[1:]


def agrees(network, make_model, dtype, batches=(1, 3), spoil=lambda x: x):
    """Eager, recorded, captured and replayed; and by its one step."""
    build, shape = network
    model, wide = build(Network(dtype)).model(make_model), build(Network("float32")).model(make_model)
    tolerance = 1e-3 if dtype == "float32" else 4 * TOLERANCE[dtype]  # convolutions are in TF32 on a GPU
    for auto_graph in (0, 1):
        session = es.make_session(model, regions=1, use_tf32=1, auto_graph=auto_graph)
        es.assert_all_on_encore(session)
        for batch in batches * 3:
            feeds = {"x": spoil(numbers((batch, *shape), batch))}
            (got,), (wanted,) = session.run(None, feeds), on_cpu(wide, rounded(feeds, dtype))
            largest = np.abs(wanted, where=np.isfinite(wanted), out=np.zeros_like(wanted)).max()
            np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * largest)
    return model


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("form", FORMS)
def test_forms(encore, make_model, tmp_path, form, dtype):
    plan = plan_of(agrees(network(form), make_model, dtype), tmp_path)
    assert plan.count(STEP) == 1, plan
    others = ("GlobalAveragePool(", "ReduceMean(", "Gemm(", " Mul(", "Sigmoid(", "BatchNormalization(", "Elementwise(")
    assert not any(op in plan for op in others), plan


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_channels_that_are_last_in_the_model(encore, make_model, tmp_path, dtype, keeps):
    plan = plan_of(agrees(in_place(24, 6, (5, 7), keeps), make_model, dtype), tmp_path)
    assert plan.count(STEP) == 1 and "MatMul" not in plan, plan


CHANNELS = [(1, 1), (8, 1), (20, 5), (30, 7), (64, 65), (72, 24), (136, 200), (520, 20), (1000, 40)]
PLACES = [(1, 1), (1, 3), (40, 33), (100,), (2, 3, 4)]


@pytest.mark.newest
@pytest.mark.parametrize(
    "channels,squeezed,dims",
    [(*sizes, dims) for sizes in CHANNELS for dims in PLACES if sizes[0] < 500 or np.prod(dims) <= 100],
)
def test_sizes(encore, make_model, channels, squeezed, dims):
    agrees(in_place(channels, squeezed, dims), make_model, "float16" if channels != 30 else "bfloat16", (1, 2))
    if channels in (20, 72):
        agrees(in_place(channels, squeezed, dims), make_model, "float32", (1, 2))


@pytest.mark.newest
@pytest.mark.parametrize(
    "channels,squeezed,dims,dtype",
    [
        (32, 8, (112, 112), "float32"),
        (32, 8, (112, 112), "float16"),
        (24, 6, (100, 300), "bfloat16"),  # several batches of a block's positions
        (1028, 60, (1, 9), "float32"),  # chunks as wide as there is room for
        (2048, 128, (7, 7), "float16"),
        (2056, 8, (3, 3), "float16"),  # wider than that
        (4104, 120, (2, 2), "bfloat16"),
        (504, 1024, (2, 2), "float16"),
        (260, 1000, (3, 1), "float32"),
        (255, 1024, (3, 1), "float32"),
        (31, 1023, (5, 5), "bfloat16"),
    ],
)
def test_sizes_at_limits(encore, make_model, tmp_path, channels, squeezed, dims, dtype):
    assert STEP in plan_of(agrees(in_place(channels, squeezed, dims), make_model, dtype, (1, 2)), tmp_path)


def test_many_pictures(encore, make_model):
    agrees(in_place(40, 12, (3, 5)), make_model, "float16", (1, 34, 67, 150))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("channels,dtype", [(24, "float16"), (24, "float32"), (9, "bfloat16")])
def test_special_values_stay_in_their_pictures(encore, make_model, channels, dtype, value):
    def spoil(x):
        x[0, 3, 1, 2] = value
        return x

    agrees(in_place(channels, 6, (5, 7)), make_model, dtype, (1, 3), spoil)


@pytest.mark.parametrize("channels,squeezed,places", [(20, 5, 6), (30, 7, 6), (32, 8, 1), (256, 1024, 2)])
def test_sizes_of_convolutions(encore, make_model, tmp_path, channels, squeezed, places):
    assert STEP in plan_of(
        agrees(network(by_convolutions, channels, squeezed, places), make_model, "float16"), tmp_path
    )


def test_no_pictures(encore, make_model):
    build, shape = in_place(16, 4, (3, 3))
    session = es.make_session(build(Network()).model(make_model), regions=1)
    assert session.run(None, {"x": np.zeros((0, *shape), np.float32)})[0].shape == (0, *shape)


def kernels(make_model, channels, squeezed, dims, dtype="float16"):
    build, shape = in_place(channels, squeezed, dims)
    session = es.make_session(build(Network(dtype)).model(make_model), regions=1, auto_graph=0)
    feeds = {"x": numbers((2, *shape))}
    return [name for name in es.functors(session, feeds) if "Squeeze" in name or "Excite" in name]


TOGETHER, APART = ["SqueezeExciteTogether"], ["Squeeze", "Excite"]


@es.only_if(es.on_virtual_gpu())  # which lists its kernels
@pytest.mark.parametrize(
    "sizes,dtype,wanted",
    [
        ((72, 24, (28, 28)), "float16", TOGETHER),
        ((960, 240, (7, 7)), "float16", TOGETHER),
        ((32, 8, (112, 112)), "bfloat16", TOGETHER),
        ((32, 8, (112, 112)), "float32", APART),  # a block would have 200 KB
        ((512, 1024, (2, 2)), "float16", APART),  # as much of weights
        ((30, 8, (4, 4)), "float16", APART),  # no packs
    ],
)
def test_kernels(encore, make_model, sizes, dtype, wanted):
    has_room = (9,) <= es.capability() < (12,)  # the others have no clusters, or less shared memory
    assert kernels(make_model, *sizes, dtype) == (wanted if has_room else APART)


def stays(make_model, folder, form, **sizes):
    build, shape = network(form, **sizes)
    model = build(Network()).model(make_model)
    assert STEP not in plan_of(model, folder)
    feeds = {"x": numbers((2, *shape))}
    got = es.make_session(model, regions=1).run(None, feeds)
    for one, wanted in zip(got, on_cpu(build(Network("float32")).model(make_model), feeds), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-2 * np.abs(wanted).max())


@pytest.mark.parametrize("which", ["GlobalAveragePool", "Relu", "Sigmoid"])
def test_what_is_read_elsewhere_too_stays(encore, make_model, tmp_path, which):
    def form(net, x, channels, squeezed):
        y = by_convolutions(net, x, channels, squeezed)
        inside = [node for node in net.nodes if node.op_type == which][-1].output[0]
        net.output(inside, ["n", squeezed if which == "Relu" else channels, 1, 1])
        return y

    stays(make_model, tmp_path, form)


def test_another_picture_is_multiplied(encore, make_model, tmp_path):
    def form(net, x, channels, squeezed):
        return by_convolutions(
            net, net.node("Tanh", [x]), channels, squeezed, pooled=net.node("GlobalAveragePool", [x])
        )

    stays(make_model, tmp_path, form)


def test_large_weights_stay(encore, make_model, tmp_path):
    stays(make_model, tmp_path, by_convolutions, channels=1024, squeezed=520, places=2)


def test_padded_convolutions_stay(encore, make_model, tmp_path):
    def form(net, x, channels, squeezed):
        y = net.node("GlobalAveragePool", [x])
        y = net.node("Conv", [y, weights(net, squeezed, channels, 1, 1)], pads=[1, 1, 1, 1], strides=[3, 3])
        y = net.node("Conv", [net.node("Relu", [y]), weights(net, channels, squeezed, 1, 1)])
        return net.node("Mul", [x, net.node("Sigmoid", [y])])

    stays(make_model, tmp_path, form)
