"""Slice clamps starts and ends as ONNX says, in both directions and at the ends of int64."""

import itertools

import numpy as np
import pytest
from both import Both
from harness import floats

LEAST, MOST = -(2**63), 2**63 - 1
PLACES = [LEAST, LEAST + 1, -(2**31), -7, -6, -5, -4, -1, 0, 1, 3, 4, 5, 6, 7, 2**31 - 1, MOST - 1, MOST]
STEPS = [LEAST, LEAST + 1, -6, -3, -2, -1, 1, 2, 3, 6, MOST]


def one(value):
    return np.array([value], np.int64)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_every_start_and_end(size):
    both = Both("Slice", [floats(1), one(0), one(0), one(0), one(1)], opset=13)
    x = np.arange(size, dtype=np.float32)
    for start, end, step in itertools.product(PLACES, PLACES, STEPS):
        both.agree(x, one(start), one(end), one(0), one(step))


def test_two_dimensions():
    both = Both("Slice", [floats(1, 1)] + [one(0)] * 4, opset=13)
    for start, step in itertools.product((-9, -1, 2, 9), (-2, -1, 1)):
        pairs = [np.array(v, np.int64) for v in ([start, 4], [-9, 0], [1, 0], [step, -1])]
        both.agree(floats(5, 6), *pairs)
