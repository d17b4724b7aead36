"""Elements that go by where they are: one-hot, triangles, blocks, sequences."""

import numpy as np
import pytest
from harness import FLOATS, INTEGERS, Case, Const, bools, check, floats, integers
from refusal import fails

MOVED = [*FLOATS, *INTEGERS, "bool"]


def exact(op, inputs, attrs=None, **rest):
    return Case(op, inputs, attrs or {}, family="exact", **rest)


def some(dtype, *shape):
    """For cases in that type, which of floats is told by dtype=."""
    return floats(*shape) if dtype in FLOATS else bools(*shape) if dtype == "bool" else integers(dtype, *shape)


def typed(op, dtype, shape, *rest, **more):
    """One of each type that is moved; `name` tells of those that are no floats."""
    inputs, attrs = rest if len(rest) == 2 else (list(rest), {})
    kind = {"dtype": dtype} if dtype in FLOATS else {"name": dtype}
    return exact(op, [some(dtype, *shape), *inputs], attrs, **kind, **more)


def one_hot(indices, depth, values, axis=-1):
    """The CPU EP has few types."""
    depth = int(np.reshape(depth, -1)[0])
    indices = np.where(indices < 0, indices + depth, indices)
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    shape = [1] * (indices.ndim + 1)
    shape[axis] = depth
    hot = np.expand_dims(indices, axis) == np.arange(depth).reshape(shape)
    return [np.where(hot, values[1], values[0])]


ONE_HOT = [
    *[
        exact("OneHot", [np.array([[0, -1], [2, 9]]), Const(np.array(3)), Const(np.array([0, 5], np.float32))],
              dtype=t)
        for t in FLOATS[:2]
    ],
    *[
        exact("OneHot", [np.array([0, 1, 2, 4]).astype(i), Const(np.array([3]).astype(d)), Const(v)],
              name=f"{i}-{d}-{v.dtype}", reference=one_hot)
        for i, d in [("int32", "int64"), ("uint8", "int32"), ("int16", "uint8"), ("uint64", "float64"),
                     ("float64", "int64"), ("uint32", "uint16"), ("int8", "int8"), ("uint16", "uint64")]
        for v in [np.array([1, 2], "int8"), np.array([3, -4], "int16"), np.array([5, 6], "int64"),
                  np.array([False, True])]
    ],
    exact("OneHot", [np.array([2**64 - 1, 1, 2**63], np.uint64), Const(np.array(4)), Const(np.float32([0, 1]))],
          reference=one_hot, name="vast"),
    exact("OneHot", [np.array([0.7, -1, 2, 9], np.float32), Const(np.float32(3)), Const(np.array([0, 5], np.int64))],
          reference=lambda i, d, v: one_hot(np.trunc(i), d, v), name="floats"),
    exact("OneHot", [np.array([np.nan, np.inf, -np.inf, 1e30, 1], np.float32), Const(np.array(3)),
                     Const(np.array([0, 5], np.int64))], reference=one_hot, name="special"),
    *[
        exact("OneHot", [integers("int64", 4, 5, low=-7, high=7), Const(np.array(6)), Const(np.float32([-1, 1]))],
              {"axis": axis})
        for axis in (0, 1, -1, -3)
    ],
    exact("OneHot", [integers("int64", 700, low=0, high=99), Const(np.array(100)), Const(np.float32([0, 1]))],
          dtype="float16", name="large"),
    exact("OneHot", [np.zeros((0, 2), np.int64), Const(np.array(3)), Const(np.float32([0, 1]))], name="empty",
          capture=False),
    exact("OneHot", [np.array([0, 2]), Const(np.array(3)), Const(np.float32([0, 1]))], opset=9),
]  # fmt: skip


def eye(kind, k=0):
    return lambda x: [np.eye(*x.shape, k=k, dtype=kind)]


EYES = [
    *[exact("EyeLike", [floats(3, 4)], {"k": k}, name=f"{k}") for k in (0, 2, -1, 9, -(2**62), 2**62)],
    *[exact("EyeLike", [floats(3, 4)], dtype=t, opset=22) for t in FLOATS],
    *[
        exact("EyeLike", [floats(3, 4)], {"dtype": int(number)}, name=t, reference=eye(t))
        for t, number in [("float32", 1), ("uint8", 2), ("int8", 3), ("uint16", 4), ("int16", 5), ("int32", 6),
                          ("int64", 7), ("bool", 9), ("float16", 10), ("float64", 11), ("uint32", 12), ("uint64", 13)]
    ],
    *[exact("EyeLike", [some(t, 4, 2)], name=f"like-{t}", reference=eye(t)) for t in [*INTEGERS, "bool"]],
    exact("EyeLike", [floats(0, 4)], name="empty", capture=False),
    exact("EyeLike", [floats(300, 70)], opset=9),
]  # fmt: skip


