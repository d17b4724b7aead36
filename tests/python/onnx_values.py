"""Values of ONNX's tests as onnxruntime takes and gives them, also those of types that numpy does not have."""

import ctypes

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime as ort

BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}  # packed in bytes, the lowest bits first


def plain(value):
    """An array, a list of arrays, or None, of what ONNX's tests hold."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    return None if value is None else np.asarray(value)


def is_numpys(value):
    """Whether onnxruntime takes and gives it as numpy's, or as a list of numpy's."""
    if isinstance(value, list):
        return all(is_numpys(each) for each in value)
    return value is None or value.dtype.isbuiltin == 1 or value.dtype.kind in "OSU"


def run(session, feeds, wanted):
    """The outputs for these inputs; `wanted` are outputs of the same types."""
    if all(map(is_numpys, [*feeds.values(), *wanted])):
        return session.run(None, feeds)
    values = {name: _to_onnxruntime(value) for name, value in feeds.items()}
    return [_from_onnxruntime(value) for value in session.run_with_ort_values(None, values)]


def _to_onnxruntime(array):
    if is_numpys(array):
        return ort.OrtValue.ortvalue_from_numpy(array)
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), kind)
    data = array.tobytes()
    if bits := BITS.get(array.dtype.name):
        spread = np.unpackbits(array.reshape(-1, 1).view(np.uint8), axis=1, count=bits, bitorder="little")
        data = np.packbits(spread, bitorder="little").tobytes()
    ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def _from_onnxruntime(value):
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.element_type()))
    if dtype.isbuiltin == 1:
        return value.numpy()
    count = int(np.prod(value.shape()))
    bits = BITS.get(dtype.name, 8 * dtype.itemsize)
    data = np.frombuffer(ctypes.string_at(value.data_ptr(), (count * bits + 7) // 8), np.uint8)
    if bits < 8:
        spread = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
        if dtype.name.startswith("int"):  # the sign goes on to the left
            spread = np.concatenate([spread, np.repeat(spread[:, -1:], 8 - bits, axis=1)], axis=1)
        data = np.packbits(spread, axis=1, bitorder="little").reshape(-1)
    return data.view(dtype).reshape(value.shape())
