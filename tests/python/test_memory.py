"""Device memory of sessions: where it comes from, what it is used for, what it survives, and that it comes back."""

import ctypes
import gc
import re
import threading
import time

import encore_session
import numpy as np
import onnxruntime_ep_encore
import pytest
from encore_session import EAGER, HAS_GRAPHS, ORT_VERSION, Bound, make_session
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi

pytestmark = pytest.mark.core

FLOAT = np.float32
MIB = 1 << 20
COUNT = MIB // 4  # floats of a MiB


def only_if(applies):
    """Tests what this onnxruntime has. Not a skip: elsewhere there is nothing to test."""

    def mark(test):
        test.__test__ = applies
        return test

    return mark


needs_graphs = only_if(HAS_GRAPHS)
needs_release = only_if(ORT_VERSION >= (1, 30))  # release_captured_graph
needs_shrink = only_if(ORT_VERSION >= (1, 26))

SHRINK = {"memory.enable_memory_arena_shrinkage": "gpu:0"}


def memory(session):
    return onnxruntime_ep_encore.memory_report(session)


def arena(session):
    return memory(session)["arena"]


def host_bytes():
    """Resident memory of this process, but for what the C library keeps of freed memory."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.fixture
def chain(make_model):
    """y = -|-(x @ w)| + b, elementwise but for the product; and what it should be."""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(FLOAT)
    b = np.random.default_rng(1).standard_normal(64).astype(FLOAT)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
        helper.make_node("Neg", ["p"], ["n"], "negative"),
        helper.make_node("Abs", ["n"], ["a"], "absolute"),
        helper.make_node("Neg", ["a"], ["m"], "minus"),
        helper.make_node("Add", ["m", "b"], ["y"], "sum"),
    ]
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")]
    model = make_model(nodes, {"x": ["n", 64]}, {"y": ["n", 64]}, constants)
    return model, lambda x: b - np.abs(x @ w)


@pytest.fixture
def wide(make_model):
    """Keeps five tensors as large as its input at a time; the last is -x."""
    names = [f"t{i}" for i in range(5)]
    ops = ("Abs", "Relu", "Floor", "Ceil", "Neg")
    nodes = [helper.make_node(op, ["x"], [name], f"make_{name}") for op, name in zip(ops, names)]
    nodes.append(helper.make_node("Concat", names, ["y"], "join", axis=0))
    return make_model(nodes, {"x": ["n"]}, {"y": ["m"]})


def some(n=16, seed=1):
    return np.random.default_rng(seed).standard_normal((n, 64)).astype(FLOAT)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def bound(session, n=16):
    return Bound(session, {"x": np.zeros((n, 64), FLOAT)}, {"y": ([n, 64], FLOAT)})


def bind_unallocated(binding, name):
    """onnxruntime is to allocate this output, on the device."""
    if ORT_VERSION >= (1, 30):
        binding.bind_output(name, "cuda", 0)
    else:  # older ones know no vendor under that name
        binding._iobinding.bind_output(name, capi.OrtDevice(1, 0, encore_session.NVIDIA, 0))


def in_threads(*works):
    """Runs the functions at once; what went wrong. None may take a minute."""
    wrong = []

    def guarded(work):
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))
        if thread.is_alive():
            wrong.append(TimeoutError("a thread hangs"))
    return wrong


# ---- the arena and its options


def test_memory_is_reported(encore, chain):
    model, expected = chain
    session = make_session(model)
    for _ in range(3):
        close(session.run(None, {"x": some()})[0], expected(some()))
    report = memory(session)
    stats = report["arena"]
    weights = 64 * 64 * 4 + 256
    assert stats["in_use_bytes"] == weights
    assert stats["in_use_bytes"] < stats["peak_in_use_bytes"] <= stats["held_bytes"] <= 2 * MIB
    assert stats["driver_allocations"] >= 1 and stats["allocations"] > 5 and stats["largest_bytes"] >= 64 * 64 * 4
    assert stats["limit_bytes"] == 2**64 - 1
    assert sum(holder["bytes"] for holder in report["holders"]) == weights
    assert report["device"]["free_bytes"] < report["device"]["total_bytes"]


def test_exhausted_memory_names_who_has_it(encore, wide):
    session = make_session(wide, gpu_mem_limit=30 * MIB, arena_extend_strategy="kSameAsRequested")
    with pytest.raises(Exception) as raised:
        session.run(None, {"x": np.zeros(4 * COUNT, FLOAT)})
    said = str(raised.value)
    assert "Concat node. Name:'join'" in said, said
    assert f"{20 * MIB} bytes (20 MiB) wanted" in said
    assert f"the limit is {30 * MIB} bytes (30 MiB)" in said
    assert re.search(rf"largest holders: .*make_t\d with {4 * MIB} bytes in 1 block", said), said
    x = np.arange(1000, dtype=FLOAT)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.concatenate([x, x, x, x, -x]))


@pytest.mark.parametrize("key", ["gpu_mem_limit", "arena.max_mem"])
def test_the_limit_holds_for_everything(encore, wide, key):
    session = make_session(wide, **{key: 72 * MIB})
    x = np.arange(4 * COUNT, dtype=FLOAT)
    for _ in range(3):  # the second run on has other blocks
        np.testing.assert_array_equal(session.run(None, {"x": x})[0][-4 * COUNT :], -x)
    assert arena(session)["held_bytes"] <= arena(session)["limit_bytes"] == 72 * MIB


def test_initial_chunk(encore, chain):
    session = make_session(chain[0], **{"arena.initial_chunk_size_bytes": 3 * MIB})
    close(session.run(None, {"x": some()})[0], chain[1](some()))
    assert arena(session)["held_bytes"] % (3 * MIB) == 0


@pytest.mark.parametrize("key", ["arena_extend_strategy", "arena.extend_strategy"])
def test_strategy(encore, chain, key):
    session = make_session(chain[0], **{key: "kSameAsRequested"})
    close(session.run(None, {"x": some()})[0], chain[1](some()))
    assert arena(session)["held_bytes"] < MIB // 4


def test_most_growth_at_once(encore, wide):
    options = {"arena.initial_chunk_size_bytes": 2 * MIB, "arena.max_power_of_two_extend_bytes": 2 * MIB}
    session = make_session(wide, **options)
    session.run(None, {"x": np.zeros(COUNT, FLOAT)})
    assert arena(session)["held_bytes"] <= 13 * MIB  # 1 + 5 + 5 MiB in pieces of 2, or 5 where more is wanted
    doubling = make_session(wide, **{"arena.initial_chunk_size_bytes": 2 * MIB})
    doubling.run(None, {"x": np.zeros(COUNT, FLOAT)})
    assert arena(doubling)["held_bytes"] > 13 * MIB


def test_dead_bytes(encore, wide):
    options = {"arena.initial_chunk_size_bytes": 3 * MIB // 2, "arena.max_power_of_two_extend_bytes": 1}
    x = np.zeros(COUNT, FLOAT)
    sessions = [make_session(wide, **options, **more) for more in ({}, {"arena.max_dead_bytes_per_chunk": MIB})]
    held = []
    for session in sessions:
        session.run(None, {"x": x})
        held.append([holder for holder in memory(session)["holders"]])
    assert held == [[], []], "dead bytes are in use by nobody"


@needs_shrink
def test_growth_after_a_shrink(encore, chain):
    session = make_session(chain[0], **{"arena.initial_growth_chunk_size_bytes": 5 * MIB})
    options = encore_session.run_options(**SHRINK)
    close(session.run(None, {"x": some()}, options)[0], chain[1](some()))
    before = arena(session)["held_bytes"]
    assert before <= MIB
    close(session.run(None, {"x": some(20000)})[0], chain[1](some(20000)))
    assert arena(session)["held_bytes"] >= before + 5 * MIB


@needs_shrink
@pytest.mark.parametrize("options", [{}, {"use_arena": 0}, {"arena.use_cuda_mempool": 1}], ids=["", "none", "mempool"])
def test_shrinking_gives_memory_back(encore, chain, options):
    model, expected = chain
    session = make_session(model, **options)
    close(session.run(None, {"x": some(100000)})[0], expected(some(100000)))
    large = arena(session)["held_bytes"]
    close(session.run(None, {"x": some()}, encore_session.run_options(**SHRINK))[0], expected(some()))
    stats = arena(session)
    assert stats["shrinks"] == 1
    assert stats["held_bytes"] < max(large // 4, 33 * MIB + 1)  # weights share a piece with others
    assert stats["held_bytes"] >= stats["in_use_bytes"]
    close(session.run(None, {"x": some(100000)})[0], expected(some(100000)))


def test_without_an_arena_nothing_is_kept(encore, chain):
    model, expected = chain
    session = make_session(model, use_arena=0)
    weights = arena(session)["held_bytes"]
    run = bound(session, 1000)
    for seed in range(4):
        close(run.run({"x": some(1000, seed)})["y"], expected(some(1000, seed)))
    stats = arena(session)
    assert stats["driver_allocations"] == stats["allocations"]
    # What the last run freed goes back when it is idle and somebody comes by.
    assert stats["held_bytes"] <= weights + 3 * 64 * 4000


def test_a_stream_ordered_pool_instead_of_the_arena(encore, chain):
    model, expected = chain
    keeps = make_session(model, **{"arena.use_cuda_mempool": 1, "arena.cuda_mempool_release_threshold": 1 << 30})
    forgets = make_session(model, **{"arena.use_cuda_mempool": 1})
    n = 1 << 18  # 64 MiB a tensor
    for session in (keeps, forgets):
        for seed in range(2):
            close(session.run(None, {"x": some(n, seed)})[0], expected(some(n, seed)))
    assert arena(keeps)["held_bytes"] >= 128 * MIB > arena(forgets)["held_bytes"]
    if ORT_VERSION >= (1, 26):
        keeps.run(None, {"x": some()}, encore_session.run_options(**SHRINK))
        assert arena(keeps)["held_bytes"] < 128 * MIB


@needs_shrink
def test_what_the_pool_keeps_on_a_shrink(encore, chain):
    options = {"arena.use_cuda_mempool": 1, "arena.cuda_mempool_release_threshold": 1 << 30}
    session = make_session(chain[0], **options, **{"arena.cuda_mempool_bytes_to_keep_on_shrink": 128 * MIB})
    session.run(None, {"x": some(1 << 18)})
    session.run(None, {"x": some()}, encore_session.run_options(**SHRINK))
    assert 64 * MIB <= arena(session)["held_bytes"] <= 160 * MIB


@needs_graphs
@pytest.mark.parametrize("options", [{"use_arena": 0}, {"arena.use_cuda_mempool": 1}], ids=["none", "mempool"])
def test_graphs_without_an_arena(encore, chain, options):
    model, expected = chain
    session = make_session(model, enable_cuda_graph=1, **options)
    run = bound(session)
    for seed in range(5):
        close(run.run({"x": some(16, seed)})["y"], expected(some(16, seed)))
        close(session.run(None, {"x": some(50)}, encore_session.run_options(EAGER))[0], expected(some(50)))
    assert arena(session)["graph_bytes"] > 0


# ---- the environment's allocators, and initializers


def test_sessions_share_the_environments_arena(encore, chain):
    model, expected = chain
    config = {"session.use_env_allocators": 1}
    first, second = (make_session(model, config=config) for _ in range(2))
    own = make_session(model)
    for session in (first, second, own):
        close(session.run(None, {"x": some()})[0], expected(some()))
    gc.collect()
    shared = arena(first)
    assert shared == arena(second) != arena(own)
    in_use = shared["in_use_bytes"]
    del first, session
    gc.collect()
    assert arena(second)["in_use_bytes"] == in_use - (64 * 64 * 4 + 256)
    close(second.run(None, {"x": some()})[0], expected(some()))


@pytest.mark.parametrize("option", [{"gpu_mem_limit": 1 << 30}, {"use_arena": 0}, {"gpu_external": 1}])
def test_the_environments_memory_has_its_own_rules(encore, chain, option, capfd):
    if "gpu_external" in option:
        option = {"gpu_external_alloc": 4096, "gpu_external_free": 4096}
    with pytest.raises(AssertionError, match="alone"):  # on the CPU, is what make_session finds
        make_session(chain[0], config={"session.use_env_allocators": 1}, **option)
    assert "session.use_env_allocators=1 gives the session the environment's memory" in capfd.readouterr().err


def test_initializers_are_reserved(encore, chain):
    model, expected = chain
    session = make_session(model, config={"session.use_device_allocator_for_initializers": 1})
    report = memory(session)
    assert report["arena"]["reserves"] == 2
    assert report["arena"]["held_bytes"] == report["arena"]["in_use_bytes"] == 64 * 64 * 4 + 256
    assert report["holders"] == [{"name": "weights", "bytes": 64 * 64 * 4 + 256, "blocks": 2}]
    close(session.run(None, {"x": some()})[0], expected(some()))


# ---- staging


def test_pageable_memory_goes_through_pinned_buffers(encore, chain):
    model, expected = chain
    session = make_session(model)
    run = bound(session)
    run.session.run_with_iobinding(run.binding)
    assert memory(session)["staging"]["held_bytes"] <= MIB, "weights alone came by"
    close(session.run(None, {"x": some(40000)})[0], expected(some(40000)))
    assert memory(session)["staging"]["held_bytes"] == 4 * MIB


# ---- an allocator of the application's


class Allocator:
    """ctypes callbacks that give out device memory, and keep the books. The memory is that of OrtValues."""

    def __init__(self):
        self.values, self.sizes, self.most, self.emptied, self.limit, self.offset = {}, {}, 0, 0, 2**62, 0
        self.allocations = 0
        self._callbacks = (
            ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(self._allocate),
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._free),
            ctypes.CFUNCTYPE(None)(self._empty_cache),
        )

    def options(self):
        keys = ("gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache")
        return dict(zip(keys, (ctypes.cast(each, ctypes.c_void_p).value for each in self._callbacks), strict=True))

    def held(self):
        return sum(self.sizes.values())

    def _allocate(self, size):
        if size > self.limit:
            return None
        value = encore_session.empty_on_device([size + self.offset], np.uint8)
        address = value.data_ptr() + self.offset
        self.allocations += 1
        self.values[address], self.sizes[address] = value, size
        self.most = max(self.most, self.held())
        return address

    def _free(self, address):
        del self.values[address], self.sizes[address]

    def _empty_cache(self):
        self.emptied += 1


@pytest.mark.parametrize("graphs", [0, 1] if HAS_GRAPHS else [0])
def test_two_external_allocators_and_none(encore, chain, graphs):
    model, expected = chain
    one, other = Allocator(), Allocator()
    sessions = [
        make_session(model, enable_cuda_graph=graphs, **options) for options in (one.options(), other.options(), {})
    ]
    runs = [bound(session, 16 + i) for i, session in enumerate(sessions)]
    for seed in range(5):
        for i, run in enumerate(runs):
            close(run.run({"x": some(16 + i, seed)})["y"], expected(some(16 + i, seed)))
        for i, session in enumerate(sessions):
            x = some(3000 * (1 + i), seed)
            close(session.run(None, {"x": x}, encore_session.run_options(EAGER))[0], expected(x))
    for allocator, session in zip((one, other), sessions, strict=False):
        assert allocator.held() == arena(session)["held_bytes"] > 0
        assert (arena(session)["graph_bytes"] > 0) == bool(graphs)
    calls = one.allocations, other.allocations
    sessions[2].run(None, {"x": some(200000)}, encore_session.run_options(EAGER))
    assert calls == (one.allocations, other.allocations), "the third session is none of theirs"
    del run, runs, session, sessions
    gc.collect()
    assert one.held() == other.held() == 0
    assert not one.values


@needs_shrink
def test_external_cache_is_emptied_on_shrink(encore, chain):
    model, expected = chain
    allocator = Allocator()
    session = make_session(model, **allocator.options())
    close(session.run(None, {"x": some(20000)})[0], expected(some(20000)))
    held = allocator.held()
    assert allocator.emptied == 0
    close(session.run(None, {"x": some()}, encore_session.run_options(**SHRINK))[0], expected(some()))
    assert allocator.emptied == 1
    assert allocator.held() < held


def test_external_allocator_has_no_more(encore, chain):
    model, expected = chain
    allocator = Allocator()
    session = make_session(model, **allocator.options())
    allocator.limit = MIB
    with pytest.raises(Exception, match="gpu_external_alloc has no"):
        run = bound(session, 1 << 16)
        run.run()
    close(session.run(None, {"x": some()})[0], expected(some()))


def test_external_memory_must_be_aligned(encore, wide):
    allocator = Allocator()
    session = make_session(wide, **allocator.options())
    allocator.offset = 128
    run = Bound(session, {"x": np.zeros(4 * COUNT, FLOAT)}, {"y": ([20 * COUNT], FLOAT)})
    with pytest.raises(Exception, match="which is not aligned to 256 bytes"):
        run.run()
    allocator.offset = 0
    run.run()


def test_external_memory_outlives_its_session(encore, chain):
    model, expected = chain
    allocator = Allocator()
    session = make_session(model, **allocator.options())
    binding = session.io_binding()
    x = encore_session.on_device(some())
    binding.bind_ortvalue_input("x", x)
    bind_unallocated(binding, "y")
    session.run_with_iobinding(binding)
    (y,) = binding.get_outputs()
    del session, binding
    gc.collect()
    assert allocator.held() > 0
    close(y.numpy(), expected(some()))
    del y
    gc.collect()
    assert allocator.held() == 0


def test_external_callbacks_wait_for_python_without_a_deadlock(encore, chain):
    """Callbacks want Python's lock while other threads, which have it, free tensors of the same session."""
    model, expected = chain
    allocator = Allocator()
    session = make_session(model, use_arena=0, **allocator.options())
    x = encore_session.on_device(some())

    def work():
        for _ in range(40):
            binding = session.io_binding()
            binding.bind_ortvalue_input("x", x)
            bind_unallocated(binding, "y")
            session.run_with_iobinding(binding)
            (y,) = binding.get_outputs()
            memory(session)
            close(y.numpy(), expected(some()))

    assert not in_threads(work, work, work)


