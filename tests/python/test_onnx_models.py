"""ONNX's tests of known networks, whose weights are all alike: so all their channels are, to the last bit."""

import warnings
from pathlib import Path

import encore_session as es
import numpy as np
import onnx
import pytest
from onnx.backend.test import loader, runner

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


def file_of(case):
    return DATA / "light" / Path(case.url).name


def feeds_of_ones(model):
    """As ONNX's runner makes them."""
    constants = {constant.name for constant in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    return {v.name: runner.Runner.generate_dummy_data(v, seed=0, name="", random=False) for v in inputs}


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    LIGHT = [case for case in loader.load_model_tests(kind="real") if "/data/light/" in (case.url or "")]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in LIGHT])
def test_light_network(case):
    model = onnx.load(file_of(case))
    session = es.make_session(model)
    es.assert_all_on_encore(session)
    (got,) = session.run(None, feeds_of_ones(model))
    stored = onnx.TensorProto.FromString(file_of(case).with_name(f"{file_of(case).stem}_output_0.pb").read_bytes())
    np.testing.assert_allclose(got, onnx.numpy_helper.to_array(stored), rtol=case.rtol, atol=case.atol)
