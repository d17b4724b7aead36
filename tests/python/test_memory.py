"""Device memory of sessions: the arena and its options, the environment's, and what host memory goes through."""

import ctypes
import gc
import re

import encore_session
import numpy as np
import onnxruntime_ep_encore
import pytest
from encore_session import EAGER, ORT_VERSION, Bound, make_session, needs_graphs, only_if
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi
from test_default_stream import an_application

pytestmark = pytest.mark.core

FLOAT = np.float32
MIB = 1 << 20
COUNT = MIB // 4  # floats of a MiB
CHAIN, HEAVY = (64,), (512, 1)  # a row of what the models of these names take and give
SHRINK = {"memory.enable_memory_arena_shrinkage": "gpu:0"}
needs_shrink = only_if(ORT_VERSION >= (1, 26))


def memory(session):
    return onnxruntime_ep_encore.memory_report(session)


def arena(session):
    return memory(session)["arena"]


@pytest.fixture
def wide(make_model):
    """Keeps five tensors as large as its input at a time; the last is -x."""
    names = [f"t{i}" for i in range(5)]
    ops = ("Abs", "Relu", "Floor", "Ceil", "Neg")
    nodes = [helper.make_node(op, ["x"], [name], f"make_{name}") for op, name in zip(ops, names)]
    nodes.append(helper.make_node("Concat", names, ["y"], "join", axis=0))
    return make_model(nodes, {"x": ["n"]}, {"y": ["m"]})


def some(n=16, seed=1, row=CHAIN):
    return np.random.default_rng(seed).standard_normal((n, *row)).astype(FLOAT)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def bound(session, n=16, row=CHAIN):
    return Bound(session, {"x": np.zeros((n, *row), FLOAT)}, {"y": ((n, *row), FLOAT)})


# ---- the arena and its options


def test_memory_is_reported(encore, chain):
    model, expected = chain
    session = make_session(model, auto_graph=0)  # whose graphs would keep what they work in
    for _ in range(3):
        close(session.run(None, {"x": some()})[0], expected(some()))
    report = memory(session)
    stats = report["arena"]
    weights = 64 * 64 * 4 + 256
    assert stats["in_use_bytes"] == weights
    assert stats["in_use_bytes"] < stats["peak_in_use_bytes"] <= stats["held_bytes"] <= 2 * MIB
    assert stats["driver_allocations"] >= 1 and stats["allocations"] > 5 and stats["largest_bytes"] >= 64 * 64 * 4
    assert stats["limit_bytes"] is None
    assert sum(holder["bytes"] for holder in report["holders"]) == weights
    assert report["device"]["free_bytes"] < report["device"]["total_bytes"]


def test_exhausted_memory_names_who_has_it(encore, wide):
    session = make_session(wide, gpu_mem_limit=30 * MIB, arena_extend_strategy="kSameAsRequested")
    with pytest.raises(Exception) as raised:
        session.run(None, {"x": np.zeros(4 * COUNT, FLOAT)})
    said = str(raised.value)
    assert "Concat node 'join'" in said if encore_session.HAS_REGIONS else "Concat node. Name:'join'" in said, said
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


