"""Reductions, ArgMax and ArgMin against the CPU EP."""

import numpy as np
import pytest
from encore_session import assert_all_on_encore
from harness import FLOATS, Case, Const, _Model, bools, check, floats, integers, seeded, session
from onnx import TensorProto, helper, numpy_helper

SUMS = ["ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare"]
LOGS = ["ReduceLogSum", "ReduceLogSumExp"]
EXTREMES = ["ReduceMax", "ReduceMin"]
ALL = [*SUMS, *LOGS, *EXTREMES, "ReduceProd"]
LARGE = (1 << 20) + 3


def axes(*values):
    return Const(np.array(values, np.int64))


def case(op, x, over=None, dtype="float32", **attrs):
    """With the axes as an input, as since opset 18; `opset` 13 or less makes them an attribute but for ReduceSum's."""
    opset = attrs.pop("opset", 20 if op in EXTREMES else 18)
    more = {k: attrs.pop(k) for k in ("misaligned", "tolerance", "reference", "name") if k in attrs}
    inputs = [x]
    if over is not None:
        if opset >= 18 or (opset == 13 and op == "ReduceSum"):
            inputs.append(axes(*over))
        else:
            attrs["axes"] = list(over)
    return Case(op, inputs, attrs, dtype=dtype, opset=opset, family="exact" if op in EXTREMES else "reduce", **more)


def values(op, *shape):
    if op == "ReduceLogSum":
        return floats(*shape, low=0.5, high=2)
    return floats(*shape, low=0.9, high=1.1) if op == "ReduceProd" else floats(*shape)


# The ways that a reduction can go: runs and columns; one dimension and several; a few threads, a warp, a block.
PATTERNS = [
    ((3, 5), (1,)), ((3, 5), (0,)), ((3, 5), (0, 1)), ((4, 3, 5), (1,)), ((4, 3, 5), (0, 2)), ((2, 3, 4, 5), (0, 2)),
    ((2, 3, 4, 5), (1, 3)), ((2, 1, 3, 1), (1, 3)), ((2, 3, 2, 3, 2, 3, 2), (0, 2, 4, 6)),
    ((2, 3, 2, 3, 2, 3, 2), (1, 3, 5)), ((3, 8, 7, 7), (2, 3)), ((2, 16, 8, 8), (-2, -1)), ((5, 96), (1,)),
    ((3, 600), (1,)), ((2, 4096), (-1,)), ((700, 256), (1,)), ((600, 33), (0,)), ((64, 3), (0,)),
    ((2, 200, 24), (1,)), ((1100, 2, 40), (0, 1)), ((3, 2, 501), (0, 2)),
    ((9, 1501), (1,)), ((4, 9, 77), (0, 2)), ((49, 960), (0,)), ((2, 49, 120), (1,)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape,over", PATTERNS, ids=str)
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMean"])
def test_patterns(op, shape, over, dtype):
    # The CPU adds up to 2200 values one after the other: its sums pass far from zero, and may end near it.
    rough = (2e-5, 3e-4) if (op, dtype) == ("ReduceSum", "float32") else None
    check(case(op, values(op, *shape), over, dtype, tolerance=rough))


# Widths around those of packs, of a block's threads and of what it has room for, where rows begin at every distance
# from an aligned address; rows around as many as threads take at once.
WIDTHS = [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 127, 248, 249, 255, 256, 257, 260, 511, 1025]


MANY = 2 * 132 * 130 + 5  # rows of which each thread takes one


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("width", [7, 9, 20, 31, 49, 63])
def test_many_short_rows(width, dtype):
    """Some are whole packs and the rest values alone; where rows begin between pairs of halves, and where not."""
    x = integers(dtype, MANY, width) if dtype == "int32" else floats(MANY, width)
    for misaligned in (False, True):
        for op in ("ReduceSum", "ReduceMin" if misaligned else "ReduceMax"):
            check(case(op, x, (1,), None if dtype == "int32" else dtype, misaligned=misaligned))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("width", WIDTHS)
def test_widths(width, dtype):
    for misaligned in (False, True):
        for rows in (2, 37, 130):
            more = {"dtype": dtype, "misaligned": misaligned}
            check(case("ReduceMean", floats(rows, width), (1,), **more))
            check(case("ReduceMean", floats(rows, width), (0,), **more))
        check(case("ReduceMax", floats(3, 37, width), (1,), **more))


@pytest.mark.parametrize("op,dtype", [("ReduceMax", "int8"), ("ReduceMin", "uint8"), ("ReduceSum", "int64")])
@pytest.mark.parametrize("width", WIDTHS)
def test_widths_of_integers(width, op, dtype):
    for misaligned in (False, True):
        for shape, axis in [((70, width), 1), ((70, width), 0), ((2, 33, width), 1)]:
            check(case(op, integers(dtype, *shape), (axis,), misaligned=misaligned))


# Outputs so few that several blocks share each, and a second launch merges what they have.
SPLIT = [((9000, 40), 0), ((9001, 13), 0), ((30000, 1), 0), ((40001,), 0), ((3, 100003), 1), ((2, 5003, 9), 1)]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape,axis", SPLIT, ids=str)
def test_split_outputs(shape, axis, dtype):
    def mean(x, _):
        return [x.astype(np.float64).mean(axis, keepdims=True).astype(np.float32)]

    for misaligned in (False, True):
        x = floats(*shape)
        check(case("ReduceMean", x, (axis,), dtype, misaligned=misaligned, reference=mean))
        check(case("ReduceMax", x, (axis,), dtype, misaligned=misaligned))


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 9])
def test_few_outputs_of_many_splits(width):
    """Lanes that merge splits are as many as outputs, up to eight."""
    x = integers("int32", 300001, width)
    check(case("ReduceSum", x, (0,)))
    check(case("ReduceSum", np.ascontiguousarray(x.T), (1,)))
    check(case("ReduceMin", x.astype(np.float32), (0,)))


