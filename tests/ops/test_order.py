"""com.microsoft's matrices of 8-bit integers in the orders of a library, and what multiplies and maps them."""

import math

import numpy as np
import pytest
from harness import Case, Const, check, floats, integers
from refusal import declined, fails

DOMAIN = "com.microsoft"
COLUMNS, ROWS, COL32, COL4, COL32_2R = range(5)


def places(order, rows, columns):
    """Where each element is stored, built tile by tile from the orders' descriptions."""
    if order == ROWS:
        return np.arange(rows * columns).reshape(rows, columns)
    if order == COLUMNS:
        return np.arange(rows * columns).reshape(columns, rows).T
    made, at = np.zeros((rows, columns), int), 0
    for stripe in range(0, columns, 32):
        if order == COL32:
            walk = [(r, c) for r in range(rows) for c in range(32)]
        elif order == COL4:  # tiles of 8 rows: even rows and then odd ones, eight columns at a time, in halves of four
            walk = [
                (tile + 2 * r + odd, eight + half + c)
                for tile in range(0, rows, 8)
                for odd in (0, 1)
                for eight in range(0, 32, 8)
                for half in (0, 4)
                for r in range(4)
                for c in range(4)
            ]
        else:  # tiles of 32 rows: a pair of rows of each eight
            walk = [
                (tile + eight + pair + r, c)
                for tile in range(0, rows, 32)
                for pair in range(0, 8, 2)
                for eight in range(0, 32, 8)
                for r in (0, 1)
                for c in range(32)
            ]
        for r, c in walk:
            made[r, stripe + c], at = at, at + 1
    return made


def stored(x, order):
    """The same bytes as they lie in that order, in an array of the same shape."""
    rows, columns = ([1] + list(x.shape))[-2:]
    flat = x.reshape(math.prod(x.shape[:-2]), rows * columns)
    made = np.empty_like(flat)
    made[:, places(order, rows, columns).reshape(-1)] = flat
    return made.reshape(x.shape)


def plain(x, order):
    rows, columns = ([1] + list(x.shape))[-2:]
    return x.reshape(math.prod(x.shape[:-2]), rows * columns)[:, places(order, rows, columns)].reshape(x.shape)


def to_int8(x):
    return np.rint(np.clip(np.where(np.isnan(x), 127, x), -128, 127)).astype(np.int8)


def scale(value):
    return Const(np.float32(value), fixed=True)


def quantize(shape, order, dtype="float32", source=ROWS, **more):
    reference = lambda x, s: [stored(to_int8(plain(x, source).astype(np.float32) * (np.float32(1) / s)), order)]
    x = floats(*shape)
    if x.size > 8:
        x.reshape(-1)[:3] = np.inf, -np.inf, np.nan
    attrs = {"order_input": source, "order_output": order}
    name = f"{source}to{order}"
    return Case(
        "QuantizeWithOrder", [x, scale(0.02)], attrs, dtype, 1, "exact", DOMAIN, name=name, reference=reference, **more
    )


def dequantize(shape, order, dtype="float32", to=ROWS):
    reference = lambda q, s: [stored(plain(q, order), to) * np.float32(s)]
    attrs = {"order_input": order, "order_output": to, "to": 1 if dtype == "float32" else 10}
    name = f"{order}to{to}"
    given = [integers(np.int8, *shape, low=-128, high=127), scale(0.02)]
    return Case("DequantizeWithOrder", given, attrs, dtype, 1, "elementwise", DOMAIN, name=name, reference=reference)


ORDERED = [
    *[f((2, 64, 96), order, t) for f in (quantize, dequantize) for order in range(5) for t in ("float32", "float16")],
    *[f((40, 32), COL4) for f in (quantize, dequantize)],
    *[f((7, 64), COL32) for f in (quantize, dequantize)],
    *[f((3, 5, 7), COLUMNS) for f in (quantize, dequantize)],
    *[f((3, 5, 7), ROWS) for f in (quantize, dequantize)],
    *[f((33,), ROWS) for f in (quantize, dequantize)],
    quantize((32, 64), COL32, source=COL32_2R),
    dequantize((32, 64), COL4, to=COL32),
    quantize((0, 32), COL32),
    quantize((8, 64), COL32, misaligned=True),
    quantize((512, 768), COL32, "float16"),
]


