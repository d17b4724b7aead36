"""What nodes take on the device: in onnxruntime's profile, and in Encore's own."""

import json
import time
from collections import Counter

import encore_session
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from encore_session import (
    ARRANGEMENTS,
    HAS_REGIONS,
    ORT_VERSION,
    Bound,
    arranged,
    in_threads,
    make_stream,
    needs_graphs,
    only_if,
)
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.core

FLOAT = np.float32
WIDTH = 64
NAMES = ["product", "negative", "absolute", "minus", "sum"]  # of the chain
needs_profilers = only_if(ORT_VERSION >= (1, 25))  # it asks plugins for theirs
needs_regions = only_if(HAS_REGIONS)


def make_session(*args, **options):
    return encore_session.make_session(*args, **{"fuse_elementwise": 0, **options})


def some(rows=3):
    return np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(FLOAT)


def profiled(session, runs, run):
    """What was told, without what fused nodes took beside the nodes inside."""
    with onnxruntime_ep_encore.profiled(session) as spans:
        for _ in range(runs):
            run()
    return spans


def of_nodes(spans, names):
    return [span for span in spans if span["name"] in names]


def expect_runs(spans, names, runs):
    """All nodes in each run, in order and one behind the other."""
    told = of_nodes(spans, names)
    assert [span["name"] for span in told] == names * runs
    assert all(span["us"] > 0 and span["us"] == span["own_us"] for span in told)
    for before, after in zip(told, told[1:]):
        assert after["begin_us"] >= before["begin_us"] + before["us"] - 0.01


def expect_all_in_the_run(spans):
    """What nodes have for themselves is what the outermost have together."""
    outermost = sum(span["us"] for span in spans if span["depth"] == 0)
    assert sum(span["own_us"] for span in spans if not span["replay"]) <= outermost + 1


# ---- Encore's own profile


@pytest.mark.parametrize("options", [{"regions": 0}, {"auto_graph": 0}], ids=["nodes", "regions"])
def test_eager_runs(encore, chain, options):
    model, reference = chain
    session = make_session(model, **options)
    answers = []
    spans = profiled(session, 3, lambda: answers.extend(session.run(None, {"x": some()})))
    for answer in answers:
        np.testing.assert_allclose(answer, reference(some()), rtol=1e-4, atol=1e-4)
    expect_runs(spans, NAMES, 3)
    expect_all_in_the_run(spans)
    assert not any(span["replay"] for span in spans)
    assert {span["name"]: span["op"] for span in of_nodes(spans, NAMES)} == dict(
        zip(NAMES, ["MatMul", "Neg", "Abs", "Neg", "Add"])
    )


def test_automatic_replays(encore, chain):
    model, reference = chain
    session = make_session(model, regions=1, auto_graph=1)
    answers = []
    spans = profiled(session, 8, lambda: answers.extend(session.run(None, {"x": some()})))
    for answer in answers:
        np.testing.assert_allclose(answer, reference(some()), rtol=1e-4, atol=1e-4)
    expect_runs(spans, NAMES, 8)
    replayed = Counter(span["name"] for span in spans if span["replay"])
    assert all(replayed[name] >= 5 for name in NAMES), replayed


def test_automatic_replays_with_tensors_that_move(encore, chain):
    session = make_session(chain[0], regions=1, auto_graph=1)
    kept = []

    def run():
        kept.append(Bound(session, {"x": some()}, {"y": ((3, WIDTH), FLOAT)}))
        kept[-1].run()

    spans = profiled(session, 8, run)
    expect_runs(spans, NAMES, 8)
    copies = [span for span in spans if span["op"] == "copies of what moves"]
    assert copies and all(span["replay"] for span in copies)


@needs_graphs
@pytest.mark.parametrize("regions", [0, 1])
def test_replays_of_a_graph(encore, chain, regions):
    model, reference = chain
    session = make_session(model, enable_cuda_graph=1, regions=regions)
    run = Bound(session, {"x": some()}, {"y": ((3, WIDTH), FLOAT)})
    run.run()
    before = onnxruntime_ep_encore.graph_report(session)
    with onnxruntime_ep_encore.profiled(session) as spans:
        run.run()  # is captured again, with events
        for seed in range(4):
            np.testing.assert_allclose(
                run.run({"x": some() + seed})["y"], reference(some() + seed), rtol=1e-4, atol=1e-4
            )
    whole = [span for span in spans if span["op"] == "Graph"]
    assert [span["name"] for span in whole] == ["graph 0"] * 5
    assert all(span["replay"] and span["depth"] == 0 for span in whole)
    replayed = [span for span in spans if span["replay"]]
    expect_runs(replayed, NAMES, 5)
    assert sum(span["own_us"] for span in replayed) == pytest.approx(sum(span["us"] for span in whole), abs=1)
    assert all(span["own_us"] > -0.01 for span in spans)
    # What comes afterwards is without events again.
    np.testing.assert_allclose(run.run()["y"], reference(some() + 3), rtol=1e-4, atol=1e-4)
    (after,) = onnxruntime_ep_encore.graph_report(session)
    assert after["nodes"] == before[0]["nodes"]