# Columns whose rows the blocks of a cluster share out, aligned and not: few of them, which lie in the cache; many, for
# one launch and for two; whole rows side by side and parts of them, one run and several.
CLUSTERS = [
    ((20000, 64), 0), ((3000, 512), 0), ((5003, 515), 0), ((2, 9001, 130), 1), ((3003, 1501), 0),
    ((70, 49, 960), 1), ((36, 784, 120), 1), ((30, 70, 1501), 1), ((40000, 5, 24), 1), ((60000, 5, 11), 1),
]  # fmt: skip
CLUSTERS = [(dtype, shape, axis) for shape, axis in CLUSTERS for dtype in FLOATS]
CLUSTERS += [("float32", (9001, 1024), 0), ("float64", (9001, 512), 0)]  # for two launches


@pytest.mark.parametrize("dtype,shape,axis", CLUSTERS, ids=str)
def test_clusters_of_columns(shape, axis, dtype):
    kind = np.float64 if dtype == "float64" else np.float32

    def mean(x, _):
        return [x.astype(np.float64).mean(axis, keepdims=True).astype(kind)]

    x = floats(*shape)
    x[..., 5] = np.inf
    x[..., -1, 7] = np.nan
    check(case("ReduceMean", x, (axis,), dtype, reference=mean))
    check(case("ReduceMax", x[..., 8:], (axis,), dtype, misaligned=True))


@pytest.mark.parametrize("op", ["ReduceLogSumExp", "ReduceSumSquare", "ReduceProd"])
def test_clusters_of_columns_by_other_operators(op):
    def reference(x, _):
        x = x.astype(np.float64)
        y = {
            "ReduceLogSumExp": lambda: np.log(np.exp(x).sum(0, keepdims=True)),
            "ReduceSumSquare": lambda: (x * x).sum(0, keepdims=True),
            "ReduceProd": lambda: x.prod(0, keepdims=True),
        }[op]()
        return [y.astype(np.float32)]

    for width in (128, 77):
        x = floats(9001, width, low=0.999, high=1.001) if op == "ReduceProd" else floats(9001, width)
        check(case(op, x, (0,), tolerance=(1e-4, 1e-4), reference=reference))
        check(case("ReduceSum", integers("int32", 9001, width), (0,)))


