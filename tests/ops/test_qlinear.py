"""com.microsoft's QLinear operators: what onnxruntime's own quantizer makes of a model."""

import itertools

import numpy as np
import pytest
from harness import Case, Const, check, floats, integers, seeded
from refusal import declined, fails
from test_integer_product import full, scaled
from tolerance import ONE_STEP

BYTES = ["int8", "uint8"]
MICROSOFT = "com.microsoft"


def zero_of(dtype, value):
    return np.dtype(dtype).type(value if dtype == "uint8" else value - 128)


def case(op, inputs, attrs=None, **rest):
    return Case(op, inputs, attrs or {}, domain=MICROSOFT, family="exact", off_by=ONE_STEP.get(op, 0), **rest)


def as_constants(inputs, data=(0,)):
    """The same with scales and zero points that are constants of the model."""
    return [x if i in data or x is None else Const(x) for i, x in enumerate(inputs)]


# ---- element by element

SHAPES = [
    ((4, 33), (4, 33)),
    ((2, 3, 5, 7), (3, 1, 1)),
    ((1, 16), (5, 1)),
    ((), (3, 17)),
    ((9,), ()),
    ((), ()),
    ((0, 3), (3,)),
    ((64, 1000), (64, 1000)),
    ((1,) * 3 + (40, 3), (2, 5, 4, 1, 3)),
]


def binary(op, dtype, shapes, scales=(0.02, 0.013, 0.03), zeros=(130, 101, 120), **rest):
    a, b = (full(dtype, *shape) for shape in shapes)
    (sa, sb, sc), (za, zb, zc) = map(np.float32, scales), (zero_of(dtype, z) for z in zeros)
    return case(op, [a, sa, za, b, sb, zb, sc, zc], name=dtype, **rest)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_binary(op, dtype, shapes):
    check(binary(op, dtype, shapes))


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", BYTES)
def test_binary_of_constants(op, dtype):
    for data in ((0, 3), (0,)):
        made = binary(op, dtype, ((7, 64), (64,)))
        made.inputs = as_constants(made.inputs, data)
        check(made)
    check(binary(op, dtype, ((7, 65), (7, 65)), misaligned=True))


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("seed", range(6))
def test_binary_of_many_scales(op, dtype, seed):
    """Also of such as put results at ties, and out of range."""
    draw = seeded(op, dtype, seed)
    scales = draw.choice([0.25, 0.5, 1.0, 0.007, 0.3, 2.0, 1e-3], 3)
    check(binary(op, dtype, ((3000,), (3000,)), scales, draw.integers(0, 256, 3)))


@pytest.mark.parametrize("op,attrs", [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.3})])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shape", [(3, 5), (256,), (), (0, 4), (2, 3, 4, 77), (100_000,)], ids=str)
@pytest.mark.parametrize("constant", [False, True])
def test_curves(op, attrs, dtype, shape, constant):
    x = np.arange(256).astype(np.uint8).view(dtype) if shape == (256,) else full(dtype, *shape)
    y_scale = np.float32(1 / 256 if op == "QLinearSigmoid" else 0.03)
    inputs = [x, np.float32(0.05), zero_of(dtype, 120), y_scale, zero_of(dtype, 5)]
    check(case(op, as_constants(inputs) if constant else inputs, attrs, name=f"{dtype}{'-constant' * constant}"))


def test_curves_without_alpha_or_zero_points():
    """The CPU EP does not survive a node without them."""
    x = full("int8", 501)

    def leaky(x, x_scale, _, y_scale):
        values = x_scale * x.astype(np.float32)
        return [scaled(np.where(values >= 0, values, np.float32(0.01) * values), 1 / y_scale, np.int8(0), "int8")]

    scales = [np.float32(0.25), None, np.float32(0.5)]
    check(case("QLinearLeakyRelu", [x, *scales], reference=leaky, misaligned=True))


# ---- rows

SOFTMAX = [
    ((4, 10), -1),
    ((2, 3, 128), -1),
    ((2, 5, 7), 1),
    ((3, 1000), 1),
    ((33, 4, 6), 0),
    ((5,), 0),
    ((0, 4), 1),
    ((300, 40), -1),
]


@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shape,axis", SOFTMAX, ids=str)
@pytest.mark.parametrize("constant", [False, True])
def test_softmax(dtype, shape, axis, opset, constant):
    # Of int8 the CPU EP's 128 becomes -128, so no result may be one.
    inputs = [full(dtype, *shape), np.float32(0.04), zero_of(dtype, 128), np.float32(1 / 200), zero_of(dtype, 0)]
    if opset == 12 and axis == -1:
        axis = len(shape) - 1
    attrs = {"axis": axis, "opset": opset}
    name = f"{dtype}-{opset}{'-constant' * constant}"
    empty = {"reference": lambda *_: [np.zeros(shape, dtype)]} if 0 in shape else {}  # the CPU EP makes no output then
    check(case("QLinearSoftmax", as_constants(inputs) if constant else inputs, attrs, name=name, **empty))


