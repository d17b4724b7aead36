"""Streams: whose they are, what runs on which, who waits for whom, and that nobody waits without need.

What ran where is read from the virtual GPU's trace; that results are right is tested on any device.
"""

import gc
import re
import threading

import encore_session
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from encore_session import (
    ARRANGEMENTS,
    EAGER,
    HAS_GRAPHS,
    ORT_VERSION,
    Bound,
    in_new_process,
    in_threads,
    make_session,
    make_stream,
    needs_graphs,
    only_if,
    trace,
)
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.core

FLOAT = np.float32
ON_VIRTUAL_GPU = encore_session.on_virtual_gpu()
traced = only_if(ON_VIRTUAL_GPU)  # only the virtual GPU records what it does
WORK = ("kernel", "copy", "fill", "graph")
HOST_WAITS = ("synchronize", "synchronize event")
ASYNC = {"disable_synchronize_execution_providers": "1"}
SHAPE = (4, 8)
ZEROS_ARE_SEVEN = {"imputed_value_floats": [7.0], "replaced_value_float": 0.0}


@pytest.fixture(scope="module")
def there_and_back(make_model):
    """A node on the CPU between two on the device: y = x, but -7 for zeros."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], "before"),
        helper.make_node("Imputer", ["a"], ["b"], "on_cpu", domain="ai.onnx.ml", **ZEROS_ARE_SEVEN),
        helper.make_node("Neg", ["b"], ["y"], "after"),
    ]
    model = make_model(nodes, {"x": [64]}, {"y": [64]}, domains=("ai.onnx.ml",))
    return model, lambda x: np.where(x == 0, FLOAT(-7), x)


def some(seed=1, n=SHAPE[0]):
    return np.random.default_rng(seed).standard_normal((n, 8)).astype(FLOAT)


def bound(session, n=SHAPE[0]):
    return Bound(session, {"x": np.zeros((n, 8), FLOAT)}, {"y": ((n, 8), FLOAT)})


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def streams(entries, *kinds):
    return {entry["stream"] for entry in entries if entry["what"] in (kinds or WORK)}


def waits(entries):
    """On the host, for work: taking memory from the driver waits for a stream that has none."""
    busy = {entry["stream"] for entry in entries if entry["what"] in ("kernel", "copy", "graph")}
    waited = [entry for entry in entries if entry["what"] in HOST_WAITS]
    return [entry for entry in waited if entry["stream"] in busy or entry["what"] != "synchronize"]


def user_session(model, stream, **options):
    return make_session(model, user_compute_stream=stream.get_handle(), **options)


# ---- the application's stream


@traced
@pytest.mark.parametrize("graphs", [0, 1])
def test_all_work_of_a_session_is_on_the_given_stream(encore, layer, graphs):
    model, expected = layer
    stream = make_stream()
    session = user_session(model, stream, enable_cuda_graph=graphs)
    run = bound(session)
    run.inputs["x"].update_inplace(some())
    for _ in range(3):  # with graphs: warm-ups and capture, then replays
        entries = trace(session, lambda: session.run_with_iobinding(run.binding))
        assert streams(entries) == {stream.get_handle()}
    close(run.outputs["y"].numpy(), expected(some()))
    if not graphs:
        entries = trace(session, lambda: close(session.run(None, {"x": some(2)})[0], expected(some(2))))
        assert streams(entries) == {stream.get_handle()}


@pytest.mark.parametrize("graphs", [0, 1])
def test_a_given_stream_outlives_its_sessions(encore, layer, graphs):
    model, expected = layer
    stream = make_stream()
    for seed in range(3):
        session = user_session(model, stream, enable_cuda_graph=graphs)
        run = bound(session)
        close(run.run({"x": some(seed)})["y"], expected(some(seed)))
        del run, session
        gc.collect()
    from_value, to_value = encore_session.on_device(some(7)), encore_session.empty_on_device(SHAPE)
    ort.copy_tensors([from_value], [to_value], stream)
    host = ort.OrtValue.ortvalue_from_numpy(np.zeros(SHAPE, FLOAT))
    ort.copy_tensors([to_value], [host], stream)
    np.testing.assert_array_equal(host.numpy(), some(7))


def pipeline(session, stream, xs):
    """Copies each input in, runs, and copies the output to a place of its own, all on one stream; then waits once."""
    run = bound(session)
    session.run_with_iobinding(run.binding)  # warms up, and captures
    inputs = [encore_session.on_device(x) for x in xs]
    kept = [encore_session.empty_on_device(SHAPE) for _ in xs]
    options = encore_session.run_options(**ASYNC)

    def enqueue():
        for x, y in zip(inputs, kept):
            ort.copy_tensors([x], [run.inputs["x"]], stream)
            session.run_with_iobinding(run.binding, options)
            ort.copy_tensors([run.outputs["y"]], [y], stream)

    entries = trace(session, enqueue) if ON_VIRTUAL_GPU else enqueue()
    host = [ort.OrtValue.ortvalue_from_numpy(np.zeros(SHAPE, FLOAT)) for _ in xs]
    ort.copy_tensors(kept, host, stream)
    return [value.numpy().copy() for value in host], entries


@pytest.mark.parametrize("graphs", [0, 1])
def test_copy_run_copy_on_one_stream_without_a_wait(encore, layer, graphs):
    model, expected = layer
    stream = make_stream()
    session = user_session(model, stream, enable_cuda_graph=graphs)
    xs = [some(seed) for seed in range(100)]
    results, entries = pipeline(session, stream, xs)
    for x, y in zip(xs, results):
        close(y, expected(x))
    if ON_VIRTUAL_GPU and (ORT_VERSION >= (1, 28) or not graphs):  # before, a replay itself waits
        assert not waits(entries)
    if ON_VIRTUAL_GPU:
        assert streams(entries) <= {stream.get_handle()}


def test_the_example_of_one_stream():
    example = str(encore_session.ROOT / "examples" / "one_stream.py")
    done = in_new_process(f"import runpy; runpy.run_path({example!r}, run_name='__main__')")
    assert re.fullmatch("100 runs on .*: all right\n", done.stdout)


@needs_graphs
def test_threads_capture_and_replay_on_one_given_stream(encore, layer):
    model, expected = layer
    stream = make_stream()
    session = user_session(model, stream, enable_cuda_graph=1)

    def work(i):
        runs = [bound(session, 2 + i) for _ in range(2)]
        for seed in range(12):
            x = some(seed, 2 + i)
            close(runs[seed % 2].run({"x": x}, graph_id=seed % 2)["y"], expected(x))
            close(session.run(None, {"x": x}, encore_session.run_options(EAGER))[0], expected(x))
        assert {report["state"] for report in onnxruntime_ep_encore.graph_report(session)} == {"ready"}

    assert not in_threads(4, work)


@needs_graphs
def test_two_sessions_on_one_given_stream(encore, layer):
    model, expected = layer
    stream = make_stream()
    sessions = [user_session(model, stream, enable_cuda_graph=graphs) for graphs in (1, 1, 0)]

    def work(i):
        run = bound(sessions[i])
        for seed in range(20):
            close(run.run({"x": some(seed)})["y"], expected(some(seed)))

    assert not in_threads(3, work)


# ---- how many streams


@traced
@pytest.mark.parametrize("graphs", [0, 1])
@pytest.mark.parametrize("regions", [0, 1])
def test_kernels_are_launched_on_one_stream(encore, make_model, layer, regions, graphs):
    """Of a session with one thread: each further stream makes the graphs of a process slower on a GPU."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.integers(0, 255, (32, 1, 16), np.uint8) for i in range(3)}
    nodes = [
        helper.make_node(
            "MatMulNBits",
            [f"x{i}", f"w{i}", "scales"],
            [f"x{i + 1}"],
            f"product{i}",
            domain="com.microsoft",
            K=32,
            N=32,
            bits=4,
            block_size=32,
        )
        for i in range(3)
    ]
    weights["scales"] = np.full(32, 1 / 64, np.float16)
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    form = [2, 32], TensorProto.FLOAT16
    model, feed = make_model(nodes, {"x0": form}, {"x3": form}, constants), {"x0": np.ones((2, 32), np.float16)}

    def work():
        made = make_session(model, regions=regions, enable_cuda_graph=graphs, auto_graph=0)
        session = encore_session.outliving(made)
        run = Bound(session, feed, {"x3": ((2, 32), np.float16)})
        for _ in range(3):
            run.run(feed, graph_id=0 if graphs else -1)

    entries = trace(make_session(layer[0]), work)
    packs = [entry for entry in entries if entry["what"] == "kernel" and "Weave" in entry["name"]]
    assert len(packs) >= 3 and len(streams(entries, "kernel", "graph")) == 1


