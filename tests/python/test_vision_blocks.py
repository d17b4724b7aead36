"""Blocks of vision models, as exporters write them: what becomes of their steps, and that results stay."""

import encore_session as es
import numpy as np
import pytest
from onnx import helper
from test_fused_attention import TOLERANCE, Network, numbers, rounded
from test_fusion import on_cpu

CHANNELS, PLACES = 16, 6
PICTURE = ["n", CHANNELS, PLACES, PLACES]


def plan_of(model, folder):
    """The largest region's, as it is in the end."""
    es.make_session(model, regions=1, use_tf32=1, dump_regions=folder)
    texts = [sorted(one.glob("*.txt"))[-1].read_text() for one in folder.iterdir() if one.is_dir()]
    return max(texts, key=len)


def agrees(build, make_model, dtype="float16", shape=(PICTURE[1:]), batches=(1, 3), use_tf32=1):
    """With graphs that nobody asks for, and without."""
    model, wide = build(Network(dtype)).model(make_model), build(Network("float32")).model(make_model)
    for auto_graph in (0, 1):
        session = es.make_session(model, regions=1, use_tf32=use_tf32, auto_graph=auto_graph)
        es.assert_all_on_encore(session)
        for batch in batches * 3:
            feeds = {"x": numbers((batch, *shape), batch)}
            for got, wanted in zip(session.run(None, feeds), on_cpu(wide, rounded(feeds, dtype)), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=0, atol=4 * TOLERANCE[dtype] * np.abs(wanted).max())
    return model