def test_softmax_of_one_certainty():
    """All the probability is the largest value, also where the CPU EP's int8 overflows."""
    for dtype in BYTES:
        x = np.array([[0, 100, 1, 2]], dtype)
        inputs = [x, np.float32(1), np.dtype(dtype).type(0), np.float32(1 / 256), zero_of(dtype, 0)]
        wanted = np.where(x == 100, np.iinfo(dtype).max, np.iinfo(dtype).min).astype(dtype)
        made = case("QLinearSoftmax", inputs, {"axis": -1, "opset": 13}, name=dtype, reference=lambda *_, w=wanted: [w])
        made.replays = (list(map(np.asarray, inputs)),)
        check(made)


# ---- side by side

CONCAT = [
    ([(2, 3), (2, 5)], 1),
    ([(2, 3), (4, 3), (1, 3)], 0),
    ([(2, 3, 4, 5), (2, 1, 4, 5), (2, 7, 4, 5)], -3),
    ([(4,)], 0),
    ([(2, 0), (2, 3)], 1),
    ([(3, 0), (3, 0)], 1),
    ([(64, 100), (64, 33)], -1),
]


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shapes,axis", CONCAT, ids=str)
@pytest.mark.parametrize("constant", [False, True])
def test_concat(dtype, shapes, axis, constant):
    inputs = [np.float32(0.05), zero_of(dtype, 100)]
    for i, shape in enumerate(shapes):
        inputs += [full(dtype, *shape), np.float32([0.05, 0.02, 0.11][i]), zero_of(dtype, [100, 128, 7][i])]
    if constant:
        inputs = as_constants(inputs, data=range(2, len(inputs), 3))
    check(case("QLinearConcat", inputs, {"axis": axis}, name=f"{dtype}{'-constant' * constant}"))


def test_many_side_by_side():
    inputs = [np.float32(0.05), np.uint8(100)]
    for i in range(20):
        inputs += [full("uint8", 3, i + 1), np.float32(0.01 * (i + 1)), np.uint8(i)]
    check(case("QLinearConcat", inputs, {"axis": 1}, misaligned=True))


# ---- planes

PLANES = [(1, 3, 7, 7), (2, 64, 7, 7), (2, 5, 12), (3, 1, 4, 4), (1, 4, 3, 5, 6), (1, 2, 200, 150), (0, 3, 4, 4)]


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shape", PLANES, ids=str)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("constant", [False, True])
def test_global_average(dtype, shape, last, constant):
    if last:
        shape = (shape[0], *shape[2:], shape[1])
    inputs = [full(dtype, *shape), np.float32(0.05), zero_of(dtype, 120), np.float32(0.02), zero_of(dtype, 131)]
    attrs = {"channels_last": last}
    name = f"{dtype}-{last}{'-constant' * constant}"
    check(case("QLinearGlobalAveragePool", as_constants(inputs) if constant else inputs, attrs, name=name))


WINDOWS = [
    ((1, 3, 8, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 4, 9, 7), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ((2, 4, 9, 7), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1, "strides": [2, 1]}),
    ((1, 2, 10, 10), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 2, 10, 11), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((2, 3, 20), {"kernel_shape": [4], "strides": [3]}),
    ((1, 2, 6, 5, 4), {"kernel_shape": [2, 3, 2], "pads": [0, 1, 1, 0, 1, 0]}),
    ((1, 1, 4, 4), {"kernel_shape": [2, 2]}),
]


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shape,attrs", WINDOWS, ids=str)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("constant", [False, True])
def test_average(dtype, shape, attrs, last, constant):
    if last:
        shape = (shape[0], *shape[2:], shape[1])
    inputs = [full(dtype, *shape), np.float32(0.05), zero_of(dtype, 120), np.float32(0.02), zero_of(dtype, 131)]
    name = f"{dtype}-{last}{'-constant' * constant}"
    inputs = as_constants(inputs) if constant else inputs
    check(case("QLinearAveragePool", inputs, {**attrs, "channels_last": last}, name=name))


# ---- products

PAIRS = list(itertools.product(BYTES, BYTES))


