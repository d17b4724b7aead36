"""BatchNormalization, at inference and in training."""

from dataclasses import replace

import numpy as np
import pytest
from both import Both
from harness import FLOATS, Case, check, floats
from refusal import declined, fails


def batch_norm(*shape, opset=15, **attrs):
    channels = shape[1] if len(shape) > 1 else 1
    x = [
        floats(*shape),
        floats(channels),
        floats(channels),
        floats(channels, low=-1, high=1),
        floats(channels, low=0.5, high=2),
    ]
    return Case("BatchNormalization", x, attrs, opset=opset, family="reduce", name="_".join(map(str, attrs)))


SHAPES = [(2, 5, 4, 4), (2, 5, 7, 7), (3, 6), (2, 3, 1, 1), (2, 3, 9), (1, 3, 3, 4, 5), (0, 3, 4, 4), (8, 16, 91, 90)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("it", [batch_norm(*shape) for shape in SHAPES] + [batch_norm(2, 3, 4, epsilon=0.1)], ids=str)
def test_batch_norm(it, dtype):
    check(replace(it, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_epsilon_below_the_normal_numbers(dtype):
    it = batch_norm(2, 5, 4, 4, epsilon=1e-38)
    for i in (0, 3, 4):
        it.inputs[i][:] = 0
    check(replace(it, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("shape", [(2, 5, 4, 4), (2, 16, 7, 7), (2, 3, 9), (1, 3, 3, 4, 5), (0, 3, 4, 4)], ids=str)
def test_channels_last(shape, dtype):
    check(replace(batch_norm(*shape), dtype=dtype, channels_last=True))


@pytest.mark.parametrize("shape", [(47, 960, 7, 7), (1061, 17, 11, 11), (1300, 560, 3)], ids=str)
def test_many_packs(shape):
    """So many that a thread makes several, of the same channels."""
    check(replace(batch_norm(*shape), dtype="float16"))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("opset", [7, 9, 14, 15, 26])
def test_versions(opset, last):
    check(replace(batch_norm(2, 5, 4, 3, opset=opset), channels_last=last))


@pytest.mark.parametrize("it", [batch_norm(2, 5, 4, 4), batch_norm(2, 5, 7, 7)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_misaligned(it, dtype):
    check(replace(it, dtype=dtype, misaligned=True))


def _by_hand(x, scale, bias, mean, variance):
    wide = [v.astype(np.float32).reshape(1, -1, 1, 1) for v in (scale, bias, mean, variance)]
    return [((x.astype(np.float32) - wide[2]) / np.sqrt(wide[3] + 1e-5) * wide[0] + wide[1]).astype(x.dtype)]


@pytest.mark.parametrize("wide", [(3, 4), (1, 2, 3, 4)])
def test_parameters_of_another_type(wide):
    """float16 values; the statistics, or all parameters, in float64 so that the harness leaves them alone."""
    it = batch_norm(2, 5, 4, 4)
    inputs = [v.astype(np.float64) if i in wide else v for i, v in enumerate(it.inputs)]
    check(replace(it, inputs=inputs, dtype="float16", reference=_by_hand))


def test_not_a_number():
    it = batch_norm(1, 3, 4, 4)
    it.inputs[0][0, 1, 2, 2], it.inputs[0][0, 0, 0, 0] = np.nan, np.inf
    check(it)


def training(*shape, opset=15, **attrs):
    it = batch_norm(*shape, opset=opset, **attrs)
    if opset >= 14:
        return replace(it, attrs={**attrs, "training_mode": 1}, outputs=3)
    return replace(it, outputs=5)


TRAINED = [
    *[training(*shape) for shape in SHAPES if np.prod(shape)],
    *[training(2, 5, 4, 4, opset=opset) for opset in (7, 9, 13, 14, 15, 26)],
    training(2, 3, 4, momentum=0.25, epsilon=0.1),
    training(2, 3, 4, momentum=0.25, epsilon=0.1, opset=9),
    training(7),
    training(1, 4),
]


@pytest.mark.parametrize(
    "it, dtype", [(it, t) for it in TRAINED for t in FLOATS if t != "bfloat16" or it.opset >= 14], ids=str
)
def test_training(it, dtype):
    check(replace(it, dtype=dtype))


@pytest.mark.parametrize("mode", [2, -1, -(2**63)])
def test_a_mode_that_is_neither_is_declined(mode):
    it = batch_norm(2, 5, 4, 4)
    declined(it.op, it.inputs, {"training_mode": mode}, opset=15)


def test_training_far_from_zero():
    """A variance from sums of squares would be lost in the rounding of a mean of a thousand."""
    it = training(8, 3, 40, 41)
    it.inputs[0] += np.float32(1000)
    check(replace(it, tolerance=(1e-3, 1e-3)))  # the values themselves are rounded to 6e-5


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0), (2, 0, 4)])
def test_training_on_nothing(shape):
    check(replace(training(*shape), capture=False))


def test_training_with_parameters_of_another_type():
    it = training(2, 5, 4, 4)
    x, *parameters = it.inputs
    both = Both("BatchNormalization", [x.astype(np.float16), *parameters], it.attrs, 15, outputs=3)
    both.agree(x.astype(np.float16), *parameters, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("shape", [(2, 5, 4, 4), (2, 16, 7, 7), (2, 3, 9)], ids=str)
def test_training_channels_last(shape, dtype):
    check(replace(training(*shape), dtype=dtype, channels_last=True))


def test_what_is_declined():
    it = batch_norm(2, 5, 4, 4)
    declined("BatchNormalization", it.inputs, {}, outputs=3)
    declined("BatchNormalization", it.inputs, {"spatial": 0}, opset=7)


def test_parameters_that_do_not_fit():
    it = batch_norm(2, 5, 4, 4)
    fails("BatchNormalization", [it.inputs[0], it.inputs[1][:4], *it.inputs[2:]], {}, "scale", opset=15)
