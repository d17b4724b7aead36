"""Resizing by scales and to sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.drawn import Drawn

pytestmark = pytest.mark.newest

SCALES = [1.0, 2.0, 0.5, 3.0, 1.5, 0.75]
COORDINATES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
FLOATS = ["float", "double", "float16", "bfloat16"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@given(st.data())
def test_resize(mode, data):
    it = Drawn(data, "Resize", since=13)
    # The CPU EP interpolates along the last dimensions of images.
    outer = 0 if mode == "nearest" else 2
    shape = it.shape(low=outer + 1 if mode == "nearest" else 4, high=4)
    attrs = {"mode": mode, "coordinate_transformation_mode": it.pick(*COORDINATES[: 4 if it.opset < 19 else 5])}
    if mode == "nearest":
        attrs["nearest_mode"] = it.pick(*ROUNDINGS)
    if mode == "cubic":
        attrs |= {"cubic_coeff_a": it.maybe(-0.5), "exclude_outside": it.maybe(0, 1)}
    inner = shape[outer:]
    kind = it.pick(*FLOATS) if mode == "cubic" else it.type()
    x = it.tensor(kind, shape, mild=True)
    if it.pick(False, True):
        sizes = shape[:outer] + it.numbers(1, 12, len(inner))
        return it.agrees(x, None, None, it.told(sizes), **attrs)
    scales = [1.0] * outer + [it.pick(*SCALES) for _ in inner]
    it.agrees(x, None, it.told(scales, "float"), **attrs)


@given(st.data())
def test_resize_along_some_axes(data):
    it = Drawn(data, "Resize", since=18)
    shape = it.shape(low=1, high=4)
    axes = it.axes(len(shape)) or [0]
    attrs = {"axes": axes, "mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x = it.tensor(it.type(), shape, mild=True)
    if it.pick(False, True):
        policy = it.maybe("stretch", "not_larger", "not_smaller")
        sizes = it.told(it.numbers(1, 12, len(axes)))
        return it.agrees(x, None, None, sizes, keep_aspect_ratio_policy=policy, **attrs)
    it.agrees(x, None, it.told([it.pick(*SCALES) for _ in axes], "float"), **attrs)
