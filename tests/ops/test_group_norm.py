"""Normalisation of groups of values, of vectors, and across channels."""

from dataclasses import replace

import numpy as np
import pytest
from harness import FLOATS, Case, check, floats
from refusal import declined, fails


def _normalized(x, axes, epsilon):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def _groups(groups, epsilon):
    """The CPU EP has no kernel for GroupNormalization, and onnx's own is a function of many rounded steps."""

    epsilon = float(np.float32(epsilon))

    def run(x, scale, bias):
        if x.size == 0:
            return [x]
        wide = x.astype(np.float64)
        y = _normalized(wide.reshape(x.shape[0], groups, -1), 2, epsilon)
        shape = (1, len(scale), -1)
        y = y.reshape((x.shape[0], len(scale), -1)) * scale.astype(np.float64).reshape(shape) + bias.reshape(shape)
        return [y.reshape(x.shape).astype(x.dtype)]

    return run


def _instances(x, scale, bias):
    return _groups(x.shape[1], 1e-5)(x, scale, bias)


def instance(*shape, opset=22, reference=_instances, **attrs):
    x = [floats(*shape), floats(shape[1]), floats(shape[1])]
    name = "_".join(map(str, attrs))
    return Case("InstanceNormalization", x, attrs, opset=opset, family="reduce", name=name, reference=reference)


def group(groups, *shape, opset=21, epsilon=1e-5, **attrs):
    count = shape[1] if opset >= 21 else groups
    x = [floats(*shape), floats(count), floats(count)]
    attrs = {"num_groups": groups, "epsilon": epsilon, **attrs}
    reference = _groups(groups, epsilon)
    name = "_".join(map(str, attrs.values()))
    return Case("GroupNormalization", x, attrs, opset=opset, family="reduce", name=name, reference=reference)


