"""Padding, which may also crop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.drawn import Drawn

pytestmark = pytest.mark.newest


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@given(st.data())
def test_pad(mode, data):
    it = Drawn(data, "Pad", since=19 if mode == "wrap" else 2)
    shape, kind = it.shape(low=1, high=4), it.type()
    axes = it.axes(len(shape)) if it.opset >= 18 and it.pick(False, True) else None
    pads = it.numbers(-2, 4, 2 * len(shape if axes is None else axes))
    x = it.tensor(kind, shape)
    if it.opset < 11:
        return it.agrees(x, pads=pads, mode=mode, value=it.maybe(1.5))
    value = it.tensor(kind, []) if it.pick(False, True) else None
    it.agrees(x, it.told(pads), value, None if axes is None else it.told(axes), mode=mode)
