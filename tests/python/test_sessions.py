"""Sessions: options, io binding, graphs by thread and id, two at a time, and what outlives them."""

import gc
import threading

import encore_session
import numpy as np
import onnxruntime_ep_encore
import pytest
from encore_session import (
    EAGER,
    HAS_GRAPHS,
    ORT_VERSION,
    Bound,
    in_new_process,
    in_threads,
    make_session,
    needs_graphs,
    needs_late_free,
    only_if,
)
from onnx import helper, numpy_helper

pytestmark = pytest.mark.core

FLOAT = np.float32


def rng(seed=0):
    return np.random.default_rng(seed)


def some(n=4, seed=1):
    return rng(seed).standard_normal((n, 8)).astype(FLOAT)


def bound(session, n=4):
    return Bound(session, {"x": np.zeros((n, 8), FLOAT)}, {"y": ([n, 8], FLOAT)})


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-2 if a.dtype == np.float16 else 1e-4, atol=1e-4)


def states(session):
    return {report["id"]: report["state"] for report in onnxruntime_ep_encore.graph_report(session)}


# ---- eager


def test_feeds_and_fetches_in_host_memory(encore, layer):
    model, expected = layer
    session = make_session(model)
    encore_session.assert_all_on_encore(session)
    for n in (1, 5, 5, 300):  # from the second run of a shape on, onnxruntime allocates all intermediates as one block
        close(session.run(None, {"x": some(n)})[0], expected(some(n)))


def test_empty_tensors(encore, layer):
    model, _ = layer
    assert make_session(model).run(None, {"x": np.zeros((0, 8), FLOAT)})[0].shape == (0, 8)


def test_tensors_larger_than_the_staging_buffers(encore, make_model):
    count = 3 * (1 << 20) + 7
    model = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": ["n"]}, {"y": ["n"]})
    x = rng().standard_normal(count).astype(FLOAT)
    np.testing.assert_array_equal(make_session(model).run(None, {"x": x})[0], -x)


@needs_late_free
def test_outputs_outlive_their_session(encore, layer):
    model, expected = layer
    session = make_session(model)
    value = encore_session.on_device(some())
    binding = encore_session.bind_unallocated(session, value)
    session.run_with_iobinding(binding)
    (output,) = binding.get_outputs()
    del binding, session
    gc.collect()
    close(output.numpy(), expected(some()))


def test_runs_in_many_threads_at_once(encore, layer):
    model, expected = layer
    session = make_session(model)
    wrong = in_threads(
        6, lambda i: [close(session.run(None, {"x": some(4, i)})[0], expected(some(4, i))) for _ in range(20)]
    )
    assert not wrong, wrong


def test_a_run_that_does_not_wait(encore, layer):
    model, expected = layer
    run = bound(make_session(model))
    for seed in range(5):
        run.inputs["x"].update_inplace(some(4, seed))
        options = encore_session.run_options(disable_synchronize_execution_providers=1)
        run.session.run_with_iobinding(run.binding, options)
        run.binding.synchronize_outputs()
        close(run.outputs["y"].numpy(), expected(some(4, seed)))


def test_two_sessions_have_their_own_options(encore, layer, capfd):
    model, expected = layer
    tight = make_session(model, gpu_mem_limit=16 << 20)
    free = make_session(model)
    big = some(1 << 19)
    with pytest.raises(Exception, match="(?i)alloc|memory"):
        tight.run(None, {"x": big})
    assert "the limit is 16777216 bytes" in capfd.readouterr().err
    close(free.run(None, {"x": big})[0], expected(big))
    close(tight.run(None, {"x": some()})[0], expected(some()))


# ---- graphs


def graph_session(model, **options):
    return make_session(model, enable_cuda_graph=1, **options)


@needs_graphs
def test_a_captured_model_is_replayed_with_new_contents(encore, layer):
    model, expected = layer
    session = graph_session(model, fuse_elementwise=0)
    run = bound(session)
    for seed in range(6):
        close(run.run({"x": some(4, seed)})["y"], expected(some(4, seed)))
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert (report["id"], report["state"], report["nodes"], report["replays"]) == (0, "ready", 3, 5)
    assert report["held_bytes"] > 0


@needs_graphs
def test_a_capture_needs_no_more_memory_than_its_warm_ups(encore, layer, capfd):
    model, _ = layer
    bound(graph_session(model)).run({"x": some()})
    assert "W:" not in capfd.readouterr().err


@needs_graphs
def test_replay_is_bit_identical_to_eager(encore, layer):
    model, _ = layer
    run = bound(graph_session(model))
    eager = [run.run({"x": some(4, seed)}, graph_id=EAGER)["y"] for seed in range(3)]
    replayed = [run.run({"x": some(4, seed)})["y"] for seed in range(3)]
    np.testing.assert_array_equal(eager, replayed)


