"""com.microsoft's operators of signals, complex numbers and matrices."""

import numpy as np
from proposals import MICROSOFT, proposes
from propose_signal import LENGTHS, NEAR

SMALL = [0, 1, 2, 3, 5, 17]


@proposes("Rfft", "Irfft", domain=MICROSOFT, family="fourier", mild=True, tolerance=NEAR)
def real_transform(s):
    dims = s.draw.number(1, 3)
    shape = [*s.draw.shape(0, 1), *(s.draw.number(1, 4) for _ in range(dims - 1)), s.draw.pick(LENGTHS)]
    if s.op == "Irfft":
        shape = [*shape[:-1], shape[-1] // 2 + 2, 2]
    return s.node(s.data(shape=shape, mild=True), signal_ndim=dims)


@proposes("ComplexMul", "ComplexMulConj", domain=MICROSOFT, sums=True, mild=True)
def complex_product(s):
    shape = s.draw.shape(0, 3)
    x = s.data(shape=[*shape, 2], mild=True)
    return s.node(x, s.like(x, [*s.draw.partner(shape), 2], mild=True))


@proposes(
    "Inverse", domain=MICROSOFT, family="matmul", mild=True, tolerance={"float": (1e-3, 1e-3), "float16": (2e-2, 2e-2)}
)
def inverse(s):
    n = s.draw.pick([1, 2, 3, 4, 5, 8, 17, 33, 65])
    batch = s.draw.shape(0, 2) if n < 8 else []
    noise = s.draw.numpy.uniform(-1, 1, (*batch, n, n)) / np.sqrt(n) / 2
    return s.node(s.new(np.eye(n) + noise, s.draw.pick(s.types()), constant=0.3))


@proposes("IsAllFinite", domain=MICROSOFT, family="exact", steady=False)
def all_finite(s):
    x = s.data()
    rest = [s.like(x, s.draw.shape(0, 3)) for _ in range(s.draw.pick([0, 1, 3, 40]))]
    only = s.draw.pick([None, "isnan_only", "isinf_only"])
    return s.node(x, *rest, types=["bool"], **({only: 1} if only else {}))


@proposes("UnfoldTensor", domain=MICROSOFT, family="exact")
def unfold(s):
    x = s.data(low=1, high=4)
    axis = s.draw.number(0, x.array.ndim - 1)
    size = s.draw.number(1, max(x.array.shape[axis], 1))
    step = s.maybe(0.6, lambda: s.draw.number(1, 4))
    return s.node(x, dim=s.maybe(0.8, lambda: axis - x.array.ndim * s.draw.pick([0, 1])), size=size, step=step)


@proposes("DynamicTimeWarping", domain=MICROSOFT, family="exact", steady=False, mild=True)
def time_warping(s):
    shape = [s.draw.pick(SMALL), s.draw.pick([1, 4, 33])]
    return s.node(s.data(shape=[1] * s.draw.pick([0, 1]) + shape, mild=True), types=["int32"])
