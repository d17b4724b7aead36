"""Conv and ConvTranspose, with every way to say where the window lies."""

from dataclasses import replace

import numpy as np
import pytest
from both import Both
from encore_session import on_cpu, on_virtual_gpu, only_if
from harness import Case, Const, check, floats, kernels_of
from onnx import helper
from refusal import declined, fails


def conv(x, w, bias=False, op="Conv", dtype="float32", opset=21, name="", **attrs):
    channels = w[0] if op == "Conv" else w[1] * attrs.get("group", 1)
    # Weights small enough that sums stay near one.
    deep = np.sqrt(np.prod(w[1:]) if op == "Conv" else w[0])
    inputs = [floats(*x, low=-1, high=1), floats(*w, low=-1, high=1) / np.float32(deep)]
    if bias:
        inputs.append(floats(channels))
    name = name or "_".join(f"{k}={v}".replace(" ", "") for k, v in attrs.items())
    return Case(op, inputs, attrs, dtype=dtype, family="matmul", opset=opset, name=name + "_bias" * bias)


def transposed(x, w, bias=False, **more):
    return conv(x, w, bias, op="ConvTranspose", **more)


CONVOLUTIONS = [
    conv((2, 8, 9, 7), (6, 8, 3, 3), bias=True),
    conv((2, 8, 9, 7), (6, 8, 1, 1), bias=True),
    conv((2, 8, 9, 7), (6, 8, 1, 1), strides=[2, 2]),
    conv((1, 3, 21, 20), (16, 3, 7, 7), bias=True, strides=[2, 2], pads=[3, 3, 3, 3], kernel_shape=[7, 7]),
    conv((2, 4, 8, 8), (4, 4, 3, 3), pads=[0, 1, 2, 3]),
    conv((2, 4, 12, 11), (4, 4, 3, 3), dilations=[2, 3], pads=[1, 1, 1, 1]),
    conv((2, 8, 6, 6), (12, 2, 3, 3), bias=True, group=4),
    conv((1, 8, 6, 6), (12, 2, 3, 3), bias=True, group=4),
    conv((3, 8, 6, 6), (8, 4, 1, 1), group=2),
    conv((2, 4, 30), (6, 4, 5), bias=True, strides=[2], pads=[2, 1]),
    conv((2, 3, 6, 7, 8), (5, 3, 3, 2, 3), bias=True, strides=[1, 2, 1], pads=[1, 0, 1, 1, 0, 1]),
    conv((1, 2, 7, 7), (3, 2, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    conv((1, 2, 8, 7), (3, 2, 4, 2), auto_pad="SAME_UPPER"),
    conv((1, 2, 8, 7), (3, 2, 4, 2), auto_pad="SAME_LOWER"),
    conv((1, 2, 8, 7), (3, 2, 4, 2), auto_pad="VALID"),
    conv((0, 2, 8, 7), (3, 2, 3, 3), bias=True),
    conv((64, 16, 33, 33), (8, 16, 3, 3), pads=[1, 1, 1, 1], name="large"),
    # Windows that share nothing: patches, with and without a rest that no window reaches.
    conv((2, 3, 32, 48), (8, 3, 16, 16), bias=True, strides=[16, 16]),
    conv((2, 3, 20, 19), (5, 3, 3, 4), bias=True, strides=[3, 4], name="rest"),
    conv((1, 5, 19, 23), (6, 5, 2, 3), strides=[4, 3], name="gaps"),
    conv((3, 6, 33), (4, 6, 8), bias=True, strides=[8]),
    conv((2, 3, 5, 6, 8), (4, 3, 2, 3, 4), bias=True, strides=[2, 3, 4]),
    conv((1, 4, 9, 8), (6, 4, 3, 1), bias=True, strides=[3, 1], name="columns"),
    conv((2, 4, 8, 8), (4, 2, 2, 2), bias=True, group=2, strides=[2, 2]),
    conv((3, 8, 1, 1), (6, 8, 1, 1), bias=True, name="single"),
    conv((3, 8, 1, 1), (6, 4, 1, 1), bias=True, group=2, name="single"),
]
# Groups of several channels, whose products are one call.
GROUPED = [
    conv((1, 48, 19), (48, 12, k), bias=True, group=4, pads=[k // 2] * 2, name=f"taps_{k}") for k in (1, 2, 3, 8, 128)
] + [
    conv((3, 32, 37), (64, 8, 16), bias=True, group=4, pads=[7, 9], name="lines"),
    conv((2, 32, 41), (48, 8, 8), group=4, strides=[3], pads=[2, 5], name="lines"),
    conv((2, 32, 41), (32, 16, 9), bias=True, group=2, dilations=[4], pads=[16, 16], name="lines"),
    conv((2, 24, 40), (24, 8, 8), bias=True, group=3, strides=[8], name="apart"),
    conv((2, 27, 11, 13), (15, 9, 3, 3), bias=True, group=3, pads=[1, 1, 1, 1], name="odd"),
    conv((2, 32, 12, 10), (64, 16, 3, 3), group=2, strides=[2, 2], pads=[1, 1, 1, 1], name="wide"),
    conv((1, 16, 20, 24), (16, 8, 2, 8), bias=True, group=2, dilations=[3, 1], pads=[1, 4, 2, 3], name="rows_of_taps"),
    conv((1, 16, 5, 6, 7), (16, 8, 3, 2, 3), bias=True, group=2, pads=[1, 0, 1, 1, 0, 1], name="volume"),
    conv((0, 16, 9), (16, 8, 3), bias=True, group=2, name="none"),
]
DEPTHWISE = [
    conv((2, 8, k + 6, k + 9), (8, 1, k, k), bias=True, group=8, strides=[s, s], pads=[k // 2] * 4)
    for k in (3, 5, 7)
    for s in (1, 2)
] + [
    conv((2, 8, 7, 7), (8, 1, 3, 3), group=8),
    conv((1, 4, 2, 1), (4, 1, 5, 5), bias=True, group=4, pads=[2, 2, 2, 2], name="smaller_than_kernel"),
    conv((2, 3, 10, 10), (6, 1, 3, 3), bias=True, group=3, pads=[1, 0, 0, 1], name="two_for_each"),
    conv((2, 3, 10, 12), (6, 1, 3, 2), bias=True, group=3, dilations=[2, 1], name="two_for_each_dilated"),
    conv((2, 8, 20), (8, 1, 9), bias=True, group=8, pads=[4, 4]),
    conv((1, 4, 5, 6, 7), (4, 1, 3, 3, 3), group=4, pads=[1, 1, 1, 1, 1, 1]),
    conv((2, 8, 9, 9), (8, 1, 3, 3), group=8, auto_pad="SAME_LOWER", strides=[2, 2]),
]
# So large that a thread has several lines, whose values can be moved side by side or not.
DEPTHWISE_LARGE = [
    conv((2, 128, 64, 68), (128, 1, 3, 3), bias=True, group=128, pads=[1, 1, 1, 1], name="large"),
    conv((2, 130, 63, 67), (130, 1, 3, 3), group=130, pads=[1, 1, 1, 1], name="large"),
    conv((2, 128, 63, 70), (128, 1, 3, 3), bias=True, group=128, pads=[0, 2, 1, 0], name="large"),
    conv((2, 128, 127, 136), (128, 1, 3, 3), bias=True, group=128, strides=[2, 2], pads=[1] * 4, name="large"),
    conv((2, 64, 64, 68), (64, 1, 5, 5), bias=True, group=64, pads=[2, 2, 2, 2], name="large"),
    conv((2, 64, 127, 136), (64, 1, 5, 5), bias=True, group=64, strides=[2, 2], pads=[2] * 4, name="large"),
    conv((2, 64, 64, 68), (64, 1, 7, 7), group=64, pads=[3, 3, 3, 3], name="large"),
    conv((2, 64, 127, 136), (64, 1, 7, 7), group=64, strides=[2, 2], pads=[3] * 4, name="large"),
]
# Small pictures of even and odd widths.
DEPTHWISE_LARGE += [
    conv((1, 6, side, side + 4 * (side % 2)), (6, 1, k, k), bias=True, group=6, strides=[s, s], pads=[k // 2] * 4)
    for side in (7, 12, 14, 28)
    for k in (3, 5)
    for s in (1, 2)
]
TRANSPOSED = [
    transposed((2, 6, 5, 4), (6, 3, 2, 2), bias=True, strides=[2, 2]),
    transposed((2, 6, 5, 4), (6, 3, 3, 3), bias=True, strides=[2, 2], pads=[1, 1, 1, 1]),
    transposed((1, 6, 5, 4), (6, 3, 3, 3), strides=[2, 2], output_padding=[1, 1]),
    transposed((1, 6, 5, 4), (6, 3, 3, 3), strides=[3, 2], output_shape=[16, 9]),
    transposed((1, 6, 5, 4), (6, 3, 3, 3), strides=[3, 2], output_shape=[14, 8], auto_pad="SAME_UPPER"),
    transposed((2, 6, 5, 4), (6, 2, 3, 3), bias=True, group=3, strides=[2, 1], dilations=[1, 2]),
    transposed((1, 6, 5, 4), (6, 2, 3, 3), bias=True, group=3),
    transposed((1, 4, 5, 4), (4, 3, 3, 2), auto_pad="SAME_UPPER", strides=[2, 2]),
    transposed((1, 4, 5, 4), (4, 3, 4, 3), auto_pad="SAME_LOWER", strides=[1, 2]),
    transposed((2, 4, 9), (4, 3, 4), bias=True, strides=[2], pads=[1, 2]),
    transposed((1, 4, 3, 4, 5), (4, 3, 2, 3, 2), bias=True, strides=[2, 1, 2]),
    transposed((0, 4, 3, 4), (4, 3, 2, 2), bias=True),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CONVOLUTIONS + GROUPED + DEPTHWISE + DEPTHWISE_LARGE + TRANSPOSED, ids=str)
def test_convolutions(case, dtype):
    check(replace(case, dtype=dtype, opset=22))


LAST = (
    CONVOLUTIONS
    + GROUPED
    + DEPTHWISE
    + [
        conv((2, 4, 9, 8), (8, 1, 3, 3), bias=True, group=4, pads=[1, 1, 1, 1], name="two_each"),
        conv((2, 16, 9, 9), (16, 1, 3, 3), bias=True, group=16, dilations=[2, 2], name="dilated"),
        conv((2, 24, 12, 13), (24, 1, 5, 5), bias=True, group=24, pads=[2, 2, 2, 2], name="many"),
        conv((2, 40, 29, 37), (40, 1, 7, 7), bias=True, group=40, pads=[3, 3, 3, 3], name="slices"),
        conv((1, 8, 65, 130), (8, 1, 7, 7), group=8, strides=[2, 2], pads=[3, 3, 3, 3], name="wide_tiles"),
        conv((1, 72, 15, 14), (72, 1, 3, 3), bias=True, group=72, strides=[2, 2], pads=[1, 1, 1, 1], name="slices"),
        # Of many tiles.
        conv((2, 32, 130, 261), (32, 1, 3, 3), bias=True, group=32, pads=[1, 1, 1, 1], name="large"),
        conv((2, 32, 261, 521), (32, 1, 5, 5), group=32, strides=[2, 2], pads=[2, 2, 2, 2], name="large"),
        conv((1, 16, 199, 206), (16, 1, 7, 7), bias=True, group=16, pads=[2, 0, 3, 3], name="large"),
        conv((2, 32, 9, 7), (48, 8, 3, 3), bias=True, group=4, pads=[1, 1, 1, 1], name="wide_groups"),
        conv((2, 5, 9, 7), (7, 5, 3, 3), bias=True, name="odd"),
    ]
)


TILES = [
    conv((2, n, 13, 11), (n, 1, k, k), bias=True, group=n, strides=[s, s], pads=[k // 2] * 4)
    for n, k, s in [(58, 3, 1), (58, 3, 2), (12, 3, 1), (36, 5, 2), (20, 5, 1), (34, 7, 1), (50, 7, 2)]
] + [conv((2, 58, 65, 84), (58, 1, 3, 3), bias=True, group=58, pads=[1, 1, 1, 1], name="large")]
PACKS = [
    conv((2, 16, 14, 15), (16, 1, 5, 5), bias=True, group=16, dilations=[2, 2], pads=[4, 4, 4, 4]),
    conv((1, 12, 14, 15), (12, 1, 3, 3), group=12, dilations=[4, 3], pads=[4, 3, 0, 1]),
    conv((2, 16, 9, 8), (16, 1, 3, 3), group=16, dilations=[2, 2], strides=[2, 2], pads=[2, 2, 2, 2]),
    conv((2, 24, 9, 7), (24, 1, 1, 1), bias=True, group=24),
    conv((1, 10, 9, 7), (10, 1, 1, 1), bias=True, group=10, strides=[2, 2], pads=[1, 0, 0, 1]),
    conv((2, 24, 8, 7), (24, 1, 9, 9), bias=True, group=24, pads=[4, 4, 4, 4]),
    conv((2, 12, 9, 14), (12, 1, 1, 11), bias=True, group=12, pads=[0, 5, 0, 5]),
    conv((2, 12, 14, 9), (12, 1, 11, 1), bias=True, group=12, pads=[5, 0, 5, 0], strides=[1, 2]),
    conv((2, 12, 9, 8), (12, 1, 4, 2), group=12, pads=[1, 0, 2, 1]),
    conv((2, 16, 60), (16, 1, 31), bias=True, group=16, pads=[15, 15]),
    conv((2, 8, 5, 6, 7), (8, 1, 3, 3, 3), bias=True, group=8, pads=[1, 1, 1, 1, 1, 1]),
    conv((2, 16, 65, 132), (16, 1, 3, 3), bias=True, group=16, dilations=[2, 2], pads=[2, 2, 2, 2], name="large"),
    conv((2, 16, 130, 140), (16, 1, 1, 1), bias=True, group=16, name="large"),
    # Several channels of one.
    conv((2, 4, 9, 8), (8, 1, 3, 3), bias=True, group=4, pads=[1, 1, 1, 1], name="two_each"),
    conv((2, 24, 15, 14), (48, 1, 7, 7), bias=True, group=24, pads=[3, 3, 3, 3], strides=[2, 2], name="two_each"),
    conv((1, 6, 9, 11), (18, 1, 5, 3), group=6, pads=[2, 1, 2, 1], dilations=[1, 2], name="three_each"),
    conv((2, 5, 12), (20, 1, 4), bias=True, group=5, pads=[1, 2], name="four_each"),
    conv((1, 16, 65, 84), (32, 1, 3, 3), bias=True, group=16, pads=[1, 1, 1, 1], name="two_each_large"),
]
VALUES = [
    conv((2, 7, 9, 8), (7, 1, 3, 3), bias=True, group=7, pads=[1, 1, 1, 1], name="odd"),
    conv((2, 7, 9, 8), (21, 1, 3, 3), bias=True, group=7, pads=[1, 1, 1, 1], name="three_each"),
]
# By the kernel that does them, channels last, in halves.
DEPTHWISE_LAST = {"DepthwiseTile": TILES, "DepthwisePacks": PACKS, "Depthwise": VALUES}


@only_if(on_virtual_gpu())  # which lists its kernels
@pytest.mark.parametrize("kernel", DEPTHWISE_LAST)
def test_kernels_of_depthwise_convolutions(kernel):
    for case in DEPTHWISE_LAST[kernel]:
        last = replace(with_constant_weights(case), dtype="float16", options={"prefer_nhwc": 1})
        assert kernel in kernels_of(last), case.name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", TILES + PACKS + VALUES, ids=str)
def test_depthwise_channels_last(case, dtype):
    check(replace(case, dtype=dtype, opset=22, channels_last=True))
    check(replace(case, dtype=dtype, opset=22, channels_last=True, misaligned=True))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", LAST + TRANSPOSED, ids=str)
def test_channels_last(case, dtype):
    check(replace(case, dtype=dtype, opset=22, channels_last=True))


@pytest.mark.parametrize("case", [GROUPED[4], GROUPED[6], GROUPED[9]], ids=str)
def test_groups_elsewhere(case):
    for dtype in ("float32", "float16"):
        check(replace(case, dtype=dtype, misaligned=True))
        check(replace(case, dtype=dtype, misaligned=True, channels_last=True))
    check(replace(case, dtype="float64"))


def with_constant_weights(case):
    x, w, *bias = case.inputs
    return replace(case, inputs=[x, Const(w), *map(Const, bias)], name=case.name + "_constant")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "case", [with_constant_weights(case) for case in CONVOLUTIONS[:10] + DEPTHWISE + LAST[-5:] + TRANSPOSED], ids=str
)
def test_constant_weights_are_kept_in_the_form_that_is_wanted(case, dtype):
    check(replace(case, dtype=dtype, channels_last=True))


@pytest.mark.parametrize("case", [CONVOLUTIONS[0], CONVOLUTIONS[6], DEPTHWISE[0], DEPTHWISE[9], TRANSPOSED[0]], ids=str)
def test_channels_last_in_double(case):
    check(replace(case, dtype="float64", channels_last=True))


@pytest.mark.parametrize("opset", [11, 21, 26])
@pytest.mark.parametrize("case", [CONVOLUTIONS[0], TRANSPOSED[1]], ids=str)
def test_channels_last_versions(case, opset):
    check(replace(case, opset=opset, channels_last=True))


@pytest.mark.parametrize("change", [{"opset": 10}, {"dtype": "bfloat16", "opset": 22}], ids=str)
def test_a_layout_that_onnxruntime_cannot_change(change):
    """It has no schema for these: asked for another layout it would refuse the model. (Below 7 it takes no such EP.)"""
    check(replace(CONVOLUTIONS[0], options={"prefer_nhwc": 1}, **change))


def fused(case, activation, residual, dtype):
    """com.microsoft's convolution with what follows it."""
    name, *params = activation
    x, w, *bias = case.inputs
    shape = check_shape(case)
    inputs = [x, w, bias[0] if bias else None, *([floats(*shape, low=-1, high=1)] if residual else [])]
    attrs = {**case.attrs, "activation": name, **({"activation_params": params} if params else {})}

    def reference(x, w, b=None, z=0):
        made = convolved(x, w, b, case.attrs)
        return [ACTIVATIONS[name](made + z, *params)]

    more = {"domain": "com.microsoft", "reference": reference, "name": f"{case.name}_{name}{'_z' * residual}"}
    if dtype == "float64":
        more["tolerance"] = (1e-5, 1e-5)  # the reference is in float
    return Case("FusedConv", inputs, attrs, dtype=dtype, family="matmul", **more)


def convolved(x, w, b, attrs):
    """On the CPU EP, in float."""
    names = ["x", "w"] + (["b"] if b is not None else [])
    feeds = dict(zip(names, [array.astype(np.float32) for array in (x, w, b) if array is not None]))
    node = helper.make_node("Conv", names, ["y"], **attrs)
    ends = [[helper.make_tensor_value_info(name, 1, array.shape) for name, array in feeds.items()]]
    ends.append([helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(
        helper.make_graph([node], "g", *ends), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    return on_cpu(model).run(None, feeds)[0]


def check_shape(case):
    return convolved(*case.inputs[:2], None, case.attrs).shape


ACTIVATIONS = {
    "Relu": lambda x: np.maximum(x, 0),
    "LeakyRelu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "Clip": lambda x, low, high: np.clip(x, low, high),
    "HardSigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Silu": lambda x: x / (1 + np.exp(-x)),
    "Tanh": np.tanh,
}
PARAMS = {"LeakyRelu": [0.25], "Clip": [-0.5, 0.75], "HardSigmoid": [0.25, 0.5]}
FUSED = [
    CONVOLUTIONS[0],
    CONVOLUTIONS[2],
    CONVOLUTIONS[6],
    CONVOLUTIONS[9],
    CONVOLUTIONS[10],
    DEPTHWISE[0],
    DEPTHWISE[9],
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_convolutions_with_what_follows(case, residual, dtype):
    check(fused(case, ["Relu"], residual, dtype))


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("case", [CONVOLUTIONS[0], CONVOLUTIONS[1], DEPTHWISE[0]], ids=str)
def test_what_follows(case, name):
    for residual in (False, True):
        check(fused(case, [name, *PARAMS.get(name, [])], residual, "float32"))


def test_a_clip_whose_limits_are_turned():
    check(fused(CONVOLUTIONS[0], ["Clip", 0.75, -0.5], False, "float32"))


def test_what_follows_a_convolution_of_nothing():
    check(fused(CONVOLUTIONS[15], ["Relu"], False, "float32"))


@pytest.mark.parametrize(
    "attrs", [{"activation": "Softmax"}, {"activation": "Clip"}, {"activation_params": [1.0]}], ids=str
)
def test_what_cannot_follow_is_declined(attrs):
    declined("FusedConv", [floats(1, 4, 5, 5), floats(4, 4, 3, 3)], attrs, domain="com.microsoft")


# The CPU EP has no kernel for double, and onnx's own is slow.
@pytest.mark.parametrize(
    "case", [CONVOLUTIONS[0], CONVOLUTIONS[6], DEPTHWISE[0], DEPTHWISE[9], TRANSPOSED[0], TRANSPOSED[2]], ids=str
)
def test_double(case):
    check(replace(case, dtype="float64"))


@pytest.mark.parametrize("opset", [1, 10, 11, 21, 26])
@pytest.mark.parametrize("case", [CONVOLUTIONS[0], TRANSPOSED[1]], ids=str)
def test_versions(case, opset):
    check(replace(case, opset=opset))


@pytest.mark.parametrize("case", [CONVOLUTIONS[0], CONVOLUTIONS[1], DEPTHWISE[0], TRANSPOSED[0]], ids=str)
def test_misaligned(case):
    check(replace(case, misaligned=True))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_columns_in_parts(last, groups):
    """The columns of one image take more than the 32 MiB that there are, so it is convolved in parts."""
    check(
        Case(
            "Conv",
            [floats(1, 4, 300, 260, low=-1, high=1), floats(2, 4 // groups, 7, 7, low=-0.1, high=0.1), floats(2)],
            {"pads": [3, 3, 3, 3], "group": groups},
            family="matmul",
            capture=False,
            channels_last=last,
            name="in_parts",
            options={"cudnn_conv_use_max_workspace": 0},
        )
    )


@pytest.mark.parametrize("last", [False, True])
def test_not_a_number(last):
    x = floats(1, 2, 6, 6)
    x[0, 0, 2, 3], x[0, 1, 5, 5] = np.nan, np.inf
    check(Case("Conv", [x, floats(3, 2, 3, 3)], family="matmul", name="nan", channels_last=last))


@pytest.mark.parametrize(
    "op, attrs",
    [
        ("Conv", {"strides": [0, 1]}),
        ("Conv", {"dilations": [1, -1]}),
        ("Conv", {"pads": [-1, 0, 0, 0]}),
        ("Conv", {"pads": [1, 1]}),
        ("Conv", {"group": 0}),
        ("Conv", {"auto_pad": "HALF"}),
        ("ConvTranspose", {"output_padding": [-1, 0]}),
        ("ConvTranspose", {"output_shape": [0, 5]}),
    ],
)
def test_hostile_attributes_are_declined(op, attrs):
    declined(op, [floats(1, 4, 5, 5), floats(4, 4, 3, 3)], attrs)


@pytest.mark.parametrize(
    "op, x, w, attrs, words",
    [
        ("Conv", (1, 4, 5, 5), (4, 4, 3, 3), {"kernel_shape": [3, 2]}, "kernel_shape"),
        ("Conv", (1, 4, 5, 5), (4, 3, 3, 3), {}, "channels"),
        ("Conv", (1, 4, 5, 5), (3, 2, 3, 3), {"group": 2}, "group"),
        ("Conv", (1, 4, 5, 5), (4, 4, 7, 3), {}, "window spans 7"),
        ("ConvTranspose", (1, 4, 5, 5), (3, 4, 3, 3), {}, "channels"),
        ("ConvTranspose", (1, 6, 5, 4), (6, 3, 3, 3), {"strides": [3, 2], "output_shape": [18, 12]}, "output_shape"),
        ("ConvTranspose", (1, 4, 2, 2), (4, 4, 1, 1), {"pads": [3, 3, 3, 3]}, "pads"),
    ],
)
def test_shapes_that_do_not_fit(op, x, w, attrs, words):
    """Shapes are unknown until the run, which fails and says why."""
    fails(op, [floats(*x), floats(*w)], attrs, words)


EMPTY = [(1, 2, 0), (1, 2, 0, 4), (1, 2, 4, 0), (0, 2, 4), (0, 2, 0)]


def _empty_attributes(spatial):
    return [
        {},
        {"strides": [2] * spatial},
        {"strides": [4] * spatial},
        {"dilations": [2] * spatial},
        {"pads": [1] * (2 * spatial)},
        {"pads": [2] * (2 * spatial)},
        {"auto_pad": "VALID"},
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER", "strides": [2] * spatial},
    ]


@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_empty_input(shape):
    """Where there is a result, the bias alone is in it."""
    spatial = len(shape) - 2
    x, bias, taps = floats(*shape), floats(3), (3,) * spatial
    for attrs in _empty_attributes(spatial):
        Both("Conv", [x, floats(3, 2, *taps), bias], attrs).agree(x, floats(3, 2, *taps), bias)
        Both("Conv", [x, floats(3, 2, *taps)], attrs).agree(x, floats(3, 2, *taps))
    transposed = [
        *_empty_attributes(spatial),
        {"strides": [2] * spatial, "output_padding": [1] * spatial},
        {"output_shape": [5] * spatial},
        {"output_shape": [2] * spatial},
    ]
    for attrs in transposed:
        Both("ConvTranspose", [x, floats(2, 3, *taps), bias], attrs).agree(x, floats(2, 3, *taps), bias)
        Both("ConvTranspose", [x, floats(2, 3, *taps)], attrs).agree(x, floats(2, 3, *taps))


@pytest.mark.parametrize("groups", [1, 2])
def test_empty_input_with_padding(groups):
    x, w = floats(1, 2, 0, 3), floats(2, 2 // groups, 3, 3)
    attrs = {"pads": [2, 2, 2, 2], "group": groups}
    Both("Conv", [x, w], attrs).agree(x, w)


def test_nothing_left_of_a_transposed_convolution():
    both = Both("ConvTranspose", [floats(1, 2, 1), floats(2, 3, 3)], {"pads": [1, 2]})
    both.agree(floats(1, 2, 1), floats(2, 3, 3))


def channels_last(case, dtype):
    """com.microsoft's NhwcConv, whose weights have their channels last, too."""
    x, w, *bias = case.inputs
    turned = [np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (x, w)]

    def reference(x, w, b=None):
        x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
        return [np.moveaxis(convolved(np.ascontiguousarray(x), np.ascontiguousarray(w), b, case.attrs), 1, -1)]

    more = {"tolerance": (1e-5, 1e-5)} if dtype == "float64" else {}  # the reference is in float
    # Without kernel_shape onnxruntime infers a shape as if the weights had their channels first.
    more |= {"attrs": {**case.attrs, "kernel_shape": list(w.shape[2:])}, "domain": "com.microsoft"}
    return replace(case, op="NhwcConv", dtype=dtype, inputs=[*turned, *bias], reference=reference, **more)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("case", CONVOLUTIONS + DEPTHWISE + LAST[-2:], ids=str)
def test_channels_and_weights_last(case, dtype):
    check(channels_last(case, dtype))


@pytest.mark.parametrize("case", [CONVOLUTIONS[0], CONVOLUTIONS[6], DEPTHWISE[0], DEPTHWISE[8], *LAST[-2:]], ids=str)
def test_constant_weights_last(case):
    check(with_constant_weights(channels_last(case, "float16")))
    check(replace(channels_last(case, "float32"), misaligned=True))


def dynamic(case, pads, dtype="float32"):
    """com.microsoft's transposed convolution, whose pads are an input."""
    x, w, *bias = case.inputs
    given = [x, w, None if pads is None else Const(np.array(pads, np.int64)), *bias]
    while given[-1] is None:
        given.pop()
    attrs = {name: value for name, value in case.attrs.items() if name != "pads"}
    more = {"op": "ConvTransposeWithDynamicPads", "domain": "com.microsoft", "name": f"{case.name}_{pads}"}
    return replace(case, inputs=given, attrs=attrs, dtype=dtype, **more)


DYNAMIC = [
    (TRANSPOSED[0], [0, 0, 0, 0]),
    (TRANSPOSED[1], [1, 2, 0, 1]),
    (TRANSPOSED[2], [1, 0, 1, 1]),
    (TRANSPOSED[5], [0, 1, 1, 0]),
    (TRANSPOSED[9], [2, 1]),
    (TRANSPOSED[10], [0, 1, 1, 1, 0, 0]),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case, pads", DYNAMIC, ids=str)
def test_pads_that_are_an_input(case, pads, dtype):
    check(dynamic(case, pads, dtype))


@pytest.mark.parametrize("pads", [[1, 2, 0, 1], None])
def test_pads_that_are_an_input_in_double(pads):
    """The CPU EP has neither the type, nor no pads."""
    case = dynamic(TRANSPOSED[1], pads)
    reference = lambda x, w, pads, b: [transposed_by_hand(x, w, b, [2, 2], [0] * 4 if pads is None else pads)]
    check(replace(case, dtype="float64", reference=reference))


def transposed_by_hand(x, w, b, strides, pads):
    rows, columns = ((x.shape[i + 2] - 1) * strides[i] + w.shape[i + 2] for i in (0, 1))
    y = np.zeros((x.shape[0], w.shape[1], rows, columns)) + b[:, None, None]
    for i, j in np.ndindex(x.shape[2:]):
        at = y[:, :, i * strides[0] : i * strides[0] + w.shape[2], j * strides[1] : j * strides[1] + w.shape[3]]
        at += np.einsum("nc,cmkl->nmkl", x[:, :, i, j], w)
    return y[:, :, pads[0] : rows - pads[2], pads[1] : columns - pads[3]]


@pytest.mark.parametrize("pads, words", [([1, 1], "pads has 2"), ([0, -1, 0, 0], "pads holds"), ([9] * 4, "leave")])
def test_pads_that_are_an_input_are_checked(pads, words):
    inputs = dynamic(TRANSPOSED[0], pads).inputs
    fails("ConvTransposeWithDynamicPads", inputs, {"strides": [2, 2]}, words, ranks=False, domain="com.microsoft")
