"""Many threads, many graphs, many sessions at once."""

import gc
import threading

import encore_session
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from encore_session import EAGER, HAS_GRAPHS, Bound, in_threads, make_session, needs_graphs
from onnx import TensorProto, helper, numpy_helper
from test_sessions import close, graph_session, some, states

pytestmark = pytest.mark.core

THREADS, IDS = 8, 4


def rows_of(thread, graph_id):
    """Every graph has a shape of its own, so that a mix-up shows."""
    return 1 + thread + THREADS * graph_id


def bound(session, rows):
    return Bound(session, {"x": np.zeros((rows, 8), np.float32)}, {"y": ([rows, 8], np.float32)})


@needs_graphs
def test_eight_threads_with_four_graphs_each_and_eager_runs_between(encore, layer):
    model, expected = layer
    session = graph_session(model)
    start = threading.Barrier(THREADS)

    def work(thread):
        runs = {graph_id: bound(session, rows_of(thread, graph_id)) for graph_id in range(IDS)}
        start.wait()
        for round_ in range(6):
            for graph_id, run in runs.items():
                x = some(rows_of(thread, graph_id), seed=100 * thread + round_)
                close(run.run({"x": x}, graph_id=graph_id)["y"], expected(x))
                close(session.run(None, {"x": x}, encore_session.run_options(EAGER))[0], expected(x))
        assert states(session) == dict.fromkeys(range(IDS), "ready")

    assert not in_threads(THREADS, work)


@needs_graphs
def test_threads_that_have_ended_leave_no_graphs_behind(encore, layer):
    """Their memory serves the threads that come after: what a session holds doesn't grow."""
    model, expected = layer
    session = graph_session(model, gpu_mem_limit=64 << 20)
    x = some(1 << 14)  # half a mebibyte; each graph holds several

    def work(_):
        run = bound(session, len(x))
        close(run.run({"x": x})["y"], expected(x))
        (report,) = onnxruntime_ep_encore.graph_report(session)
        assert report["held_bytes"] > x.nbytes

    for _ in range(100):  # more than the limit has room for
        wrong = in_threads(1, work)
        assert not wrong, wrong


@needs_graphs
def test_sessions_come_and_go_while_others_capture_and_run(encore, layer):
    model, expected = layer
    stop = threading.Event()
    opened = []

    def open_and_close():
        while not stop.is_set():
            close(make_session(model).run(None, {"x": some(100)})[0], expected(some(100)))
            gc.collect()
            opened.append(1)

    def run_eagerly():
        session = make_session(model)
        for n in range(1, 100000):
            if stop.is_set():
                return
            x = some(n % 300 + 1, n)
            close(session.run(None, {"x": x})[0], expected(x))

    def replay():
        run = bound(graph_session(model), 4)
        seed = 0
        while not stop.is_set():
            seed += 1
            close(run.run({"x": some(4, seed)})["y"], expected(some(4, seed)))

    def capture():
        for n in range(1, 25):
            session = graph_session(model)
            for graph_id in range(3):
                close(bound(session, n).run({"x": some(n)}, graph_id=graph_id)["y"], expected(some(n)))

    busy = [open_and_close, run_eagerly, replay]
    assert not in_threads(len(busy), lambda i: busy[i](), meanwhile=capture, finally_=stop.set)
    assert opened


# ---- one id fails, the others go on


def replays(session):
    """Of each id; the run that captures is none."""
    return [report["replays"] for report in onnxruntime_ep_encore.graph_report(session)]


@needs_graphs
def test_a_failed_capture_leaves_the_other_graphs_alone(encore, layer):
    model, expected = layer
    session = graph_session(model)
    runs = [bound(session, 2 + graph_id) for graph_id in range(2)]
    close(runs[0].run({"x": some(2)}, graph_id=0)["y"], expected(some(2)))
    for seed in range(2):
        with pytest.raises(Exception, match="input 'x' .* is in host memory"):
            session.run(None, {"x": some(3)}, encore_session.run_options(1))
        assert states(session) == {0: "ready", 1: "refused"}
        close(runs[0].run({"x": some(2, seed)}, graph_id=0)["y"], expected(some(2, seed)))
    for seed in range(3):
        for graph_id, run in enumerate(runs):
            x = some(2 + graph_id, seed)
            close(run.run({"x": x}, graph_id=graph_id)["y"], expected(x))
    assert states(session) == {0: "ready", 1: "ready"}
    assert replays(session) == [5, 2]


@needs_graphs
def test_failed_captures_leave_the_replays_of_other_threads_alone(encore, layer):
    model, expected = layer
    session = graph_session(model)

    def work(thread):
        run = bound(session, 2 + thread)
        for seed in range(30):
            x = some(2 + thread, seed)
            close(run.run({"x": x}, graph_id=0)["y"], expected(x))
            if thread:
                with pytest.raises(Exception, match="input 'x' .* is in host memory"):
                    session.run(None, {"x": x}, encore_session.run_options(1))
        assert replays(session)[0] == 29

    assert not in_threads(2, work)


