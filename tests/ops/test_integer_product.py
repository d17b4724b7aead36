"""MatMulInteger, ConvInteger, QLinearMatMul and QLinearConv, against NumPy: the CPU EP has not all of their types, and
saturates sums of pairs on some processors."""

import itertools

import numpy as np
import pytest
from harness import Case, Const, check, floats, integers
from refusal import fails

BYTES = ["int8", "uint8"]
PAIRS = list(itertools.product(BYTES, BYTES))


def full(dtype, *shape):
    """The whole range of the type."""
    info = np.iinfo(dtype)
    return integers(dtype, *shape, low=info.min, high=info.max)


def broad(zero, rank, columns):
    """A zero point of rows, or of columns, as NumPy broadcasts it against matrices."""
    if zero is None:
        return np.int64(0)
    zero = zero.astype(np.int64)
    return zero[:, None] if zero.ndim == 1 and zero.size > 1 and not columns and rank > 1 else zero


def product(a, b, a_zero=None, b_zero=None):
    left = a.astype(np.int64) - broad(a_zero, a.ndim, False)
    right = b.astype(np.int64) - broad(b_zero, b.ndim, True)
    return [np.matmul(left, right).astype(np.int32)]


SIZES = [
    ((3, 5), (5, 4)),
    ((1, 64), (64, 100)),
    ((7, 33), (33, 1)),
    ((65, 100), (100, 67)),
    ((64, 256), (256, 512)),
    ((129, 320), (320, 132)),
    ((200, 16), (16, 512)),
    ((5,), (5, 4)),
    ((3, 5), (5,)),
    ((17,), (17,)),
    ((0, 5), (5, 4)),
    ((3, 0), (0, 4)),
    ((2, 3, 5), (5, 4)),
    ((2, 40, 64), (64, 512)),
    ((2, 3, 40, 64), (3, 64, 36)),
    ((2, 1, 3, 5), (4, 5, 6)),
    ((3, 64, 128), (3, 128, 512)),
]


@pytest.mark.parametrize("a,b", SIZES, ids=str)
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
def test_matmul_integer(types, a, b):
    inputs = [full(types[0], *a), full(types[1], *b)]
    check(Case("MatMulInteger", inputs, name="-".join(types), opset=10, family="exact", reference=product))
    zeros = [Const(full(t)) for t in types]
    check(Case("MatMulInteger", [*inputs, *zeros], name="-".join(types), opset=10, family="exact", reference=product))


@pytest.mark.parametrize("types", PAIRS, ids="-".join)
@pytest.mark.parametrize("a,b", [((3, 5), (5, 4)), ((70, 100), (100, 67)), ((2, 40, 64), (64, 512))], ids=str)
def test_matmul_integer_of_constant_weights(a, b, types):
    zeros = [full(types[0]), full(types[1], b[-1])]
    inputs = [full(types[0], *a), Const(full(types[1], *b)), *zeros]
    check(Case("MatMulInteger", inputs, name="-".join(types), opset=10, family="exact", reference=product))


@pytest.mark.parametrize("a,b", [((3, 5), (5, 4)), ((70, 100), (100, 67)), ((128, 320), (320, 132))], ids=str)
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
def test_zero_points_of_rows_and_columns(types, a, b):
    inputs = [full(types[0], *a), full(types[1], *b), full(types[0], a[0]), full(types[1], b[1])]
    check(Case("MatMulInteger", inputs, name="-".join(types), opset=10, family="exact", reference=product))


def test_zero_points_of_every_matrix():
    inputs = [full("uint8", 2, 40, 64), full("int8", 2, 64, 132), full("uint8", 2, 40, 1), full("int8", 2, 1, 132)]
    check(Case("MatMulInteger", inputs, opset=10, family="exact", reference=product))


def test_misaligned():
    inputs = [full("int8", 65, 64), full("int8", 64, 64), full("int8"), full("int8")]
    check(Case("MatMulInteger", inputs, opset=10, family="exact", reference=product, misaligned=True))


def test_deep_sums_wrap():
    inputs = [np.full((1, 140000), -128, np.int8), np.full((140000, 2), -128, np.int8)]
    wrapped = np.full((1, 2), 140000 * 16384 - (1 << 32), np.int64).astype(np.int32)
    check(Case("MatMulInteger", inputs, opset=10, family="exact", reference=lambda *_: [wrapped]))


