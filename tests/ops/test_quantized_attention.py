"""com.microsoft's QAttention, against the CPU EP where it has the types."""

import numpy as np
import pytest
from harness import Case, Const, check, floats, integers
from refusal import declined, fails
from test_multi_head_attention import ints, raw
from test_projected_attention import reference as projected

DOMAIN = {"domain": "com.microsoft"}


def case(
    batch, rows, heads, size, wide, kinds, columns=False, zeros=False, mask=None, past=None, constant=True, **more
):
    width = 3 * heads * size
    x = integers(kinds[0], batch, rows, wide)
    weight = integers(kinds[1], wide, width)
    scales = [floats(low=0.005, high=0.01), floats(*([width] if columns else []), low=0.002, high=0.004)]
    points = [None, None]
    if zeros:
        points = [integers(kinds[0], low=0, high=90), integers(kinds[1], *([width] if columns else []), low=0, high=90)]
    dtype = more.pop("dtype", "float32")
    outputs = 2 if past is not None else 1
    inputs = [x, Const(weight) if constant else weight, floats(width), *scales, mask, *map(_one, points)]
    inputs.append(None if past is None else floats(2, batch, heads, past, size))
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"num_heads": heads, **more}

    def run(x, weight, add, x_scale, w_scale, mask=None, x_zero=0, w_zero=0, past=None):
        x = (x.astype(np.float64) - (0 if x_zero is None else x_zero)) * x_scale
        weight = (weight.astype(np.float64) - (0 if w_zero is None else w_zero)) * w_scale
        return projected([True] * outputs, **attrs)(x, weight, add, mask, past)

    return Case(
        "QAttention",
        inputs,
        attrs,
        dtype=dtype,
        outputs=outputs,
        family="projected",
        reference=run if dtype == "float16" or kinds[0] == "int8" else None,
        **DOMAIN,
    )


def _one(value):
    return value if value is None else Const(np.asarray(value))


@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")], ids=str)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_products(kinds, columns, zeros):
    for constant in (True, False):
        check(case(2, 5, 2, 16, 24, kinds, columns, zeros, constant=constant))
    check(case(1, 40, 2, 8, 7, kinds, columns, zeros, unidirectional=1))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_masks_and_past(dtype):
    kinds = ("int8", "int8")
    check(case(2, 5, 2, 16, 24, kinds, mask=ints(3, 5), dtype=dtype))
    check(case(2, 5, 2, 16, 24, kinds, mask=raw(2, 5), dtype=dtype))
    check(case(2, 5, 2, 16, 24, kinds, past=7, unidirectional=1, dtype=dtype))
    check(case(2, 1, 2, 64, 24, kinds, True, True, past=30, unidirectional=1, dtype=dtype))
    check(case(2, 5, 2, 16, 24, kinds, past=0, dtype=dtype))


def test_refusals():
    x, weight, one = integers("int8", 2, 3, 8), integers("int8", 8, 96), floats(1)
    fails("QAttention", [x, weight, floats(95), one, one], {"num_heads": 2}, "bias has shape", **DOMAIN)
    fails("QAttention", [x, weight, floats(96), one, floats(5)], {"num_heads": 2}, "weight_scale has shape", **DOMAIN)
    fails("QAttention", [x, weight, floats(96), one, one], {"num_heads": 5}, "cannot be divided", **DOMAIN)
    shared = {"num_heads": 2, "past_present_share_buffer": 1}
    declined("QAttention", [x, weight, floats(96), one, one], shared, **DOMAIN)