@pytest.mark.parametrize("case", ORDERED, ids=str)
def test_orders(case):
    check(case)


def test_orders_refuse():
    x = floats(8, 40)
    for attrs in ({"order_input": 5, "order_output": 1}, {"order_input": 1, "order_output": -1}):
        declined("QuantizeWithOrder", [x, scale(1)], attrs, domain=DOMAIN)
    for order in (COL32, COL4, COL32_2R):
        attrs = {"order_input": 1, "order_output": order}
        fails("QuantizeWithOrder", [x, scale(1)], attrs, "do not fill", domain=DOMAIN)
    attrs = {"order_input": 1, "order_output": COL32_2R}
    fails("QuantizeWithOrder", [floats(8, 64), scale(1)], attrs, "do not fill", domain=DOMAIN)
    attrs = {"order_input": 1, "order_output": 1}
    fails("QuantizeWithOrder", [x, Const(np.ones(2, np.float32))], attrs, "scale_input", domain=DOMAIN)
    declined("DequantizeWithOrder", [integers(np.int8, 4), scale(1)], {**attrs, "to": 11}, domain=DOMAIN)


def gelu(*shape, attrs=None, **more):
    def reference(x, a, b):
        values = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in np.arange(-128, 128) * float(a)])
        return [to_int8(values / float(b))[x.astype(int) + 128]]

    given = [integers(np.int8, *shape, low=-128, high=127), scale(0.05), scale(0.037)]
    return Case("QOrderedGelu", given, attrs or {}, "float32", 1, "exact", DOMAIN, reference=reference, **more)


@pytest.mark.parametrize(
    "case",
    [
        gelu(2, 3, 256),
        gelu(3, 5, 7, attrs={"order_X": ROWS, "order_Y": ROWS}),
        gelu(64, 1000, attrs={"order_X": COL32, "order_Y": COL32}),
        gelu(7, 9, misaligned=True),
        gelu(0, 4),
    ],
    ids=str,
)
def test_gelu(case):
    check(case)


def test_gelu_refuses():
    given = [integers(np.int8, 4, 4), scale(1), scale(1)]
    declined("QOrderedGelu", given, {"order_X": 1, "order_Y": 2}, domain=DOMAIN)


def norm(*shape, axis=-1, beta=True, dtype="float32", epsilon=1e-5, **more):
    width = int(np.prod(shape[axis:]))

    def reference(x, a, gamma, beta, b):
        rows = x.reshape(-1, width).astype(np.float64) * float(a)
        centred = rows - rows.mean(1, keepdims=True)
        made = centred / np.sqrt((centred**2).mean(1, keepdims=True) + epsilon) * gamma.astype(np.float64)
        made = made if beta is None else made + beta.astype(np.float64)
        return [to_int8(made / float(b)).reshape(x.shape)]

    given = [
        integers(np.int8, *shape, low=-128, high=127),
        scale(0.021),
        floats(width),
        floats(width) if beta else None,
        scale(0.0371),
    ]
    attrs = {"axis": axis, "epsilon": epsilon}
    return Case("QOrderedLayerNormalization", given, attrs, dtype, 1, "exact", DOMAIN, reference=reference, **more)


@pytest.mark.parametrize(
    "case",
    [
        *[norm(2, 5, 64, dtype=t, beta=beta) for t in ("float32", "float16") for beta in (True, False)],
        norm(2, 3, 768),
        norm(2, 3, 3000, dtype="float16"),
        norm(2, 3, 37),
        norm(2, 3, 8, axis=-2),
        norm(3, 1),
        norm(2, 3, 33, misaligned=True),
        norm(0, 8),
    ],
    ids=str,
)
def test_norm(case):
    check(case)


def test_norm_refuses():
    given = [integers(np.int8, 2, 3, 8), scale(1), floats(8), None, scale(1)]
    declined("QOrderedLayerNormalization", given, {"order_X": 2, "order_Y": 2}, domain=DOMAIN)
    given[2] = floats(7)
    fails("QOrderedLayerNormalization", given, {}, "of a row", ranks=False, domain=DOMAIN)