def test_clusters_of_columns_over_several_dimensions():
    """Rows that do not lie at equal distances."""
    for width in (64, 33):
        x = integers("int32", 30, 2, 300, width)
        check(case("ReduceSum", x, (0, 2)))
        check(case("ReduceMax", x, (0, 2), "int32"))


def test_what_is_beside_a_column_or_a_row_stays_out():
    """Packs reach into neighbouring rows, whose values may be anything."""
    for width in (3, 13, 50, 300, 1501):
        x = floats(20, width)
        x[::2, 0], x[1::2, -1], x[7, width // 2] = np.inf, -np.inf, np.nan
        for axis in (0, 1):
            for dtype in ("float16", "float32"):

                def total(x, _, axis=axis):
                    with np.errstate(invalid="ignore"):
                        return [x.astype(np.float64).sum(axis, keepdims=True).astype(np.float32)]

                check(case("ReduceSum", x, (axis,), dtype, reference=total))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op", ALL)
def test_every_operator(op, keepdims, dtype):
    for shape, over in [((3, 40), (1,)), ((40, 6), (0,)), ((2, 3, 5), None)]:
        check(case(op, values(op, *shape), over, dtype, keepdims=keepdims))


BIG = [
    ((LARGE,), None), ((1 << 20,), (0,)), ((3, 350001), (1,)), ((350001, 3), (0,)), ((2, 70000, 8), (1,)),
    ((5000, 2, 105), (0, 2)),
]  # fmt: skip


@pytest.mark.parametrize("shape,over", BIG, ids=str)
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMin", "ReduceLogSumExp", "ReduceL2"])
def test_large(op, shape, over):
    """Against NumPy in double: the CPU EP adds a million floats one after the other."""

    def reference(x, *_):
        x = x.astype(np.float64)
        kwargs = {"axis": over, "keepdims": True}
        y = {
            "ReduceSum": lambda: x.sum(**kwargs),
            "ReduceMin": lambda: x.min(**kwargs),
            "ReduceLogSumExp": lambda: np.log(np.exp(x).sum(**kwargs)),
            "ReduceL2": lambda: np.sqrt((x * x).sum(**kwargs)),
        }[op]()
        return [y.astype(np.float32)]

    # A sum of values of both signs is small beside them.
    tolerance = {"ReduceSum": (1e-5, 2e-2), "ReduceMin": None}.get(op, (2e-5, 1e-5))
    check(case(op, values(op, *shape), over, tolerance=tolerance, reference=reference))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_large_of_other_types(dtype):
    rough = (1e-3, 0.05) if dtype == "float16" else None
    check(case("ReduceMean", floats(2, 300001), (1,), dtype, tolerance=rough))
    check(case("ReduceMax", floats(300001), None, dtype))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op", [*SUMS, "ReduceProd"])
def test_integers(op, dtype):
    low, high = (1, 3) if op == "ReduceProd" else (-100, 100)
    check(case(op, integers(dtype, 4, 9, 5, low=low, high=high), (1,)))
    check(case(op, integers(dtype, 4, 9, low=low, high=high), (1,)))


WRAPPED = {
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, **rest: np.sum(np.abs(x), **rest),
    "ReduceSumSquare": lambda x, **rest: np.sum(x * x, **rest),
}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op", WRAPPED)
def test_integers_wrap_around(op, dtype):
    info = np.iinfo(dtype)
    x = np.array([[info.max, info.max, 3], [info.min, info.min, -5], [info.min, 1, info.max]], dtype)
    check(case(op, x, (1,), reference=lambda x, _: [WRAPPED[op](x, axis=1, dtype=dtype, keepdims=True)]))
    check(case(op, x, (0,), reference=lambda x, _: [WRAPPED[op](x, axis=0, dtype=dtype, keepdims=True)]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("op", EXTREMES)
def test_extremes_of_integers(op, dtype):
    for shape, over in [((4, 9, 5), (1,)), ((3, 700), (1,)), ((70000,), None)]:
        check(case(op, integers(dtype, *shape), over))


@pytest.mark.parametrize("op", EXTREMES)
def test_extremes_of_bools(op):
    check(case(op, bools(4, 3, 5), (1,)))
    check(case(op, bools(6, 40), (1,)))


@pytest.mark.parametrize("op", ALL)
def test_empty(op):
    """Of nothing there is what adding nothing to it would leave."""
    for shape, over in [((2, 0, 3), (1,)), ((0,), None), ((0, 4), (1,)), ((3, 0), (1,)), ((0, 4), (0,))]:
        check(case(op, floats(*shape), over))


@pytest.mark.parametrize("op", EXTREMES)
def test_empty_integers(op):
    check(case(op, np.zeros((2, 0), np.int32), (1,)))
    check(case(op, np.zeros((2, 0), np.uint8), (1,)))


@pytest.mark.parametrize("op", ALL)
def test_scalar_and_single(op):
    check(case(op, np.float32(1.5).reshape(())))
    check(case(op, np.full((1, 1, 1), 1.5, np.float32), (1,), keepdims=0))


@pytest.mark.parametrize("op", ALL)
def test_no_axes(op):
    x = values(op, 3, 7)
    check(case(op, x, (), noop_with_empty_axes=1))
    check(case(op, x, None, noop_with_empty_axes=1))
    check(case(op, x, (), noop_with_empty_axes=0))


@pytest.mark.parametrize("opset", [1, 11, 13])
@pytest.mark.parametrize("op", ALL)
def test_older_opsets(op, opset):
    check(case(op, values(op, 2, 3, 5), (0, 2), opset=opset))
    check(case(op, values(op, 2, 3, 5), None, opset=opset, keepdims=0))


def test_negative_and_repeated_axes():
    check(case("ReduceSum", floats(2, 3, 5), (-1, 2)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape,over", [((3, 8), (1,)), ((3, 4096), (1,)), ((64, 16), (0,))], ids=str)
def test_misaligned(shape, over, dtype):
    check(case("ReduceSum", floats(*shape), over, dtype, misaligned=True))


@pytest.mark.parametrize("op,numpy_op", [("ReduceMax", np.max), ("ReduceMin", np.min)])
def test_nan_is_the_extreme(op, numpy_op):
    """As in NumPy; the CPU EP's answer depends on where the NaN stands."""
    x = np.array([[1, np.nan, 3, 0], [np.nan, 1, 3, 0], [1, 3, 0, np.nan], [1, np.inf, -np.inf, 0]], np.float32)
    for axis in (0, 1):
        check(case(op, x, (axis,), keepdims=0, reference=lambda x, _, axis=axis: [numpy_op(x, axis)]))


def test_special_values_in_sums():
    inf, nan = np.inf, np.nan
    rows = [[inf, 1], [-inf, 1], [inf, -inf], [nan, 1], [inf, inf], [-inf, -inf], [200, 201], [-200, -201]]
    x = np.array(rows, np.float32)
    for op in ["ReduceSum", "ReduceL2", "ReduceL1"]:
        check(case(op, x, (1,)))
    # The CPU EP says -inf of [-inf, -200].
    check(case("ReduceLogSumExp", x, (1,), reference=lambda x, _: [np.logaddexp.reduce(x, 1, keepdims=True)]))


def arg(op, x, dtype="float32", **attrs):
    more = {k: attrs.pop(k) for k in ("misaligned", "reference", "opset") if k in attrs}
    return Case(op, [x], attrs, dtype=dtype, family="exact", **{"opset": 13, **more})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg(op, last, dtype):
    for shape, axis in [((3, 7), 1), ((3, 7), 0), ((4, 30, 6), 1), ((3, 5000), -1), ((6, 1), 1)]:
        # Few values, so that many are equal.
        check(arg(op, np.round(floats(*shape)), dtype, axis=axis, keepdims=last, select_last_index=last))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_of_odd_widths(op):
    """Of equal values the first or the last counts, whichever thread has seen it."""
    for width in (3, 8, 9, 49, 100, 300, 1501):
        x = np.round(floats(90, width))
        for axis, last in [(0, 0), (0, 1), (1, 0), (1, 1)]:
            for misaligned in (False, True):
                check(arg(op, x, "float16", axis=axis, select_last_index=last, misaligned=misaligned))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_large(op):
    check(arg(op, floats(LARGE), axis=0))
    check(arg(op, floats(400001, 2), axis=0))
    check(arg(op, floats(3, 1 << 18), axis=1, misaligned=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("width", [1, 8, 63, 127, 128, 129, 1023, 1024, 1025, 1030, 2049, 20000, 70001])
def test_extremes_along_rows(width, dtype):
    """At the borders of packs, of threads that have several, and of what a warp, a block and several take."""
    x = floats(3, width)
    x[1] = 0.0 if width % 2 else np.where(x[1] > 0, 0.0, -0.0)  # all are the same
    x[2] = np.arange(width) % 5  # the extremes are everywhere
    for misaligned in (False, True):
        for last in (0, 1):
            for op in ("ArgMax", "ArgMin"):
                check(arg(op, x, dtype, axis=1, select_last_index=last, misaligned=misaligned))
        for op in EXTREMES:
            check(Case(op, [x], {"axes": [1]}, dtype=dtype, opset=13, family="exact", misaligned=misaligned))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("op, numpy_op", [("ArgMax", np.argmax), ("ArgMin", np.argmin)])
def test_arg_special_values_in_long_rows(op, numpy_op, dtype):
    x = floats(6, 1029)
    x[0, [700, 701, 1028]] = np.nan
    x[1] = -np.inf
    x[2] = np.inf
    x[3, 1028] = np.nan
    x[4, :] = np.nan
    for first in (0, 1, 5):  # whole packs, and not
        x[5, [first, 1027]] = -np.nan, np.nan
        check(arg(op, x[:, first:], dtype, axis=1, keepdims=0, reference=lambda x: [numpy_op(x, 1)]))
        reduce_op = op.replace("Arg", "Reduce")
        check(Case(reduce_op, [x[:, first:]], {"axes": [1], "keepdims": 0}, dtype=dtype, opset=13, family="exact",
                   reference=lambda x: [getattr(np, op[3:].lower())(x, 1)]))  # fmt: skip


@pytest.mark.parametrize("opset", [1, 11, 12])
def test_arg_older_opsets(opset):
    check(arg("ArgMax", floats(3, 4), opset=opset))
    check(arg("ArgMin", floats(3, 4), opset=opset, axis=1, keepdims=0))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_of_integers_along_rows(op, dtype):
    """Also where a row has nothing but its type's least or greatest, and where rows and packs begin apart."""
    limits = np.iinfo(dtype)
    for width in (3, 16, 61, 300, 1029, 9001):
        x = integers(dtype, 9, width, low=limits.min, high=limits.max)
        x[:2] = np.array([limits.min, limits.max], dtype)[:, None]
        x[2, width // 2 :] = x[2, 0]
        x[3] = np.arange(width) % 3
        for last in (0, 1):
            turned = (lambda x: x[:, ::-1]) if last else (lambda x: x)
            find = np.argmax if op == "ArgMax" else np.argmin

            def places(x, turned=turned, find=find, last=last):
                place = find(turned(x), 1)
                return [x.shape[1] - 1 - place if last else place]

            for misaligned in (False, True):
                check(arg(op, x, dtype, axis=1, keepdims=0, select_last_index=last, misaligned=misaligned,
                          reference=places))  # fmt: skip


def test_arg_of_integers():
    check(arg("ArgMax", integers("int32", 5, 77), axis=1))
    check(arg("ArgMin", integers("int64", 77, 5), axis=0, reference=lambda x: [np.argmin(x, 0)[None]]))
    for dtype in ("int8", "uint8"):
        x = integers(dtype, 9, 300, low=np.iinfo(dtype).min, high=np.iinfo(dtype).max)
        check(arg("ArgMax", x, axis=1, opset=13, reference=lambda x: [np.argmax(x, 1)[:, None]]))
        check(arg("ArgMin", x, axis=0, opset=13, keepdims=0, reference=lambda x: [np.argmin(x, 0)]))


def test_arg_empty():
    check(arg("ArgMax", floats(0, 4), axis=1))


@pytest.mark.parametrize("op,numpy_op", [("ArgMax", np.argmax), ("ArgMin", np.argmin)])
def test_arg_nan(op, numpy_op):
    x = np.array([[1, np.nan, 3, np.nan], [np.nan, 1, 3, 0], [1, 3, 0, np.nan]], np.float32)
    check(arg(op, x, axis=1, keepdims=0, reference=lambda x: [numpy_op(x, 1)]))


def test_arg_of_nothing_is_refused():
    c = arg("ArgMax", floats(2, 0), axis=1)
    model = _Model(c, "float32")
    with pytest.raises(Exception, match="nothing to choose"):
        session(model.model).run(None, model.feeds)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ArgMax"])
def test_only_one_keeps_dimensions(op):
    """What ONNX doesn't say of other numbers, onnxruntime does."""
    for keepdims in (2, -1):
        check(
            Case(
                op, [floats(3, 5)], {"keepdims": keepdims}, opset=13, family="reduce" if op == "ReduceSum" else "exact"
            )
        )


def test_only_one_reduces_nothing():
    model = _Model(Case("ReduceSum", [floats(3, 5)], {"noop_with_empty_axes": 2}, opset=13), "float32")
    assert session(model.model).run(None, model.feeds)[0].shape == (1, 1)


def test_an_axis_out_of_range_is_refused():
    model = _Model(case("ReduceSum", floats(2, 3)), "float32")
    node = model.model.graph.node[0]
    node.input.append("axes")
    model.model.graph.input.append(helper.make_tensor_value_info("axes", TensorProto.INT64, [1]))
    with pytest.raises(Exception, match=r"axes.*2.*is outside|outside.*\[-2"):
        session(model.model).run(None, {**model.feeds, "axes": np.array([2])})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rows,width", [(17, 13), (17, 49), (MANY, 49), (17, 169), (17, 511)])
@pytest.mark.parametrize("op", [*SUMS, "ReduceLogSumExp", "GlobalAveragePool"])
def test_short_rows_that_are_alike_have_the_same_sum(op, rows, width, dtype):
    """Wherever they lie: of odd widths each is aligned otherwise."""
    x = np.repeat(seeded(op, width).standard_normal((1, width)), rows, 0).astype(dtype)
    pooled = op == "GlobalAveragePool"
    x = x[None, :, None] if pooled else x
    nodes = [helper.make_node(op, ["x"] if pooled else ["x", "axes"], ["y"], "it")]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = [helper.make_tensor_value_info("x", kind, x.shape)]
    constants = [] if pooled else [numpy_helper.from_array(np.array([1]), "axes")]
    graph = helper.make_graph(nodes, "alike", values, [helper.make_tensor_value_info("y", kind, None)], constants)
    ours = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    assert_all_on_encore(ours)
    (y,) = ours.run(None, {"x": x})
    assert len(np.unique(y)) == 1
