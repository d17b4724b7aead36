"""com.microsoft's operators of arithmetic, signals and movement."""

from dataclasses import replace

import numpy as np
import pytest
from harness import Case, bools, check, floats, integers
from refusal import declined, fails

DOMAIN = "com.microsoft"
TYPES = ["float32", "float64", "float16"]


def contrib(op, inputs, attrs=None, *, reference=None, **more):
    return Case(op, inputs, attrs or {}, domain=DOMAIN, reference=reference, **more)


def bad(x, how):
    return not bool(np.any({"isnan_only": np.isnan, "isinf_only": np.isinf}.get(how, lambda v: ~np.isfinite(v))(x)))


def holding(value, at, *shape):
    x = floats(*shape)
    x.reshape(-1)[at] = value
    return x


def finite(inputs, how="", dtype="float32", **more):
    reference = lambda *x: [np.array(all(bad(a, how) for a in x))]
    if dtype == "bfloat16":
        more["reference"] = lambda *x: [reference(*x)[0].astype(np.float32)]
    return contrib("IsAllFinite", inputs, {how: 1} if how else {}, **{"reference": reference, **more}, dtype=dtype)


FINITE = [
    *[
        finite([floats(3, 5), holding(value, 6, 7)], how, dtype=t, name=f"{value}-{how}")
        for value in (np.nan, np.inf, -np.inf, 1.0)
        for how in ("", "isnan_only", "isinf_only")
        for t in ("float32", "float16")
    ],
    *[finite([holding(value, 1029, 1030)], dtype="float64", name=str(value)) for value in (np.nan, 0.0)],
    finite([floats(5), holding(np.inf, 300, 100, 33), floats(2)], misaligned=True),
    finite([floats(i % 7) for i in range(40)], name="many"),
    finite([holding(np.nan if i == 36 else 0.5, 0, 3 + i) for i in range(40)], name="many-nan"),
    finite([floats(0)]),
    finite([np.float32(np.inf)]),
]


@pytest.mark.parametrize("case", FINITE, ids=str)
def test_all_finite(case):
    check(case)


def test_all_finite_of_both_is_declined():
    declined("IsAllFinite", [floats(3)], {"isnan_only": 1, "isinf_only": 1}, domain=DOMAIN)


def product(conjugate):
    def reference(a, b):
        a, b = (x[..., 0].astype(np.complex128) + 1j * x[..., 1] for x in (a, b))
        made = a * (np.conj(b) if conjugate else b)
        return [np.stack([made.real, made.imag], -1).astype(np.float64)]

    return reference