def scaled(sums, scale, zero, dtype):
    """In float, as the CPU EP has it."""
    info = np.iinfo(dtype)
    return np.clip(np.rint(sums.astype(np.float32) * scale) + zero.astype(np.float32), info.min, info.max).astype(dtype)


def qlinear_matmul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
    if a_scale.size > 1:
        a_scale = a_scale.reshape(-1, 1)
    scale = (a_scale.astype(np.float32) * b_scale.astype(np.float32)) / y_scale.astype(np.float32)
    return [scaled(product(a, b, a_zero, b_zero)[0], scale, y_zero, y_zero.dtype)]


@pytest.mark.parametrize("opset", [10, 21])
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
@pytest.mark.parametrize("a,b", [((3, 5), (5, 4)), ((65, 100), (100, 67)), ((2, 40, 64), (64, 512)), ((0, 5), (5, 4))])
@pytest.mark.parametrize("constant", [False, True])
def test_qlinear_matmul(types, a, b, opset, constant):
    left, right = full(types[0], *a), full(types[1], *b)
    columns = [floats(b[-1], low=0.01, high=0.02), full(types[1], b[-1])]
    inputs = [left, np.float32(0.03), full(types[0])]
    inputs += [Const(right), *map(Const, columns)] if constant else [right, *columns]
    inputs += [np.float32(0.5), full(types[1])]
    name = f"{'-'.join(types)}{'-constant' * constant}"
    check(Case("QLinearMatMul", inputs, name=name, opset=opset, family="exact", reference=qlinear_matmul))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_qlinear_matmul_with_narrow_scales(dtype):
    inputs = [full("uint8", 33, 64), np.float32(0.03), full("uint8"), full("int8", 64, 32), np.float32(0.02)]
    inputs += [np.zeros((), np.int8), np.float32(0.5), full("uint8")]
    check(Case("QLinearMatMul", inputs, dtype=dtype, family="exact", reference=qlinear_matmul))


def test_qlinear_matmul_with_scales_of_rows():
    inputs = [full("uint8", 33, 64), floats(33, low=0.01, high=0.02), full("uint8", 33), full("int8", 64, 32)]
    inputs += [np.float32(0.02), np.zeros((), np.int8), np.float32(0.5), full("uint8")]
    check(Case("QLinearMatMul", inputs, family="exact", reference=qlinear_matmul))


# ---- convolutions