def test_dead_bytes(encore, make_model):
    """In a chunk of 1 MiB the input leaves 384 KiB, into which the output would fit."""
    most = 384 << 10
    ends = [numpy_helper.from_array(np.int64([at]), name) for name, at in (("start", 0), ("end", most // 4))]
    slicing = helper.make_node("Slice", ["x", "start", "end"], ["y"])
    model = make_model([slicing], {"x": ["n"]}, {"y": ["m"]}, ends)
    x = np.zeros((MIB - most) // 4, FLOAT)

    def held(dead_bytes):
        chunks = {"arena.initial_chunk_size_bytes": MIB, "arena.max_power_of_two_extend_bytes": MIB}
        session = make_session(model, **chunks, **{"arena.max_dead_bytes_per_chunk": dead_bytes})
        session.run(None, {"x": x})
        return arena(session)["held_bytes"]

    assert held(0) == held(most - 1) == MIB
    assert held(most) == 2 * MIB


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
    pool = {"arena.use_cuda_mempool": 1, "auto_graph": 0}  # a graph keeps what it works in
    keeps = make_session(model, **pool, **{"arena.cuda_mempool_release_threshold": 1 << 30})
    forgets = make_session(model, **pool)
    n = 1 << 17  # 32 MiB a tensor, which is also what a pool keeps for small ones
    for session in (keeps, forgets):
        for seed in range(2):
            close(session.run(None, {"x": some(n, seed)})[0], expected(some(n, seed)))
        session.run(None, {"x": some()})  # the driver gives back when it waits, and the last result is freed after that
    assert arena(keeps)["held_bytes"] >= 64 * MIB > arena(forgets)["held_bytes"]
    if ORT_VERSION >= (1, 26):
        keeps.run(None, {"x": some()}, encore_session.run_options(**SHRINK))
        assert arena(keeps)["held_bytes"] < 64 * MIB


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
        malloc = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value  # is not called
        option = {"gpu_external_alloc": malloc, "gpu_external_free": malloc}
    with pytest.raises(encore_session.REFUSED, match=encore_session.REFUSAL):
        make_session(chain[0], config={"session.use_env_allocators": 1}, **option)
    assert "session.use_env_allocators=1 gives the session the environment's memory" in capfd.readouterr().err


def test_initializers_are_reserved(encore, chain):
    model, expected = chain
    session = make_session(model, config={"session.use_device_allocator_for_initializers": 1}, regions=0)
    report = memory(session)
    assert report["arena"]["reserves"] == 2
    assert report["arena"]["held_bytes"] == report["arena"]["in_use_bytes"] == 64 * 64 * 4 + 256
    assert report["holders"] == [{"name": "weights", "bytes": 64 * 64 * 4 + 256, "blocks": 2}]
    close(session.run(None, {"x": some()})[0], expected(some()))


# ---- host memory


@only_if(encore_session.on_virtual_gpu())  # whose default stream keeps runs waiting
@pytest.mark.parametrize("options", [{}, {"use_ep_level_unified_stream": 1}], ids=["own streams", "unified"])
def test_runs_in_flight_use_the_same_blocks(encore, chain, options):
    session = make_session(chain[0], arena_extend_strategy="kSameAsRequested", **options)
    run, application = bound(session), an_application()
    for _ in range(3):
        run.run()
    held = arena(session)["held_bytes"]
    application.be_busy()
    for _ in range(20):
        session.run_with_iobinding(run.binding, encore_session.run_options(disable_synchronize_execution_providers=1))
    assert arena(session)["held_bytes"] == held
    run.binding.synchronize_outputs()


def test_pageable_memory_goes_through_pinned_buffers(encore, chain):
    model, expected = chain
    session = make_session(model)
    run = bound(session)
    run.session.run_with_iobinding(run.binding)
    assert memory(session)["staging"]["held_bytes"] == 0, "nothing came by"
    close(session.run(None, {"x": some(40000)})[0], expected(some(40000)))
    assert memory(session)["staging"]["held_bytes"] == 4 * MIB


def test_many_sizes_go_through_the_same_buffers(encore, chain):
    model, expected = chain
    session = make_session(model)
    for n in range(1, 10000, 250):  # to 2.5 MB
        close(session.run(None, {"x": some(n)})[0], expected(some(n)))
        assert 0 < memory(session)["staging"]["held_bytes"] <= 4 * MIB


def test_pinned_memory_is_copied_from_and_to_directly(encore, chain):
    """It is kept for the next, since page-locking takes its time."""
    model, expected = chain
    session = make_session(model)
    x, size = some(1 << 15), 8 * MIB
    pinned = lambda: memory(session)["pinned"]
    gc.collect()  # what other tests have left
    before = pinned()

    def run_to_pinned(value):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        host_accessible = capi.OrtDevice(1, 5, encore_session.NVIDIA, 0)
        binding._iobinding.bind_output("y", host_accessible)
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    for _ in range(4):
        once = run_to_pinned(encore_session.on_device(x))
        twice = run_to_pinned(once)
        close(twice.numpy(), expected(expected(x)))
        assert pinned()["in_use_bytes"] == before["in_use_bytes"] + 2 * size
        del once, twice
        gc.collect()
        assert pinned()["in_use_bytes"] == before["in_use_bytes"]
    assert pinned()["allocations"] == before["allocations"] + 8
    assert pinned()["driver_allocations"] <= before["driver_allocations"] + 4
    assert memory(session)["staging"]["held_bytes"] == 0
