"""DFT, STFT, their windows, and MelWeightMatrix. numpy's transforms are the reference, in doubles: the CPU EP's are
less exact, and not there for every type and length."""

import itertools

import numpy as np
import pytest
from harness import FLOATS, INTEGERS, Case, Const, check, floats
from refusal import fails

I64 = np.int64


def dft(length=None, axis=-2, inverse=0, onesided=0):
    def run(x, *_):
        z = x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
        at = axis % x.ndim
        if inverse and onesided:
            n = 2 * (x.shape[at] - 1) if length is None else length
            return [np.fft.irfft(z, n, at)[..., None]]
        n = x.shape[at] if length is None else length
        y = (np.fft.ifft if inverse else np.fft.fft)(z, n, at)
        if onesided:
            y = y.take(range(n // 2 + 1), at)
        return [np.stack([y.real, y.imag], -1)]

    return run


def transform(x, length=None, axis=-2, inverse=0, onesided=0, opset=20, kind=I64, **rest):
    """The axis is an input from opset 20 on, an attribute before."""
    attrs = {"inverse": inverse, "onesided": onesided}
    inputs = [x, None if length is None else Const(np.array(length, kind))]
    if opset < 20:
        attrs["axis"] = axis
    elif axis != -2:
        inputs.append(Const(np.array(axis, I64)))
    if inputs[-1] is None:
        inputs.pop()
    reference = dft(length, axis, inverse, onesided)
    return Case("DFT", inputs, attrs, opset=opset, reference=reference, family="fourier", **rest)


BOTH = [1, 2]
LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 15, 16, 25, 30, 32, 49, 60, 61, 64, 100, 128, 400, 512, 1000]
LONG = [2048, 2049, 2187, 3000, 4096, 5000, 8192]
ODD = [67, 127, 134, 509, 1021, 2053, 4099]  # with a large prime
CASES = [
    *[transform(floats(3, n, 2), inverse=i) for n in LENGTHS for i in (0, 1)],
    *[transform(floats(2, n, c)) for n in LONG + ODD for c in BOTH],
    *[transform(floats(2, n, 2), inverse=1) for n in [2048, 3000, 67, 2053]],
    *[transform(floats(2, n, c), dtype="float64") for n in [8, 60, 400, 1024, 1025, 2048, 67, 1021] for c in BOTH],
    *[transform(floats(4, 50, c), dtype=t) for t in FLOATS for c in BOTH],
    *[transform(floats(4, 50, 1), dtype=t, opset=17, axis=1) for t in FLOATS],
    # One side
    *[transform(floats(3, n, 1), onesided=1) for n in [1, 2, 5, 8, 16, 67, 400, 4096]],
    *[transform(floats(3, n, 2), onesided=1, inverse=1) for n in [2, 3, 5, 9, 33, 201]],
    *[transform(floats(3, 9, 2), n, onesided=1, inverse=1) for n in [1, 2, 7, 15, 16, 17, 30]],
    # Another length than the signal's
    *[transform(floats(3, 10, c), n) for n in [1, 4, 10, 16, 25, 67] for c in BOTH],
    transform(floats(3, 10, 1), 16, onesided=1, kind=np.int32),
    # Axes
    *[transform(floats(4, 5, 6, 2), axis=a) for a in (0, 1, 2, -2, -3, -4)],
    *[transform(floats(4, 5, 6, 1), 7, axis=a, onesided=1) for a in (0, 1, 2)],
    *[transform(floats(4, 5, 6, 1), axis=a, opset=17) for a in (0, 1, 2, -2)],
    transform(floats(67, 5, 2), axis=0),
    transform(floats(4096, 3, 2), axis=0),
    transform(floats(9, 1), axis=0),
    # Many rows
    transform(floats(3000, 8, 2)),
    transform(floats(700, 400, 1), onesided=1),
    transform(floats(5000, 3, 1)),
    # Edges
    transform(floats(0, 8, 2), capture=False),
    transform(floats(8, 0, 2), 4, capture=False, name="zeros"),
    transform(np.full((2, 8, 2), np.nan, np.float32)),
    transform(floats(3, 40, 2), misaligned=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c}-{c.attrs['inverse']}{c.attrs['onesided']}")
def test_dft(case):
    check(case)


def test_a_wave_has_one_bin():
    n = 4096
    x = np.cos(2 * np.pi * 1000 * np.arange(n) / n).astype(np.float32).reshape(1, n, 1)
    wanted = np.zeros((1, n // 2 + 1, 2))
    wanted[0, 1000, 0] = n / 2
    check(Case("DFT", [x], {"onesided": 1}, opset=20, reference=lambda _: [wanted], tolerance=(1e-5, 2e-3), capture=0))


def whole(value):
    """Fed, since onnx itself refuses some constants."""
    return np.array(value, I64)


def test_transforms_that_are_none():
    x = floats(3, 8, 2)
    fails("DFT", [x, whole(0)], {}, "length is 0", opset=20)
    fails("DFT", [x, whole(-3)], {}, "length is -3", opset=20)
    fails("DFT", [x, whole(2**60)], {}, "length is 1152921504606846976", opset=20)
    fails("DFT", [x, None, whole(2)], {}, "is that of the numbers", opset=20)
    fails("DFT", [x, None, whole(5)], {}, "axis", opset=20)
    fails("DFT", [floats(3, 8, 3)], {}, "must be 1, of real numbers, or 2", opset=20)
    fails("DFT", [floats(3, 8, 1)], {"onesided": 1, "inverse": 1}, "made of complex numbers", opset=20)


# ---- STFT


def stft(step, length=None, onesided=1):
    def run(x, _, window=None, *__):
        x = x if x.ndim == 3 else x[..., None]
        n = length or (len(window) if window is not None else x.shape[1])
        z = x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
        frames = np.stack([z[:, f : f + n] for f in range(0, x.shape[1] - n + 1, step)], 1)
        y = np.fft.fft(frames * (1 if window is None else window))
        y = y[..., : n // 2 + 1] if onesided else y
        return [np.stack([y.real, y.imag], -1)]

    return run


def short_time(x, step, window=None, length=None, onesided=1, **rest):
    inputs = [x, Const(np.array(step, I64)), window, None if length is None else Const(np.array(length, I64))]
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"onesided": onesided}
    return Case("STFT", inputs, attrs, opset=17, reference=stft(step, length, onesided), family="fourier", **rest)


STFT_CASES = [
    *[short_time(floats(2, 128, 1), 8, floats(16), 16, dtype=t) for t in FLOATS],
    *[short_time(floats(2, 128, 1), 8, floats(16), 16, onesided=0, dtype=t) for t in FLOATS],
    short_time(floats(2, 128, 2), 8, floats(16), 16, onesided=0),
    short_time(floats(2, 128, 2), 8, floats(16), 16),
    short_time(floats(2, 128, 1), 7, None, 16),
    short_time(floats(2, 128, 1), 7, floats(20)),
    short_time(floats(2, 30, 1), 7),
    short_time(floats(2, 30), 7, name="without numbers"),
    short_time(floats(1, 16000, 1), 160, floats(400), 400, name="speech"),
    short_time(floats(1, 9000, 1), 1000, floats(4096), 4096),
    short_time(floats(2, 300, 1), 50, floats(67), 67),
    short_time(floats(0, 30, 1), 7, None, 8, capture=False),
]


@pytest.mark.parametrize("case", STFT_CASES, ids=str)
def test_stft(case):
    check(case)


def test_frames_that_are_none():
    x, step = floats(2, 30, 1), whole(5)
    fails("STFT", [x, whole(0), None, whole(8)], {}, "frame_step is 0")
    fails("STFT", [floats(2, 30, 1, 1), step, None, whole(8)], {}, "the signal has shape")
    fails("STFT", [x, step, None, whole(31)], {}, "frames of length 31 of a signal of length 30")
    fails("STFT", [x, step, floats(8), whole(9)], {}, "the window has shape")


# ---- windows

WINDOWS = ["HannWindow", "HammingWindow", "BlackmanWindow"]


@pytest.mark.parametrize("size, periodic", [(1, 1), *itertools.product([2, 10, 401], [0, 1])])  # (1, 0) is 0 / 0
@pytest.mark.parametrize("op", WINDOWS)
def test_windows(op, size, periodic):
    check(
        Case(
            op,
            [Const(np.array(size, I64))],
            {"periodic": periodic},
            opset=17,
            tolerance=(1e-6, 3e-7),  # the CPU EP sums up the angle in floats
            capture=False,
        )
    )


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float64", "float16", *INTEGERS])
@pytest.mark.parametrize("op", WINDOWS)
def test_windows_of_types(op, dtype, kind):
    from harness import _onnx_type

    attrs = {"output_datatype": _onnx_type(dtype)}
    near = {"float16": (1e-3, 1e-4), "float64": (1e-7, 1e-7)}.get(dtype)
    check(Case(op, [Const(np.array(33, kind))], attrs, opset=17, tolerance=near, capture=False, dtype=dtype))


def test_a_size_below_zero():
    fails("HannWindow", [whole(-3)], {}, "size is -3", opset=17)


# ---- MelWeightMatrix


def mel(bands, length, rate, low, high, **rest):
    inputs = [Const(np.array(v, I64)) for v in (bands, length, rate)]
    inputs += [Const(np.array(v, np.float32)) for v in (low, high)]
    rest = {"tolerance": (1e-6, 1e-6), "capture": False, **rest}
    return Case("MelWeightMatrix", inputs, opset=17, **rest)


MELS = [
    mel(8, 16, 8192, 0, 4096),
    mel(80, 400, 16000, 0, 8000, name="speech"),
    mel(40, 512, 44100, 20, 11000),
    mel(1, 16, 8192, 0, 4096),
    mel(200, 16, 8192, 0, 4096, name="crowded"),
]


@pytest.mark.parametrize("case", MELS, ids=lambda c: "-".join(str(i.value) for i in c.inputs))
def test_mel(case):
    check(case)


def test_mel_of_nonsense():
    def asked(bands=8, length=16, rate=8192, low=0.0, high=4096.0):
        return [*map(whole, (bands, length, rate)), np.array(low, np.float32), np.array(high, np.float32)]

    fails("MelWeightMatrix", asked(bands=-1), {}, "num_mel_bins is -1", opset=17)
    fails("MelWeightMatrix", asked(bands=2**21), {}, "num_mel_bins is 2097152", opset=17)
    fails("MelWeightMatrix", asked(rate=0), {}, "sample_rate is 0", opset=17)
    fails("MelWeightMatrix", asked(high=-5.0), {}, "edges are", opset=17)
    fails("MelWeightMatrix", asked(low=np.nan), {}, "lower_edge_hertz is nan", opset=17)
