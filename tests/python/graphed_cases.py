"""What tests of models as functions (encore.graphed) share: tensors of another library, and small inputs."""

import encore_session
import numpy as np
import onnxruntime as ort
import pytest
from encore_session import make_session, only_if
from onnxruntime.capi import onnxruntime_pybind11_state as capi
from onnxruntime_ep_encore import graphed

FLOAT = np.float32
AS_BOOL = [False] if encore_session.ORT_VERSION < (1, 30) else []  # which older ones want to know
on_virtual = only_if(encore_session.on_virtual_gpu())


class Tensor:
    """One of another library's, in device memory or the host's, as far as DLPack knows."""

    def __init__(self, value):
        self.value = value  # an OrtValue on the device, or an array
        self.exports = getattr(value, "_ortvalue", value)
        self.streams = []

    def __dlpack_device__(self):
        return self.exports.__dlpack_device__()

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return self.exports.__dlpack__(stream=stream)

    def numpy(self):
        return as_array(self.value)


class Consumer:
    """How the library takes tensors over: on this stream."""

    stream = 1


def from_dlpack(exporter):
    if isinstance(exporter, np.ndarray):
        return Tensor(exporter)
    capsule = exporter.__dlpack__(stream=Consumer.stream)
    return Tensor(ort.OrtValue(capi.OrtValue.from_dlpack(capsule, *AS_BOOL)))


def on_device(array):
    return Tensor(encore_session.on_device(array))


def on_host(array):
    return Tensor(array)


def function(model, **options):
    return graphed(encore_session.outliving(make_session(model, **options)))


def as_array(value):
    return value if isinstance(value, np.ndarray) else value.numpy()


def some(rows, seed=0, width=256):
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(FLOAT)


X, Y = some(3, 1, 4), some(3, 2, 4)
equal = np.testing.assert_array_equal
KINDS = {"array": lambda x: x, "dlpack": on_device, "dlpack_host": on_host, "OrtValue": encore_session.on_device}
of_each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
