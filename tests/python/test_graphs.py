"""What a captured graph holds, and what becomes of what it cannot hold."""

import gc
import threading

import encore_session
import numpy as np
import onnxruntime_ep_encore
import pytest
from encore_session import EAGER, ORT_VERSION, Bound, in_threads, make_session, needs_graphs, only_if
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.core

FLOAT = np.float32
W = np.arange(12, dtype=FLOAT).reshape(4, 3)
needs_release = only_if(ORT_VERSION >= (1, 30))  # release_captured_graph


def graph_session(model, **options):
    return make_session(model, enable_cuda_graph=1, **options)


def reports(session):
    return {report["id"]: report for report in onnxruntime_ep_encore.graph_report(session)}


def states(session):
    return {graph_id: report["state"] for graph_id, report in reports(session).items()}


def in_thread(work):
    """In a thread of its own: what goes wrong there may not be its fault alone."""
    wrong = in_threads(1, lambda _: work())
    if wrong:
        raise wrong[0]


@pytest.fixture
def add(make_model):
    """y = x + w, for any number of rows that goes with w's; w is of (4, 3)."""

    def make(**further_outputs):
        node = helper.make_node("Add", ["x", "w"], ["y"], "add")
        outputs = {"y": ["n", 3], **further_outputs}
        return make_model([node], {"x": ["n", 3]}, outputs, [numpy_helper.from_array(W, "w")])

    return make


def bound(session, rows=4):
    return Bound(session, {"x": np.zeros((rows, 3), FLOAT)}, {"y": ([4, 3], FLOAT)})


# ---- what it was captured with stays its own


def others():
    """Tensors of the same size, and more than was freed."""
    return [encore_session.on_device(np.full((4, 3), 7, FLOAT)) for _ in range(64)]


def untouched(values):
    return all((value.numpy() == 7).all() for value in values)


MEMORY = {
    "arena": {},
    "no arena": {"use_arena": 0},
    "mempool": {"arena.use_cuda_mempool": 1},
    "the environment's": {"config": {"session.use_env_allocators": 1}},
}


@needs_graphs
@pytest.mark.parametrize("memory", MEMORY)
def test_what_a_graph_was_captured_with_is_given_to_nobody_else(encore, add, memory):
    session = graph_session(add(), **MEMORY[memory])
    run = bound(session)
    run.run({"x": W})
    del run
    gc.collect()
    strangers = others()
    bound(session).run()  # writes where the first one's output was
    bound(session).run()
    assert untouched(strangers), "a replay wrote there"
    assert reports(session)[0]["retained_bytes"] == 2 * 256  # x and y, of one unit each
    if ORT_VERSION >= (1, 30):
        session.release_captured_graph(0)
        np.testing.assert_array_equal(bound(session).run({"x": W})["y"], 2 * W)


@needs_release
def test_what_only_a_graph_still_holds_is_reported_until_it_is_released(encore, add):
    session = graph_session(add(), **MEMORY["the environment's"])
    gc.collect()
    arena = lambda: {
        key: onnxruntime_ep_encore.memory_report(session)["arena"][key] for key in ("in_use_bytes", "graph_bytes")
    }
    before = arena()
    run = bound(session)
    run.run({"x": W})
    held = reports(session)[0]["held_bytes"]
    assert arena() == {"in_use_bytes": before["in_use_bytes"] + 512, "graph_bytes": before["graph_bytes"] + held}
    y = run.outputs["y"]
    del run
    gc.collect()
    assert arena() == {"in_use_bytes": before["in_use_bytes"] + 256, "graph_bytes": before["graph_bytes"] + held + 256}
    del y
    gc.collect()
    assert arena() == {"in_use_bytes": before["in_use_bytes"], "graph_bytes": before["graph_bytes"] + held + 512}
    session.release_captured_graph(0)
    assert arena() == before


@needs_graphs
def test_a_graph_reads_what_another_ones_capture_has_made(encore, add):
    session, other = graph_session(add()), graph_session(add())
    binding = encore_session.bind_unallocated(session, encore_session.on_device(W))
    session.run_with_iobinding(binding)
    (made,) = binding.get_outputs()  # in the first graph's memory
    run = other.io_binding()
    y = encore_session.empty_on_device([4, 3])
    run.bind_ortvalue_input("x", made)
    run.bind_ortvalue_output("y", y)
    other.run_with_iobinding(run)
    del session, binding, made, run
    gc.collect()
    strangers = others()
    again = other.io_binding()
    again.bind_ortvalue_input("x", encore_session.on_device(0 * W))
    again.bind_ortvalue_output("y", y)
    other.run_with_iobinding(again)  # whose own x is read: the graph's is nobody's any more
    np.testing.assert_array_equal(y.numpy(), W)
    assert untouched(strangers), "a replay wrote there"