def product(a, b, *, orders=(ROWS, COLUMNS), bias=False, c=None, by_column=False, **more):
    """b's shape is [depth, columns]; its bytes are those of what is turned, in its order."""
    depth, columns = b[-2:]
    turned = lambda y: np.ascontiguousarray(np.swapaxes(y, -1, -2))
    values = integers(np.int8, *b, low=-128, high=127)
    # Column after column is what is turned row after row.
    laid = stored(turned(values), ROWS if orders[1] == COLUMNS else orders[1]).reshape(values.shape)

    def reference(x, sa, laid, sb, sy, bias=None, added=None, sc=None):
        w = laid.reshape(*laid.shape[:-2], columns, depth)
        w = turned(plain(w, ROWS if orders[1] == COLUMNS else orders[1])).astype(np.int64)
        sums = plain(x, orders[0]).astype(np.int64) @ w
        made = (sa / sy * sb * sums).astype(np.float32)
        made = made if bias is None else made + bias
        made = made if added is None else made + sc / sy * plain(added, orders[0]).astype(np.float32)
        return [stored(to_int8(made), orders[0])]

    given = [
        stored(integers(np.int8, *a, low=-128, high=127), orders[0]),
        scale(0.011),
        laid,
        Const(np.linspace(0.003, 0.017, columns, dtype=np.float32), fixed=True) if by_column else scale(0.0093),
        scale(0.413),
        Const(floats(columns), fixed=True) if bias else None,
        stored(integers(np.int8, *c, low=-128, high=127), orders[0]) if c else None,
        scale(0.31) if c else None,
    ]
    while given[-1] is None:
        given.pop()
    attrs = {"order_A": orders[0], "order_B": orders[1], "order_Y": orders[0]}
    name = f"{orders[0]}{orders[1]}-{bias}-{bool(c)}"
    return Case("QOrderedMatMul", given, attrs, "float32", 1, "exact", DOMAIN, name=name, reference=reference, **more)


PRODUCTS = [
    product((3, 16, 32), (32, 64)),
    product((16, 32), (32, 64), bias=True, by_column=True),
    product((3, 16, 32), (3, 32, 64), bias=True, c=(3, 16, 64)),
    product((3, 16, 32), (1, 32, 64), c=(16, 64)),
    product((2, 5, 7), (7, 9), bias=True, c=(1, 5, 9), by_column=True),
    product((1, 1, 256), (256, 48), bias=True),
    product((1, 130, 768), (768, 200), bias=True),
    product((2, 5, 0), (0, 4), bias=True),
    product((0, 5, 16), (16, 4)),
    product((2, 9, 32), (32, 64), misaligned=True),
    *[product((2, 8, 64), (64, 96), orders=(COL32, order)) for order in (COL4, COL32_2R)],
    product((2, 5, 32), (2, 32, 32), orders=(COL32, COL4), c=(2, 5, 32), by_column=True),
]


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_product(case):
    check(case)


def test_product_refuses():
    a, b, one = integers(np.int8, 2, 8, 32), integers(np.int8, 32, 64), scale(1)
    attrs = {"order_A": 1, "order_B": 0, "order_Y": 1}
    for wrong in ({"order_A": 2}, {"order_B": 1}, {"order_Y": 0}, {"order_A": 2, "order_B": 9, "order_Y": 2}):
        declined("QOrderedMatMul", [a, one, b, one, one], {**attrs, **wrong}, domain=DOMAIN)
    for at, wrong, words in [
        (2, integers(np.int8, 31, 64), "inner dimensions"),
        (2, integers(np.int8, 3, 32, 64), "matrices"),
        (3, Const(np.ones(3, np.float32)), "scale_B"),
        (4, Const(np.ones(3, np.float32)), "scale_Y"),
        (5, Const(np.ones(3, np.float32)), "bias"),
        (0, integers(np.int8, 32), "dimensions"),
    ]:
        given = [a, one, b, one, one, None]
        given[at] = wrong
        fails("QOrderedMatMul", given[: max(at + 1, 5)], attrs, words, ranks=False, domain=DOMAIN)