# ---- captured graphs


@needs_graphs
def test_nothing_disturbs_a_replay(encore, chain):
    """All memory that is free is written over, in every way, between replays."""
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

    def replays():
        for seed in range(30):
            close(run.run({"x": some(16, seed)})["y"], expected(some(16, seed)))

    for seed in range(4):
        storm()
        assert not in_threads(storm)
        elsewhere.run({"x": np.full((16, 64), np.nan, FLOAT)}, graph_id=seed)
        if ORT_VERSION >= (1, 26):
            options = encore_session.run_options(EAGER, **SHRINK)
            session.run(None, {"x": some(100)}, options)
        if seed == 2 and ORT_VERSION >= (1, 30):
            session.release_captured_graph(5)
            storm()
        close(run.run({"x": some(16, seed)})["y"], expected(some(16, seed)))
    wrong = []
    thread = threading.Thread(target=lambda: wrong.extend(in_threads(storm, storm)))
    thread.start()
    replays()
    thread.join()
    assert not wrong, wrong
    alive.pop()
    del other, elsewhere
    gc.collect()
    storm()
    replays()


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
    binding = session.io_binding()
    x = encore_session.on_device(some())
    binding.bind_ortvalue_input("x", x)
    bind_unallocated(binding, "y")
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
    del session, binding
    gc.collect()
    rest += fill()
    close(y.numpy(), expected(some(16, 2)))
    del y