@needs_graphs
def test_every_id_is_a_graph_of_its_own(encore, layer):
    model, expected = layer
    session = graph_session(model)
    runs = {graph_id: bound(session, n) for graph_id, n in ((0, 1), (1, 4), (7, 16))}
    for seed in range(4):
        for graph_id, run in runs.items():
            x = some(len(run.inputs["x"].numpy()), seed)
            close(run.run({"x": x}, graph_id=graph_id)["y"], expected(x))
    assert states(session) == {0: "ready", 1: "ready", 7: "ready"}


@needs_graphs
def test_eager_runs_between_replays_leave_the_graph_alone(encore, layer):
    model, expected = layer
    session = graph_session(model)
    run = bound(session)
    run.run({"x": some()})
    for n in (1, 50, 500):
        close(session.run(None, {"x": some(n)}, encore_session.run_options(EAGER))[0], expected(some(n)))
        close(run.run({"x": some(4, n)})["y"], expected(some(4, n)))


@needs_graphs
@pytest.mark.parametrize("warm_ups", [1, 2, 6])
def test_warm_ups_come_before_the_capture(encore, layer, warm_ups):
    model, expected = layer
    session = graph_session(model, min_num_runs_before_cuda_graph_capture=warm_ups, fuse_elementwise=0)
    run = bound(session)
    run.inputs["x"].update_inplace(some())
    first_run = lambda: session.run_with_iobinding(run.binding)
    if encore_session.on_virtual_gpu():
        entries = [entry for entry in encore_session.trace(session, first_run) if entry["what"] in ("kernel", "graph")]
        nodes = ["mm", "relu", "add"]
        assert [entry["label"] or entry["what"] for entry in entries] == nodes * warm_ups + ["graph"] + nodes
    else:
        first_run()
    close(run.outputs["y"].numpy(), expected(some()))
    assert states(session) == {0: "ready"}


@needs_graphs
def test_each_thread_captures_and_replays_for_itself(encore, layer):
    model, expected = layer
    session = graph_session(model)
    ready = threading.Barrier(4)

    def work(i):
        run = bound(session, 2 + i)
        ready.wait()
        for seed in range(10):
            close(run.run({"x": some(2 + i, seed)})["y"], expected(some(2 + i, seed)))
        assert states(session) == {0: "ready"}

    assert not in_threads(4, work)
    assert states(session) == {}, "this thread has captured nothing"
    close(bound(session).run({"x": some()})["y"], expected(some()))


@needs_graphs
def test_an_eager_session_runs_while_another_captures(encore, layer):
    model, expected = layer
    eager = make_session(model)
    stop = threading.Event()

    def keep_busy(_):
        while not stop.is_set():
            close(eager.run(None, {"x": some()})[0], expected(some()))

    def capture():
        for _ in range(5):
            close(bound(graph_session(model)).run({"x": some()})["y"], expected(some()))

    try:
        assert not in_threads(2, keep_busy, meanwhile=capture, finally_=stop.set)
    finally:
        stop.set()


@needs_graphs
def test_two_sessions_capture_in_one_thread(encore, layer):
    model, expected = layer
    runs = [bound(graph_session(model)) for _ in range(2)]
    for seed in range(5):
        for run in runs:
            close(run.run({"x": some(4, seed)})["y"], expected(some(4, seed)))


@needs_graphs
def test_a_run_that_cannot_begin_leaves_nothing_of_its_session_behind(encore, layer):
    session = make_session(layer[0], enable_cuda_graph=1)
    with pytest.raises(Exception, match="gpu_graph_id"):
        session.run(None, {"x": some()}, encore_session.run_options(-2))
    del session
    gc.collect()
    close(encore_session.on_device(some()).numpy(), some())  # copies outside of runs come after that of their thread


@only_if(ORT_VERSION >= (1, 30))
def test_a_released_graph_is_captured_again(encore, layer):
    model, expected = layer
    session = graph_session(model)
    run = bound(session)
    run.run({"x": some()})
    session.release_captured_graph(0)
    assert states(session) == {}
    close(run.run({"x": some(4, 2)})["y"], expected(some(4, 2)))
    assert states(session) == {0: "ready"}


@needs_graphs
def test_a_session_with_graphs_ends_in_another_thread(encore, layer):
    model, expected = layer
    session = graph_session(model)
    holder = [bound(session)]
    holder[0].run({"x": some()})
    del session
    assert not in_threads(1, lambda _: holder.clear())
    gc.collect()