def conv(net, x, group=1, size=3, activation=None):
    weights = numbers((CHANNELS, CHANNELS // group, size, size), len(net.nodes), -0.3, 0.3)
    bias = net.constant(numbers((CHANNELS,), len(net.nodes)))
    y = net.node("Conv", [x, net.constant(weights), bias], group=group, pads=[size // 2] * 4)
    if activation == "Silu":
        return net.node("Mul", [y, net.node("Sigmoid", [y])])
    return net.node(activation, [y]) if activation else y


def convnext(net):
    """A depthwise convolution, and a norm and products with the channels last."""
    x = conv(net, net.input("x", PICTURE), size=1)
    for _ in range(2):
        y = net.node("Transpose", [conv(net, x, CHANNELS)], perm=[0, 2, 3, 1])
        y = net.node("LayerNormalization", [y, *(net.constant(numbers((CHANNELS,), i)) for i in range(2))])
        y = net.node("MatMul", [y, net.constant(numbers((CHANNELS, CHANNELS), 9, -0.3, 0.3))])
        y = net.node("Transpose", [net.node("Relu", [y])], perm=[0, 3, 1, 2])
        x = net.node("Add", [x, net.node("Mul", [y, net.constant(numbers((CHANNELS, 1, 1), 4))])])
    net.output(x, PICTURE)
    return net


def test_channels_stay_last_through_norms(encore, make_model, tmp_path):
    plan = plan_of(agrees(convnext, make_model), tmp_path)
    assert plan.count(" Transpose(") == 2, plan
    assert plan.count("encore.Elementwise(") == 2, plan


def segformer(net):
    """A picture of tokens, and tokens again."""
    tokens = PLACES * PLACES
    x = net.input("x", ["n", tokens, CHANNELS])
    y = net.node("Reshape", [net.node("Transpose", [x], perm=[0, 2, 1]), net.ints(0, CHANNELS, PLACES, PLACES)])
    y = net.node("Reshape", [conv(net, y, CHANNELS), net.ints(0, CHANNELS, tokens)])
    net.output(net.node("Transpose", [y], perm=[0, 2, 1]), ["n", tokens, CHANNELS])
    return net


def test_tokens_are_pictures_where_they_are(encore, make_model, tmp_path):
    plan = plan_of(agrees(segformer, make_model, shape=(PLACES * PLACES, CHANNELS)), tmp_path)
    assert plan.count("encore.View(") == 2 and " Transpose(" not in plan, plan
    if es.on_virtual_gpu():
        session = es.make_session(segformer(Network()).model(make_model), regions=1, auto_graph=0)
        feeds = {"x": numbers((2, PLACES * PLACES, CHANNELS))}
        ran = [k["name"] for k in es.trace(session, lambda: session.run(None, feeds)) if k["what"] == "kernel"]
        assert not any("Strided" in name or "Transpose" in name for name in ran), ran


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("scaled", [True, False])
def test_norms_of_groups(encore, make_model, tmp_path, dtype, scaled):
    def build(net):
        x = conv(net, net.input("x", PICTURE))
        y = net.node("Reshape", [x, net.ints(0, 4, -1)])
        y = net.node("InstanceNormalization", [y, net.constant(np.ones(4)), net.constant(np.zeros(4))], epsilon=1e-3)
        y = net.node("Reshape", [y, net.ints(0, *PICTURE[1:])])
        if scaled:
            y = net.node("Mul", [y, net.constant(numbers((CHANNELS, 1, 1), 1))])
            y = net.node("Add", [y, net.constant(numbers((CHANNELS, 1, 1), 2))])
        y = net.node("Mul", [y, net.node("Sigmoid", [y])])
        net.output(conv(net, y), PICTURE)
        return net

    tolerance = TOLERANCE["float32"]
    TOLERANCE["float32"] = 1e-3  # convolutions are in TF32 on a GPU
    try:
        plan = plan_of(agrees(build, make_model, dtype), tmp_path)
    finally:
        TOLERANCE["float32"] = tolerance
    assert plan.count("com.microsoft.GroupNorm(") == 1 and "ending = " in plan and "Sigmoid" not in plan, plan


def spelled(net, activation, x):
    number = lambda value: net.constant(np.array(value))
    if activation == "Silu":
        return net.node("Mul", [x, net.node("Sigmoid", [x])])
    if activation == "QuickGelu":
        return net.node("Mul", [x, net.node("Sigmoid", [net.node("Mul", [x, number(1.702)])])])
    if activation == "Gelu":
        curve = net.node("Erf", [net.node("Div", [x, number(2**0.5)])])
    elif activation == "FastGelu":
        cubic = net.node("Mul", [net.node("Pow", [x, number(3.0)]), number(0.044715)])
        curve = net.node("Tanh", [net.node("Mul", [net.node("Add", [x, cubic]), number((2 / np.pi) ** 0.5)])])
    else:
        return net.node(activation, [x])
    return net.node("Mul", [net.node("Mul", [x, net.node("Add", [curve, number(1.0)])]), number(0.5)])


ENDINGS = ["Identity", "Relu", "LeakyRelu", "HardSwish", "Sigmoid", "Silu", "Tanh", "Gelu", "FastGelu", "QuickGelu"]


@pytest.mark.parametrize("activation", ENDINGS)
@pytest.mark.parametrize("channels, places", [(80, (300,)), (72, (5, 7))], ids=str)
def test_norms_of_each_channel(encore, make_model, tmp_path, channels, places, activation):
    """Of lines and pictures: nothing is turned between convolutions."""
    ones = [1] * len(places)

    def mix(net, x):
        weights = net.constant(numbers((channels, channels, *ones), len(net.nodes), -0.2, 0.2))
        return net.node("Conv", [x, weights])

    def build(net):
        x = mix(net, net.input("x", ["n", channels, *places]))
        y = net.node("InstanceNormalization", [x, net.constant(np.ones(channels)), net.constant(np.zeros(channels))])
        y = net.node("Mul", [y, net.constant(numbers((channels, *ones), 1))])
        y = spelled(net, activation, net.node("Add", [y, net.constant(numbers((channels, *ones), 2))]))
        net.output(mix(net, y), ["n", channels, *places])
        return net

    plan = plan_of(agrees(build, make_model, shape=(channels, *places)), tmp_path)
    assert plan.count(" com.microsoft.GroupNorm(") == 1 and plan.count(" Transpose(") <= 2, plan
    assert ("ending = " in plan) == (activation != "Identity"), plan


@pytest.mark.parametrize("activation", ["Sigmoid", "Silu", "HardSwish", "Tanh", "Gelu", "FastGelu", "QuickGelu"])
@pytest.mark.parametrize("size", [3, 4])
def test_activations_of_depthwise_convolutions(encore, make_model, activation, size):
    def build(net):
        x = net.input("x", PICTURE)
        for _ in range(2):
            weights = net.constant(numbers((CHANNELS, 1, size, size), size, -0.5, 0.5))
            y = net.node("Conv", [x, weights], group=CHANNELS, pads=[1, 1, size - 2, size - 2])
            x = spelled(net, activation, y)
        net.output(x, PICTURE)
        return net

    model = agrees(build, make_model)
    if es.on_virtual_gpu():
        session = es.make_session(model, regions=1, auto_graph=0)
        feeds = {"x": numbers((1, *PICTURE[1:]))}
        ran = [k["name"] for k in es.trace(session, lambda: session.run(None, feeds)) if k["what"] == "kernel"]
        assert sum("Depthwise" in name for name in ran) == 2 and not any("Finish" in name for name in ran), ran


@pytest.mark.parametrize("size", [1, 3, 9])
def test_residuals_of_depthwise_convolutions(encore, make_model, size):
    """As RepViT has them: the convolution's kernel adds the residual, and ends with the activation."""

    def build(net):
        x = conv(net, net.input("x", PICTURE), size=1)
        for _ in range(2):
            x = net.node("Relu", [net.node("Add", [conv(net, x, CHANNELS, size), x])])
        net.output(conv(net, x, size=1), PICTURE)
        return net

    model = agrees(build, make_model)
    if es.on_virtual_gpu():
        session = es.make_session(model, regions=1, auto_graph=0)
        ran = es.functors(session, {"x": numbers((1, *PICTURE[1:]))})
        assert ran.count("DepthwiseTile" if size == 3 else "DepthwisePacks") == 2, ran
        assert not any("Finish" in name or "Program" in name for name in ran), ran


@pytest.mark.parametrize("activation", ["Relu", "Silu", "Gelu", "FastGelu", "QuickGelu"])
def test_activations_of_pointwise_convolutions(encore, make_model, tmp_path, activation):
    """And a response norm of pictures, as ConvNeXt V2 has it: nothing is turned for it."""

    def build(net):
        x = net.input("x", PICTURE)
        wide = [numbers((4 * CHANNELS, CHANNELS, 1, 1), 5, -0.3, 0.3), numbers((4 * CHANNELS,), 6)]
        y = spelled(net, activation, net.node("Conv", [x, *map(net.constant, wide)]))
        length = net.node("ReduceL2", [y, net.ints(2, 3)])
        mean = net.node("Add", [net.node("ReduceMean", [length, net.ints(1)]), net.constant(np.array(1e-3))])
        share = net.node("Div", [length, mean])
        y = net.node("Add", [y, net.node("Mul", [y, share])])
        weights = net.constant(numbers((CHANNELS, 4 * CHANNELS, 1, 1), 7, -0.2, 0.2))
        net.output(net.node("Add", [x, net.node("Conv", [y, weights])]), PICTURE)
        return net

    plan = plan_of(agrees(build, make_model), tmp_path)
    assert "Gelu(" not in plan and plan.count(" Transpose(") <= 2, plan


@pytest.mark.parametrize("activation", ["Relu", "Silu", "Gelu", "FastGelu"])
def test_activations_of_tokens(encore, make_model, tmp_path, activation):
    """Where a depthwise convolution has made them, as SegFormer's layers do."""
    tokens = PLACES * PLACES

    def build(net):
        x = net.input("x", ["n", tokens, CHANNELS])
        for i in range(2):
            y = net.node("MatMul", [x, net.constant(numbers((CHANNELS, CHANNELS), i, -0.3, 0.3))])
            y = net.node("Reshape", [net.node("Transpose", [y], perm=[0, 2, 1]), net.ints(0, CHANNELS, PLACES, PLACES)])
            y = net.node("Reshape", [conv(net, y, CHANNELS), net.ints(0, CHANNELS, tokens)])
            y = spelled(net, activation, net.node("Transpose", [y], perm=[0, 2, 1]))
            x = net.node("MatMul", [y, net.constant(numbers((CHANNELS, CHANNELS), i + 2, -0.3, 0.3))])
        net.output(x, ["n", tokens, CHANNELS])
        return net

    plan = plan_of(agrees(build, make_model, shape=(tokens, CHANNELS)), tmp_path)
    assert plan.count("FusedConv(") == 2 and "Gelu(" not in plan, plan


def test_batch_norms_before_convolutions(encore, make_model, tmp_path):
    """DenseNet's: a norm and what it is activated by are one kernel."""

    def build(net):
        x = net.input("x", PICTURE)
        rows = [numbers((CHANNELS,), i, 0.5, 1.5) for i in range(4)]
        y = net.node("BatchNormalization", [x, *(net.constant(row) for row in rows)], epsilon=1e-3)
        net.output(conv(net, net.node("Relu", [y])), PICTURE)
        return net

    plan = plan_of(agrees(build, make_model), tmp_path)
    assert "BatchNormalization" not in plan and plan.count("encore.Elementwise(") == 1, plan


def test_batch_norms_ahead_of_convolutions(encore, make_model, tmp_path):
    """MaxViT's are a part of the next one's weights."""

    def build(net):
        x = net.input("x", PICTURE)
        rows = [numbers((CHANNELS,), i, 0.5, 1.5) for i in range(4)]
        y = net.node("BatchNormalization", [x, *(net.constant(row) for row in rows)], epsilon=1e-3)
        y = conv(net, y, size=1, activation="Relu")
        net.output(conv(net, net.node("Add", [x, y])), PICTURE)
        return net

    plan = plan_of(agrees(build, make_model), tmp_path)
    assert "BatchNormalization" not in plan and "Elementwise" not in plan, plan


@pytest.mark.parametrize("exported", ["numbers", "shapes"])
def test_batch_norms_behind_products(encore, make_model, tmp_path, exported):
    """LeViT's are a part of their weights."""

    def build(net):
        x = net.input("x", ["n", PLACES, CHANNELS])
        y = net.node("MatMul", [x, net.constant(numbers((CHANNELS, CHANNELS), 9, -0.3, 0.3))])
        rows = [numbers((CHANNELS,), i, 0.5, 1.5) for i in range(4)]
        if exported == "numbers":
            shape, flat = net.ints(-1, PLACES, CHANNELS), net.node("Reshape", [y, net.ints(-1, CHANNELS)])
        else:
            shape, flat = net.node("Shape", [y]), net.node("Flatten", [y], axis=2)
        y = net.node("BatchNormalization", [flat, *(net.constant(row) for row in rows)], epsilon=1e-3)
        net.output(net.node("HardSwish", [net.node("Reshape", [y, shape])]), x_shape)
        return net

    x_shape = ["n", PLACES, CHANNELS]
    plan = plan_of(agrees(build, make_model, shape=(PLACES, CHANNELS)), tmp_path)
    assert "BatchNormalization" not in plan and plan.count("MatMul(") == 1, plan


def test_parts_of_channels_are_aligned(encore, make_model, tmp_path):
    """FocalNet's product, whose gates are three channels more."""

    def build(net):
        x = conv(net, net.input("x", PICTURE))
        weights = net.constant(numbers((2 * CHANNELS + 3, CHANNELS, 1, 1), 5, -0.3, 0.3))
        cut = net.node("Conv", [x, weights, net.constant(numbers((2 * CHANNELS + 3,), 6))])
        parts = ["queries", "values", "gates"]
        sizes = net.ints(CHANNELS, CHANNELS, 3)
        net.nodes.append(helper.make_node("Split", [cut, sizes], parts, "cut", axis=1))
        gate = net.node("Slice", ["gates", net.ints(2), net.ints(3), net.ints(1)])
        y = net.node("Mul", [conv(net, "values", CHANNELS), gate])
        net.output(conv(net, net.node("Mul", ["queries", y])), PICTURE)
        return net

    plan = plan_of(agrees(build, make_model), tmp_path)
    assert f"{2 * CHANNELS + 8}] = com.ms.internal.nhwc.Conv" in plan and "Split(" not in plan, plan
    assert f"first_channel = {CHANNELS}" in plan and "part x1 along -1 from 34 to 35" in plan, plan


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("width", [16, 15, 6])
def test_gates_beside_what_they_gate(encore, make_model, tmp_path, width, dtype):
    """FocalNet's: of one product, and read where they are."""
    whole = 2 * width + 3

    def build(net):
        x = net.input("x", ["n", PLACES, whole])
        part = lambda of, begin, end: net.node("Slice", [of, net.ints(begin), net.ints(end), net.ints(2)])
        a, b, c = part(x, 0, width), part(x, width, 2 * width), part(x, 2 * width, whole)
        gate = lambda i: part(c, i, i + 1)
        y = net.node("Mul", [net.node("Tanh", [b]), gate(0)])
        y = net.node("Add", [y, net.node("Mul", [a, gate(2)])])
        mean = net.node("ReduceMean", [y, net.ints(2)], keepdims=1)
        net.output(net.node("Mul", [y, net.node("Add", [mean, gate(1)])]), ["n", PLACES, width])
        return net

    plan = plan_of(agrees(build, make_model, dtype, (PLACES, whole)), tmp_path)
    assert "Slice(" not in plan and plan.count("part x") > 3, plan


def multi_head_attention(net):
    """torch's, inside of which sequences come first; of any batch, by which its exporter computes the scale."""
    heads, size = 2, 8
    x = net.input("x", ["n", PLACES, CHANNELS])
    y = net.node("Transpose", [x], perm=[1, 0, 2])
    y = net.node("MatMul", [y, net.constant(numbers((CHANNELS, 3 * CHANNELS), 1, -0.3, 0.3))])
    y = net.node("Add", [y, net.constant(numbers((3 * CHANNELS,), 2))])
    y = net.node("Reshape", [y, net.ints(PLACES, -1, 3, CHANNELS)])
    y = net.node("Transpose", [y], perm=[2, 0, 1, 3])
    q, k, v = (net.node("Gather", [y, net.constant(np.array(i), np.int64)], axis=0) for i in range(3))
    split = lambda one, order: net.node(
        "Transpose", [net.node("Reshape", [one, net.ints(PLACES, -1, heads, size)])], perm=order
    )
    q, k, v = split(q, [1, 2, 0, 3]), split(k, [1, 2, 3, 0]), split(v, [1, 2, 0, 3])
    shape = net.node("Shape", [q])
    width = net.node("Slice", [shape, net.ints(-1), net.ints(2**62), net.ints(0)])
    root = net.node("Sqrt", [net.node("Cast", [width], to=net.kind)])
    scale = net.node("Sqrt", [net.node("Div", [net.constant([1.0]), root])])
    scores = net.node("MatMul", [net.node("Mul", [q, scale]), net.node("Mul", [k, scale])])
    y = net.node("MatMul", [net.node("Softmax", [scores], axis=-1), v])
    y = net.node("Reshape", [net.node("Transpose", [y], perm=[2, 0, 1, 3]), net.ints(-1, CHANNELS)])
    weights, bias = net.constant(numbers((CHANNELS, CHANNELS), 3, -0.3, 0.3)), net.constant(numbers((CHANNELS,), 4))
    y = net.node("Reshape", [net.node("Gemm", [y, weights, bias], transB=1), net.ints(PLACES, -1, CHANNELS)])
    net.output(net.node("Transpose", [y], perm=[1, 0, 2]), ["n", PLACES, CHANNELS])
    return net


def test_sequences_that_come_first_are_not_turned(encore, make_model, tmp_path):
    plan = plan_of(agrees(multi_head_attention, make_model, shape=(PLACES, CHANNELS)), tmp_path)
    assert plan.count("encore.Attention(") == 1 and "Softmax" not in plan and " Transpose(" not in plan, plan
    if es.on_virtual_gpu():
        session = es.make_session(multi_head_attention(Network()).model(make_model), regions=1, auto_graph=0)
        feeds = {"x": numbers((3, PLACES, CHANNELS))}
        ran = [k["name"] for k in es.trace(session, lambda: session.run(None, feeds)) if k["what"] == "kernel"]
        assert not any("Strided" in name or "Transpose" in name for name in ran), ran


def test_pads_by_nothing_are_none(encore, make_model, tmp_path):
    def build(net):
        y = net.node("Pad", [net.input("x", PICTURE), net.ints(*[0] * 8)])
        net.output(conv(net, y), PICTURE)
        return net

    assert "Pad(" not in plan_of(agrees(build, make_model), tmp_path)


def mobilevit(net, size):
    """Patches of two pixels by two, whose attention is between pixels of the same place, in heads of any size."""
    heads, tokens = 2, PLACES * PLACES // 4
    width = heads * size

    def weights(rows, columns):
        return net.constant(numbers((rows, columns), len(net.nodes), -0.3, 0.3))

    x = conv(net, net.input("x", PICTURE))
    n = net.node("Gather", [net.node("Shape", [x]), net.ints(0)])
    joint = lambda *parts: net.node("Concat", [p if isinstance(p, str) else net.ints(p) for p in parts], axis=0)
    y = net.node("Reshape", [x, net.ints(-1, 2, PLACES // 2, 2)])
    y = net.node("Reshape", [net.node("Transpose", [y], perm=[0, 2, 1, 3]), joint(n, CHANNELS, tokens, 4)])
    y = net.node("Transpose", [y], perm=[0, 3, 2, 1])
    y = net.node("Reshape", [y, joint(net.node("Mul", [n, net.ints(4)]), tokens, -1)])
    bias = net.constant(numbers((3 * width,), 1))
    qkv = net.node("Add", [bias, net.node("MatMul", [y, weights(CHANNELS, 3 * width)])])
    qkv = net.node("Transpose", [net.node("Reshape", [qkv, net.ints(0, 0, 3, heads, size)])], perm=[2, 0, 3, 1, 4])
    q, k, v = (net.node("Gather", [qkv, net.constant(i, np.int64)]) for i in range(3))
    scores = net.node("MatMul", [q, net.node("Transpose", [k], perm=[0, 1, 3, 2])])
    p = net.node("Softmax", [net.node("Mul", [scores, net.constant(0.4)])], axis=-1)
    z = net.node("Transpose", [net.node("MatMul", [p, v])], perm=[0, 2, 1, 3])
    z = net.node("MatMul", [net.node("Reshape", [z, net.ints(0, 0, width)]), weights(width, CHANNELS)])
    z = net.node("Reshape", [net.node("Add", [y, z]), joint(n, 4, tokens, -1)])
    z = net.node("Reshape", [net.node("Transpose", [z], perm=[0, 3, 2, 1]), net.ints(-1, PLACES // 2, 2, 2)])
    z = net.node("Reshape", [net.node("Transpose", [z], perm=[0, 2, 1, 3]), joint(n, CHANNELS, PLACES, PLACES)])
    net.output(conv(net, z), PICTURE)
    return net


@pytest.mark.parametrize("size", [8, 12, 20])
def test_patches_and_heads_of_any_size(encore, make_model, tmp_path, size):
    plan = plan_of(agrees(lambda net: mobilevit(net, size), make_model), tmp_path)
    assert plan.count("encore.Attention(") == 1 and "Softmax" not in plan, plan
    assert ("with larger heads" in plan) == (size % 8 != 0), plan
    assert plan.count(" Transpose(") == 2 and plan.count("transpose 0,3,2,1") == 2, plan


SIDE, WINDOW, SHIFT = 12, 4, 3
COUNT = SIDE // WINDOW


def rolled(net, x, shift):
    """As torch.roll is exported, along rows and then columns."""
    for axis in (1, 2):
        ends = net.ints(-shift), net.ints(np.iinfo(np.int64).max), net.ints(0), net.ints(axis), net.ints(1)
        last = net.node("Slice", [x, ends[0], ends[1], ends[3], ends[4]])
        x = net.node("Concat", [last, net.node("Slice", [x, ends[2], ends[0], ends[3], ends[4]])], axis=axis)
    return x


def windows(net, channels):
    """Swin's: shifted pictures are cut into windows, and put together again; then four neighbours are one."""
    x = net.input("x", ["n", SIDE, SIDE, channels])
    y = net.node("Reshape", [rolled(net, x, -SHIFT), net.ints(-1, COUNT, WINDOW, COUNT, WINDOW, channels)])
    y = net.node("Reshape", [net.node("Transpose", [y], perm=[0, 1, 3, 2, 4, 5]), net.ints(-1, WINDOW**2, channels)])
    y = net.node("MatMul", [y, net.constant(numbers((channels, channels), 1, -0.3, 0.3))])
    y = net.node("Softmax", [y], axis=-2)
    y = net.node("Reshape", [y, net.ints(-1, COUNT, COUNT, WINDOW, WINDOW, channels)])
    y = net.node("Reshape", [net.node("Transpose", [y], perm=[0, 1, 3, 2, 4, 5]), net.ints(-1, SIDE, SIDE, channels)])
    y = rolled(net, y, SHIFT)
    for axis in (1, 2):
        y = net.node("Slice", [y, net.ints(0), net.ints(SIDE), net.ints(axis), net.ints(1)])
    y = net.node("Softmax", [y], axis=-2)
    parts = []
    for column in (0, 1):
        for row in (0, 1):
            begins, ends = net.ints(row, column), net.ints(SIDE, SIDE)
            parts.append(net.node("Slice", [y, begins, ends, net.ints(1, 2), net.ints(2, 2)]))
    net.output(net.node("Concat", parts, axis=-1), ["n", SIDE // 2, SIDE // 2, 4 * channels])
    return net


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("channels", [16, 12, 3])
def test_windows_are_moved_at_once(encore, make_model, tmp_path, dtype, channels):
    def build(net):
        return windows(net, channels)

    model = agrees(build, make_model, dtype, shape=(SIDE, SIDE, channels), use_tf32=0)
    plan = plan_of(model, tmp_path)
    assert plan.count("encore.View(") == 3, plan
    for step in (" Transpose(", " Slice(", " Concat(", "encore.Roll("):
        assert step not in plan, plan


@pytest.mark.parametrize("channels", [16, 3])
@pytest.mark.parametrize("begin", [0, 1])
def test_a_rolled_picture_is_cut(encore, make_model, tmp_path, begin, channels):
    """Swin pads pictures to whole windows, and cuts them again. A row may be taken, too, or be there several times."""

    def build(net):
        x, side = net.input("x", ["n", SIDE, SIDE, channels]), SIDE - 3
        y, z = rolled(net, x, SHIFT), rolled(net, x, -SHIFT)
        for axis in (1, 2):
            y = net.node("Slice", [y, net.ints(begin), net.ints(begin + side), net.ints(axis), net.ints(1)])
        net.output(net.node("Softmax", [y], axis=-1), ["n", side, side, channels])
        row = net.node("Gather", [z, net.constant(begin, np.int64)], axis=1)
        row = net.node("Expand", [net.node("Unsqueeze", [row, net.ints(1)]), net.ints(1, 2, 1, 1)])
        net.output(net.node("Softmax", [row], axis=-1), ["n", 2, SIDE, channels])
        return net

    plan = plan_of(agrees(build, make_model, shape=(SIDE, SIDE, channels)), tmp_path)
    assert plan.count("encore.View(") == 2 and " Slice(" not in plan and "encore.Roll(" not in plan, plan


def test_a_picture_is_turned_and_rolled(encore, make_model, tmp_path):
    """Neighbours do not stay neighbours, so that it is turned by itself."""

    def build(net):
        tokens = net.node("Transpose", [net.input("x", ["n", CHANNELS, SIDE * SIDE])], perm=[0, 2, 1])
        x = net.node("Reshape", [tokens, net.ints(-1, SIDE, SIDE, CHANNELS)])
        net.output(net.node("Softmax", [rolled(net, x, SHIFT)], axis=-1), ["n", SIDE, SIDE, CHANNELS])
        return net

    plan = plan_of(agrees(build, make_model, shape=(CHANNELS, SIDE * SIDE)), tmp_path)
    assert plan.count("encore.Roll(") == plan.count(" Transpose(") == 1, plan


def segmentation(net, mode, coordinates):
    """Features of several sizes, resized and put side by side, as networks of pyramids end."""
    x = conv(net, net.input("x", ["n", CHANNELS, SIDE, SIDE]), activation="Relu")
    pieces = [x]
    for size in (SIDE // 2, SIDE // 4, 1):
        stride = SIDE // size
        y = net.node("AveragePool", [x], kernel_shape=[stride] * 2, strides=[stride] * 2)
        y, scales = conv(net, y, size=1, activation="Relu"), net.constant([1, 1, stride, stride], np.float32)
        pieces.append(net.node("Resize", [y, "", scales], mode=mode, coordinate_transformation_mode=coordinates))
    joined = net.node("Concat", pieces, axis=1)
    weights = net.constant(numbers((CHANNELS, 4 * CHANNELS, 1, 1), 7, -0.3, 0.3))
    net.output(net.node("Conv", [joined, weights]), ["n", CHANNELS, SIDE, SIDE])
    return net


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "mode, coordinates", [("linear", "half_pixel"), ("linear", "align_corners"), ("nearest", "asymmetric")]
)
def test_features_are_resized_side_by_side(encore, make_model, tmp_path, dtype, mode, coordinates):
    build = lambda net: segmentation(net, mode, coordinates)
    plan = plan_of(agrees(build, make_model, dtype, shape=(CHANNELS, SIDE, SIDE), use_tf32=0), tmp_path)
    assert plan.count("encore.JoinedResizes(") == 1 and "resized = [1, 2, 3]" in plan, plan
    assert " Resize(" not in plan and " Concat(" not in plan, plan


def segformer_end(net, sizes, beta=1.0, bias=(CHANNELS,), is_flat=True):
    """Products of each stage's tokens, pictures of which are resized unless they are the largest, side by side."""
    x, most = net.input("x", ["n", max(sizes) ** 2, CHANNELS]), max(sizes)
    pieces = []
    for size in sizes:
        rows = net.node("Slice", [x, net.ints(0), net.ints(size**2), net.ints(1)])
        weights = net.constant(numbers((CHANNELS, CHANNELS), len(net.nodes), -0.3, 0.3))
        added = [] if bias is None else [net.constant(numbers(bias, size))]
        if is_flat:
            rows = net.node("Reshape", [rows, net.ints(-1, CHANNELS)])
            rows = net.node("Gemm", [rows, weights, *added], alpha=0.5, beta=beta)
        else:
            rows = net.node("Add", [net.node("MatMul", [rows, weights]), *added])
        y = net.node("Reshape", [rows, net.ints(-1, size, size, CHANNELS)])
        if size < most:
            scales = net.constant([1, most / size, most / size, 1], np.float32)
            y = net.node("Resize", [y, "", scales], mode="linear")
        pieces.append(y)
    weights = net.constant(numbers((len(sizes) * CHANNELS, CHANNELS), 3, -0.3, 0.3))
    y = net.node("MatMul", [net.node("Concat", pieces, axis=-1), weights])
    net.output(y, ["n", most, most, CHANNELS])
    return net


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("sizes", [(3, 6, 12), (12, 3), (6, 12, 12, 6), (1, 2)])
@pytest.mark.parametrize("is_flat", [True, False])
def test_a_product_is_where_resized_features_are_put(encore, make_model, tmp_path, dtype, sizes, is_flat):
    build = lambda net: segformer_end(net, sizes, is_flat=is_flat)
    plan = plan_of(agrees(build, make_model, dtype, shape=(max(sizes) ** 2, CHANNELS), use_tf32=0), tmp_path)
    assert plan.count("encore.JoinedResizes(") == plan.count("row_width") == plan.count("in_place") == 1, plan


@pytest.mark.parametrize(
    "beta, bias", [(1.0, None), (2.0, (CHANNELS,)), (1.0, (1,)), (0.5, (1, 1)), (0.0, (CHANNELS,))]
)
def test_what_is_added_is_where_the_product_is(encore, make_model, beta, bias):
    agrees(lambda net: segformer_end(net, (3, 6, 12), beta, bias), make_model, shape=(144, CHANNELS))


def spelled_hard_swish(net, x, divides=True, gate_first=False):
    """As before ONNX had the operator."""
    gate = net.node("Clip", [net.node("Add", [x, net.constant([3])]), net.constant(0), net.constant(6)])
    sixth = lambda v: net.node("Div", [v, net.constant([6])]) if divides else net.node("Mul", [v, net.constant(1 / 6)])
    return net.node("Mul", [sixth(gate), x]) if gate_first else sixth(net.node("Mul", [x, gate]))


@pytest.mark.parametrize("divides, gate_first", [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_convolutions_end_with_spelled_hard_swishes(encore, make_model, tmp_path, dtype, divides, gate_first):
    def build(net):
        x = net.input("x", PICTURE)
        for group, size in ((1, 3), (CHANNELS, 3), (1, 1)):
            x = spelled_hard_swish(net, conv(net, x, group, size), divides, gate_first)
        net.output(x, PICTURE)
        return net

    # A float's convolution is one in TF32 on a GPU.
    plan = plan_of(agrees(build, make_model, dtype, use_tf32=0), tmp_path)
    assert plan.count('activation = "HardSwish"') == 3 and "Elementwise(" not in plan, plan


@pytest.mark.parametrize("activation", ["Relu", "HardSwish"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_convolutions_scale_what_they_end_with(encore, make_model, tmp_path, dtype, activation):
    """PaddlePaddle's blocks of learnable scales and shifts."""

    def build(net):
        x = net.input("x", PICTURE)
        for number, (group, size) in enumerate([(1, 3), (CHANNELS, 3), (1, 1), (2, 3)]):
            x = net.node("Mul", [net.constant([0.5 + number]), conv(net, x, group, size, activation)])
            x = net.node("Add", [x, net.constant([number - 1.25])]) if number != 1 else x
        net.output(x, PICTURE)
        return net

    plan = plan_of(agrees(build, make_model, dtype, use_tf32=0), tmp_path)
    assert plan.count(f'activation = "Scaled{activation}"') == 4 and "Elementwise(" not in plan, plan
