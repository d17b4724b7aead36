"""onnxruntime's C API by ctypes, for what its Python can't be asked: functions by name, from abi/slots.tsv."""

import csv
import ctypes
import functools
from pathlib import Path

import onnxruntime

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def _slots(struct):
    with open(ROOT / "abi" / "slots.tsv") as file:
        rows = csv.DictReader(file, delimiter="\t")
        return {row["name"]: int(row["index"]) for row in rows if row["struct"] == struct}


class Failed(Exception):
    """What a status says."""


class Functions:
    """Those of a struct at an address: a table of onnxruntime's, or an object that begins with its own functions."""

    def __init__(self, struct, address, api=None):
        self.address = address
        self._api = api or self
        self._table = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
        self._slots = _slots(struct)

    def get(self, name, *arguments, result=ctypes.c_void_p):
        """Calls a function for what it returns."""
        given = [_as_c(argument) for argument in arguments]
        return ctypes.CFUNCTYPE(result, *map(type, given))(self._table[self._slots[name]])(*given)

    def call(self, name, *arguments):
        """Calls a function that returns a status."""
        status = self.get(name, *arguments)
        if status:
            said = self._api.get("GetErrorMessage", status, result=ctypes.c_char_p).decode()
            self._api.get("ReleaseStatus", status, result=None)
            raise Failed(said)

    def make(self, name, *arguments):
        """Calls a function whose last argument is where it puts what it makes; returns that."""
        made = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.pointer(made))
        return made.value


class Api(Functions):
    """Another onnxruntime in this process: the library of the wheel, beside the one inside Python's module."""

    def __init__(self):
        (path,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
        self._library = ctypes.CDLL(str(path))
        self._library.OrtGetApiBase.restype = ctypes.POINTER(ctypes.c_void_p)
        base = self._library.OrtGetApiBase()
        get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(base[0])
        version = int(onnxruntime.__version__.split(".")[1])
        super().__init__("OrtApi", get_api(min(version, 30)))

    def functions(self, struct, address):
        return Functions(struct, address, self)


def _as_c(value):
    if value is None or isinstance(value, int):
        return ctypes.c_void_p(value)
    return ctypes.c_char_p(value) if isinstance(value, bytes) else value


def strings(*texts):
    """An array of them."""
    return (ctypes.c_char_p * len(texts))(*[text.encode() for text in texts])


def pointers(*addresses):
    return (ctypes.c_void_p * len(addresses))(*addresses)
