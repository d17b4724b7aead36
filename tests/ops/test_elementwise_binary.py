"""Operators of several tensors under NumPy's broadcasting, against the CPU EP."""

import numpy as np
import pytest
from encore_session import EP_NAME, nodes_on
from harness import FLOATS, INTEGERS, SPECIAL, Case, bools, check, floats, integers, session
from in_place import check_in_place
from onnx import TensorProto, helper

LARGE = (1 << 18) + 3  # does not divide into packs
SHAPES = [
    ((3, 5), (3, 5)),
    ((), ()),
    ((2, 3), ()),
    ((), (2, 3)),
    ((1,), (7,)),
    ((2, 3, 64), (64,)),  # a bias that divides into packs, and one that does not
    ((2, 3, 5), (5,)),
    ((2, 3, 4, 4), (3, 1, 1)),  # a channel likewise
    ((2, 3, 7, 7), (3, 1, 1)),
    ((4, 1), (1, 5)),
    ((2, 1, 16), (1, 3, 1)),
    ((3, 1, 2, 1, 2, 1, 3, 1), (1, 2, 1, 3, 1, 2, 1, 4)),
    ((0, 3), (1, 3)),
    ((2, 0), (1,)),
    ((LARGE,), (LARGE,)),
    ((LARGE,), ()),
    ((64, 128, 33), (128, 1)),
    ((5, 1500), (1500,)),  # rows of packs and a rest
    ((5, 1501), (5, 1)),
    ((3, 1, 149), (2, 149)),
]
ARITHMETIC = ["Add", "Sub", "Mul", "Div"]
ORDERS = ["Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
IN_ORDER = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Max": np.maximum,
    "Min": np.minimum,
}


def of(dtype, *shape, low=-3.0, high=3.0):
    made = (
        floats(*shape, low=low, high=high)
        if dtype in FLOATS
        else integers(dtype, *shape, low=max(low, np.iinfo(dtype).min), high=high)
    )
    return np.asarray(made).reshape(shape)


@pytest.mark.parametrize("a,b", SHAPES, ids=str)
@pytest.mark.parametrize("op", ["Sub", "Div"])
def test_shapes(op, a, b):
    check(Case(op, [of("float32", *a), of("float32", *b, low=0.5)]))


