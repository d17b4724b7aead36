"""What happens to memory in time: captured graphs keep theirs, whatever else is done, and in the end all comes back."""

import ctypes
import gc
import threading
import time

import encore_session
import numpy as np
import onnxruntime as ort
import pytest
from encore_session import (
    EAGER,
    FREES_LATE,
    HAS_GRAPHS,
    ORT_VERSION,
    in_new_process,
    in_threads,
    make_session,
    needs_graphs,
    only_if,
)
from onnx import helper
from test_memory import CHAIN, FLOAT, HEAVY, MIB, SHRINK, arena, bound, close, memory, some

pytestmark = [pytest.mark.core, pytest.mark.alone]

ON_VIRTUAL_GPU = encore_session.on_virtual_gpu()
needs_release = only_if(ORT_VERSION >= (1, 30))  # release_captured_graph


def host_bytes():
    """Resident memory of this process, but for what the C library keeps of freed memory."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


# ---- captured graphs


@needs_graphs
def test_nothing_disturbs_a_replay(encore, chain):
    """Tensors of the environment and runs of this session and another, all of NaN, come between replays."""
    model, expected = chain
    session, other = (make_session(model, enable_cuda_graph=1) for _ in range(2))
    alive = [session, other]
    run, twin, elsewhere = bound(session), bound(session), bound(other)
    run.run()
    twin.run(graph_id=5)
    sizes = [256, 4096, 16 * 64 * 4, 65536, MIB // 2, MIB, 3 * MIB]

    def storm():
        kept = []
        for size in sizes * 6:
            value = encore_session.empty_on_device([size // 4])
            value.update_inplace(np.full(size // 4, np.nan, FLOAT))
            kept.append(value)
        for n in (16, 64, 5000):
            for each in alive:
                each.run(None, {"x": np.full((n, 64), np.nan, FLOAT)}, encore_session.run_options(EAGER))
        assert all(np.isnan(value.numpy()).all() for value in kept), "a replay wrote there"

    def replays():
        for seed in range(30):
            close(run.run({"x": some(16, seed)})["y"], expected(some(16, seed)))

    for seed in range(4):
        storm()
        assert not in_threads(1, lambda _: storm())
        elsewhere.run({"x": np.full((16, 64), np.nan, FLOAT)}, graph_id=seed)
        if ORT_VERSION >= (1, 26):
            options = encore_session.run_options(EAGER, **SHRINK)
            session.run(None, {"x": some(100)}, options)
        if seed == 2 and ORT_VERSION >= (1, 30):
            session.release_captured_graph(5)
            storm()
        close(run.run({"x": some(16, seed)})["y"], expected(some(16, seed)))
    wrong = []
    thread = threading.Thread(target=lambda: wrong.extend(in_threads(2, lambda _: storm())))
    thread.start()
    replays()
    thread.join()
    assert not wrong, wrong
    alive.pop()
    del other, elsewhere
    gc.collect()
    storm()
    replays()


def fill(allocate):
    """Allocates chain's rows of NaN, as many as there is memory for."""
    kept, rows = [], 2048
    while rows:
        try:
            kept.append(allocate(rows))
        except Exception:  # noqa: BLE001
            rows //= 2
    return kept


def replay_in_full_memory(model):
    """To be called in a process of its own, with little memory."""
    on_cpu = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    session = make_session(model, enable_cuda_graph=1)
    runs = {0: bound(session, 16), 5: bound(session, 1000)}
    inputs = {1 << i: encore_session.on_device(np.full((1 << i, *CHAIN), np.nan, FLOAT)) for i in range(12)}

    def replay(seed):
        for graph_id, run in runs.items():
            x = some(run.inputs["x"].shape()[0], seed)
            close(run.run({"x": x}, graph_id=graph_id)["y"], on_cpu.run(None, {"x": x})[0])

    def device_tensor(rows):
        return encore_session.on_device(np.full((rows, *CHAIN), np.nan, FLOAT))

    def output_of_session(rows):
        binding = encore_session.bind_unallocated(session, inputs[rows])
        session.run_with_iobinding(binding, encore_session.run_options(EAGER))
        return binding.get_outputs()[0]

    replay(0)  # captures
    for ways in ((device_tensor, output_of_session), (output_of_session, device_tensor)) * 2:
        kept = [value for way in ways for value in fill(way)]
        report = memory(session)
        held, in_use, of_graphs = (report["arena"][f"{what}_bytes"] for what in ("held", "in_use", "graph"))
        assert report["device"]["free_bytes"] == 0
        assert held - in_use - of_graphs <= 512, "a run of one row needs two blocks besides its output"
        for seed in range(1, 4):
            replay(seed)
        assert all(np.isnan(value.numpy()).all() for value in kept), "a replay wrote there"
        del kept
        replay(5)


@only_if(HAS_GRAPHS and ON_VIRTUAL_GPU)  # where all of the device is ours to fill
def test_replays_with_all_other_memory_in_use(encore, chain):
    code = f"import test_memory_lifetimes as t; t.replay_in_full_memory({chain[0].SerializeToString()!r})"
    in_new_process(code, ENCORE_VIRTUAL_MEMORY_BYTES=str(16 * MIB))