# ---- one stream for the session, and copies on one of their own


@traced
@pytest.mark.parametrize("unified", [False, True])
def test_the_unified_stream_has_all_runs_and_copies(encore, layer, unified):
    model, expected = layer
    session = make_session(model, use_ep_level_unified_stream=int(unified), fuse_elementwise=0)
    together = threading.Barrier(3)

    def work(i):
        together.wait()
        for seed in range(20):
            close(session.run(None, {"x": some(seed)})[0], expected(some(seed)))

    session.run(None, {"x": some()})
    wrong = []
    entries = trace(session, lambda: wrong.extend(in_threads(3, work)))
    assert not wrong
    assert len([entry for entry in entries if entry["what"] == "copy"]) == 3 * 20 * 2
    if unified:
        nodes = [entry["label"] for entry in entries if entry["what"] == "kernel"]
        assert nodes == ["mm", "relu", "add"] * 3 * 20, "one run after another"
    assert (len(streams(entries)) == 1) == unified


@needs_graphs
@traced
def test_the_unified_stream_with_graphs(encore, layer):
    model, expected = layer
    session = make_session(model, use_ep_level_unified_stream=1, enable_cuda_graph=1)
    wrong = []

    def work(i):
        run = bound(session)
        for seed in range(10):
            run.inputs["x"].update_inplace(some(seed))
            session.run_with_iobinding(run.binding)
            close(run.outputs["y"].numpy(), expected(some(seed)))

    seen = trace(session, lambda: wrong.extend(in_threads(3, work)))
    assert not wrong
    assert len(streams(seen, "kernel", "graph")) == 1


