"""Fourier transforms, their windows, and determinants."""

import numpy as np
from element_types import onnx_type
from proposals import proposes

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 25, 31, 32, 60, 64, 67, 100, 128, 254]


# The CPU EP loses more than half of its digits where a length is no power of two.
NEAR = {"float": (1e-3, 1e-2), "double": (1e-6, 1e-5), "float16": (1e-2, 3e-2), "bfloat16": (3e-2, 1e-1)}


@proposes("DFT", family="fourier", mild=True, tolerance=NEAR)
def dft(s):
    numbers = s.draw.pick([1, 2])
    shape = [s.draw.number(1, 3) for _ in range(s.draw.number(1, 3))] + [numbers]
    at = s.draw.number(0 if s.opset >= 20 else min(1, len(shape) - 2), len(shape) - 2)
    shape[at] = s.draw.pick(LENGTHS)
    x = s.data(shape=shape, mild=True)
    length = s.maybe(0.4, lambda: s.fixed(s.draw.pick(LENGTHS), s.draw.pick(["int32", "int64"])))
    # Of both at once the CPU EP knows nothing.
    onesided = s.maybe(0.5, lambda: int(numbers == 1 and s.draw.chance(0.7)))
    inverse = s.maybe(0.5, lambda: int(not onesided and s.draw.chance(0.7)))
    if s.opset < 20:
        return s.node(x, length, axis=at - len(shape) * s.draw.chance(0.3), onesided=onesided, inverse=inverse)
    axis = s.maybe(at != len(shape) - 2 or 0.5, lambda: s.fixed(at - len(shape) * s.draw.chance(0.3)))
    return s.node(x, length, axis, onesided=onesided, inverse=inverse)


@proposes("STFT", family="fourier", mild=True, tolerance=NEAR)
def stft(s):
    numbers, length = s.draw.pick([1, 1, 2]), s.draw.pick(LENGTHS)
    x = s.data(shape=[s.draw.number(1, 3), length + s.draw.number(0, 100), numbers], mild=True)
    window = s.maybe(0.6, lambda: s.like(x, [length], mild=True))
    kind = s.draw.pick(["int32", "int64"])
    told = s.maybe(window is None or 0.5, lambda: s.fixed(length, kind))
    onesided = s.maybe(numbers == 2 or 0.5, lambda: int(numbers == 1 and s.draw.chance(0.5)))
    return s.node(x, s.fixed(s.draw.number(1, 50), kind), window, told, onesided=onesided)


NEARLY = {"float": (1e-5, 1e-5), "double": (1e-5, 1e-5), "float16": (1e-2, 1e-2)}


def _kind(s):
    """Of the result; of bfloat16 there is no reference."""
    return s.draw.pick([name for name in s.row.types(0, "out") if name != "bfloat16"])


# Angles summed up in floats.
@proposes("HannWindow", "HammingWindow", "BlackmanWindow", tolerance=NEARLY)
def window(s):
    kind = _kind(s)
    size = s.fixed(s.draw.number(2, 70), s.draw.pick(["int32", "int64"]))
    return s.node(
        size, types=[kind], periodic=s.maybe(0.5, lambda: s.draw.pick([0, 1])), output_datatype=onnx_type(kind)
    )


@proposes("MelWeightMatrix", tolerance=NEARLY)
def mel(s):
    kind, whole, edge = (
        _kind(s),
        s.draw.pick(["int32", "int64"]),
        s.draw.pick(["float", "double"]),
    )
    rate = s.draw.pick([8000, 16000, 44100])
    counts = [s.fixed(n, whole) for n in (s.draw.number(1, 40), s.draw.pick([16, 64, 400, 512]), rate)]
    edges = [s.fixed(hertz, edge) for hertz in (s.draw.pick([0.0, 20.0]), rate / s.draw.pick([2, 3]))]
    return s.node(*counts, *edges, types=[kind], output_datatype=onnx_type(kind))


@proposes("Det", family="matmul", mild=True)
def det(s):
    n = s.draw.pick([1, 2, 3, 4, 5, 8, 17, 33])
    batch = s.draw.shape(0, 2) if n < 8 else []
    noise = s.draw.numpy.uniform(-1, 1, (*batch, n, n)) / np.sqrt(n) / 2
    return s.node(s.new(np.eye(n) + noise, s.draw.pick(s.types()), constant=0.3))
