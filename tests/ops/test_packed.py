"""Elements of 2 and 4 bits that are padded and filled in, between two Casts: neither NumPy nor the CPU EP has them."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from test_quantize import PACKED, run

KINDS = PACKED | {"FLOAT4E2M1": ml_dtypes.float4_e2m1fn}
PADS = [
    ((3, 5), (1, 0, 2, 3)),
    ((7,), (2, 3)),
    ((1,), (0, 0)),
    ((3, 4), (-1, 1, 2, -2)),
    ((2, 3, 3), (1, 0, 2, 0, 1, 1)),
    ((0, 3), (1, 1, 0, 0)),
    ((33, 129), (5, 3, 2, 6)),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape,pads", PADS, ids=str)
@pytest.mark.parametrize("value", [None, 1])
def test_pad(kind, shape, pads, value):
    x = np.resize(np.arange(4) % (2 if kind == "INT2" else 4), shape).astype(np.float32)
    constants = {"pads": np.array(pads)}
    if value is not None:
        constants["value"] = np.array(value, np.float32).astype(KINDS[kind])
    nodes = [
        ("Cast", ["x"], "q", {"to": getattr(TensorProto, kind)}),
        ("Pad", ["q", *constants], "p", {}),
        ("Cast", ["p"], "y", {"to": TensorProto.FLOAT}),
    ]
    got, _ = run(nodes, {"x": x}, constants)
    widths = list(zip(pads[: len(shape)], pads[len(shape) :]))
    kept = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(shape, widths))]
    wanted = np.pad(kept, [(max(a, 0), max(b, 0)) for a, b in widths], constant_values=value or 0)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_pad_with_what_is_there(kind, mode):
    x = np.resize(np.arange(4) % (2 if kind == "INT2" else 4), (5, 7)).astype(np.float32)
    nodes = [
        ("Cast", ["x"], "q", {"to": getattr(TensorProto, kind)}),
        ("Pad", ["q", "pads"], "p", {"mode": mode}),
        ("Cast", ["p"], "y", {"to": TensorProto.FLOAT}),
    ]
    got, _ = run(nodes, {"x": x}, {"pads": np.array([2, 3, 1, 4])})
    np.testing.assert_array_equal(got, np.pad(x, [(2, 1), (3, 4)], mode=mode))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (1001,)], ids=str)
def test_constant_of_shape(kind, shape):
    value = np.array([1], np.float32)
    filled = numpy_helper.from_array(value.astype(KINDS[kind]), "value")
    nodes = [
        ("ConstantOfShape", ["shape"], "q", {"value": filled}),
        ("Cast", ["q"], "y", {"to": TensorProto.FLOAT}),
    ]
    got, _ = run(nodes, {}, {"shape": np.array(shape, np.int64)})
    np.testing.assert_array_equal(got, np.full(shape, 1, np.float32))