@needs_graphs
def test_a_failed_warm_up_leaves_the_other_graphs_alone(encore, make_model):
    four_rows = numpy_helper.from_array(np.array([4, 3], np.int64), "shape")
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"], "reshape"),
        helper.make_node("Add", ["r", "r"], ["y"], "double"),
    ]
    session = graph_session(make_model(nodes, {"x": ["n", 3]}, {"y": [4, 3]}, [four_rows]))
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    good, bad, again = (Bound(session, {"x": x}, {"y": ([4, 3], np.float32)}) for x in (table, table[:3], table))
    np.testing.assert_array_equal(good.run(graph_id=0)["y"], 2 * table)
    for _ in range(2):
        with pytest.raises(Exception, match="reshape"):
            bad.run(graph_id=1)
        np.testing.assert_array_equal(good.run({"x": table + 1}, graph_id=0)["y"], 2 * (table + 1))
    np.testing.assert_array_equal(again.run(graph_id=1)["y"], 2 * table)
    assert states(session) == {0: "ready", 1: "ready"}


@pytest.fixture
def lookup(make_model):
    """A model that picks rows of x."""
    node = helper.make_node("Gather", ["x", "i"], ["y"], "lookup")
    return make_model([node], {"x": [5, 2], "i": (["n"], TensorProto.INT64)}, {"y": ["n", 2]})


ROWS = np.arange(10, dtype=np.float32).reshape(5, 2)


@needs_graphs
def test_a_fault_in_a_replay_leaves_the_other_graphs_alone(encore, lookup):
    session = graph_session(lookup)
    runs = [Bound(session, {"x": ROWS, "i": np.int64([0, 1])}, {"y": ([2, 2], np.float32)}) for _ in range(2)]
    for graph_id, run in enumerate(runs):
        run.run(graph_id=graph_id)
    for row in range(5):
        with pytest.raises(Exception, match=r"Gather node 'lookup': index 9 is outside \[-5, 5\)"):
            runs[1].run({"i": np.int64([row, 9])}, graph_id=1)
        for graph_id, run in enumerate(runs):
            indices = np.int64([row, graph_id])
            np.testing.assert_array_equal(run.run({"i": indices}, graph_id=graph_id)["y"], ROWS[indices])
    assert replays(session) == [5, 10]


def pick_rows(session, graph_id, bad):
    """With indices of which some are out of range, if it is to be bad: then that run alone has to fail."""
    run = Bound(session, {"x": ROWS, "i": np.int64([0, 1])}, {"y": ([2, 2], np.float32)})
    run.run(graph_id=graph_id)
    for turn in range(200):
        if bad and turn % 2:
            with pytest.raises(Exception, match=rf"Gather node 'lookup': index {100 + turn} is outside"):
                run.run({"i": np.int64([1, 100 + turn])}, graph_id=graph_id)
        else:
            indices = np.int64([turn % 5, 3])
            np.testing.assert_array_equal(run.run({"i": indices}, graph_id=graph_id)["y"], ROWS[indices])


@pytest.mark.parametrize("graphs", [0, 1] if HAS_GRAPHS else [0])
@pytest.mark.parametrize("unified", [0, 1])
def test_a_fault_fails_no_run_of_another_thread(encore, lookup, graphs, unified):
    session = make_session(lookup, enable_cuda_graph=graphs, use_ep_level_unified_stream=unified)
    assert not in_threads(2, lambda thread: pick_rows(session, thread, bad=thread == 1))


def test_a_fault_fails_a_run_that_onnxruntime_spreads_over_threads(encore, make_model):
    branches = [f"branch{i}" for i in range(4)]
    nodes = [helper.make_node("Gather", ["rows", f"{name}_i"], [f"{name}_y"], name) for name in branches]
    inputs = {f"{name}_i": (["n"], TensorProto.INT64) for name in branches}
    outputs = {f"{name}_y": ["n", 2] for name in branches}
    model = make_model(nodes, inputs, outputs, [numpy_helper.from_array(ROWS, "rows")])
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    session = make_session(model, options)
    for turn in range(40):
        bad = branches[turn % 8] if turn % 8 < 4 else None
        feeds = {f"{name}_i": np.full(50, 100 if name == bad else turn % 5) for name in branches}
        if bad:
            with pytest.raises(Exception, match=f"Gather node '{bad}': index 100 is outside"):
                session.run(None, feeds)
        else:
            for y in session.run(None, feeds):
                np.testing.assert_array_equal(y, np.tile(ROWS[turn % 5], (50, 1)))


@needs_graphs
def test_captures_held_back_by_one_thread_wait_in_others(encore, layer):
    model, expected = layer
    session = make_session(model, enable_cuda_graph=1)
    x = np.ones((2, 8), np.float32)
    order = []

    def capture():
        np.testing.assert_allclose(Bound(session, {"x": x}, {"y": ([2, 8], np.float32)}).run()["y"], expected(x), 1e-5)
        order.append("captured")

    other = threading.Thread(target=capture)
    with onnxruntime_ep_encore.captures_held_back(session):
        other.start()
        other.join(0.3)
        order.append("let go")
    other.join()
    assert order == ["let go", "captured"]


@needs_graphs
def test_who_holds_captures_back_hears_why_it_cannot_capture(encore, layer):
    model, expected = layer
    session = make_session(model, enable_cuda_graph=1)
    x = np.ones((2, 8), np.float32)
    bound = Bound(session, {"x": x}, {"y": ([2, 8], np.float32)})
    with onnxruntime_ep_encore.captures_held_back(session):
        with pytest.raises(Exception, match="the same thread holds captures back"):
            bound.run()
        np.testing.assert_allclose(bound.run(graph_id=EAGER)["y"], expected(x), 1e-5)
    np.testing.assert_allclose(bound.run()["y"], expected(x), 1e-5)
