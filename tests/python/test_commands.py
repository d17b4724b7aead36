"""The command `encore`, as the wheel brings it: what it says of a model, and of mistakes."""

import ctypes
import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime_ep_encore
import pytest
from encore_session import HAS_GRAPHS, ROOT, make_session, needs_graphs
from onnx import TensorProto, helper
from onnxruntime_ep_encore.commands import bars, bench, environment, gpu_memory, inputs, measure, progress, results
from PIL import Image

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
    assert "what they become: 1 Elementwise" in done.stdout
    assert "replayed    1 of 1 region" in done.stdout
    told = json.loads((tmp_path / "told.json").read_text())
    assert [one["inputs"]["x"] for one in told["runs"]] == [[2], [5]]
    assert [one["outputs"]["y"] for one in told["runs"]] == [[4], [10]]
    assert all(one["replayed"] == 1 and one["distance_from_cpu"] < 1e-5 for one in told["runs"])


def test_check_of_the_machine():
    done = run("check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok       onnxruntime 1." in done.stdout and "a model of one node ran on" in done.stdout
    done = run("check", "--json", "told.json")
    assert done.returncode == 2 and "--json tells of a model, and none was named" in done.stderr


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
    assert "\nmemory " in done.stdout and "\r" not in done.stderr


def test_bench_tells_the_costliest_nodes(file, tmp_path):
    told = tmp_path / "told.json"
    done = run("bench", file, "--shape", "n=3", "--seconds", "0.01", "--no-cpu", "--profile", "--json", told)
    assert done.returncode == 0, done.stderr
    ways = json.loads(told.read_text())["shapes"][0]["ways"]
    for way in ("eager", "automatic"):
        nodes = {node["name"]: node for node in ways[way]["profile"]}
        assert nodes["mm"]["op"] == "MatMul" and nodes["mm"]["us"] > 0
        for name in ("mm", "relu to add"):
            assert nodes[name]["calls"] == pytest.approx(1)
            assert nodes[name]["replayed"] == pytest.approx(float(way == "automatic"))
    assert ways["bound"]["profile"] is None
    lines = done.stdout.splitlines()
    for name in ("eager", "automatic"):
        at = next(i for i, line in enumerate(lines) if line.startswith(f"  {name}: a run takes"))
        assert any(line.split()[:2] == ["mm", "MatMul"] and line.split()[-1] == "1" for line in lines[at : at + 12])


@pytest.fixture(scope="module")
def told_in_words(tmp_path_factory):
    """Of three classes a text, and a sequence of maps."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["which"], "which", axis=1, keepdims=0),
        helper.make_node("Gather", ["names", "which"], ["label"], "label"),
        helper.make_node("ZipMap", ["x"], ["all"], "all", domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"]),
    ]
    each = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph = helper.make_graph(
        nodes,
        "told",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [
            helper.make_tensor_value_info("label", TensorProto.STRING, ["n"]),
            helper.make_value_info("all", helper.make_sequence_type_proto(each)),
        ],
        [helper.make_tensor("names", TensorProto.STRING, [3], ["a", "b", "c"])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    file = tmp_path_factory.mktemp("models") / "told.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)
    return file


def test_texts_and_maps_are_compared_too(told_in_words, tmp_path):
    told = tmp_path / "told.json"
    done = run("check", told_in_words, "--shape", "n=2", "--json", told)
    assert done.returncode == 0, done.stderr
    (one,) = json.loads(told.read_text())["runs"]
    assert one["outputs"] == {"label": [2], "all": [2]} and one["distance_from_cpu"] == 0 and not one["unlike_cpu"]
    done = run("bench", told_in_words, "--shape", "n=2", "--seconds", "0.01", "--json", told)
    assert done.returncode == 0, done.stderr
    ways = json.loads(told.read_text())["shapes"][0]["ways"]
    assert all(ways[name]["distance_from_cpu"] == 0 for name in ("eager", "automatic"))
    assert "output label is a tensor(string), which is not bound to a device's memory" in ways["bound"]["error"]


@needs_graphs
def test_bench_tells_why_there_is_no_graph(in_parts, tmp_path):
    done = run("bench", in_parts, "--shape", "n=3", "--seconds", "0.01", "--no-cpu", "--json", tmp_path / "told.json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads((tmp_path / "told.json").read_text())["shapes"]
    assert "NonZero node 'places'" in told["ways"]["graph"]["error"]
    assert told["ways"]["automatic"]["distance_from_cpu"] is None


# ---- bench's picture


def row(median_us, p99_us):
    return {"median_us": median_us, "p99_us": p99_us}


def drawn(*ways):
    """The bench's picture of these ways, a shape each."""
    told = [{"inputs": {"x": [i, 8], "less<more": []}, "ways": one} for i, one in enumerate(ways)]
    return bench._picture("model & more", told)


def words(picture):
    return [text[-1] for text in picture.texts]


def test_a_picture_has_the_tables_words(file, tmp_path):
    files = tmp_path / "times.svg", tmp_path / "told.json"
    options = ["--shape", "n=1,3", "--seconds", "0.01", "--no-cpu"]
    done = run("bench", file, *options, "--picture", files[0], "--json", files[1])
    assert done.returncode == 0, done.stderr
    told = json.loads(files[1].read_text())
    texts = [element.text for element in ElementTree.parse(files[0]).iter() if element.tag.endswith("text")]
    assert texts[0] == f"layer.onnx on {told['device']}"
    assert [text for text in texts if text.startswith("x ")] == ["x 1x8", "x 3x8"]
    lines = [line.split() for line in done.stdout.splitlines()]
    for one in told["shapes"]:
        for name in one["ways"]:
            at = next(i for i, text in enumerate(texts) if text == name)
            median, p99 = texts[at + 1].split(", p99 ")
            assert any(line[:1] == [name] and {*median.split(), *p99.split()} <= {*line} for line in lines)
            del texts[at : at + 2]


def test_bars_are_as_long_as_what_they_tell():
    picture = drawn({"CPU": row(300, 330), "eager": row(200, 400), "automatic": row(100, 100)})
    lengths = [rect[2] for rect in picture.rects]
    assert lengths == pytest.approx([3 * lengths[2], 2 * lengths[2], lengths[2]])
    left = picture.rects[0][0]
    ends = [line[2] - left for line in picture.lines if line[1] == line[3]]
    assert ends == pytest.approx([3.3 * lengths[2], 4 * lengths[2]]) and len(picture.lines) == 4
    assert [rect[-1] for rect in picture.rects] == [bars.OTHERS, bars.OURS, bars.OURS]
    assert not any("gap" in text for text in words(picture))


def test_what_leaves_the_others_no_room_is_cut():
    picture = drawn({"CPU": row(90_000, 99_000), "eager": row(200, 9000)}, {"eager": row(100, 100)})
    cut, rest, *others = picture.rects
    assert rest[0] == cut[0] + cut[2] + bars.CUT
    assert [rect[2] for rect in others] == pytest.approx([(rest[0] + rest[2] - cut[0]) / 2**i for i in (1, 2)])
    ((x, y, end_x, end_y),) = picture.lines  # without an end, and none at the bar that is cut
    assert (x, end_x, y) == pytest.approx((others[0][0] + others[0][2], rest[0] + rest[2], end_y))
    assert "90.0 ms, p99 99.0 ms" in words(picture) and any("gap" in text for text in words(picture))


def test_a_way_that_failed_has_its_words():
    picture = drawn({"automatic": row(1, 2), "graph": {"error": "RuntimeError: " + "too long " * 40}})
    assert len(picture.rects) == 1
    (told,) = [text for text in words(picture) if text.startswith("RuntimeError: too long")]
    assert told.endswith("…") and len(told) < 100
    assert not drawn({"automatic": {"error": "all failed"}}).rects


@pytest.mark.parametrize("suffix", bars.SUFFIXES)
def test_pictures_are_written(tmp_path, suffix):
    """Bars, a whisker and words within the picture, on nothing: a page of any colour shows through."""
    picture = drawn({"CPU": row(2e6, 3e6), "automatic": row(100, 150)}, {"automatic": row(200, 300)})
    file = tmp_path / f"$x$ times{suffix}"
    bars.write(picture, file)
    if suffix == ".svg":
        root = ElementTree.parse(file).getroot()
        assert root.get("aria-label") == "model & more"
        assert [int(length) for length in root.get("viewBox").split()] == [0, 0, bars.WIDTH, picture.height]
        kinds = [element.tag.rpartition("}")[2] for element in root]
        found = {kind: kinds.count(kind) for kind in kinds}
        assert found == {"rect": len(picture.rects), "path": len(picture.lines), "text": len(picture.texts)}
        return
    with Image.open(file) as image:
        pixels = np.array(image.convert("RGBA")).astype(int)
    assert pixels.shape == (2 * picture.height, 2 * bars.WIDTH, 4)
    edge = np.concatenate([pixels[:4].reshape(-1, 4), pixels[-4:].reshape(-1, 4), pixels[:, -4:].reshape(-1, 4)])
    assert (edge[:, 3] == 0).all()
    for x, y, width, height, colour in picture.rects:
        seen = pixels[round(2 * y + height), round(2 * x + width)]
        assert seen.tolist() == [*bytes.fromhex(colour[1:]), 255]
    for x, y, _, _ in picture.lines[::2]:
        assert pixels[round(2 * y) - 2 : round(2 * y) + 2, round(2 * x) + 4, 3].max() > 0
    for x, y, anchor, _, _ in picture.texts:
        beside = slice(round(2 * x), round(2 * x) + 12) if anchor == "start" else slice(round(2 * x) - 12, round(2 * x))
        assert pixels[round(2 * y) - 20 : round(2 * y), beside, 3].max() > 0


# ---- bench's memory


def measured(file, tmp_path, used_bytes):
    np.savez(tmp_path / "feeds.npz", x=np.ones([3, 8], np.float32))
    spec = {"model": str(file), "feeds": str(tmp_path / "feeds.npz"), "outputs": str(tmp_path / "outputs.npz")}
    spec |= {"provider": "CPUExecutionProvider", "bound": False, "graph": False, "profile": False, "seconds": 0}
    return measure.measure(spec, used_bytes)["held_bytes"]


def test_other_providers_memory_is_what_the_gpu_has_more_in_use(file, tmp_path, monkeypatch):
    assert measured(file, tmp_path, iter([100, 350]).__next__) is None  # the CPU's is nobody's matter
    monkeypatch.setattr(measure, "ON_CUDA", ("CPUExecutionProvider",))
    assert measured(file, tmp_path, iter([100, 350]).__next__) == 250
    assert measured(file, tmp_path, lambda: None) is None  # there is no driver


def test_what_the_driver_says_of_memory():
    calls = []

    def driver(failing=None):
        def call(name, *values):
            def called(*arguments):
                calls.append(name)
                for argument, value in zip(arguments, values):
                    argument._obj.value = value
                return int(name == failing)

            return called

        named = {"cuInit": (), "cuDeviceGet": (0,), "cuDevicePrimaryCtxRetain": (7,), "cuCtxPushCurrent_v2": ()}
        named |= {"cuMemGetInfo_v2": (300, 1000), "cuCtxPopCurrent_v2": (7,)}
        return SimpleNamespace(**{name: call(name, *values) for name, values in named.items()})

    assert gpu_memory.used_bytes(driver()) == 700
    assert calls[-3:] == ["cuCtxPushCurrent_v2", "cuMemGetInfo_v2", "cuCtxPopCurrent_v2"]
    for failing in list(calls):
        assert gpu_memory.used_bytes(driver(failing)) is None


def test_without_a_driver_nothing_is_said_of_memory(monkeypatch):
    def none(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", none)
    assert gpu_memory.used_bytes() is None


# ---- bench's progress


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_how_far_it_is(monkeypatch, is_terminal):
    shown = io.StringIO()
    shown.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", shown)
    steps = progress.Progress(4)
    for name in ("CPU", "eager"):
        with steps.step(name):
            pass
    states = [
        f"  [{'.' * 24}] 0 of 4 done, now CPU",
        f"  [{'#' * 6}{'.' * 18}] 1 of 4 done, now eager",
    ]
    cleared = "\x1b[K"
    wanted = "".join(f"{state}\r{cleared}\r" for state in states)
    assert shown.getvalue() == (wanted if is_terminal else "")


# ---- mistakes


@pytest.mark.parametrize(
    "option, file_name, words",
    [
        ("--picture", "times.pdf", "times.pdf: a picture is one of .svg, .png"),
        ("--picture", "times", "times: a picture is one of .svg, .png"),
        ("--picture", "none/times.svg", "none/times.svg: there is no folder "),
        ("--picture", "folder.svg", "folder.svg is a folder"),
        ("--picture", "times.png", "times.png: there is none here; `pip install matplotlib`, or write "),
        ("--json", "none/told.json", "none/told.json: there is no folder "),
    ],
)
def test_files_that_cannot_be_written_are_told_before_anything_is_timed(
    file, tmp_path, monkeypatch, option, file_name, words
):
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "matplotlib.py").write_text("raise ImportError('there is none here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")]))
    done = run("bench", file, option, tmp_path / file_name)
    assert done.returncode == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("encore: ") and words in line


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
    texts, maps = np.array(["a", "b"], object), [{"a": 1.0, "b": 2.0}]
    assert results.distance([texts, maps], [texts, maps]) == 0
    assert results.distance([[{"a": 1.0, "b": 3.0}]], [maps]) == 0.5
    for other in ([{"a": 1.0}], [{"a": 1.0, "c": 2.0}], [], texts):
        assert results.distance([other], [maps]) == np.inf
    assert results.distance([texts[::-1]], [texts]) == np.inf


def test_json_has_no_infinity():
    one, two = [np.ones(2)], [np.ones(3)]
    assert results.agreement(one, one) == {"distance_from_cpu": 0, "unlike_cpu": False}
    assert results.agreement(one, two) == {"distance_from_cpu": None, "unlike_cpu": True}
    assert results.agreement(one, None) == {"distance_from_cpu": None, "unlike_cpu": False}


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
