"""Pads of every sign and length: negative ones crop, and what is left is padded."""

import itertools

import numpy as np
import pytest
from both import Both
from harness import Case, Const, check, floats
from refusal import fails

MODES = ["constant", "reflect", "edge", "wrap"]


def pads(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("mode", MODES)
def test_one_dimension(mode):
    both = Both("Pad", [floats(1), pads(0, 0)], {"mode": mode})
    # The CPU EP refuses to wrap what is empty even if nothing is added.
    for size in range(mode == "wrap", 6):
        for before, after in itertools.product(range(-7, 8), repeat=2):
            both.agree(np.arange(1, size + 1, dtype=np.float32), pads(before, after))


@pytest.mark.parametrize("mode", MODES)
def test_the_ends_of_the_range(mode):
    both = Both("Pad", [floats(1), pads(0, 0)], {"mode": mode})
    least, most = -(2**63), 2**63 - 1
    for given in [(least, most), (least, 0), (0, least), (least, least), (-most, most), (most, 1)]:
        both.agree(floats(3), pads(*given))


@pytest.mark.parametrize("mode", MODES)
def test_two_dimensions(mode):
    both = Both("Pad", [floats(1, 1), pads(0, 0, 0, 0)], {"mode": mode})
    for given in itertools.product((-3, -1, 0, 2), repeat=4):
        both.agree(floats(4, 5), pads(*given))


@pytest.mark.parametrize("mode", MODES[:3])
def test_empty_dimensions(mode):
    both = Both("Pad", [floats(1, 1), pads(0, 0, 0, 0)], {"mode": mode})
    for given in itertools.product((-3, -1, 0, 1), repeat=4):
        both.agree(floats(0, 3), pads(*given))


CROPPED = [
    Case("Pad", [floats(5, 6, 4), Const(pads(-1, 2, 0, 3, -2, 0))], {"mode": mode}, family="exact", name=mode)
    for mode in MODES
]


@pytest.mark.parametrize("case", CROPPED, ids=str)
def test_cropped(case):
    check(case)


def test_reasons():
    fails("Pad", [floats(3), pads(-3, 4)], {"mode": "edge"}, "negative pads leave nothing of axis 0, which has 3")
    fails("Pad", [floats(3), pads(3, 0)], {"mode": "reflect"}, "too long to reflect; axis 0 has 2")
    fails("Pad", [floats(3), pads(-2, -2)], {}, "do not fit axis 0, which has 3")
