"""Arrays and tensors of any library as onnxruntime takes them, and what it gives as these have it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

NVIDIA = 0x10DE
_HOST_ACCESSIBLE = 5  # as OrtDevice numbers memory
_CPU, _CUDA, _CUDA_HOST = 1, 2, 3  # as DLPack numbers devices
DTYPES: dict[str, np.dtype[Any]] = {  # of arrays, by the model's types
    "tensor(float)": np.dtype("float32"),
    "tensor(double)": np.dtype("float64"),
    **{f"tensor({kind})": np.dtype(kind) for kind in ("float16", "bool", "int8", "int16", "int32", "int64")},
    **{f"tensor({kind})": np.dtype(kind) for kind in ("uint8", "uint16", "uint32", "uint64")},
}
STRING = "tensor(string)"
_AFTER_RUNS = (None, -1, 0, 1)  # DLPack's names of the default stream, which goes on after runs that nobody waits for


class Kind(NamedTuple):
    """Of values, and whether these are in host memory."""

    is_host: bool
    from_array: Callable[[np.ndarray], Any]
    from_ortvalue: Callable[[Any], Any]  # onnxruntime's C object, or one with its __dlpack__
    is_torch: bool = False


class Input:
    """An input of a model: its name, type and shape, in which a name stands for any length, and None too."""

    def __init__(self, arg) -> None:
        self.name: str = arg.name
        self.type: str = arg.type
        self.shape: list[int | str | None] = arg.shape
        self.dtype = DTYPES.get(arg.type)
        self._fixed = [(at, length) for at, length in enumerate(self.shape) if isinstance(length, int)]

    def __str__(self):
        shape = ", ".join("?" if length is None else str(length) for length in self.shape)
        return f"'{self.name}': {self.type}[{shape}]"

    def check_shape(self, shape):
        if not self.shape:  # a scalar's, or one of any rank, which the session tells apart
            return
        if len(shape) != len(self.shape) or any(shape[at] != length for at, length in self._fixed):
            raise ValueError(f"the shape is {list(shape)}, and the model wants {self}")

    def check_array(self, array: np.ndarray):
        if array.dtype != self.dtype and not (self.type == STRING and array.dtype.kind in "OSU"):
            if self.dtype is None and self.type != STRING:
                raise TypeError(f"no array has its type: the model wants {self}, as an OrtValue or a tensor of torch's")
            raise TypeError(f"the type is {array.dtype}, and the model wants {self}")
        self.check_shape(array.shape)

    def check_ortvalue(self, value):
        if value.data_type() != self.type:
            raise TypeError(f"the type is {value.data_type()}, and the model wants {self}")
        self.check_shape(value.shape())

    def zeros(self, shape) -> np.ndarray:
        if self.dtype is None and self.type != STRING:
            raise TypeError(f"no array has the type of {self}: call it with such values instead")
        return np.zeros(shape, object if self.dtype is None else self.dtype)

    def shape_with(self, lengths) -> list[int]:
        """Its shape, with lengths by the dimensions' names."""
        free = [length for length in self.shape if not isinstance(length, int) and length not in lengths]
        if free:
            raise TypeError(f"no length was given for {', '.join(str(each or '?') for each in free)} of {self}")
        return [length if isinstance(length, int) else lengths[length] for length in self.shape]


class Outputs(tuple):
    """What comes out of a model with several outputs: y[0], y["logits"], y.logits, or y0, y1 = y."""

    _fields: tuple[str, ...] = ()

    @classmethod
    def named(cls, names) -> type[Outputs]:
        return type("Outputs", (cls,), {"_fields": tuple(names)})

    def __getitem__(self, at):
        return tuple.__getitem__(self, self._fields.index(at) if at in self._fields else at)

    def __getattr__(self, name):
        if name in self._fields:
            return self[name]
        raise AttributeError(f"no output is '{name}'; there are {', '.join(self._fields)}")

    def __repr__(self):
        return f"Outputs({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    def __reduce__(self):
        return _outputs, (self._fields, tuple(self))

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self))


def _outputs(names, values):
    return Outputs.named(names)(values)


def refuse_what_is_no_tensor(session):
    for what, args in ("input", session.get_inputs()), ("output", session.get_outputs()):
        for arg in args:
            if not arg.type.startswith("tensor("):
                raise TypeError(
                    f"{what} '{arg.name}' is {arg.type}, and graphed() has tensors alone: use session.run()"
                )