def qgemm_reference(trans_a, trans_b, alpha, to):
    def compute(a, a_scale, a_zero, b, b_scale, b_zero, c=None, y_scale=None, y_zero=None):
        left = (a.T if trans_a else a).astype(np.int64) - int(a_zero)
        right = (b.T if trans_b else b).astype(np.int64) - b_zero.astype(np.int64)
        sums = left @ right + (0 if c is None else c.astype(np.int64))
        scale = np.float32(alpha) * a_scale * b_scale
        if to == "float32":
            return [(sums.astype(np.float32) * scale).astype(np.float32)]
        return [scaled(sums, scale / y_scale, y_zero, to)]

    return compute


def qgemm(types, sizes, trans=(0, 0), alpha=1.0, to="uint8", bias=None, columns=False, constant=(), **rest):
    m, k, n = sizes
    a, b = full(types[0], *((k, m) if trans[0] else (m, k))), full(types[1], *((n, k) if trans[1] else (k, n)))
    each = (n,) if columns else ()
    inputs = [a, np.float32(0.03), zero_of(types[0], 117), b]
    inputs += [floats(*each, low=0.01, high=0.02), full(types[1], *each)]
    inputs.append(None if bias is None else integers("int32", *bias, low=-5000, high=5000))
    if to != "float32":
        inputs += [np.float32(0.4 * max(k, 1) ** 0.5), zero_of(to, 100)]
    inputs = [Const(x) if i in constant and x is not None else x for i, x in enumerate(inputs)]
    attrs = {"transA": trans[0], "transB": trans[1], "alpha": alpha}
    made = case("QGemm", inputs, attrs, **rest)
    made.name = f"{'-'.join(types)}-{to}-{trans}-{constant}-{columns}"
    made.reference = lambda *given: qgemm_reference(*trans, alpha, to)(*given)
    if to == "float32":
        made.family, made.tolerance = "matmul", (1e-6, 1e-6)  # one product of floats after exact sums
    return made


SIZES = [(3, 5, 4), (1, 64, 100), (65, 100, 67), (64, 256, 512), (7, 33, 1), (0, 5, 4), (3, 0, 4)]


@pytest.mark.parametrize("types", PAIRS, ids="-".join)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("to", ["same", "float32"])
def test_qgemm(types, sizes, to):
    to = types[0] if to == "same" else to
    check(qgemm(types, sizes, to=to, bias=sizes[2:]))


@pytest.mark.parametrize("trans", list(itertools.product([0, 1], [0, 1])), ids=str)
@pytest.mark.parametrize("constant", [(), (3, 4, 5, 6), (1, 2, 3, 4, 5, 6, 7, 8)], ids=str)
@pytest.mark.parametrize("columns", [False, True])
def test_qgemm_transposed(trans, constant, columns):
    for types, sizes in ((("uint8", "int8"), (7, 40, 36)), (("int8", "int8"), (66, 48, 64)), (BYTES, (5, 3, 9))):
        check(qgemm(types, sizes, trans, 0.7, types[0], sizes[2:], columns, constant))


@pytest.mark.parametrize("bias", [None, (), (1,), (36,), (1, 36), (7, 1), (7, 36), (1, 1)], ids=str)
def test_qgemm_broadcasts_its_bias(bias):
    check(qgemm(("uint8", "uint8"), (7, 40, 36), bias=bias))
    check(qgemm(("uint8", "uint8"), (7, 40, 36), bias=bias, to="float32", misaligned=True))


def test_what_does_not_fit():
    x, one, zero = full("uint8", 3, 4), np.float32([1]), np.uint8([0])
    two = np.ones(2, np.float32)
    words = "inner dimensions differ"
    fails("QGemm", [x, one, zero, full("uint8", 3, 4), one, zero], {}, words, domain=MICROSOFT)
    fails("QGemm", [x, two, zero, full("uint8", 4, 4), one, zero], {}, "a_scale has shape", domain=MICROSOFT)
    bias = np.zeros((2, 4), np.int32)
    fails("QGemm", [x, one, zero, full("uint8", 4, 4), one, zero, bias], {}, "C of shape", domain=MICROSOFT)
    concat = [one, zero, x, one, zero, full("uint8", 4, 4), one, zero]
    fails("QLinearConcat", concat, {"axis": 1}, "input 5 has shape", ranks=False, domain=MICROSOFT)
    fails("QLinearConcat", concat, {"axis": 2}, "axis", ranks=False, domain=MICROSOFT)
    flat = [full("uint8", 3, 0), one, zero, one, zero]
    fails("QLinearGlobalAveragePool", flat, {}, "has shape", ranks=False, domain=MICROSOFT)
    fails("QLinearSigmoid", [x, two, zero, one, zero], {}, "X's scale", domain=MICROSOFT)
    declined("QLinearSoftmax", [x, one, zero, one, zero], {"axis": 1}, domain=MICROSOFT)