def trilu(x, k=0, upper=1):
    k = int(np.reshape(k, -1)[0])
    return [(np.triu if upper else np.tril)(x, k)]


TRIANGLES = [
    *[typed("Trilu", t, (4, 5), [], {}, reference=trilu) for t in MOVED],
    *[
        exact("Trilu", [floats(2, 4, 5), Const(np.array(k))], {"upper": upper}, name=f"{k}-{upper}")
        for k in (-9, -1, 0, 2, 9)
        for upper in (0, 1)
    ],
    *[
        exact("Trilu", [floats(4, 5), Const(np.array(k))], {"upper": upper}, name=f"{k}-{upper}",
              reference=lambda x, k, upper=upper: [x if (k < 0) == bool(upper) else np.zeros_like(x)])
        for k in (-(2**63), 2**63 - 1)
        for upper in (0, 1)
    ],
    exact("Trilu", [floats(3, 65, 70), Const(np.array([1]))], dtype="float16", name="large"),
    exact("Trilu", [floats(0, 4)], name="empty", capture=False),
    exact("Trilu", [floats(5, 7)], dtype="float16", misaligned=True),
    exact("Trilu", [floats(4, 4), Const(np.array(1))], {"upper": 0}, domain="com.microsoft", name="microsoft",
          reference=lambda x, k: trilu(x, k, 0)),
]  # fmt: skip

SEQUENCES = [
    *[typed("ReverseSequence", t, (4, 3), np.array([4, 1, 2])) for t in MOVED if t != "bfloat16"],
    exact("ReverseSequence", [floats(3, 5), np.array([0, 5, 3])], {"batch_axis": 0, "time_axis": 1}),
    exact("ReverseSequence", [floats(3, 5, 2, 4), np.array([1, 5, 3])], {"batch_axis": 0, "time_axis": 1}),
    exact("ReverseSequence", [floats(50, 3, 65), np.array([50, 1, 37])], dtype="float16", name="large"),
    exact("ReverseSequence", [floats(5, 2, 8), np.array([5, 2])], dtype="float16", misaligned=True, opset=10),
    exact("ReverseSequence", [floats(0, 3), np.array([0, 0, 0])], name="empty", capture=False),
]