def copies_and_kernels(session, feeds):
    session.run(None, feeds)
    return trace(session, lambda: session.run(None, feeds))


@traced
def test_copies_are_on_the_stream_that_computes(encore, there_and_back):
    model, _ = there_and_back
    entries = copies_and_kernels(make_session(model), {"x": np.ones(64, FLOAT)})
    assert streams(entries, "copy") == streams(entries, "kernel")


@traced
@pytest.mark.parametrize("given", [False, True])
def test_copies_are_on_a_stream_of_their_own(encore, there_and_back, given):
    model, expected = there_and_back
    stream = make_stream() if given else None
    options = {"user_compute_stream": stream.get_handle()} if given else {}
    session = make_session(model, do_copy_in_default_stream=0, **options)
    x = np.float32(np.arange(64) % 3)
    entries = copies_and_kernels(session, {"x": x})
    (compute,), (copying,) = streams(entries, "kernel"), streams(entries, "copy")
    assert compute != copying
    if given:
        assert compute == stream.get_handle()
    # Feed, to the CPU, from the CPU, fetch: each waits for what was computed, and is waited for.
    order = [(entry["stream"] == copying, entry["what"]) for entry in entries if entry["what"] != "query"]
    on_copying = [what for mine, what in order if mine]
    copies = [i for i, what in enumerate(on_copying) if what == "copy"]
    assert len(copies) == 4
    assert all("wait" in on_copying[before:i] for before, i in zip([0, *copies], copies))
    assert [what for mine, what in order if not mine].count("wait") >= 4
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected(x))