@needs_graphs
def test_a_graph_without_a_profile_has_no_events(encore, chain):
    session = make_session(chain[0], enable_cuda_graph=1, regions=0)
    run = Bound(session, {"x": some()}, {"y": ((3, WIDTH), FLOAT)})
    run.run()
    plain = onnxruntime_ep_encore.graph_report(session)[0]["nodes"]
    with onnxruntime_ep_encore.profiled(session):
        run.run()
        assert onnxruntime_ep_encore.graph_report(session)[0]["nodes"] > plain


def test_a_run_goes_by_its_shapes(encore, chain):
    session = make_session(chain[0], regions=1, auto_graph=1)
    spans = profiled(session, 4, lambda: [session.run(None, {"x": some(rows)}) for rows in (1, 7, 0)])
    assert Counter(span["name"] for span in of_nodes(spans, NAMES))["product"] == 12


def test_a_profile_may_begin_anew_and_end_once(encore, chain):
    session = make_session(chain[0], regions=1, auto_graph=1)
    session.set_ep_dynamic_options({"ep.cuda.profile": "start"})
    for _ in range(4):
        session.run(None, {"x": some()})
    captured = captures(session)
    spans = profiled(session, 2, lambda: session.run(None, {"x": some()}))
    expect_runs(spans, NAMES, 2)
    assert all(span["replay"] for span in of_nodes(spans, NAMES)) and captures(session) == captured
    with pytest.raises(Exception, match="no profile was begun"):
        session.set_ep_dynamic_options({"ep.cuda.profile": "/tmp/never"})


def test_a_session_is_profiled_once_at_a_time(encore, chain):
    session = make_session(chain[0])
    with onnxruntime_ep_encore.profiled(session) as nodes:
        with pytest.raises(RuntimeError, match="is being profiled already"), onnxruntime_ep_encore.profiled(session):
            pass
        session.run(None, {"x": some()})
    assert of_nodes(nodes, NAMES)


def captures(session):
    return sum(region["captures"] for region in onnxruntime_ep_encore.region_report(session))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_wherever_work_is(encore, chain, arrangement):
    stream = make_stream()
    session = make_session(chain[0], **arranged(arrangement, stream))
    spans = profiled(session, 6, lambda: session.run(None, {"x": some()}))
    expect_runs(spans, NAMES, 6)
    assert len({span["stream"] for span in spans}) == 1


def test_what_became_one_operator(encore, make_model):
    """Convolutions take what follows along, and have their channels last."""
    random, half = np.random.default_rng(0), np.float16
    nodes, constants, x = [], [], "x"
    for i in range(4):
        constants.append(numpy_helper.from_array((random.standard_normal((16, 16, 3, 3)) / 12).astype(half), f"w{i}"))
        nodes.append(helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]))
        x = f"r{i}" if i < 3 else "y"
        nodes.append(helper.make_node("Relu", [f"c{i}"], [x], f"relu{i}"))
    form = ([2, 16, 8, 8], TensorProto.FLOAT16)
    session = make_session(make_model(nodes, {"x": form}, {"y": form}, constants))
    spans = profiled(session, 6, lambda: session.run(None, {"x": np.ones(form[0], half)}))
    names = ["x's layout", "conv0", "conv1", "conv2", "conv3", "y's layout"]
    expect_runs(spans, names, 6)
    assert {span["op"] for span in of_nodes(spans, names)} == {"Transpose", "FusedConv"}


# ---- control flow


@pytest.fixture(scope="module")
def branches(make_model):
    """A branch by a constant's shape, a loop of three, and what data decides."""

    def body(name, nodes, inputs, outputs):
        info = lambda ends: [helper.make_tensor_value_info(end, kind, shape) for end, kind, shape in ends]
        return helper.make_graph(nodes, name, info(inputs), info(outputs))

    row = lambda name: (name, TensorProto.FLOAT, [WIDTH])
    loop = body(
        "body",
        [
            helper.make_node("Identity", ["go"], ["go_on"], "go_on"),
            helper.make_node("Mul", ["state", "half"], ["halved"], "halve"),
            helper.make_node("Tanh", ["halved"], ["next"], "squash"),
        ],
        [("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), row("state")],
        [("go_on", TensorProto.BOOL, []), row("next")],
    )
    then = body("then", [helper.make_node("Neg", ["looped"], ["a"], "then_neg")], [], [row("a")])
    other = body("else", [helper.make_node("Abs", ["looped"], ["b"], "else_abs")], [], [row("b")])
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], "exp"),
        helper.make_node("Loop", ["three", "yes", "e"], ["looped"], "loop", body=loop),
        helper.make_node("If", ["choice"], ["y"], "if", then_branch=then, else_branch=other),
    ]
    constants = [
        numpy_helper.from_array(np.array(3, np.int64), "three"),
        numpy_helper.from_array(np.array(True), "yes"),
        numpy_helper.from_array(np.array(0.5, FLOAT), "half"),
    ]
    return make_model(nodes, {"x": [WIDTH], "choice": ([], TensorProto.BOOL)}, {"y": [WIDTH]}, constants)