# ---- releases


@needs_release
@pytest.mark.parametrize("unified", [0, 1])
def test_releases_disturb_no_run_of_another_thread(encore, add, unified):
    session = graph_session(add(), use_ep_level_unified_stream=unified, min_num_runs_before_cuda_graph_capture=1)
    stop = threading.Event()

    def work(thread):
        runs = [bound(session) for _ in range(3)]
        for turn in range(400):
            graph_id = (thread + turn // 2) % 3
            x = W + thread * 1000 + turn
            np.testing.assert_array_equal(runs[graph_id].run({"x": x}, graph_id=graph_id)["y"], x + W)
            if turn % 2:  # after an eager run onnxruntime asks other questions
                np.testing.assert_array_equal(runs[graph_id].run({"x": -x}, graph_id=EAGER)["y"], W - x)

    def release():
        while not stop.is_set():
            for graph_id in range(3):
                session.release_captured_graph(graph_id)

    releaser = threading.Thread(target=release)
    releaser.start()
    wrong = in_threads(8, work)
    stop.set()
    releaser.join()
    assert not wrong, wrong


# ---- outputs that no node makes on the device


@needs_graphs
@pytest.mark.parametrize("on_error", ["fail", "eager"])
def test_an_initializer_that_is_an_output_is_captured(encore, add, on_error):
    session = graph_session(add(w=[4, 3]), graph_on_error=on_error)
    run = Bound(session, {"x": W}, {"y": ([4, 3], FLOAT), "w": ([4, 3], FLOAT)})
    for turn in range(4):
        run.outputs["w"].update_inplace(np.full((4, 3), np.nan, FLOAT))
        out = run.run({"x": W + turn})
        np.testing.assert_array_equal(out["y"], 2 * W + turn)
        np.testing.assert_array_equal(out["w"], W)
    assert states(session) == {0: "ready"}


@needs_graphs
@pytest.mark.parametrize("on_error", ["fail", "eager"])
def test_an_initializer_wanted_on_the_host_is_refused_by_name(encore, add, on_error):
    session = graph_session(add(w=[4, 3]), graph_on_error=on_error)
    run = bound(session)
    run.binding.bind_output("w", "cpu")

    def work():
        for _ in range(3):
            if on_error == "fail":
                with pytest.raises(Exception, match=r"output .*'w' \(float\[4,3\]\) is wanted in host memory"):
                    run.run({"x": W})
            else:
                np.testing.assert_array_equal(run.run({"x": W})["y"], 2 * W)
                np.testing.assert_array_equal(run.binding.get_outputs()[1].numpy(), W)
        assert states(session) == {0: "refused"}
        # The thread goes on.
        whole = session.run(None, {"x": W}, encore_session.run_options(EAGER))
        np.testing.assert_array_equal(whole, [2 * W, W])
        np.testing.assert_array_equal(bound(graph_session(add())).run({"x": W})["y"], 2 * W)

    in_thread(work)


@needs_graphs
def test_a_run_without_memory_for_an_initializers_output_leaves_nothing_behind(encore, make_model, add):
    """onnxruntime never tells the end of such a run."""
    size = 1 << 18
    node = helper.make_node("Add", ["x", "w"], ["y"], "add")
    w = numpy_helper.from_array(np.ones(size, FLOAT), "w")
    model = make_model([node], {"x": [1]}, {"y": [size], "w": [size]}, [w])
    for shared in (0, 1):
        session = graph_session(model, gpu_mem_limit=(1 << 20) + 8192, use_ep_level_unified_stream=shared)
        x, y = encore_session.on_device(np.ones(1, FLOAT)), encore_session.empty_on_device([size])
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_ortvalue_output("y", y)
        binding.bind_output("w", "cpu")
        good = Bound(session, {"x": np.ones(1, FLOAT)}, {"y": ([size], FLOAT), "w": ([size], FLOAT)})

        def fail(session=session, binding=binding):
            for graph_id in (EAGER, 0, 0):
                with pytest.raises(Exception, match="no memory to be copied to: .*device memory is exhausted"):
                    session.run_with_iobinding(binding, encore_session.run_options(graph_id))

        fail()
        in_thread(fail)  # which ends, and with it what it had left open
        for _ in range(2):  # in two threads: none waits for a stream that a run has kept
            assert (good.run()["y"] == 2).all()
            in_thread(lambda good=good: np.testing.assert_array_equal(good.run()["w"], 1))


@needs_graphs
@pytest.mark.parametrize("op", ["Shape", "Size"])
def test_an_output_made_on_the_host_is_refused_with_the_way_out(encore, make_model, op):
    nodes = [helper.make_node(op, ["x"], ["n"], "measure"), helper.make_node("Neg", ["x"], ["y"], "minus")]
    shape = [2] if op == "Shape" else []
    model = make_model(nodes, {"x": ["a", 3]}, {"y": ["a", 3], "n": (shape, TensorProto.INT64)})
    session = graph_session(model)
    run = Bound(session, {"x": W}, {"y": ([4, 3], FLOAT), "n": (shape, np.int64)})
    said = rf"output 'n' \(int64\[2?\]\) is made on the host, by {op} node 'measure'.*bind_output\(name, 'cpu'\)"
    for _ in range(2):
        with pytest.raises(Exception, match=said):
            run.run({"x": W})
    run.binding.clear_binding_outputs()
    run.binding.bind_ortvalue_output("y", run.outputs["y"])
    run.binding.bind_output("n", "cpu")
    for turn in range(3):
        np.testing.assert_array_equal(run.run({"x": W + turn})["y"], -W - turn)
        np.testing.assert_array_equal(run.binding.get_outputs()[1].numpy(), [4, 3] if op == "Shape" else 12)
    assert states(session) == {0: "ready"}


@needs_graphs
def test_an_initializer_of_the_host_is_refused_with_the_way_out(encore, make_model):
    to = numpy_helper.from_array(np.int64([3, 4]), "to")
    node = helper.make_node("Reshape", ["x", "to"], ["y"], "reshape")
    model = make_model([node], {"x": [4, 3]}, {"y": [3, 4], "to": ([2], TensorProto.INT64)}, [to])
    session = graph_session(model)
    run = Bound(session, {"x": W}, {"y": ([3, 4], FLOAT), "to": ([2], np.int64)})
    with pytest.raises(Exception, match=r"output 'to' \(int64\[2\]\) is made on the host, as an initializer"):
        run.run({"x": W})


# ---- eager where it has to be


@needs_graphs
def test_only_the_id_that_cannot_be_captured_goes_eager(encore, add, capfd):
    session = graph_session(add(), graph_on_error="eager")
    run, other = bound(session), bound(session)
    for turn in range(3):
        x = W + turn
        np.testing.assert_array_equal(run.run({"x": x}, graph_id=3)["y"], x + W)
        np.testing.assert_array_equal(session.run(None, {"x": x}, encore_session.run_options(7))[0], x + W)
    np.testing.assert_array_equal(other.run({"x": W}, graph_id=4)["y"], 2 * W)
    assert states(session) == {3: "ready", 4: "ready", 7: "refused"}
    assert reports(session)[3]["replays"] == 2
    warnings = [line for line in capfd.readouterr().err.splitlines() if "W:" in line]
    assert len(warnings) == 1 and "graph id 7 could not be captured" in warnings[0]
    assert "goes on without graphs" not in warnings[0] and "Runs with this id" in warnings[0]


@needs_graphs
@only_if(encore_session.on_virtual_gpu())
def test_an_eager_id_is_run_once(encore, add):
    """onnxruntime repeats a run that it takes for one that is to be captured."""
    session = graph_session(add(), graph_on_error="eager")
    run = lambda: session.run(None, {"x": W}, encore_session.run_options(7))
    run()
    kernels = [entry for entry in encore_session.trace(session, run) if entry["what"] == "kernel"]
    assert len(kernels) == 1


@needs_release
def test_an_eager_id_that_is_released_is_captured(encore, add):
    session = graph_session(add(), graph_on_error="eager")
    session.run(None, {"x": W}, encore_session.run_options(7))
    session.release_captured_graph(7)
    run = bound(session)
    np.testing.assert_array_equal(run.run({"x": W}, graph_id=7)["y"], 2 * W)
    assert states(session) == {7: "ready"}
