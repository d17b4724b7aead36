"""MaxPool, AveragePool, LpPool, the global pools, and MaxUnpool."""

from dataclasses import replace

import numpy as np
import pytest
from harness import FLOATS, Case, Const, _Model, check, floats, integers, session
from refusal import declined, fails


def case(op, x, outputs=1, opset=22, name="", **attrs):
    name = name or "_".join(f"{k}={v}".replace(" ", "") for k, v in attrs.items())
    family = "exact" if "Max" in op else "reduce"
    return Case(
        op,
        [x if isinstance(x, np.ndarray) else floats(*x)],
        attrs,
        outputs=outputs,
        opset=opset,
        family=family,
        name=name,
    )


WINDOWS = [
    ((2, 3, 9, 7), dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])),
    ((2, 3, 9, 7), dict(kernel_shape=[2, 2], auto_pad="SAME_UPPER")),
    ((2, 3, 9, 8), dict(kernel_shape=[4, 3], strides=[2, 3], auto_pad="SAME_LOWER")),
    ((2, 3, 9, 7), dict(kernel_shape=[3, 2], strides=[3, 2], auto_pad="VALID")),
    ((2, 3, 10, 8), dict(kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)),
    ((2, 3, 10, 9), dict(kernel_shape=[3, 3], strides=[2, 3], pads=[1, 0, 2, 1], ceil_mode=1)),
    ((2, 3, 5, 5), dict(kernel_shape=[2, 2], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1)),
    ((2, 3, 12, 11), dict(kernel_shape=[3, 2], dilations=[2, 3])),
    ((2, 3, 21), dict(kernel_shape=[4], strides=[2], pads=[1, 2])),
    ((2, 3, 7, 6, 5), dict(kernel_shape=[3, 2, 3], strides=[2, 1, 1], pads=[1, 0, 1, 1, 1, 1])),
    ((0, 3, 7, 6), dict(kernel_shape=[3, 2])),
    ((0, 3, 0), dict(kernel_shape=[2], strides=[2], auto_pad="SAME_LOWER")),
    ((4, 16, 128, 129), dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])),
]
MAXIMA = [case("MaxPool", x, **attrs) for x, attrs in WINDOWS]
MEANS = [
    case("AveragePool", x, **attrs, **({"count_include_pad": 1} if c else {})) for x, attrs in WINDOWS for c in (0, 1)
]
GLOBAL = [
    (2, 5, 7, 7),
    (3, 40, 1, 1),
    (2, 3, 5),
    (1, 2, 3, 4, 5),
    (1, 9, 50, 20),
    (2, 3, 64, 64),
    (1, 2, 75, 83),
    (0, 3, 4, 4),
    (1, 1, 1 << 10, (1 << 10) + 3),
]
GLOBALS = [case(op, shape) for op in ("GlobalAveragePool", "GlobalMaxPool") for shape in GLOBAL]


def _global(of):
    return lambda x: [of(x, tuple(range(2, x.ndim)), keepdims=True)]