def feeds_of_branches(choice=True):
    return {"x": np.linspace(-1, 1, WIDTH, dtype=FLOAT), "choice": np.array(choice)}


@pytest.mark.parametrize("options", [{"regions": 0}, {"auto_graph": 0}], ids=["nodes", "regions"])
def test_bodies(encore, branches, options):
    session = make_session(branches, **options)
    spans = profiled(session, 2, lambda: session.run(None, feeds_of_branches()))
    names = [span["name"] for span in of_nodes(spans, ["exp", "halve", "squash", "then_neg", "else_abs"])]
    assert names == ["exp", *["halve", "squash"] * 3, "then_neg"] * 2
    spans = profiled(session, 1, lambda: session.run(None, feeds_of_branches(False)))
    assert of_nodes(spans, ["else_abs"]) and not of_nodes(spans, ["then_neg"])


@needs_regions
def test_bodies_in_replays(encore, branches):
    session = make_session(branches, regions=1, auto_graph=1)
    spans = profiled(session, 8, lambda: session.run(None, feeds_of_branches()))
    assert Counter(span["name"] for span in spans)["squash"] == 24
    replayed = Counter(span["name"] for span in spans if span["replay"])
    assert replayed["halve"] == replayed["squash"] >= 12
    # What a condition on the device decides about is the node's as a whole.
    if replayed["if"]:
        assert not replayed["then_neg"]


# ---- failures and threads


def test_what_failed_is_told_up_to_there(encore, make_model):
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], "exp"),
        helper.make_node("Gather", ["e", "i"], ["g"], "gather"),
        helper.make_node("Neg", ["g"], ["y"], "neg"),
    ]
    model = make_model(nodes, {"x": [4], "i": (["n"], TensorProto.INT64)}, {"y": ["n"]})
    session = make_session(model)
    x, good, bad = np.ones(4, FLOAT), np.array([0], np.int64), np.array([9], np.int64)

    def run():
        with pytest.raises(Exception, match="gather"):
            session.run(None, {"x": x, "i": bad})
        session.run(None, {"x": x, "i": good})

    counts = Counter(span["name"] for span in profiled(session, 2, run))
    assert counts["exp"] == counts["gather"] == 4


def test_a_node_that_throws_is_told(encore, make_model):
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], "exp"),
        helper.make_node("Add", ["e", "b"], ["y"], "add"),
    ]
    session = make_session(make_model(nodes, {"x": ["n"], "b": ["m"]}, {"y": ["k"]}))

    def run():
        with pytest.raises(Exception, match="add"):
            session.run(None, {"x": np.ones(3, FLOAT), "b": np.ones(4, FLOAT)})

    spans = profiled(session, 2, run)
    assert Counter(span["name"] for span in spans)["exp"] == 2


def test_threads(encore, chain):
    model, reference = chain
    session = make_session(model, regions=1, auto_graph=1)

    def work(thread):
        for _ in range(10):
            np.testing.assert_allclose(session.run(None, {"x": some()})[0], reference(some()), rtol=1e-4, atol=1e-4)

    wrong = []
    spans = profiled(session, 1, lambda: wrong.extend(in_threads(4, work)))
    assert not wrong
    counts = Counter(span["name"] for span in spans)
    assert {counts[name] for name in NAMES} == {40}, counts


@needs_graphs
def test_profiles_begin_and_end_beside_runs(encore, chain):
    """A graph that is captured meanwhile is with or without events as the profile wants it then."""
    model, reference = chain
    session = make_session(model, enable_cuda_graph=1, regions=0)
    done = []

    def work(thread):
        try:
            run = Bound(session, {"x": some()}, {"y": ((3, WIDTH), FLOAT)})
            for seed in range(100):
                x = some() + seed
                np.testing.assert_allclose(run.run({"x": x})["y"], reference(x), rtol=1e-4, atol=1e-4)
        finally:
            done.append(thread)

    def profile():
        while len(done) < 3:
            with onnxruntime_ep_encore.profiled(session):
                time.sleep(0.02)  # onnxruntime gives up where each of eight captures is forgotten
            time.sleep(0.02)

    assert not in_threads(3, work, meanwhile=profile)