def convolution(x, w, x_zero=None, w_zero=None, group=1, pads=None, strides=None, dilations=None):
    """Exact sums, by going through the taps."""
    rank = x.ndim - 2
    pads, strides, dilations = pads or [0] * 2 * rank, strides or [1] * rank, dilations or [1] * rank
    left = x.astype(np.int64) - (0 if x_zero is None else x_zero.astype(np.int64))
    left = np.pad(left, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])])
    w_zero = np.zeros(1, np.int64) if w_zero is None else w_zero.astype(np.int64).reshape(-1)
    right = w.astype(np.int64) - w_zero.reshape(-1, *[1] * (w.ndim - 1))
    kernel = w.shape[2:]
    out = [(left.shape[2 + d] - (kernel[d] - 1) * dilations[d] - 1) // strides[d] + 1 for d in range(rank)]
    y = np.zeros([x.shape[0], w.shape[0], *out], np.int64)
    size_in, size_out = w.shape[1], w.shape[0] // group
    for tap in itertools.product(*map(range, kernel)):
        at = [slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in zip(tap, dilations, out, strides)]
        part = left[(slice(None), slice(None), *at)]
        for g in range(group):
            weight = right[(slice(g * size_out, (g + 1) * size_out), slice(None), *tap)]
            y[:, g * size_out : (g + 1) * size_out] += np.einsum(
                "mc,nc...->nm...", weight, part[:, g * size_in : (g + 1) * size_in]
            )
    return y.astype(np.int32)


CONVOLUTIONS = [  # x, w, attributes
    ((1, 3, 9, 9), (4, 3, 3, 3), {}),
    ((2, 3, 20, 20), (16, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((2, 64, 14, 14), (64, 64, 1, 1), {}),
    ((2, 16, 8, 8), (33, 16, 1, 1), {"strides": [2, 2]}),
    ((2, 32, 16, 16), (64, 32, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 8, 12, 12), (8, 1, 3, 3), {"group": 8, "pads": [1, 1, 1, 1]}),
    ((2, 6, 12, 12), (12, 2, 3, 3), {"group": 3, "dilations": [2, 2]}),
    ((1, 32, 10, 10), (64, 16, 3, 3), {"group": 2, "pads": [0, 1, 2, 1]}),
    ((2, 5, 17), (7, 5, 4), {"pads": [2, 1], "strides": [3]}),
    ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"pads": [1, 0, 1, 0, 1, 1]}),
    ((0, 3, 9, 9), (4, 3, 3, 3), {}),
]


@pytest.mark.parametrize("x,w,attrs", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
def test_conv_integer(types, x, w, attrs):
    data, weights = full(types[0], *x), full(types[1], *w)
    reference = lambda *inputs: [convolution(*inputs, **attrs)]
    name = "-".join(types)
    for inputs in (
        [data, weights],
        [data, Const(weights), full(types[0])],
        [data, weights, full(types[0]), full(types[1], w[0])],
    ):
        check(Case("ConvInteger", inputs, attrs, name=name, opset=10, family="exact", reference=reference))


def test_conv_integer_fills_with_the_zero_point():
    inputs = [np.full((1, 1, 2, 2), 7, np.uint8), np.ones((1, 1, 3, 3), np.int8), np.uint8(7)]
    wanted = np.zeros((1, 1, 2, 2), np.int32)
    check(
        Case(
            "ConvInteger",
            inputs,
            {"pads": [1] * 4},
            opset=10,
            family="exact",
            capture=False,
            reference=lambda *_: [wanted],
        )
    )


@pytest.mark.parametrize("shape", [(3, 16, 310, 310), (1, 16, 520, 520)], ids=["images", "a part of one"])
def test_conv_integer_with_little_memory(shape):
    inputs = [full("uint8", *shape), full("int8", 2, 16, 3, 3), full("uint8"), full("int8", 2)]
    options = {"cudnn_conv_use_max_workspace": 0}
    reference = lambda *inputs: [convolution(*inputs)]
    check(Case("ConvInteger", inputs, opset=10, family="exact", capture=False, reference=reference, options=options))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_conv_integer_auto_pad(auto_pad):
    inputs = [full("uint8", 1, 2, 7, 8), integers("uint8", 3, 2, 2, 3, low=0, high=15), full("uint8")]
    check(Case("ConvInteger", inputs, {"auto_pad": auto_pad}, opset=10, family="exact"))


@pytest.mark.parametrize("x,w,attrs", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
@pytest.mark.parametrize("constant", [False, True])
def test_qlinear_conv(types, x, w, attrs, constant):
    hold = Const if constant else np.asarray
    w_scale = floats(w[0], low=0.01, high=0.02)
    inputs = [full(types[0], *x), np.float32(0.03), full(types[0]), hold(full(types[1], *w)), hold(w_scale)]
    inputs += [
        hold(full(types[1], w[0])),
        np.float32(0.4),
        full(types[0]),
        hold(integers("int32", w[0], low=-999, high=999)),
    ]

    def reference(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias):
        each = [-1, *[1] * (x.ndim - 2)]
        sums = (convolution(x, w, x_zero, w_zero, **attrs).astype(np.int64) + bias.reshape(each)).astype(np.int32)
        scale = (x_scale * w_scale.reshape(each)).astype(np.float32) / y_scale
        return [scaled(sums, scale.astype(np.float32), y_zero, y_zero.dtype)]

    name = f"{'-'.join(types)}{'-constant' * constant}"
    check(Case("QLinearConv", inputs, attrs, name=name, opset=10, family="exact", reference=reference))


# ---- refusals


def test_what_does_not_fit():
    a, b = full("uint8", 3, 4), full("int8", 5, 4)
    fails("MatMulInteger", [a, b], {}, "inner dimensions differ", ranks=False)
    fails("MatMulInteger", [a, full("int8", 4, 5), full("uint8", 7)], {}, "the zero point has shape", ranks=False)
    zeros = [full("uint8"), full("int8", 7)]
    fails("MatMulInteger", [a[:0], full("int8", 4, 5), *zeros], {}, "the zero point has shape", ranks=False)
    x, w = full("uint8", 1, 3, 5, 5), full("int8", 4, 3, 3, 3)
    fails("ConvInteger", [x, full("int8", 4, 2, 3, 3)], {}, "X has 3 channels", ranks=False)
    fails("ConvInteger", [x, w, full("uint8"), full("int8", 3)], {}, "W's zero point has shape", ranks=False)
