"""The file in which what was chosen for convolutions is kept from one process to the next."""

import json
import os

import encore_session as es
import numpy as np
import pytest
from onnx import helper, numpy_helper

UNUSED = "'tuning_cache' helps nothing yet"


@pytest.fixture
def convolutions(make_model):
    """Three of them, of which two are equal."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], f"conv{i}", pads=[1] * 4) for i in range(3)]
    shapes = [(16, 8), (16, 16), (16, 16)]
    constants = [
        numpy_helper.from_array((rng.standard_normal((*shape, 3, 3)) / 12).astype(np.float32), f"w{i}")
        for i, shape in enumerate(shapes)
    ]
    return make_model(nodes, {"x0": [2, 8, 20, 20]}, {"x3": [2, 16, 20, 20]}, constants)


X = np.random.default_rng(1).standard_normal((2, 8, 20, 20)).astype(np.float32)


def check(session, model):
    expected = es.on_cpu(model)
    result = session.run(None, {"x0": X})[0]
    np.testing.assert_allclose(result, expected.run(None, {"x0": X})[0], rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize(
    "content, why",
    [
        (b"encore tuning cache 2\nhalf of an entry", "is damaged"),
        (b"encore tuning cache 0\n", "another version"),
        (b"a picture", "is no tuning cache"),
    ],
)
def test_what_is_no_use_is_told(encore, convolutions, tmp_path, capfd, content, why):
    file = tmp_path / "tuning"
    file.write_bytes(content)
    session = es.make_session(convolutions, tuning_cache=file)
    check(session, convolutions)
    said = capfd.readouterr().err
    assert said.count(UNUSED) == 1, said
    assert str(file) in said and why in said
    del session
    if content == b"a picture":
        assert file.read_bytes() == content
        assert os.listdir(tmp_path) == ["tuning"]


def test_a_file_that_is_not_there_is_no_complaint(encore, convolutions, tmp_path, capfd):
    check(es.make_session(convolutions, tuning_cache=tmp_path / "tuning"), convolutions)
    assert "tuning" not in capfd.readouterr().err


def test_the_next_process_need_not_search(encore, convolutions, tmp_path):
    """Which shows in the times that were taken: two searches would hardly agree in all of them."""
    model, file = tmp_path / "model.onnx", tmp_path / "tuning"
    model.write_bytes(convolutions.SerializeToString())
    code = f"""
import encore_session as es, numpy as np
session = es.make_session({str(model)!r}, tuning_cache={str(file)!r})
session.run(None, {{"x0": np.ones({X.shape}, np.float32)}})
session.set_ep_dynamic_options({{"ep.cuda.report_tuning": {str(tmp_path / "report")!r}}})
"""
    reports = []
    for _ in range(2):
        es.in_new_process(code)
        reports.append(sorted(json.loads((tmp_path / "report").read_text()), key=lambda one: one["problem"]))
    assert reports[0] == reports[1]
    assert len(reports[0]) == (0 if es.on_virtual_gpu() else 2)
    assert file.exists() == bool(reports[0])