# Few values, a warp's, a block's; a span that is whole packs and one that is not; groups that take several blocks.
INSTANCES = [
    (2, 3, 4, 4), (2, 3, 7, 5), (1, 5, 1), (3, 4, 2, 3, 4), (2, 2, 32, 33), (40, 16, 16, 16), (1, 3, 128, 128),
    (1, 2, 130, 131), (2, 1, 200, 200), (1, 3, 1 << 17), (3, 4),
]  # fmt: skip
GROUPS = [
    (2, 2, 4, 5, 5), (4, 3, 8, 4, 4), (1, 2, 6, 9), (3, 2, 3, 8), (2, 3, 4), (4, 2, 32, 16, 16), (2, 1, 6, 100, 101),
    (2, 1, 8, 96, 96), (8, 1, 64, 128, 16),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", INSTANCES, ids=str)
def test_instances(shape, dtype):
    check(replace(instance(*shape), dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("given", GROUPS, ids=str)
def test_groups(given, opset, dtype):
    check(replace(group(*given, opset=opset), dtype=dtype))


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=str)
def test_nothing(shape):
    check(instance(*shape))
    if shape[1]:
        check(group(3, *shape))


@pytest.mark.parametrize("opset", [6, 21, 22, 26])
def test_instance_versions(opset):
    check(instance(2, 3, 4, 5, opset=opset, reference=None, epsilon=1e-2))


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_epsilon_below_the_normal_numbers(dtype):
    for it in group(2, 2, 4, 5, epsilon=1e-38), instance(2, 3, 4, 5, reference=None, epsilon=1e-38):
        it.inputs[0][:] = 0
        check(replace(it, dtype=dtype))


def test_epsilon_and_stash_type():
    check(group(2, 2, 4, 5, epsilon=0.3))
    check(group(2, 2, 4, 5, stash_type=1))
    check(replace(group(2, 2, 4, 5, stash_type=11), dtype="float64"))


@pytest.mark.parametrize("it", [instance(2, 3, 8, 8), instance(1, 2, 160, 160), group(2, 2, 4, 8, 8)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_misaligned(it, dtype):
    check(replace(it, dtype=dtype, misaligned=True))


@pytest.mark.parametrize("shape", [(2, 3, 20, 21), (1, 2, 160, 160)], ids=str)
def test_far_from_zero(shape):
    """Sums of squares would be lost in the rounding of a mean of a thousand."""
    it = instance(*shape)
    it.inputs[0] += np.float32(1000)
    check(replace(it, tolerance=(1e-3, 1e-3)))  # the values themselves are rounded to 6e-5


def test_not_a_number():
    it = instance(1, 3, 4, 4)
    it.inputs[0][0, 1, 2, 2], it.inputs[0][0, 0, 0, 0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        check(it)


def test_constant_groups():
    check(replace(instance(1, 2, 3, 3), inputs=[np.full((1, 2, 3, 3), 2, np.float32), floats(2), floats(2)]))


def test_what_does_not_fit():
    x, s = floats(2, 6, 4), floats(6)
    declined("GroupNormalization", [x, s, s], {"num_groups": 0})
    declined("InstanceNormalization", [floats(3), s, s], {})
    fails("GroupNormalization", [x, s, s], {"num_groups": 4}, "cannot be divided")
    fails("GroupNormalization", [x, s, floats(5)], {"num_groups": 3}, "bias has shape")
    fails("InstanceNormalization", [x, floats(5), s], {}, "scale has shape")
    fails("InstanceNormalization", [floats(2), s, s], {}, "batch and channels", ranks=False)


# ---- MeanVarianceNormalization


def _mean_variance(axes):
    def run(x):
        if x.size == 0:
            return [x]
        wide = x.astype(np.float64)
        deviation = wide.std(axes, keepdims=True)
        return [((wide - wide.mean(axes, keepdims=True)) / (deviation + 1e-9)).astype(x.dtype)]

    return run


def mean_variance(axes, *shape, opset=13):
    attrs = {} if axes is None else {"axes": list(axes)}
    reference = _mean_variance((0, 2, 3) if axes is None else tuple(axes) or None)
    name = str(axes).replace(" ", "")
    return Case(
        "MeanVarianceNormalization", [floats(*shape)], attrs, opset=opset, family="reduce", name=name,
        reference=reference,
    )  # fmt: skip


MEANS = [
    mean_variance(None, 2, 3, 4, 5),
    mean_variance(None, 4, 3, 64, 65),
    mean_variance((0, 1, 2, 3), 2, 3, 4, 5),
    mean_variance((2, 3), 2, 3, 8, 8),
    mean_variance((1,), 2, 3, 4, 5),
    mean_variance((-1, 0), 2, 3, 4, 5),
    mean_variance((1, 3), 2, 3, 4, 5),
    mean_variance((0, 2), 3, 4, 5, 6, 2),
    mean_variance((0,), 7),
    mean_variance((0, 2, 3), 0, 3, 4, 5),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("it", MEANS, ids=str)
def test_mean_variance(it, dtype):
    check(replace(it, dtype=dtype))


def test_mean_variance_of_other_ranks():
    """Without axes it is over all but the channels, of images that have fewer dimensions, too."""
    check(replace(mean_variance(None, 3, 4, 5), reference=_mean_variance((0, 2))))


def test_mean_variance_versions():
    check(mean_variance(None, 2, 3, 4, 5, opset=9))
    fails("MeanVarianceNormalization", [floats(2, 3)], {"axes": [2]}, "axes 2 is outside")


# ---- LpNormalization


def length(*shape, opset=22, **attrs):
    name = "_".join(f"{k}={v}" for k, v in attrs.items())
    return Case("LpNormalization", [floats(*shape)], attrs, opset=opset, family="reduce", name=name)


LENGTHS = [
    length(3, 7),
    length(2, 5, 4, p=1),
    length(530, 512),
    length(2, 9001),
    length(2, 40000, p=1),
    length(2, 5, 16, axis=1),
    length(2, 5, 7, axis=0, p=1),
    length(3, 300, 33, axis=1),
    length(2, 1000, 64, axis=-2),
    length(1),
    length(0, 4),
    length(4, 0, 3, axis=1),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("it", LENGTHS, ids=str)
def test_lengths(it, dtype):
    reference = None
    if it.inputs[0].size == 0:  # the CPU EP fails
        reference = lambda x: [x]
    check(replace(it, dtype=dtype, reference=reference))


@pytest.mark.parametrize("axis", [0, 1])
def test_length_of_zeros(axis):
    x = floats(4, 5)
    x[2], x[:, 1] = 0, 0
    x[0, 0] = np.nan
    check(replace(length(4, 5, axis=axis), inputs=[x]))


@pytest.mark.parametrize("opset", [1, 21, 22, 26])
def test_length_versions(opset):
    check(length(2, 3, 4, axis=1, p=1, opset=opset))


@pytest.mark.parametrize("it", [length(5, 16), length(5, 4, 8, axis=1)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_lengths_misaligned(it, dtype):
    check(replace(it, dtype=dtype, misaligned=True))


def test_lengths_that_there_are_not():
    declined("LpNormalization", [floats(2, 3)], {"p": 3})
    fails("LpNormalization", [floats(2, 3)], {"axis": 2}, "axis 2 is outside")


# ---- LRN


def _across(size, alpha=1e-4, beta=0.75, bias=1.0):
    """The CPU EP has only odd sizes, and floats; onnx's own takes the batch for the channels."""

    alpha, beta, bias = (float(np.float32(value)) for value in (alpha, beta, bias))

    def run(x):
        wide = x.astype(np.float64)
        squares, channels = np.zeros_like(wide), x.shape[1]
        for c in range(channels):
            low, high = max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)
            squares[:, c] = (wide[:, low:high] ** 2).sum(1)
        return [(wide / (bias + alpha / size * squares) ** beta).astype(x.dtype)]

    return run


def across(*shape, opset=13, reference=True, **attrs):
    name = "_".join(f"{k}={v}" for k, v in attrs.items())
    return Case(
        "LRN", [floats(*shape)], attrs, opset=opset, family="reduce", name=name,
        reference=_across(**attrs) if reference else None,
    )  # fmt: skip


ACROSS = [
    across(2, 5, 4, 4, size=3),
    across(2, 7, 3, 5, size=5, alpha=0.5, beta=0.5, bias=2.0),
    across(1, 4, 8, size=2, alpha=1.0),
    across(2, 3, 2, 3, 4, size=4, alpha=1.0, beta=-0.3),
    across(2, 3, size=1, alpha=3.0),
    across(1, 3, 5, 5, size=2**40, alpha=1e12),
    across(2, 64, 30, 31, size=5, alpha=0.1),
    across(0, 3, 4, 4, size=3),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("it", ACROSS, ids=str)
def test_across_channels(it, dtype):
    check(replace(it, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("it", ACROSS[:2] + ACROSS[6:7], ids=str)
def test_across_channels_last(it, dtype):
    check(replace(it, dtype=dtype, channels_last=True))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("opset", [7, 12, 13, 26])
def test_across_versions(opset, last):
    check(replace(across(2, 5, 4, 4, size=3, opset=opset, reference=False), channels_last=last))


@pytest.mark.parametrize("dtype", FLOATS)
def test_across_misaligned(dtype):
    check(replace(across(2, 5, 4, 4, size=3, alpha=0.1), dtype=dtype, misaligned=True))


def test_across_nothing():
    declined("LRN", [floats(1, 3, 4, 4)], {"size": 0})
    declined("LRN", [floats(1, 3, 4, 4)], {"size": -3})
