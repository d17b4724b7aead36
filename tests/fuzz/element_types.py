"""Element types by the names that docs/operators.md has, with what NumPy and onnx make of them."""

import ml_dtypes
import numpy as np
from onnx import TensorProto

NUMPY = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "bool": np.bool_,
    **{name: np.dtype(name).type for name in "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()},
}
# Several elements in a byte. The fuzzer draws none of them; a test may.
PACKED = {
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "int2": ml_dtypes.int2,
    "uint2": ml_dtypes.uint2,
    "float4e2m1": ml_dtypes.float4_e2m1fn,
}
FLOATS = {"float", "double", "float16", "bfloat16"}
INTEGERS = {name for name in NUMPY if name.lstrip("u").startswith("int")}
DRAWN = list(NUMPY)
NUMPY |= PACKED | {"float8e8m0": ml_dtypes.float8_e8m0fnu}
# onnxruntime's Python has no arrays of these: they are float32 there, with a Cast at both ends of a model.
WITHOUT_ARRAYS = {name for name in NUMPY if name.startswith(("bfloat", "float8", *PACKED))}


def onnx_type(name):
    return getattr(TensorProto, name.upper())


def carrier(name):
    """The NumPy type that a value of the type is kept in here."""
    return np.float32 if name in WITHOUT_ARRAYS else NUMPY[name]


def wide(name):
    """The type that stands for it in a reference: halves are computed in float."""
    return "float" if name in WITHOUT_ARRAYS or name == "float16" else name


def rounded(array, name):
    """What the type makes of the contents, in its carrier."""
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(NUMPY[name]).astype(carrier(name))
