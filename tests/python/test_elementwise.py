"""Elementwise nodes as one kernel."""

import encore_session as es
import numpy as np
import pytest
from onnx import helper, numpy_helper


def chain(make_model, form):
    constants = [numpy_helper.from_array(np.linspace(0.5, 2, 8, dtype=np.float32), "row")]
    nodes = [
        helper.make_node("Mul", ["x", "row"], ["a"], "first"),
        helper.make_node("Sigmoid", ["a"], ["b"], "second"),
        helper.make_node("Sub", ["b", "y"], ["z"], "third"),
    ]
    return make_model(nodes, {"x": form, "y": form}, {"z": ["m", 8]}, constants)


def test_it_is_one_kernel(make_model, tmp_path):
    model = chain(make_model, ["n", 8])
    es.make_session(model, regions=1, dump_regions=tmp_path)
    (last,) = [sorted(folder.glob("*.txt"))[-1] for folder in tmp_path.iterdir() if folder.is_dir()]
    assert last.read_text().count("encore.Elementwise(") == 1
    es.make_session(model, regions=1, fuse_elementwise=0, dump_regions=tmp_path / "apart")
    (last,) = [sorted(folder.glob("*.txt"))[-1] for folder in (tmp_path / "apart").iterdir() if folder.is_dir()]
    assert "encore.Elementwise(" not in last.read_text()


@pytest.mark.parametrize("auto_graph", [0, 1])
def test_dimensions_that_are_not_what_they_are_called(make_model, auto_graph):
    """onnxruntime lets a tensor of one row pass where the model says n rows."""
    nodes = [
        helper.make_node("Neg", ["y"], ["w"], "of_y"),
        helper.make_node("Add", ["x", "w"], ["z"], "of_both"),
    ]
    model = make_model(nodes, {"x": ["n", 8], "y": ["n", 8]}, {"z": ["n", 8], "w": ["n", 8]})
    session = es.make_session(model, regions=1, auto_graph=auto_graph)
    for rows in (1, 4, 1, 1):
        fed = {"x": np.full((4, 8), 3, np.float32), "y": np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)}
        z, w = session.run(None, fed)
        np.testing.assert_array_equal(w, -fed["y"])
        np.testing.assert_array_equal(z, fed["x"] - fed["y"])


def test_what_does_not_fit_names_the_nodes(make_model):
    session = es.make_session(chain(make_model, [None, None]), regions=1)
    with pytest.raises(Exception, match="first"):
        session.run(None, {"x": np.zeros((2, 5), np.float32), "y": np.zeros((2, 8), np.float32)})
    fed = {"x": np.ones((2, 8), np.float32), "y": np.zeros((2, 8), np.float32)}
    assert session.run(None, fed)[0].shape == (2, 8)