class Values:
    """Of one session, which is on this device."""

    def __init__(self, ort, device_id: int) -> None:
        capi = ort.capi.onnxruntime_pybind11_state
        self._ort = ort
        self._capi = capi
        self._device_id = device_id
        self._tells_bool = tuple(int(part) for part in ort.__version__.split(".")[:2]) >= (1, 32)  # in DLPack
        self.vector = capi.OrtValueVector
        self.on_host = ort.OrtDevice.make("cpu", 0)._get_c_device()
        self.on_device = ort.OrtDevice.make("gpu", device_id, NVIDIA)._get_c_device()
        # Where a run brings values without anybody's wait.
        self.pinned = capi.OrtDevice(capi.OrtDevice.gpu(), _HOST_ACCESSIBLE, NVIDIA, device_id)
        wrap = ort.OrtValue
        self.arrays = Kind(True, lambda array: array, lambda value: value.numpy())
        self._ortvalues = [Kind(is_host, wrap.ortvalue_from_numpy, wrap) for is_host in (False, True)]
        self._foreign: dict[tuple[type, bool], Kind] = {}

    def take(self, spec: Input, value):
        """An array, or onnxruntime's C object, and its kind. Raises an error that names the input."""
        try:
            if isinstance(value, np.ndarray):
                spec.check_array(value)
                return value, self.arrays
            if isinstance(value, self._ort.OrtValue):
                value = value._ortvalue
                spec.check_ortvalue(value)
                is_host = value.device_name() == "Cpu"
                if not is_host:
                    self._check_device(*value.__dlpack_device__())
                return value, self._ortvalues[is_host]
            if isinstance(value, np.generic):
                return self.take(spec, np.asarray(value))
            if hasattr(value, "__dlpack__"):
                return self._take_foreign(spec, value)
        except Exception as error:
            kind = type(error) if type(error) in (TypeError, ValueError) else TypeError
            raise kind(f"input '{spec.name}' can't be taken: {error}") from error
        raise TypeError(
            f"input '{spec.name}' is a {type(value).__name__}, which is no array or tensor: the model wants {spec}"
        )

    def _take_foreign(self, spec, value):
        device, device_id = value.__dlpack_device__()
        is_host = device in (_CPU, _CUDA_HOST)
        kind = self._foreign.get((type(value), is_host)) or self._foreign_kind(value, is_host)
        if kind.is_torch:
            value = value.contiguous()
        if is_host:
            try:
                array = np.from_dlpack(value)
            except (BufferError, RuntimeError):  # of a type that numpy lacks
                taken = self._from_dlpack(spec, value.__dlpack__())
            else:
                spec.check_array(array)
                return array, kind
        else:
            self._check_device(device, device_id)
            if kind.is_torch and not self._tells_bool and spec.type == "tensor(bool)" and "bool" in str(value.dtype):
                value = value.view(sys.modules["torch"].uint8)
            # 1 is CUDA's default stream, which goes on after what the owner has enqueued; and the run after that.
            taken = self._from_dlpack(spec, value.__dlpack__(stream=1))
        spec.check_ortvalue(taken)
        return taken, kind

    def _foreign_kind(self, value, is_host):
        take_over = _from_dlpack_of(value)
        if take_over is None:
            kind = self._ortvalues[is_host]
        else:
            torch = sys.modules.get("torch")
            is_torch = torch is not None and isinstance(value, torch.Tensor)
            kind = Kind(is_host, take_over, take_over, is_torch)
        self._foreign[type(value), is_host] = kind
        return kind

    def leave_pinned(self, value, kind):
        """What a run that is over has brought to pinned memory, which is lent; what no array holds is elsewhere."""
        if value.device_name() == "Cpu":
            return self.leave(value, kind)
        array = value.numpy()
        return kind.from_array(array if array.flags.owndata else array.copy())

    def leave_array(self, array, kind):
        return array if array.dtype.kind in "OSU" else kind.from_array(array)

    def leave(self, value, kind, completion=None):
        """What a run has made, in memory of this kind; with a completion it may not be over."""
        if kind is self.arrays or kind in self._ortvalues:
            return kind.from_ortvalue(value)
        if value.data_type() == STRING:
            return value.numpy()
        made = kind.from_ortvalue(_InOrder(value, completion) if completion else value)
        if kind.is_torch and not self._tells_bool and value.data_type() == "tensor(bool)":
            made = made.view(sys.modules["torch"].bool)
        return made

    def _check_device(self, device, device_id):
        if (device, device_id) != (_CUDA, self._device_id):
            where = f"GPU {device_id}" if device == _CUDA else f"a device of DLPack's type {int(device)}"
            raise ValueError(f"it is on {where}, and the session on GPU {self._device_id}: copy it there")

    def _from_dlpack(self, spec, capsule):
        more = () if self._tells_bool else (spec.type == "tensor(bool)",)
        return self._capi.OrtValue.from_dlpack(capsule, *more)

    def order_torch(self, completion):
        """Torch's current stream goes on after the run."""
        stream = sys.modules["torch"].cuda.current_stream(self._device_id).cuda_stream
        if stream not in _AFTER_RUNS:
            completion.order(stream)

    def as_vector(self, specs, feeds):
        """For onnxruntime, and what has to live as long."""
        vector, kept = self.vector(), []
        for spec, feed in zip(specs, feeds):
            if isinstance(feed, np.ndarray):
                if spec.type == STRING:
                    raise TypeError(f"input '{spec.name}' has strings, which go with arrays alone: give all as arrays")
                wrapped = self._ort.OrtValue.ortvalue_from_numpy(np.asarray(feed, order="C"))
                kept.append(wrapped)
                feed = wrapped._ortvalue
            vector.push_back(feed)
        return vector, kept


class _InOrder:
    """A value that a run will have made: who takes it over names a stream, which then goes on after the run."""

    def __init__(self, value, completion):
        self._value = value
        self._completion = completion

    def __dlpack_device__(self):
        return self._value.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **_):
        if stream not in _AFTER_RUNS:
            self._completion.order(stream)
        return self._value.__dlpack__(stream=stream)


def _from_dlpack_of(value):
    """How the value's library takes over tensors; None if it does not."""
    if hasattr(value, "__array_namespace__"):
        return value.__array_namespace__().from_dlpack
    module = type(value).__module__
    for name in module, module.partition(".")[0]:
        found = getattr(sys.modules.get(name), "from_dlpack", None)
        if found:
            return found
    return None