PAIRS = [
    ((2,), (2,)),
    ((3, 5, 2), (3, 5, 2)),
    ((3, 5, 2), (5, 2)),
    ((3, 1, 2), (1, 7, 2)),
    ((2,), (4, 129, 2)),
    ((0, 2), (1, 2)),
    ((700, 33, 2), (33, 2)),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", ["ComplexMul", "ComplexMulConj"])
@pytest.mark.parametrize("shapes", PAIRS, ids=str)
def test_complex_products(op, shapes, dtype):
    inputs = [floats(*shape) for shape in shapes]
    reference = lambda a, b: [y.astype(a.dtype) for y in product(op.endswith("Conj"))(a, b)]
    check(contrib(op, inputs, reference=reference, dtype=dtype, family="complex"))
    if shapes[0] == (3, 5, 2):
        check(contrib(op, inputs, reference=reference, dtype=dtype, family="complex", misaligned=True))


def test_complex_products_refuse():
    fails("ComplexMul", [floats(3, 2), floats(3, 3)], {}, "last dimension", domain=DOMAIN)


def spectrum(dims):
    def reference(x):
        made = np.fft.rfftn(x.astype(np.float64), axes=range(-dims, 0))
        return [np.stack([made.real, made.imag], -1).astype(x.dtype)]

    return reference


def signal(dims):
    def reference(x):
        made = x[..., 0].astype(np.float64) + 1j * x[..., 1]
        *outer, last = made.shape[made.ndim - dims :]
        made = np.fft.ifftn(made, axes=range(-dims, -1)) if dims > 1 else made
        return [np.fft.irfft(made, 2 * (last - 1)).astype(x.dtype)]

    return reference


SIGNALS = [
    ((8,), 1),
    ((3, 1), 1),
    ((4, 6), 1),
    ((2, 3, 129), 1),
    ((2, 3, 17), 2),
    ((3, 16, 12), 2),
    ((2, 5, 1, 30), 2),
    ((2, 4, 6, 10), 3),
    ((1, 40, 4096), 1),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape, dims", SIGNALS, ids=str)
def test_real_transforms(shape, dims, dtype):
    attrs = {"signal_ndim": dims}
    # Halves are rounded after each dimension.
    near = (4e-3, 4e-1 if shape[-1] > 1000 else 1e-1) if dtype == "float16" else None
    more = {"family": "fourier", "dtype": dtype, "tolerance": near}
    check(contrib("Rfft", [floats(*shape)], attrs, reference=spectrum(dims), **more))
    check(contrib("Irfft", [floats(*shape[:-1], shape[-1] // 2 + 2, 2)], attrs, reference=signal(dims), **more))


def test_real_transforms_refuse():
    for attrs in ({"signal_ndim": 0}, {"signal_ndim": 4}, {"onesided": 0}, {"normalized": 1}):
        declined("Rfft", [floats(2, 3, 8)], attrs, domain=DOMAIN)
    fails("Rfft", [floats(8)], {"signal_ndim": 2}, "dimensions", domain=DOMAIN)
    fails("Rfft", [floats(3, 0)], {"signal_ndim": 1}, "no transform", domain=DOMAIN)
    fails("Irfft", [floats(8, 3)], {"signal_ndim": 1}, "two numbers", domain=DOMAIN)
    fails("Irfft", [floats(1, 2)], {"signal_ndim": 1}, "no transform", domain=DOMAIN)


def invertible(*shape):
    """Far from singular whatever the order of its numbers: replays shuffle them."""
    return floats(*shape, low=-0.5, high=0.5) / np.float32(np.sqrt(shape[-1])) + np.eye(shape[-1], dtype=np.float32)


def inverse(*shape, dtype="float32", **more):
    n = shape[-1]
    reference = lambda x: [np.linalg.inv(x.astype(np.float64)).astype(x.dtype)]
    return contrib(
        "Inverse", [invertible(*shape)], reference=reference, dtype=dtype, family="inverse", capture=n < 2, **more
    )


INVERSES = [
    *[inverse(3, n, n, dtype=t) for n in (1, 2, 3, 4, 7, 16, 33, 64, 130) for t in TYPES],
    inverse(200, 200),
    inverse(2, 170, 170, dtype="float64"),
    inverse(2, 3, 5, 5, misaligned=True),
    inverse(0, 4, 4),
    inverse(3, 0, 0),
    inverse(4000, 4, 4),
]


@pytest.mark.parametrize("case", INVERSES, ids=str)
def test_inverse(case):
    check(case)


def test_inverse_takes_rows_in_any_order():
    n = 40
    x = np.eye(n, dtype=np.float32)[np.random.default_rng(1).permutation(n)] * np.float32(2) + invertible(n, n) * 0
    check(contrib("Inverse", [x], reference=lambda x: [np.linalg.inv(x)], capture=False))


def test_inverse_refuses_what_is_not_square():
    fails("Inverse", [floats(3, 4)], {}, "square", domain=DOMAIN)


KINDS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


def unfolded(x, size, step=1, dim=-1, **more):
    """Not the CPU EP's: it has no types of two bytes, nor bool."""
    axis = dim % np.ndim(x)
    windows = lambda x: np.lib.stride_tricks.sliding_window_view(x, size, axis)[
        (slice(None),) * axis + (slice(None, None, step),)
    ]
    return contrib(
        "UnfoldTensor",
        [x],
        {"size": size, "step": step, "dim": dim},
        family="exact",
        **more,
        reference=lambda x: [windows(x)],
    )


UNFOLDED = [
    *[unfolded(floats(4, 9), 3, 2, dtype=t) for t in TYPES],
    *[unfolded(integers(t, 4, 9, low=0), 4) for t in KINDS],
    unfolded(bools(5, 6), 2, dim=0),
    unfolded(floats(3, 8, 5), 3, 3, 1),
    unfolded(floats(3, 8, 5), 8, 100, -2),
    unfolded(floats(7), 7),
    unfolded(floats(64, 1000), 32, 8),
    unfolded(floats(5, 40), 5, 7, misaligned=True),
    unfolded(floats(0, 8), 2),
]


@pytest.mark.parametrize("case", UNFOLDED, ids=str)
def test_unfold(case):
    check(case)


def test_unfold_in_bfloat16():
    check(unfolded(floats(4, 9), 3, 2, dtype="bfloat16"))


@pytest.mark.parametrize("case", [case for case in UNFOLDED if case.inputs[0].dtype in (np.float32, np.int32)], ids=str)
def test_unfold_as_the_cpu_does(case):
    check(replace(case, dtype="float32", reference=None))


def test_unfold_refuses():
    for attrs in ({"size": 0}, {"size": -1}, {"size": 2, "step": 0}):
        declined("UnfoldTensor", [floats(3, 8)], attrs, domain=DOMAIN)
    fails("UnfoldTensor", [floats(3, 8)], {"size": 9}, "slices of 9", domain=DOMAIN)
    fails("UnfoldTensor", [floats(3, 8)], {"size": 2, "dim": 2}, "dim", ranks=False, domain=DOMAIN)


def warping(*shape, x=None, **more):
    x = floats(*shape) if x is None else x
    return contrib("DynamicTimeWarping", [x], family="exact", capture=False, **more)


WARPINGS = [
    *[warping(*shape) for shape in [(1, 1), (1, 9), (9, 1), (3, 4), (1, 17, 33), (40, 7), (448, 1500), (2000, 3)]],
    warping(9000, 11, name="beyond-shared-memory"),
    warping(x=np.zeros((12, 9), np.float32), name="ties"),
    warping(x=np.where(floats(12, 9) > 2, np.float32(np.inf), floats(12, 9)), name="infinite"),
    warping(x=np.where(floats(12, 9) > 2, np.float32(np.nan), floats(12, 9)), name="nan"),
    warping(0, 4),
    warping(4, 0),
]


@pytest.mark.parametrize("case", WARPINGS, ids=str)
def test_time_warping(case):
    check(case)


def test_time_warping_refuses():
    fails("DynamicTimeWarping", [floats(2, 3, 4)], {}, "the input has shape", domain=DOMAIN)
    fails("DynamicTimeWarping", [floats(4)], {}, "the input has shape", ranks=False, domain=DOMAIN)