@needs_release
def test_released_memory_comes_back(encore, chain):
    model, expected = chain
    session = make_session(model, enable_cuda_graph=1, min_num_runs_before_cuda_graph_capture=1)
    run = bound(session)

    def capture_and_release(times):
        for i in range(times):
            close(run.run({"x": some(16, i % 7)})["y"], expected(some(16, i % 7)))
            session.release_captured_graph(0)

    capture_and_release(100)
    gc.collect()
    before, before_host = memory(session), host_bytes()
    assert before["arena"]["graph_bytes"] == 0
    capture_and_release(1000)
    gc.collect()
    after = memory(session)
    assert after["arena"]["graph_bytes"] == 0
    assert after["arena"]["held_bytes"] == before["arena"]["held_bytes"]
    assert after["device"]["free_bytes"] >= before["device"]["free_bytes"] - 4 * MIB
    assert host_bytes() <= before_host + 8 * MIB


@needs_graphs
def test_an_output_allocated_while_capturing_lives_as_long_as_its_value(encore, chain):
    model, expected = chain
    session = make_session(model, enable_cuda_graph=1)
    x = encore_session.on_device(some())
    binding = encore_session.bind_unallocated(session, x)
    session.run_with_iobinding(binding)
    (y,) = binding.get_outputs()
    assert arena(session)["graph_bytes"] > 0
    close(y.numpy(), expected(some()))
    x.update_inplace(some(16, 2))
    session.run_with_iobinding(binding)
    close(y.numpy(), expected(some(16, 2)))  # the replay wrote there
    if ORT_VERSION >= (1, 30):
        session.release_captured_graph(0)

    def fill():
        return [encore_session.on_device(np.full(64 * 16 * (1 << i), np.nan, FLOAT)) for i in range(8)]

    rest = fill()
    close(y.numpy(), expected(some(16, 2)))
    if FREES_LATE:
        del session, binding
        gc.collect()
    rest += fill()
    close(y.numpy(), expected(some(16, 2)))
    del y


# ---- nothing leaks


def watcher(make_model):
    return make_session(make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": [4]}, {"y": [4]}))


def assert_all_comes_back(use, session, host_slack):
    """`use` makes sessions, and lets them go.

    Streams that were closed end in their own time, and their threads' memory with them. What is lost is lost each time:
    the C library may have pieces left over once, from many threads.
    """
    for _ in range(3):
        gc.collect()
        before, before_host = memory(session)["device"]["free_bytes"], host_bytes()
        use()
        gc.collect()
        end = time.monotonic() + 10
        while (grown := host_bytes() - before_host) > host_slack and time.monotonic() < end:
            time.sleep(0.1)
        lost = before - memory(session)["device"]["free_bytes"]
        # On a real device others come and go, and the driver has its own.
        assert lost == 0 if ON_VIRTUAL_GPU else lost <= 4 * MIB, f"{lost} bytes of device memory are lost"
        if grown <= host_slack:
            return
    raise AssertionError(f"{grown} bytes of host memory are lost, for the third time")


@pytest.mark.parametrize(
    "heavy, options",
    [
        ("MatMul", {}),
        # What is behind the allocator onnxruntime doesn't see.
        pytest.param("MatMul", {"use_arena": 0}, marks=pytest.mark.newest),
        pytest.param("MatMul", {"arena.use_cuda_mempool": 1}, marks=pytest.mark.newest),
        pytest.param("Conv", {}, marks=pytest.mark.newest),
    ],
    ids=["", "none", "mempool", "conv"],
    indirect=["heavy"],
)
def test_a_model_opened_and_closed_many_times(encore, heavy, make_model, options):
    model, expected = heavy
    model = model.SerializeToString()
    watch = watcher(make_model)
    few, many = some(4, row=HEAVY), some(20, row=HEAVY)

    def use(times):
        for i in range(times):
            session = make_session(model, enable_cuda_graph=i % 2, **options)
            run = bound(session, 4, HEAVY)
            close(run.run({"x": few})["y"], expected(few))
            close(session.run(None, {"x": many}, encore_session.run_options(EAGER))[0], expected(many))

    use(40)
    assert_all_comes_back(lambda: use(100), watch, 6 * MIB)


def test_many_sessions_at_once(encore, chain, make_model):
    model, expected = chain
    model = model.SerializeToString()
    watch = watcher(make_model)

    def use(count):
        sessions = [make_session(model, enable_cuda_graph=i % 2) for i in range(count)]
        runs = [bound(session, 64) for session in sessions]

        def half(which):
            for seed, run in enumerate(runs[which::2]):
                for _ in range(2):
                    close(run.run({"x": some(64, seed)})["y"], expected(some(64, seed)))

        assert not in_threads(2, half)

    for _ in range(2):
        use(30)
    assert_all_comes_back(lambda: use(30), watch, 10 * MIB)