# ---- nothing leaks


def watcher(make_model):
    return make_session(make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": [4]}, {"y": [4]}))


def came_back(session, before, before_host, host_slack):
    """Streams that were closed end in their own time, and their threads' memory with them."""
    gc.collect()
    end = time.monotonic() + 20
    while host_bytes() > before_host + host_slack and time.monotonic() < end:
        time.sleep(0.1)
    grown = host_bytes() - before_host
    assert grown <= host_slack, f"{grown} bytes of host memory are lost"
    lost = before - memory(session)["device"]["free_bytes"]
    assert lost <= 4 * MIB, f"{lost} bytes of device memory are lost"


@pytest.mark.parametrize("options", [{}, {"use_arena": 0}, {"arena.use_cuda_mempool": 1}], ids=["", "none", "mempool"])
def test_a_model_opened_and_closed_many_times(encore, chain, make_model, options):
    model, expected = chain
    model = model.SerializeToString()
    watch = watcher(make_model)

    def use(times):
        for i in range(times):
            session = make_session(model, enable_cuda_graph=i % 2, **options)
            run = bound(session, 64)
            close(run.run({"x": some(64)})["y"], expected(some(64)))
            close(session.run(None, {"x": some(2000)}, encore_session.run_options(EAGER))[0], expected(some(2000)))

    use(40)
    gc.collect()
    before, before_host = memory(watch)["device"]["free_bytes"], host_bytes()
    use(200)
    came_back(watch, before, before_host, 12 * MIB)


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

        assert not in_threads(lambda: half(0), lambda: half(1))

    for _ in range(2):
        use(50)
    gc.collect()
    before, before_host = memory(watch)["device"]["free_bytes"], host_bytes()
    use(50)
    came_back(watch, before, before_host, 16 * MIB)