def test_runs_that_nobody_waits_for(encore, chain):
    session = make_session(chain[0], regions=0)
    run = Bound(session, {"x": some()}, {"y": ((3, WIDTH), FLOAT)})
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    spans = profiled(session, 5, lambda: session.run_with_iobinding(run.binding, options))
    expect_runs(spans, NAMES, 5)


def test_profiles_leave_no_memory(encore, chain):
    session = make_session(chain[0], regions=1, auto_graph=1)
    held = []
    for _ in range(3):
        profiled(session, 5, lambda: session.run(None, {"x": some()}))
        held.append(onnxruntime_ep_encore.memory_report(session)["arena"]["in_use_bytes"])
    assert held[0] == held[1] == held[2]


# ---- onnxruntime's profile


def with_onnxruntime(model, folder, runs=3, feeds=None, bound=False, **options):
    """The device's part of the profile, and the rest of it."""
    settings = ort.SessionOptions()
    settings.enable_profiling = True
    settings.profile_file_prefix = str(folder / "profile")
    session = make_session(model, settings, **options)
    run = lambda: session.run(None, feeds or {"x": some()})  # noqa: E731
    if bound:
        run = Bound(session, {"x": some()}, {"y": ((3, WIDTH), FLOAT)}).run
    for _ in range(runs):
        run()
    with open(session.end_profiling()) as file:
        events = json.load(file)
    run()  # goes on without
    of_device = [event for event in events if event["args"].get("provider") == "Encore"]
    return of_device, [event for event in events if event not in of_device]


@only_if(ORT_VERSION < (1, 25))
def test_older_ones_have_no_device_times(encore, chain, tmp_path):
    of_device, others = with_onnxruntime(chain[0], tmp_path)
    assert not of_device and others


@needs_profilers
@pytest.mark.parametrize("options", [{"regions": 0}, {"auto_graph": 0}, {"auto_graph": 1}], ids=str)
def test_onnxruntimes_profile(encore, chain, tmp_path, options):
    told, others = with_onnxruntime(chain[0], tmp_path, 6, **options)
    nodes = [event for event in told if event["name"] in NAMES]
    assert [event["name"] for event in nodes] == NAMES * 6
    for event in nodes:
        assert event["cat"] == "Kernel" and event["ph"] == "X"
        assert event["dur"] == pytest.approx(float(event["args"]["gpu_us"]), abs=1.01)
        assert float(event["args"]["gpu_own_us"]) > 0
    how = {event["args"]["how"] for event in nodes}
    assert how == ({"eager", "replay"} if options.get("auto_graph") else {"eager"})
    # Each run's nodes are inside of what the host calls the run.
    runs = [event for event in others if event["name"] == "model_run"]
    assert len(runs) == 6
    slack = 2000  # microseconds, between the clocks
    for i, run in enumerate(sorted(runs, key=lambda event: event["ts"])):
        inside = nodes[i * len(NAMES) : (i + 1) * len(NAMES)]
        assert run["ts"] - slack <= inside[0]["ts"] and inside[-1]["ts"] <= run["ts"] + run["dur"] + slack


@needs_profilers
@needs_graphs
def test_onnxruntimes_profile_of_replays(encore, chain, tmp_path):
    told, _ = with_onnxruntime(chain[0], tmp_path, 4, bound=True, enable_cuda_graph=1)
    replayed = [event["name"] for event in told if event["args"]["how"] == "replay" and event["name"] in NAMES]
    assert replayed == NAMES * 4


@needs_profilers
def test_a_profile_of_one_run(encore, make_application, tmp_path):
    """Which applications in C can ask for."""
    application = make_application(regions=0)
    application.execute()
    application.execute(profile=tmp_path / "one")
    application.execute()
    (file,) = tmp_path.glob("one*.json")
    told = [event for event in json.loads(file.read_text()) if event["args"].get("provider") == "Encore"]
    assert [event["name"] for event in told] == ["mm", "relu", "add"]


@needs_profilers
def test_a_profile_that_the_session_ends(encore, chain, tmp_path):
    """onnxruntime writes it as the session goes."""
    settings = ort.SessionOptions()
    settings.enable_profiling = True
    settings.profile_file_prefix = str(tmp_path / "profile")
    session = make_session(chain[0], settings)
    session.run(None, {"x": some()})
    del session
    (file,) = tmp_path.glob("profile*.json")
    events = json.loads(file.read_text())
    assert {event["name"] for event in events if event["args"].get("provider") == "Encore"} >= set(NAMES)
