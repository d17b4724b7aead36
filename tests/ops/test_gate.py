"""SwiGLU, x * sigmoid(alpha * x) * y, against NumPy."""

import numpy as np
import pytest
from encore_session import NEWEST_OPSET, only_if
from harness import FLOATS, SPECIAL, Case, check, floats
from in_place import check_in_place
from refusal import fails

OPSET = 28
LARGE = (1 << 18) + 3  # does not divide into packs
known = only_if(NEWEST_OPSET >= OPSET)


def case(x, y, dtype="float32", alpha=None, **more):
    def reference(x, y):
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            steepness = np.float64(np.float32(1 if alpha is None else alpha))
            return [(wide / (1 + np.exp(-steepness * wide)) * y).astype(x.dtype)]

    attrs = {} if alpha is None else {"alpha": alpha}
    return Case("SwiGLU", [x, y], attrs, dtype, opset=OPSET, reference=reference, name=str(alpha), **more)


def of(*shape):
    return [np.asarray(floats(*shape, low=-9, high=9)).reshape(shape), np.asarray(floats(*shape)).reshape(shape)]


@known
@pytest.mark.parametrize("alpha", [None, 1.702, -0.5])
@pytest.mark.parametrize("dtype", FLOATS)
def test_types(dtype, alpha):
    check(case(*of(7, 40), dtype, alpha))
    check(case(*of(7, 33), dtype, alpha))


@known
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3, 5), (LARGE,)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shapes(shape, dtype):
    check(case(*of(*shape), dtype))


@known
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype):
    # Gates of halves take a sigmoid below the normal floats, as that of -88 is, for zero: infinitely often that is NaN.
    least = -80 if dtype in ("float16", "bfloat16") else -88
    x, y = np.meshgrid(np.maximum(SPECIAL, least, where=np.isfinite(SPECIAL), out=SPECIAL.copy()), SPECIAL)
    check(case(x, y, dtype))
    check(case(*of(7, 40), dtype, misaligned=True))


@known
@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("width", [40, 33])
def test_in_place(width, shared):
    check_in_place(case(*of(7, width), "float16"), {0: shared})


@known
@pytest.mark.parametrize("y", [(40,), (1, 40), (7, 1), (40, 7)], ids=str)
def test_it_does_not_broadcast(y):
    x = floats(7, 40)
    fails(
        "SwiGLU", [x, floats(*y)], {}, r"the gate has shape \[7,40\], what it multiplies \[", opset=OPSET, ranks=False
    )