@pytest.mark.parametrize("a,b", [s for s in SHAPES if LARGE not in s[0]], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float64"])
def test_shapes_in_other_sizes(dtype, a, b):
    check(Case("Sub", [of(dtype, *a, low=-9, high=9), of(dtype, *b, low=-9, high=9)], dtype=dtype))


@pytest.mark.parametrize("a,b", [((7, 1501), (1501,)), ((1501,), (1501,)), ((7, 1501), (7, 1))], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_misaligned_rows(dtype, a, b):
    check(Case("Sub", [of(dtype, *a, low=-9, high=9), of(dtype, *b, low=-9, high=9)], dtype=dtype, misaligned=True))


# Runs as long as a pack, a little longer, so short that one pack has several, and packs of which each operand has
# another part.
RUNS = [
    ((5, 12, 7, 7), (5, 12, 1, 1)), ((5, 12, 4, 4), (12, 1, 1)), ((3, 40, 3, 3), (40, 1, 1)), ((6, 1, 17), (1, 9, 17)),
    ((33, 9), (9,)), ((33, 1), (33, 19)), ((4, 5, 13), (4, 1, 13)), ((2, 3, 4, 11), (3, 1, 11)), ((301, 2), (2,)),
]  # fmt: skip


@pytest.mark.parametrize("a,b", RUNS, ids=str)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_short_runs(dtype, a, b):
    for x, y in [(a, b), (b, a)]:
        check(Case("Sub", [of(dtype, *x, low=-9, high=9), of(dtype, *y, low=-9, high=9)], dtype=dtype))
    check(Case("Where", [bools(*a), of(dtype, *b), of(dtype, *a)], dtype=dtype, family="exact"))


# An operand that has one value a run: runs of a pack and a little more, of no pack, and longer than a block counts; of
# channels, of rows, of one of several dimensions, and one for all.
ONE_A_RUN = [
    ((5, 1501), (5, 1)), ((3, 9), (3, 1)), ((301, 7), (301, 1)), ((2, 5, 7, 7), (5, 1, 1)),
    ((4, 3, 5, 3, 3), (4, 1, 5, 1, 1)), ((70, 5, 11, 1), (5, 1, 1)), ((1003,), (1,)), ((0, 3, 11), (3, 1)),
]  # fmt: skip


@pytest.mark.parametrize("a,b", ONE_A_RUN, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ARITHMETIC)
def test_one_value_a_run(op, dtype, a, b):
    for x, y in [(a, b), (b, a)]:
        check(Case(op, [of(dtype, *x), of(dtype, *y, low=0.5)], dtype=dtype))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_one_value_a_long_run(dtype):
    a, b = (2, (1 << 20) + 9), (2, 1)
    check(Case("Sub", [of(dtype, *a), of(dtype, *b)], dtype=dtype))
    check(Case("Div", [of(dtype, *b), of(dtype, *a, low=0.5)], dtype=dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op", ARITHMETIC)
def test_special_values_a_run(op, dtype):
    row, column = np.resize(SPECIAL[:8], (8, 17)), SPECIAL[:8].reshape(8, 1)
    for x, y in [(row, column), (column, row)]:
        check(Case(op, [x, y], dtype=dtype))
        check(Case(op, [x, y], dtype=dtype, misaligned=True))


@pytest.mark.parametrize("op", ARITHMETIC)
@pytest.mark.parametrize("shared", [0, 1])
def test_one_value_a_run_in_place(op, shared):
    """The output lies where the operand of its shape did."""
    wide, column = of("float16", 61, 1501), of("float16", 61, 1, low=0.5)
    inputs = [column, wide] if shared else [wide, column]
    check_in_place(Case(op, inputs, dtype="float16"), {0: shared})


# So many that a thread makes several packs, which lie alike in their runs; and operands of which each has others.
MANY = [
    ((1447, 1501), (1501,)), ((1447, 1501), (1447, 1)), ((2_170_895,), ()), ((9, 6521, 37), (6521, 1)),
    ((44, 1501, 33), (1501, 33)), ((8, 7341, 37), (8, 1, 37)), ((31, 17, 459, 9), (17, 1, 9)),
]  # fmt: skip


@pytest.mark.parametrize("a,b", MANY, ids=str)
def test_many_packs(a, b):
    check(Case("Sub", [of("float16", *b, low=-9, high=9), of("float16", *a, low=-9, high=9)], dtype="float16"))


@pytest.mark.parametrize("a,b", [((9, 6521, 37), (6521, 1)), ((1447, 1501), (1501,))], ids=str)
def test_many_misaligned_packs(a, b):
    check(Case("Sub", [of("float16", *a), of("float16", *b)], dtype="float16", misaligned=True))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("op", ARITHMETIC)
def test_arithmetic(op, dtype):
    check(Case(op, [of(dtype, 5, 37, low=-11, high=11), of(dtype, 5, 37, low=1, high=11)], dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ARITHMETIC + ["Max", "Min", "Sum", "Mean"])
def test_special_values(op, dtype):
    a, b = np.meshgrid(SPECIAL[:8], SPECIAL[:8])
    check(Case(op, [a.reshape(-1), b.reshape(-1)], dtype=dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_integers_wrap_around(op, dtype):
    info = np.iinfo(dtype)
    a, b = np.meshgrid(*[np.array([info.min, info.max, 1, 2, info.max // 2 + 1], dtype)] * 2)
    f = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[op]
    check(Case(op, [a.reshape(-1), b.reshape(-1)], dtype=dtype, reference=lambda a, b: [f(a, b)]))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op,fmod", [("Div", None), ("Mod", 0), ("Mod", 1)])
def test_the_ends_of_integers_divided(op, fmod, dtype):
    info = np.iinfo(dtype)
    values = sorted({info.min, info.min + 1, info.max - 1, info.max, max(info.min, -1), 0, 1, 2, 3})
    values = np.array(values, dtype)
    a, b = (v.reshape(-1) for v in np.meshgrid(values, values[values != 0]))

    def by_hand(a, b):
        pairs = [(int(x), int(y)) for x, y in zip(a, b)]
        towards_zero = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs]
        whole = [q if op == "Div" else x - q * y if fmod else x % y for q, (x, y) in zip(towards_zero, pairs)]
        return [np.array([w % 2**info.bits for w in whole], f"uint{info.bits}").view(dtype)]

    attrs = {} if fmod is None else {"fmod": fmod}
    check(Case(op, [a, b], attrs, dtype=dtype, reference=by_hand, capture=False))


@pytest.mark.parametrize("dtype", [t for t in INTEGERS if t[0] == "i"])
@pytest.mark.parametrize("op,wanted", [("Div", None), ("Mod", 0)])
def test_least_integer_by_minus_one(op, wanted, dtype):
    least = np.array([np.iinfo(dtype).min, 5], dtype)
    minus_one = np.array([-1, -1], dtype)
    check(
        Case(op, [least, minus_one], dtype=dtype, reference=lambda a, b: [np.negative(a) if wanted is None else a * 0])
    )


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("fmod", [0, 1])
def test_mod_of_integers(fmod, dtype):
    a, b = of(dtype, 400, low=-99, high=99), of(dtype, 400, low=-9, high=9)
    b[b == 0] = 7
    f = np.fmod if fmod else np.mod
    check(Case("Mod", [a, b], {"fmod": fmod}, dtype=dtype, reference=lambda a, b: [f(a, b)]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_mod_of_floats(dtype):
    a, b = of(dtype, 400, low=-9, high=9), of(dtype, 400, low=0.5, high=3)
    check(Case("Mod", [a, b], {"fmod": 1}, dtype=dtype, opset=13))


@pytest.mark.parametrize("dtype", FLOATS + ["int32", "int64"])
@pytest.mark.parametrize("exponent", ["same", "float32", "float64", "int32", "int64"])
def test_pow(exponent, dtype):
    x = of(dtype, 5, 9, low=1 if dtype in FLOATS else -4, high=4)
    whole = exponent.startswith("int") or (exponent == "same" and dtype not in FLOATS)
    y = (
        integers("int64" if exponent == "same" else exponent, 5, 9, low=0, high=4)
        if whole
        else floats(5, 9, low=0, high=3)
    )
    if dtype not in FLOATS and not whole:
        y = np.round(y)  # a product that ends just below a whole number would be truncated to the one before
    y = y.astype({"same": np.float32 if dtype in FLOATS else dtype}.get(exponent, exponent))
    check(Case("Pow", [x, y], dtype=dtype, name=exponent, tolerance=(4e-6, 1e-6) if dtype == "float32" else None,
               reference=_power if dtype not in FLOATS or y.dtype == np.float64 else None))  # fmt: skip


def _power(x, y):
    return [
        np.power(x, y).astype(x.dtype)
        if x.dtype.kind == "f"
        else np.rint(np.power(x.astype(np.float64), y)).astype(x.dtype)
    ]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0])
def test_pow_by_one_number(exponent, dtype):
    check(Case("Pow", [of(dtype, 5, 33, low=0.3), np.asarray(np.float32(exponent))], dtype=dtype, name=str(exponent)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_pow_by_whole_numbers_beyond_floats(dtype):
    x, y = np.meshgrid(
        np.float32([-1, -2, -0.5, 1, 3]), np.array([2**24 + 1, 2**40, 2**40 + 1, 2**53 - 1, -(2**33) - 1])
    )
    check(Case("Pow", [x.reshape(-1), y.reshape(-1)], dtype=dtype))


def test_pow_of_integers_by_exponents_that_no_double_is():
    """Odd ones, which are even as doubles: the CPU EP's, which takes -1 to the power of them for 1."""
    y = np.array([2**63 - 1, -(2**63) + 1, 2**53 + 1, -(2**53) - 1, -(2**63)])
    check(Case("Pow", [np.full(5, -1), y], reference=lambda x, y: [np.where(y % 2, x, x * x)]))


def test_pow_special_values():
    x, y = np.meshgrid(SPECIAL[:8], SPECIAL[:13])
    check(Case("Pow", [x.reshape(-1), y.reshape(-1)]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("slope", [(2, 3, 4, 4), (3, 1, 1), (1,), (4,)], ids=str)
def test_prelu(slope, dtype):
    check(Case("PRelu", [of(dtype, 2, 3, 4, 4), of(dtype, *slope)], dtype=dtype, opset=16))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_prelu_of_integers(dtype):
    x, slope = of(dtype, 5, 37, low=-9, high=9), of(dtype, 37, low=-3, high=3)
    wrapped = [np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 7], dtype), np.array([3, 3, 3], dtype)]
    for given in ([x, slope], wrapped):
        check(Case("PRelu", given, dtype=dtype, opset=16, reference=lambda x, slope: [np.where(x < 0, x * slope, x)]))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("op", ["Equal", *ORDERS])
def test_comparisons(op, dtype):
    a, b = of(dtype, 5, 37, low=-2, high=2), of(dtype, 5, 37, low=-2, high=2)
    b[:2] = a[:2]
    check(Case(op, [a, b], dtype=dtype, opset=16, reference=lambda a, b: [IN_ORDER[op](a, b)]))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", [*ORDERS, "Max", "Min"])
def test_the_ends_of_integers_in_order(op, dtype):
    info = np.iinfo(dtype)
    a, b = np.meshgrid(*[np.array([info.min, info.max, 0, 1, info.max // 2 + 1], dtype)] * 2)
    inputs = [a.reshape(-1), b.reshape(-1)]
    check(Case(op, inputs, dtype=dtype, opset=16, reference=lambda a, b: [IN_ORDER[op](a, b)]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["Equal", *ORDERS])
def test_comparisons_of_special_values(op, dtype):
    a, b = np.meshgrid(SPECIAL[:8], SPECIAL[:8])
    check(Case(op, [a.reshape(-1), b.reshape(-1)], dtype=dtype, opset=16))


def test_equal_of_booleans():
    check(Case("Equal", [bools(5, 37), bools(37)], dtype="bool"))


@pytest.mark.parametrize("a,b", SHAPES[:10], ids=str)
@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op, a, b):
    check(Case(op, [np.asarray(bools(*a)).reshape(a), np.asarray(bools(*b)).reshape(b)], dtype="bool"))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_where(dtype):
    a, b = (bools(5, 37), bools(37)) if dtype == "bool" else (of(dtype, 5, 37), of(dtype, 37))
    check(Case("Where", [bools(5, 37), a, b], dtype=dtype, reference=lambda c, a, b: [np.where(c, a, b)]))


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 1), (1, 6), ()),
        ((), (4,), (3, 1)),
        ((2, 3, 1), (3, 16), (2, 1, 16)),
        ((0, 1), (3,), ()),
        ((LARGE,),) * 3,
        ((731, 1501), (731, 1), (1501,)),  # a thread makes several packs
    ],
    ids=str,
)
def test_where_shapes(shapes):
    condition, *values = shapes
    check(Case("Where", [np.asarray(bools(*condition)).reshape(condition), *[of("float32", *s) for s in values]]))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_any_number_of_inputs(op, count):
    check(Case(op, [of("float32", 4, 33) for _ in range(count)], name=str(count)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["Sum", "Mean"])
def test_many_halves_are_rounded_once(op, dtype):
    one = np.ones(40, np.float32)
    little = one * np.float32({"float16": 2.0**-13, "bfloat16": 2.0**-10}[dtype])  # three of which round to nothing
    check(Case(op, [one, *[little] * 16], dtype=dtype))


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_inputs_of_other_shapes(op):
    check(Case(op, [of("float32", *s) for s in [(), (3, 1), (1, 16), (2, 1, 1), (16,), (2, 3, 16)]]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_variadic_floats(op, dtype):
    check(Case(op, [of(dtype, 3, 5) for _ in range(3)], dtype=dtype, opset=13))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["Max", "Min"])
def test_variadic_integers(op, dtype):
    check(
        Case(
            op,
            [of(dtype, 3, 37, low=-50, high=50), of(dtype, 37, low=-50, high=50)],
            dtype=dtype,
            reference=lambda a, b: [IN_ORDER[op](a, b)],
        )
    )


@pytest.mark.parametrize("opset", [7, 8, 13, 14, 21])
@pytest.mark.parametrize("op", ["Add", "Equal", "Max", "Pow", "Sum"])
def test_opsets(op, opset):
    dtype = "int32" if op == "Equal" else "float32"
    check(Case(op, [of(dtype, 3, 5, low=1), of(dtype, 3, 5)], dtype=dtype, opset=opset))


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("op", ["Add", "Max", "Less"])
def test_misaligned(op, dtype):
    check(Case(op, [of(dtype, 1001, low=0), of(dtype, 1001, low=0)], dtype=dtype, misaligned=True))


def _model(op, elem_type, a, b, **attrs):
    """Two inputs whose dimensions are not known before the run."""
    inputs = [helper.make_tensor_value_info(n, elem_type, [None] * len(s)) for n, s in (("a", a), ("b", b))]
    node = helper.make_node(op, ["a", "b"], ["y"], name="the_node", **attrs)
    graph = helper.make_graph([node], "two", inputs, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_divided_by_zero_is_an_error_with_the_name(op, dtype):
    sess = session(_model(op, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), (33,), (33,)))
    a, b = np.full(33, 7, dtype), np.full(33, 2, dtype)
    b[20] = 0
    with pytest.raises(Exception, match="the_node.*an integer was divided by zero"):
        sess.run(None, {"a": a, "b": b})
    b[20] = 1
    assert sess.run(None, {"a": a, "b": b})[0][20] == (7 if op == "Div" else 0)  # and the session goes on


@pytest.mark.parametrize("op", ["Add", "Pow", "Less", "Max"])
def test_shapes_that_do_not_fit_are_an_error_with_both(op):
    sess = session(_model(op, TensorProto.FLOAT, (2, 3), (4,)))
    with pytest.raises(Exception, match=r"the_node.*\[2,3\] and \[4\] cannot be broadcast together"):
        sess.run(None, {"a": floats(2, 3), "b": floats(4)})


def test_slope_larger_than_its_operand_is_an_error():
    sess = session(_model("PRelu", TensorProto.FLOAT, (3,), (2, 3)))
    with pytest.raises(Exception, match=r"the_node.*slope, of shape \[2,3\], cannot be broadcast to \[3\]"):
        sess.run(None, {"a": floats(3), "b": floats(2, 3)})


@pytest.mark.parametrize("fmod", [2, -1])
def test_mod_with_another_fmod_is_declined(fmod):
    with pytest.raises(Exception, match="fmod must have value either 0 or 1"):  # which the CPU EP says
        session(_model("Mod", TensorProto.INT32, (3,), (3,), fmod=fmod))


def test_mod_of_floats_without_fmod_is_declined():
    """ONNX does not allow it; the CPU EP says so."""
    try:
        placed = nodes_on(session(_model("Mod", TensorProto.FLOAT, (3,), (3,))))
    except Exception as error:
        assert "fmod" in str(error)  # the CPU EP refuses it already when the session is made
    else:
        assert EP_NAME not in placed
