import numpy as np
import pytest
from harness import Case, check, integers
from onnx import numpy_helper
from refusal import declined

NAN = float("nan")


def encoder(x, attrs, *, version=4, name="", **rest):
    tensors = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attrs.items()}
    return Case(
        "LabelEncoder", [x], tensors, domain="ai.onnx.ml", domain_opset=version, family="exact", name=name, **rest
    )


def table(keys, values, default=None):
    rest = {} if default is None else {"default_tensor": np.array([default], values.dtype)}
    return {"keys_tensor": keys, "values_tensor": values, **rest}


KEYS = np.array([7, -3, 0, 1000, 12, 4])
LONG = np.arange(-2000, 2000, 3)


def numbers(dtype, *shape):
    return integers("int16", *shape, low=-4, high=13).astype(dtype)


CASES = [
    *[
        encoder(
            numbers(key, 5, 33), table(KEYS.astype(key), np.arange(6).astype(value) * 3 - 2, 77), name=f"{key}-{value}"
        )
        for key, value in [
            ("int64", "int64"),
            ("int64", "int16"),
            ("int64", "float32"),
            ("int32", "int32"),
            ("int16", "float64"),
            ("float64", "int64"),
            ("float64", "float64"),
        ]
    ],
    *[
        encoder(x, {"keys_int64s": [4, 1, 9], "values_floats": [0.5, -2.0, NAN]}, version=version, name=f"ml{version}")
        for version in (2, 4)
        for x in [integers("int64", 40, low=0, high=9), np.int64(9), np.zeros((0, 3), np.int64)]
    ],
    encoder(np.int64([1, 7]), table(np.int64([7, 7, 1]), np.int64([5, 6, 8])), name="twice"),
    encoder(integers("int64", 3, low=0, high=2), {"keys_int64s": [1], "values_int64s": [-9], "default_int64": 5}),
    encoder(integers("int64", 100_000, low=-2100, high=2100), table(LONG, LONG.astype(np.float64) / 7), name="long"),
]
FLOAT_KEYS = {"keys_floats": [0.0, NAN, float("inf"), -1.5], "values_int64s": [1, 2, 3, 4]}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_label_encoder(case):
    check(case)


def test_keys_that_are_not_finite():
    x = np.array([-0.0, 0.0, NAN, -NAN, np.inf, -np.inf, -1.5, 1.5], np.float32)
    check(encoder(x, FLOAT_KEYS))


def test_strings_stay_on_the_cpu():
    strings = {"keys_int64s": [1], "values_strings": ["one"]}
    declined("LabelEncoder", [np.int64([1])], strings, domain="ai.onnx.ml", domain_opset=4)
