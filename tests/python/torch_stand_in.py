"""What the pages' examples use of torch, for the virtual GPU, which torch knows nothing of: tensors in its memory, its
default stream and others. That torch itself has these functions only a GPU tells (test_torch_stream.py).
"""

import contextlib
import ctypes

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore as encore


def _call(name, *arguments):
    library = ctypes.CDLL(encore.get_library_path())
    library.encore_virtual_default_stream.restype = ctypes.c_void_p
    return getattr(library, f"encore_virtual_{name}")(*arguments)


class Tensor:
    def __init__(self, array):
        self._value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", 0)
        self.shape = tuple(array.shape)
        self.is_cuda = True

    def data_ptr(self):
        return self._value.data_ptr()

    def copy_(self, other, non_blocking=False):
        addresses = [ctypes.c_void_p(each.data_ptr()) for each in (self, other)]
        stream = cuda.current_stream().cuda_stream
        _call("copy", ctypes.c_void_p(stream), *addresses, ctypes.c_size_t(self._value.tensor_size_in_bytes()))

    def contiguous(self):
        return self

    def tolist(self):
        cuda.current_stream().synchronize()
        return self._value.numpy().tolist()

    def __dlpack__(self, stream=None):
        return self._value.__dlpack__()

    def __dlpack_device__(self):
        return self._value.__dlpack_device__()


def tensor(values, device):
    array = np.array(values)
    return Tensor(array.astype(np.float32) if array.dtype == np.float64 else array)  # torch's default for floats


def zeros(*shape, device):
    return Tensor(np.zeros(shape, np.float32))


def from_dlpack(value):
    made = Tensor.__new__(Tensor)
    made._value = ort.OrtValue.from_dlpack(value)
    made.shape, made.is_cuda = tuple(made._value.shape()), True
    return made


class _Stream:
    def __init__(self, address=None):
        self._made = None if address else encore.devices(encore.register())[0].create_sync_stream()
        self.cuda_stream = address or self._made.get_handle()

    def synchronize(self):
        _call("synchronize", ctypes.c_void_p(self.cuda_stream))


class cuda:
    Stream = _Stream
    _current = None

    @classmethod
    def current_stream(cls):
        return cls._current or _Stream(_call("default_stream", 0))

    @classmethod
    @contextlib.contextmanager
    def stream(cls, stream):
        before, cls._current = cls._current, stream
        yield
        cls._current = before