def _large_means(counts_pads):
    """Of the last of WINDOWS."""

    def windows(x):
        padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
        return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]

    def means(x):
        return [windows(x).sum((-1, -2)) / (9 if counts_pads else windows(np.ones_like(x)).sum((-1, -2)))]

    return means


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("it", MAXIMA + MEANS + GLOBALS, ids=str)
def test_pools(it, dtype):
    if dtype == "float64" and (
        it is MEANS[-1] or it is MEANS[-2]
    ):  # the CPU EP has no kernel, and onnx's own takes seconds
        it = replace(it, reference=_large_means(it is MEANS[-1]))
    if "Global" in it.op and dtype == "float64":  # the CPU EP has no kernel, and onnx's own fails
        it = replace(it, reference=_global(np.mean if "Average" in it.op else np.max))
    check(replace(it, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("it", MAXIMA + MEANS + GLOBALS, ids=str)
def test_channels_last(it, dtype):
    check(replace(it, dtype=dtype, channels_last=True))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.parametrize("it", MAXIMA[:10] + MEANS[:20], ids=str)
def test_channels_last_in_packs(it, channels, dtype):
    """Of 16 channels, and of 20, which are no packs of halves."""
    shape = it.inputs[0].shape
    check(replace(it, inputs=[floats(2, channels, *shape[2:])], dtype=dtype, channels_last=True))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("shape, kernel", [((9, 8), [5, 7]), ((3, 2), [4, 3]), ((6, 5, 7), [2, 4, 5])], ids=str)
def test_channels_last_in_packs_of_wide_windows(op, shape, kernel):
    """Wider than what is asked for at once, and than the input."""
    pads = [k // 2 for k in kernel] * 2
    check(replace(case(op, (2, 16, *shape), kernel_shape=kernel, pads=pads), dtype="float16", channels_last=True))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_means_of_what_is_no_number(dtype):
    x = np.ones((1, 16, 12, 12), np.float32)
    x[0, 0, 1, 1], x[0, 1, 4, 4], x[0, 2, 7, 7] = np.inf, -np.inf, np.nan
    it = replace(case("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2]), dtype=dtype)
    check(it)
    check(replace(it, channels_last=True))


@pytest.mark.parametrize("it", [MAXIMA[0], MEANS[0], GLOBALS[0]], ids=str)
def test_bfloat16_stays_as_it_is(it):
    """onnxruntime has no schema for it with channels last."""
    check(replace(it, dtype="bfloat16", options={"prefer_nhwc": 1}))


@pytest.mark.parametrize("it", [MAXIMA[0], MAXIMA[9], MEANS[1]], ids=str)
def test_channels_last_in_double(it):
    check(replace(it, dtype="float64", channels_last=True))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize("opset", [8, 11, 12, 19, 22])
def test_channels_last_versions(op, opset):
    attrs = {} if "Global" in op else dict(kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
    check(replace(case(op, (2, 8, 9, 8), opset=opset, **attrs), channels_last=True))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("window", [WINDOWS[0], WINDOWS[4], WINDOWS[7]], ids=str)
def test_max_of_bytes(window, dtype):
    shape, attrs = window
    check(Case("MaxPool", [integers(dtype, *shape)], attrs, dtype=dtype, family="exact"))
    wide = integers(dtype, 2, 32, *shape[2:])
    check(Case("MaxPool", [wide], attrs, dtype=dtype, family="exact", opset=22, channels_last=True))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("window", [WINDOWS[0], WINDOWS[1], WINDOWS[5], WINDOWS[7], WINDOWS[8], WINDOWS[9]], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_indices(window, order, dtype):
    shape, attrs = window
    # All different, also as half floats.
    x = np.random.default_rng(1).permutation(np.prod(shape)).astype(np.float32).reshape(shape)
    it = replace(case("MaxPool", x, outputs=2, storage_order=order, **attrs), dtype=dtype)
    check(it)
    check(replace(it, channels_last=True))


def test_first_of_equals():
    check(case("MaxPool", np.ones((1, 2, 5, 5), np.float32), outputs=2, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))


@pytest.mark.parametrize("opset", [7, 8, 10, 11, 12, 18, 19, 22, 26])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"])
def test_versions(op, opset):
    attrs = {} if "Global" in op else dict(kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
    check(case(op, (2, 3, 9, 8), opset=opset, **attrs))


@pytest.mark.parametrize("it", [MAXIMA[0], MEANS[0], GLOBALS[0], GLOBALS[5], GLOBALS[6]], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_misaligned(it, dtype):
    check(replace(it, dtype=dtype, misaligned=True))


def _max_windows(x):
    """NaN wins. The CPU EP lets it win or lose by its place in the window."""
    return [np.max(np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3)), (-1, -2))]


def test_not_a_number():
    x = floats(1, 2, 6, 6)
    x[0, 0, 2, 3], x[0, 1, 5, 5], x[0, 1, 0, 0] = np.nan, np.inf, -np.inf
    check(replace(case("MaxPool", x, kernel_shape=[2, 2], name="nan"), reference=_max_windows))
    check(case("AveragePool", x, kernel_shape=[2, 2], name="nan"))
    check(case("GlobalAveragePool", x, name="nan"))
    check(replace(case("GlobalMaxPool", x, name="nan"), reference=_global(np.max)))


def test_nothing_but_minus_infinity():
    check(case("MaxPool", np.full((1, 1, 4, 4), -np.inf, np.float32), outputs=2, kernel_shape=[2, 2]))


@pytest.mark.parametrize(
    "attrs",
    [
        dict(kernel_shape=[0, 2]),
        dict(kernel_shape=[2, 2], strides=[0, 1]),
        dict(kernel_shape=[2, 2], pads=[-1, 0, 0, 0]),
        dict(kernel_shape=[2, 2], dilations=[0, 1]),
        dict(kernel_shape=[2, 2, 2]),
    ],
    ids=str,
)
def test_hostile_attributes_are_declined(attrs):
    declined("MaxPool", [floats(1, 2, 5, 5)], attrs)


def test_windows_of_more_places_than_are_counted_are_declined():
    attrs = dict(kernel_shape=[2**21] * 3, pads=[2**20] * 6, count_include_pad=1)
    declined("AveragePool", [floats(1, 1, 1, 1, 1)], attrs)


def test_shapes_that_do_not_fit():
    fails("MaxPool", [floats(1, 2, 5, 5)], dict(kernel_shape=[6, 2]), "window spans 6")
    fails("GlobalAveragePool", [floats(1, 2, 0, 5)], {}, "nothing to pool")


def test_only_one_rounds_up():
    """What ONNX doesn't say of other numbers, onnxruntime does."""
    model = _Model(
        Case("MaxPool", [floats(1, 1, 6)], {"kernel_shape": [3], "strides": [2], "ceil_mode": -9}), "float32"
    )
    assert session(model.model).run(None, model.feeds)[0].shape == (1, 1, 2)


# ---- LpPool and GlobalLpPool


def _lengths(p, kernel, strides=(1, 1), pads=(0, 0, 0, 0)):
    """For the types and the version that the CPU EP has no kernel for."""

    def run(x):
        sides = [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]
        powers = np.pad(np.abs(x.astype(np.float64)) ** p, sides)
        windows = np.lib.stride_tricks.sliding_window_view(powers, kernel, (2, 3))[:, :, :: strides[0], :: strides[1]]
        return [(windows.sum((-1, -2)) ** (1 / p)).astype(x.dtype)]

    return run


LENGTHS = [case("LpPool", x, **attrs, **({"p": p} if p else {})) for x, attrs in WINDOWS for p in (None, 1, 3)]


@pytest.mark.parametrize("it", LENGTHS, ids=str)
def test_lengths(it):
    check(it)


@pytest.mark.parametrize("dtype", FLOATS)
def test_lengths_of_types(dtype):
    attrs = dict(kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 2, 1])
    for p in (1, 2, 4):
        reference = _lengths(p, (3, 2), (2, 1), (1, 0, 2, 1))
        check(replace(case("LpPool", (2, 3, 9, 7), p=p, **attrs), dtype=dtype, reference=reference))


@pytest.mark.parametrize("opset", [2, 11, 18, 22, 26])
def test_versions_of_lengths(opset):
    check(case("LpPool", (2, 3, 9, 8), opset=opset, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], p=3))


def test_first_version_of_lengths():
    """Its p is a float; the CPU EP has newer ones only."""
    it = case("LpPool", (2, 3, 9, 8), opset=1, kernel_shape=[3, 2], p=1.5)
    check(replace(it, reference=_lengths(1.5, (3, 2))))
    it = case("GlobalLpPool", (2, 3, 4, 5), opset=1, p=1.5)
    check(replace(it, reference=_lengths(1.5, (4, 5))))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 75, 83), (3, 40, 1, 1), (0, 3, 4, 4)], ids=str)
def test_global_lengths(shape, p, dtype):
    it = case("GlobalLpPool", shape, p=p)
    check(replace(it, dtype=dtype, reference=_lengths(p, shape[2:])))


@pytest.mark.parametrize("opset", [2, 21, 22, 26])
def test_versions_of_global_lengths(opset):
    check(replace(case("GlobalLpPool", (2, 3, 4, 5), opset=opset), reference=_lengths(2, (4, 5))))


def test_lengths_of_hostile_powers():
    for op, attrs in (("LpPool", {"kernel_shape": [2, 2]}), ("GlobalLpPool", {})):
        declined(op, [floats(1, 2, 5, 5)], {**attrs, "p": 0})
        declined(op, [floats(1, 2, 5, 5)], {**attrs, "p": -2})


# ---- MaxUnpool


def unpool(x, size, opset=22, shape=None, **attrs):
    """Places that are all different, of a result of `size` elements."""
    places = np.random.default_rng(3).permutation(size)[: np.prod(x)].astype(np.int64).reshape(x)
    inputs = [floats(*x), places] + ([Const(np.array(shape))] if shape else [])
    return Case("MaxUnpool", inputs, attrs, opset=opset, family="exact", name=str(shape or ""))


UNPOOLED = [
    unpool((2, 3, 4, 5), 2 * 3 * 8 * 10, kernel_shape=[2, 2], strides=[2, 2]),
    unpool((1, 2, 4, 5), 2 * 7 * 4, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 1, 1]),
    unpool((1, 2, 5), 2 * 10, kernel_shape=[2], strides=[2]),
    unpool((1, 2, 2, 3, 2), 2 * 4 * 6 * 4, kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
    unpool((1, 1, 2, 2), 25, kernel_shape=[2, 2], strides=[2, 2], shape=[1, 1, 5, 5]),
    unpool((1, 3, 60, 61), 3 * 120 * 122, kernel_shape=[2, 2], strides=[2, 2]),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("it", UNPOOLED, ids=str)
def test_unpool(it, dtype):
    reference = None
    if dtype != "float32":  # the CPU EP has floats only, and onnx's own takes the places for those of a smaller result

        def reference(x, places, shape=None):
            kernel, strides = it.attrs["kernel_shape"], it.attrs["strides"]
            pads = it.attrs.get("pads", [0] * 2 * len(kernel))
            whole = [
                (x.shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[len(kernel) + i]
                for i in range(len(kernel))
            ]
            y = np.zeros(x.shape[:2] + tuple(whole) if shape is None else shape, x.dtype)
            y.reshape(-1)[places.reshape(-1)] = x.reshape(-1)
            return [y]

    check(replace(it, dtype=dtype, reference=reference))


@pytest.mark.parametrize("opset", [9, 11, 21, 22])
def test_versions_of_unpool(opset):
    check(unpool((2, 3, 4, 5), 2 * 3 * 8 * 10, opset=opset, kernel_shape=[2, 2], strides=[2, 2]))


def test_places_that_there_are_not():
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    x = floats(1, 1, 2, 2)
    for place in (16, -1):
        fails("MaxUnpool", [x, np.array([[[[0, 1], [2, place]]]])], attrs, str(place))
    fails("MaxUnpool", [x, np.zeros((1, 1, 4), np.int64)], attrs, "the indices have shape")
    fails("MaxUnpool", [x, np.zeros((1, 1, 2, 2), np.int64), np.array([5, 5])], attrs, "output_shape is")
    declined("MaxUnpool", [x, np.zeros((1, 1, 2, 2), np.int64)], {"kernel_shape": [2, 0]})
