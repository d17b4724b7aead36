"""The command `encore`, as the wheel brings it: what it says of a model, and of mistakes."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime_ep_encore
import pytest
from encore_session import HAS_GRAPHS, ROOT, make_session, needs_graphs
from onnx import TensorProto, helper
from onnxruntime_ep_encore.commands import environment, inputs, results

pytestmark = pytest.mark.newest


def run(*arguments):
    """The command in a process of its own, as a person starts it."""
    command = [sys.executable, "-m", "onnxruntime_ep_encore", *map(str, arguments)]
    paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)


@pytest.fixture(scope="module")
def file(layer, tmp_path_factory):
    file = tmp_path_factory.mktemp("models") / "layer.onnx"
    onnx.save(layer[0], file)
    return file


@pytest.fixture(scope="module")
def in_parts(make_model, tmp_path_factory):
    """Nodes in a region, one that waits for data and stands alone, and one that only the CPU has."""
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], "neg"),
        helper.make_node("Exp", ["n"], ["e"], "exp"),
        helper.make_node("NonZero", ["e"], ["places"], "places"),
        helper.make_node("SequenceConstruct", ["e", "x"], ["s"], "sequence"),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], "joined", axis=0),
    ]
    model = make_model(nodes, {"x": ["n"]}, {"y": ["m"], "places": ([1, "k"], TensorProto.INT64)})
    file = tmp_path_factory.mktemp("models") / "parts.onnx"
    onnx.save(model, file)
    return file


# ---- check


def test_check_tells_where_nodes_run(in_parts, tmp_path):
    done = run("check", in_parts, "--shape", "n=2,5", "--json", tmp_path / "told.json")
    assert done.returncode == 0, done.stderr
    assert "nodes: 5; 2 in 1 region, 1 alone on Encore, 2 elsewhere" in done.stdout
    assert "2 nodes  Neg node 'neg' to Exp node 'exp'" in done.stdout
    assert "alone       NonZero node 'places': an output's size depends on data" in done.stdout
    assert "elsewhere   SequenceConstruct node 'sequence': Encore has no kernel" in done.stdout
    assert "what they become: 1 Neg, 1 Exp" in done.stdout
    assert "replayed    1 of 1 region" in done.stdout
    told = json.loads((tmp_path / "told.json").read_text())
    assert [one["inputs"]["x"] for one in told["runs"]] == [[2], [5]]
    assert [one["outputs"]["y"] for one in told["runs"]] == [[4], [10]]
    assert all(one["replayed"] == 1 and one["distance_from_cpu"] < 1e-5 for one in told["runs"])


def test_check_of_the_machine():
    done = run("check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok       onnxruntime 1." in done.stdout and "a model of one node ran on" in done.stdout


def test_the_model_of_one_node():
    model = onnx.load_from_string(environment.RELU)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Relu"]


# ---- bench


def test_bench_runs_each_way(file, tmp_path):
    done = run("bench", file, "--shape", "n=3", "--seconds", "0.01", "--json", tmp_path / "told.json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads((tmp_path / "told.json").read_text())["shapes"]
    assert told["inputs"] == {"x": [3, 8]}
    ways = told["ways"]
    assert {"CPU", "eager", "automatic", "bound"} <= set(ways)
    for name, way in ways.items():
        assert way["distance_from_cpu"] < 1e-3, name  # TF32
        assert 0 < way["median_us"] <= way["p99_us"] and way["first_ms"] > 0, name
    assert ways["bound"]["host_us"] is None
    assert ways["graph"]["host_us"] > 0 if HAS_GRAPHS else "graph" not in ways
    assert ways["automatic"]["held_bytes"] > 0 and ways["CPU"]["held_bytes"] is None


def test_bench_tells_the_costliest_nodes(file, tmp_path):
    told = tmp_path / "told.json"
    done = run("bench", file, "--shape", "n=3", "--seconds", "0.01", "--no-cpu", "--profile", "--json", told)
    assert done.returncode == 0, done.stderr
    ways = json.loads(told.read_text())["shapes"][0]["ways"]
    for way in ("eager", "automatic"):
        nodes = {node["name"]: node for node in ways[way]["profile"]}
        assert nodes["mm"]["op"] == "MatMul" and nodes["mm"]["us"] > 0
        for name in ("mm", "relu", "add"):
            assert nodes[name]["calls"] == pytest.approx(1)
            assert nodes[name]["replayed"] == pytest.approx(float(way == "automatic"))
    assert ways["bound"]["profile"] is None
    lines = done.stdout.splitlines()
    for name in ("eager", "automatic"):
        at = next(i for i, line in enumerate(lines) if line.startswith(f"  {name}: a run takes"))
        assert any(line.split()[:2] == ["mm", "MatMul"] and line.split()[-1] == "1" for line in lines[at : at + 12])


@needs_graphs
def test_bench_tells_why_there_is_no_graph(in_parts, tmp_path):
    done = run("bench", in_parts, "--shape", "n=3", "--seconds", "0.01", "--no-cpu", "--json", tmp_path / "told.json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads((tmp_path / "told.json").read_text())["shapes"]
    assert "NonZero node 'places'" in told["ways"]["graph"]["error"]
    assert told["ways"]["automatic"]["distance_from_cpu"] is None


# ---- mistakes


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["no.onnx"], "no.onnx is not a file"),
        (["{}", "--shape", "m=3"], "--shape m: the model has no input or dimension of that name; it has x, n"),
        (["{}", "--shape", "n=three"], "--shape n=three: it has to be a number"),
        (["{}", "--shape", "n"], "--shape n: it has to be NAME=VALUE"),
        (["{}", "--shape", "n=1", "--shape", "n=2"], "--shape tells n twice"),
        (["{}", "--shape", "x=3x9"], "--shape x=3x9: the model wants ['n', 8]"),
        (["{}", "--input", "y=1"], "--input y: the model has no input of that name; it has x"),
        (["{}", "--input", "x=one"], "--input x: 'one' is neither a .npy file nor a float32"),
        (["{}", "--input", "x=none.npy"], "--input x: [Errno 2]"),
        (["{}", "--option", "use_tf33=1"], "did you mean 'use_tf32'"),
        ([__file__], "test_commands.py: [ONNXRuntimeError]"),
    ],
)
@pytest.mark.parametrize("command", ["check", "bench"])
def test_mistakes(file, command, arguments, words):
    done = run(command, *[str(argument).format(file) for argument in arguments])
    assert done.returncode == 2, done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("encore: ")]
    assert words in line and "Traceback" not in done.stderr


def test_what_was_assumed_is_told_where_a_run_fails(make_model, tmp_path):
    nodes = [helper.make_node("AveragePool", ["x"], ["y"], "pool", kernel_shape=[2])]
    onnx.save(make_model(nodes, {"x": [1, 1, "length"]}, {"y": [1, 1, "less"]}), tmp_path / "pool.onnx")
    done = run("check", tmp_path / "pool.onnx")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("encore: ")]
    assert "pool.onnx: AveragePool node 'pool': the window spans 2" in line
    assert line.endswith("(dimension length is 1: --shape and --input tell others)")


def test_contents_of_inputs(make_model, tmp_path):
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"])]
    model = make_model(nodes, {"x": ["n", 2], "i": (["k"], TensorProto.INT64)}, {"y": ["k", 2]})
    session = make_session(model)
    feeds, assumed = inputs.make_feeds(session, ["n=3"], [])
    assert feeds["x"].shape == (3, 2) and np.abs(feeds["x"]).max() <= 1 and feeds["i"].tolist() == [1]
    assert assumed == ["dimension k is 1", "i is all 1"]
    np.save(tmp_path / "i.npy", np.array([2, 0]))
    feeds, assumed = inputs.make_feeds(session, ["x=4x2"], ["x=7", f"i={tmp_path / 'i.npy'}"])
    assert feeds["x"].tolist() == [[7, 7]] * 4 and feeds["i"].tolist() == [2, 0] and not assumed
    np.save(tmp_path / "i.npy", np.zeros((2, 2)))
    for name, words in (("i", "holds float64, and the model wants int64"), ("x", "holds float64")):
        with pytest.raises(Exception, match=words):
            inputs.make_feeds(session, [], [f"{name}={tmp_path / 'i.npy'}"])


def test_the_distance_of_results():
    one = np.float32([1, -4, np.nan, np.inf])
    assert results.distance([one], [one]) == 0
    assert results.distance([one + np.float32([0, 1, 0, 0])], [one]) == 0.25
    for other in (np.float32([1, -4, 0, np.inf]), np.float32([np.nan, -4, np.nan, np.inf]), one[:3], one.astype(float)):
        assert results.distance([other], [one]) == np.inf
    assert results.distance([np.array([True])], [np.array([False])]) == np.inf
    assert results.distance([np.zeros((0, 3))], [np.zeros((0, 3))]) == 0


# ---- the report behind it


@pytest.mark.parametrize("regions", [1, 0])
def test_where_nodes_are(in_parts, regions):
    session = make_session(str(in_parts), regions=regions)
    told = {node["node"]: node for node in onnxruntime_ep_encore.placement_report(session)}
    assert len(told) == 5
    neg, places, joined = (
        told[node] for node in ("Neg node 'neg'", "NonZero node 'places'", "ConcatFromSequence node 'joined'")
    )
    part = "Neg node 'neg' to Exp node 'exp'" if regions else None
    assert (neg["on_encore"], neg["part"]) == (True, part)
    assert neg["why"] == ("a region" if regions else "alone: regions are off")
    assert (places["on_encore"], places["part"]) == (True, None)
    assert (joined["on_encore"], joined["part"]) == (False, None)
    if HAS_GRAPHS:
        outside = onnxruntime_ep_encore.outside_report(session)
        assert len(outside) == (3 if regions else 5)