def depth_to_space(x, blocksize, mode="DCR"):
    """The CPU EP lacks some types."""
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        x = x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return [x.reshape(n, c // b**2, h * b, w * b)]


def space_to_depth(x, blocksize):
    n, c, h, w = x.shape
    b = blocksize
    x = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return [x.reshape(n, c * b * b, h // b, w // b)]


BLOCKS = [
    *[
        typed("DepthToSpace", t, (2, 8, 3, 2), [], {"blocksize": 2, "mode": mode},
              reference=lambda x, mode=mode: depth_to_space(x, 2, mode))
        for t in MOVED
        for mode in ("DCR", "CRD")
    ],
    *[
        typed("SpaceToDepth", t, (2, 3, 4, 6), [], {"blocksize": 2}, reference=lambda x: space_to_depth(x, 2))
        for t in MOVED
    ],
    exact("DepthToSpace", [floats(1, 9, 2, 5)], {"blocksize": 3}),
    exact("DepthToSpace", [floats(1, 4, 2, 5)], {"blocksize": 1}),
    exact("SpaceToDepth", [floats(1, 2, 6, 9)], {"blocksize": 3}),
    exact("DepthToSpace", [floats(0, 4, 2, 5)], {"blocksize": 2}, name="empty", capture=False),
    exact("DepthToSpace", [floats(1, 64, 33, 40)], {"blocksize": 2}, dtype="float16", name="large"),
    exact("SpaceToDepth", [floats(1, 5, 64, 66)], {"blocksize": 2}, dtype="float16", misaligned=True),
    *[exact("DepthToSpace", [floats(1, 8, 2, 5)], {"blocksize": 2}, opset=opset) for opset in (11, 13)],
    *[exact("SpaceToDepth", [floats(1, 2, 4, 6)], {"blocksize": 2}, opset=opset) for opset in (12, 13)],
    *[
        exact("DepthToSpace", [floats(2, 8, 3, 4)], {"blocksize": 2, "mode": mode}, dtype=t, channels_last=True,
              name=mode)
        for t in ("float32", "float16", "float64")
        for mode in ("DCR", "CRD")
    ],
    *[
        exact("SpaceToDepth", [floats(2, 3, 4, 6)], {"blocksize": 2}, dtype=t, channels_last=True)
        for t in ("float32", "float16", "float64")
    ],
]  # fmt: skip


def tensor_scatter(past, update, begins=None, mode="linear", axis=-2):
    out = np.moveaxis(past.copy(), axis, 1)
    update = np.moveaxis(update, axis, 1)
    for batch in range(len(past)):
        for step in range(update.shape[1]):
            at = (0 if begins is None else begins[batch]) + step
            out[batch, at % out.shape[1]] = update[batch, step]
    return [np.moveaxis(out, 1, axis)]


def scattered(dtype, past, update, begins, attrs=None, **rest):
    inputs = [some(dtype, *past), some(dtype, *update)] + ([] if begins is None else [np.array(begins)])
    kind = {"dtype": dtype} if dtype in FLOATS else {"name": dtype}
    return exact("TensorScatter", inputs, attrs, opset=24, **{**kind, **rest},
                 reference=lambda *arrays: tensor_scatter(*arrays, **(attrs or {})))  # fmt: skip


CACHES = [
    *[scattered(t, (2, 3, 8, 5), (2, 3, 2, 5), [6, 0]) for t in MOVED],
    scattered("float32", (2, 3, 8, 5), (2, 3, 2, 5), None, name="from-0"),
    scattered("float32", (2, 3, 8, 5), (2, 3, 3, 5), [6, 17], {"mode": "circular"}, name="circular"),
    scattered("float32", (2, 8, 3, 4), (2, 2, 3, 4), [1, 5], {"axis": 1}, name="axis-1"),
    scattered("float32", (2, 8), (2, 3), [1, 5], {"axis": -1}, name="axis-last"),
    scattered("float32", (2, 3, 8, 5), (2, 3, 0, 5), [6, 0], name="nothing", capture=False),
    scattered("float16", (3, 4, 100, 64), (3, 4, 1, 64), [99, 0, 50], name="large"),
]


@pytest.mark.parametrize("case", [*ONE_HOT, *EYES, *TRIANGLES], ids=str)
def test_by_position(case):
    check(case)


@pytest.mark.parametrize("case", [*SEQUENCES, *BLOCKS], ids=str)
def test_movement(case):
    check(case)


@pytest.mark.parametrize("case", CACHES, ids=str)
def test_tensor_scatter(case):
    check(case)


@pytest.mark.parametrize(
    "op, inputs, attrs, words",
    [
        ("OneHot", [np.array([1]), np.array([0]), floats(2)], {}, "depth is 0"),
        ("OneHot", [np.array([1]), np.array([3]), floats(3)], {}, "values has shape"),
        ("OneHot", [np.array([1]), np.array([3]), floats(2)], {"axis": 3}, "axis 3"),
        ("EyeLike", [floats(3)], {}, "must be a matrix"),
        ("Trilu", [floats(3)], {}, "two dimensions or more"),
        ("Trilu", [floats(3, 3), np.array([1, 2])], {}, "k has 2 values"),
        ("ReverseSequence", [floats(4, 2), np.array([5, 1])], {}, "not allowed: 5"),
        ("ReverseSequence", [floats(4, 2), np.array([-1, 1])], {}, "not allowed: -1"),
        ("ReverseSequence", [floats(4, 2), np.array([1])], {}, "sequence_lens has shape"),
        ("DepthToSpace", [floats(1, 6, 2, 2)], {"blocksize": 2}, "6 channels"),
        ("SpaceToDepth", [floats(1, 6, 2, 3)], {"blocksize": 2}, "cannot be cut"),
        ("SpaceToDepth", [floats(6, 2, 2)], {"blocksize": 2}, "four dimensions"),
    ],
)
def test_what_does_not_fit_is_refused(op, inputs, attrs, words):
    fails(op, inputs, attrs, words, ranks=False)


@pytest.mark.parametrize(
    "begins, words", [([7, 0], "not allowed: 7"), ([-1, 0], "not allowed: -1"), ([0], "write_indices has shape")]
)
def test_steps_beyond_the_cache_are_refused(begins, words):
    fails("TensorScatter", [floats(2, 3, 8, 5), floats(2, 3, 2, 5), np.array(begins)], {}, words, opset=24, ranks=False)
