import numpy as np
import pytest
from harness import FLOATS, Case, Const, check, floats, integers
from refusal import declined, fails


def cumsum(x, axis, attrs=None, **rest):
    kind = "exact" if x.dtype.kind in "iu" else "reduce"
    return Case("CumSum", [x, Const(np.array(axis))], attrs or {}, family=kind, **rest)


def products(x, axis, exclusive=0, reverse=0):
    """onnxruntime's CPU EP has no CumProd."""
    axis = int(np.reshape(axis, -1)[0])
    x = np.flip(x, axis) if reverse else x
    if exclusive:
        ones = np.ones_like(np.take(x, [0], axis))
        x = np.concatenate([ones, np.delete(x, -1, axis)], axis)
    out = np.cumprod(x, axis, dtype=x.dtype)
    return [np.flip(out, axis) if reverse else out]


WAYS = [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}]

CASES = [
    *[cumsum(floats(5, 7), 1, way, dtype=t, name="-".join(way)) for t in FLOATS for way in WAYS],
    *[cumsum(floats(5, 7, 3), axis, way, name=f"{axis}" + "-".join(way)) for axis in (0, 1, -1) for way in WAYS],
    *[
        cumsum(integers(t, 40, 3), 0, way, name=t + "-".join(way), reference=None if t[0] == "i" else by)
        for t in ["int32", "int64", "uint32", "uint64"]
        for way in (WAYS if t[0] == "i" else WAYS[:1])
        for by in [lambda x, axis: [np.cumsum(x, int(axis), dtype=x.dtype)]]  # the CPU EP lacks those without a sign
    ],
    # Cut into pieces: integers, whose sums are exact.
    *[cumsum(integers("int32", 2, 30011), 1, way, name="-".join(way)) for way in WAYS],
    *[cumsum(integers("int64", 2, 3001, 3), 1, way, name="-".join(way)) for way in WAYS],
    # Whole packs or not, at the borders of a thread, a warp and a block.
    *[
        cumsum(integers("int32", 3, length), 1, way, name="-".join(way))
        for length in (1, 4, 255, 257, 1024, 1501, 2047, 2049, 8195)
        for way in (WAYS if length in (257, 1501) else WAYS[:1])
    ],
    *[cumsum(integers("int64", 2, 9001), 1, way, misaligned=True, name="-".join(way)) for way in WAYS],
    cumsum(integers("int32", 1, 300007), 1, {"reverse": 1}, misaligned=True, name="pieces"),
    # Rows of few packs, of which a warp has several, and columns in packs, cut or not.
    *[
        cumsum(integers("int32", rows, length), 1, way, name="-".join(way), misaligned=length == 9)
        for rows, length in [(70, 3), (50, 9), (41, 20), (33, 64)]
        for way in (WAYS[0], WAYS[3])
    ],
    cumsum(integers("int32", 2200, 270), 1, {"reverse": 1}, name="warps"),
    *[cumsum(integers("int64", 3, 2100, 4), 1, way, name="packs-" + "-".join(way)) for way in WAYS],
    *[cumsum(integers("int32", 2, 19, 40), 1, way, name="packs-" + "-".join(way)) for way in WAYS],
    *[cumsum(floats(9, 31, 24), axis, {"reverse": axis}, dtype="float16", name=f"{axis}") for axis in (0, 1)],
    # The CPU EP adds one after the other, so that its own errors grow with the length.
    cumsum(floats(3, 5000), 1, name="large", tolerance=(2e-5, 5e-4)),
    cumsum(floats(64, 300), 0, name="columns"),
    cumsum(np.full((1, 9000), 2**30, np.int32), 1, name="wraps"),
    cumsum(floats(7), [0], name="vector-axis"),
    cumsum(floats(0, 3), 1, name="empty", capture=False),
    cumsum(floats(9, 33), 1, dtype="float16", misaligned=True),
    cumsum(np.array([1, np.nan, 2, np.inf, -np.inf, 3], np.float32), 0, name="special"),
    cumsum(floats(5, 7), 1, opset=11),
    cumsum(floats(5, 7), np.int32(1), name="int32-axis"),
]

PRODUCTS = [
    *[
        Case("CumProd", [floats(5, 7, low=0.5, high=1.5), Const(np.array(axis))], way, dtype=t, opset=26,
             family="reduce", name=f"{axis}" + "-".join(way),
             reference=lambda x, axis, way=way: products(x, axis, **way))
        for t in FLOATS
        for axis in (0, 1)
        for way in WAYS
    ],
    *[
        Case("CumProd", [integers(t, 3, 9000, low=1, high=3), Const(np.array(1))], {}, opset=26, family="exact",
             name=t, reference=products)
        for t in ["int32", "int64", "uint32", "uint64"]
    ],
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cumsum(case):
    check(case)


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_cumprod(case):
    check(case)


@pytest.mark.parametrize("attrs", [{"exclusive": 2}, {"reverse": -1}], ids=str)
def test_flags_that_are_none_are_declined(attrs):
    declined("CumSum", [floats(3), np.array(0)], attrs)


def test_a_missing_axis_is_refused():
    fails("CumSum", [floats(3), np.array(1)], {}, r"axis 1 is outside", ranks=False)


def test_more_than_one_axis_is_refused():
    fails("CumSum", [floats(3, 2), np.array([0, 1])], {}, "must be a scalar", ranks=False)