@needs_graphs
@pytest.mark.parametrize("kind", ["feeds", "fetches"])
def test_host_memory_in_a_capture_is_refused_by_name(encore, layer, kind):
    model, expected = layer
    session = graph_session(model)
    binding = session.io_binding()
    if kind == "feeds":
        binding.bind_cpu_input("x", some())
        binding.bind_ortvalue_output("y", encore_session.empty_on_device([4, 8]))
        run = lambda: session.run(None, {"x": some()})
        said = r"input 'x' \(float\[4,8\]\) is in host memory.*bind_ortvalue_input"
    else:
        binding.bind_ortvalue_input("x", encore_session.on_device(some()))
        binding.bind_output("y", "cpu")
        run = lambda: session.run_with_iobinding(binding)
        said = r"output 'y' \(float\[4,8\]\) is wanted in host memory.*bind_ortvalue_output"
    for _ in range(2):
        with pytest.raises(Exception, match=said):
            run()
    # The session goes on.
    close(session.run(None, {"x": some()}, encore_session.run_options(EAGER))[0], expected(some()))
    close(bound(session).run({"x": some()})["y"], expected(some()))


@needs_graphs
def test_host_memory_in_a_capture_makes_the_session_eager_if_so_asked(encore, layer):
    model, expected = layer
    session = graph_session(model, graph_on_error="eager")
    for seed in range(4):
        close(session.run(None, {"x": some(4, seed)})[0], expected(some(4, seed)))
    close(bound(session).run({"x": some()})["y"], expected(some()))
    assert states(session) == {0: "refused"}


@needs_graphs
def test_a_model_with_nodes_on_the_cpu_is_eager_if_so_asked(encore, make_model):
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], "neg"),
        helper.make_node("Imputer", ["a"], ["y"], "where", domain="ai.onnx.ml", imputed_value_floats=[5.0]),
    ]
    model = make_model(nodes, {"x": [4]}, {"y": [4]}, domains=("ai.onnx.ml",))
    x = FLOAT([0, 1, 0, 2])
    session = graph_session(model, graph_on_error="eager")
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], [5, -1, 5, -2])
    with pytest.raises(
        Exception, match="impossible with this model, because of Imputer node .where.: Encore has no kernel"
    ):
        graph_session(model)


@needs_graphs
def test_shape_arithmetic_on_the_cpu_does_not_keep_a_model_from_being_captured(encore, make_model):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], "shape"),
        helper.make_node("Gather", ["s", "zero"], ["n"], "gather"),
        helper.make_node("Concat", ["n", "rest"], ["d"], "concat", axis=0),
        helper.make_node("Reshape", ["x", "d"], ["r"], "reshape"),
        helper.make_node("Neg", ["r"], ["y"], "neg"),
    ]
    constants = [numpy_helper.from_array(np.int64([v]), name) for name, v in (("zero", 0), ("rest", -1))]
    model = make_model(nodes, {"x": ["n", 2, 4]}, {"y": ["n", 8]}, constants)
    session = graph_session(model, regions=0)
    placed = encore_session.nodes_on(session)
    assert sorted(placed["CPUExecutionProvider"]) == ["Concat", "Gather"]
    run = Bound(session, {"x": np.zeros((3, 2, 4), FLOAT)}, {"y": ([3, 8], FLOAT)})
    for seed in range(4):
        x = rng(seed).standard_normal((3, 2, 4)).astype(FLOAT)
        np.testing.assert_array_equal(run.run({"x": x})["y"], -x.reshape(3, 8))
    assert states(session) == {0: "ready"}


@only_if(not HAS_GRAPHS)
def test_an_onnxruntime_without_capture_runs_eagerly(encore, layer):
    model, expected = layer
    close(graph_session(model).run(None, {"x": some()})[0], expected(some()))


# ---- in processes of their own


@needs_graphs
def test_a_process_may_end_with_everything_alive(encore, layer):
    model, _ = layer
    in_new_process(f"""
import encore_session as e, numpy as np
run = e.Bound(e.make_session({model.SerializeToString()!r}, enable_cuda_graph=1),
              {{"x": np.zeros((4, 8), np.float32)}}, {{"y": ([4, 8], np.float32)}})
run.run(); run.run()""")


@needs_graphs
def test_unregistering_under_a_session_with_a_graph(encore, layer):
    model, _ = layer
    done = in_new_process(f"""
import encore_session as e, numpy as np, onnxruntime as ort
run = e.Bound(e.make_session({model.SerializeToString()!r}, enable_cuda_graph=1),
              {{"x": np.zeros((4, 8), np.float32)}}, {{"y": ([4, 8], np.float32)}})
run.run()
ort.unregister_execution_provider_library(e.EP_NAME)
run.session.run_with_iobinding(run.binding)
print(e.onnxruntime_ep_encore.graph_report(run.session)[0]["replays"])
del run""")
    assert done.stdout.split() == ["1"]