# ---- no wait that nobody asked for


@traced
def test_an_eager_run_need_not_wait(encore, layer):
    model, expected = layer
    session = make_session(model)
    run = bound(session)
    run.run({"x": some()})
    options = encore_session.run_options(**ASYNC)
    run.inputs["x"].update_inplace(some(3))
    entries = trace(session, lambda: [session.run_with_iobinding(run.binding, options) for _ in range(5)])
    assert not waits(entries)
    waiting = trace(session, lambda: session.run_with_iobinding(run.binding))
    assert waits(waiting), "without the option it waits"
    close(run.outputs["y"].numpy(), expected(some(3)))


@traced
@only_if(ON_VIRTUAL_GPU and ORT_VERSION >= (1, 28))  # before, a replay itself waits
def test_neither_capture_nor_replay_need_wait(encore, layer):
    model, expected = layer
    session = make_session(model, enable_cuda_graph=1)
    run = bound(session)
    run.inputs["x"].update_inplace(some(3))
    options = encore_session.run_options(**ASYNC)
    for _ in range(3):
        assert not waits(trace(session, lambda: session.run_with_iobinding(run.binding, options)))
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["replays"] == 2
    run.binding.synchronize_outputs()
    close(run.outputs["y"].numpy(), expected(some(3)))


@traced
def test_a_node_on_the_cpu_waits_for_an_event_of_its_producer(encore, there_and_back):
    model, _ = there_and_back
    session = make_session(model)
    entries = copies_and_kernels(session, {"x": np.ones(64, FLOAT)})
    kinds = [entry["what"] for entry in entries]
    assert "record" in kinds and "synchronize event" in kinds
    last_kernel = len(kinds) - kinds[::-1].index("kernel")
    waited = [entry["what"] for entry in waits(entries[:last_kernel])]
    assert "synchronize" not in waited, "only the end of the run may wait for all of the stream"


@only_if(not ON_VIRTUAL_GPU)
def test_cuda_keeps_no_trace(encore, layer):
    model, _ = layer
    with pytest.raises(Exception, match="only the virtual GPU"):
        make_session(model).set_ep_dynamic_options({"ep.cuda.trace": "start"})


# ---- delays, which let whatever isn't waited for overtake


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("graphs", [0, 1] if HAS_GRAPHS else [0])
def test_results_are_right_under_random_delays(encore, layer, there_and_back, arrangement, graphs):
    code = f"""
import encore_session as e, numpy as np, onnxruntime as ort
stream = e.make_stream()
options, graphs = e.arranged({arrangement!r}, stream), {graphs}
layer, there_and_back = {[model.SerializeToString() for model, _ in (layer, there_and_back)]}
cpu = ort.InferenceSession(layer)
session = e.make_session(layer, enable_cuda_graph=graphs, **options)
wrong = []
def work(i):
    run = e.Bound(session, {{"x": np.zeros((4, 8), np.float32)}}, {{"y": ((4, 8), np.float32)}})
    for seed in range(6):
        x = np.random.default_rng(100 * i + seed).standard_normal((4, 8)).astype(np.float32)
        for y in (run.run({{"x": x}})["y"], session.run(None, {{"x": x}}, e.run_options(e.EAGER))[0]):
            if not np.allclose(y, cpu.run(None, {{"x": x}})[0], rtol=1e-4, atol=1e-4): wrong.append((i, seed))
wrong += e.in_threads(2, work)
between = e.make_session(there_and_back, **options)
for seed in range(10):
    x = np.random.default_rng(seed).integers(0, 3, 64).astype(np.float32)
    if not np.array_equal(between.run(None, {{"x": x}})[0], np.where(x == 0, np.float32(-7), x)): wrong.append(seed)
print("wrong:", wrong)
"""
    assert in_new_process(code, ENCORE_VIRTUAL_DELAY_US="500").stdout == "wrong: []\n"
