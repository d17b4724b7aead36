"""Graphs that nobody asks for (auto_graph): any program gets its own answers, and is replayed where it can be."""

import gc
import threading

import encore_session
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from encore_session import (
    ARRANGEMENTS,
    Bound,
    arranged,
    in_threads,
    make_session,
    make_stream,
    needs_graphs,
)
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.core

FLOAT = np.float32
WIDTH = 16


@pytest.fixture(scope="module")
def model(make_model):
    """Five layers, y = relu(x @ w) + x, of any number of rows."""
    random = np.random.default_rng(3)
    nodes, constants, x = [], [], "x"
    for i in range(5):
        constants.append(numpy_helper.from_array(random.standard_normal((WIDTH, WIDTH)).astype(FLOAT) / 4, f"w{i}"))
        nodes += [
            helper.make_node("MatMul", [x, f"w{i}"], [f"p{i}"], f"product{i}"),
            helper.make_node("Relu", [f"p{i}"], [f"r{i}"], f"relu{i}"),
            helper.make_node("Add", [f"r{i}", x], [f"x{i}" if i < 4 else "y"], f"add{i}"),
        ]
        x = f"x{i}"
    return make_model(nodes, {"x": ["n", WIDTH]}, {"y": ["n", WIDTH]}, constants)


def automatic(model, **options):
    return make_session(model, regions=1, auto_graph=1, **options)


@pytest.fixture
def session(encore, model):
    return automatic(model)


@pytest.fixture(scope="module")
def expected(encore, model):
    """What an eager session makes of x."""
    eager = make_session(model)
    return lambda x: eager.run(None, {"x": x})[0]


def some(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(FLOAT)


def report(session):
    (one,) = onnxruntime_ep_encore.region_report(session)
    return one


def equal(got, wanted):
    np.testing.assert_array_equal(got, wanted)


def test_arrays(session, expected):
    for seed in range(6):
        equal(session.run(None, {"x": some(3, seed)})[0], expected(some(3, seed)))
    told = report(session)
    assert (told["first_runs"], told["captures"], told["refusal"]) == (1, 1, "")
    assert told["replays"] == 4 and told["eager"] == 0, told


def test_shapes_change(session, expected):
    for seed in range(5):
        for rows in (1, 7, 0, 300):
            equal(session.run(None, {"x": some(rows, seed)})[0], expected(some(rows, seed)))
    told = report(session)
    assert told["keys"] == 4 and told["captures"] >= 4 and told["replays"] >= 8, told


def test_the_same_buffers(session, expected):
    run = Bound(session, {"x": some(4)}, {"y": ((4, WIDTH), FLOAT)})
    for seed in range(6):
        equal(run.run({"x": some(4, seed)})["y"], expected(some(4, seed)))
    assert report(session)["staged"] == 0


def bound_as(session, rows, pointers):
    """A run with so many rows of x and y, which are at these places of the device."""
    memory = encore_session.capi.OrtDevice(1, 0, encore_session.NVIDIA, 0)
    binding = session.io_binding()
    binding._iobinding.bind_input("x", memory, FLOAT, [rows, WIDTH], pointers["x"])
    binding._iobinding.bind_output("y", memory, FLOAT, [rows, WIDTH], pointers["y"])
    session.run_with_iobinding(binding)


def test_other_shapes_at_the_same_places(session, expected):
    x, y = encore_session.on_device(some(9)), encore_session.on_device(np.zeros((9, WIDTH), FLOAT))
    for seed in range(5):
        x.update_inplace(some(9, seed))
        for rows in (9, 4, 1, 4):
            y.update_inplace(np.zeros((9, WIDTH), FLOAT))
            bound_as(session, rows, {"x": x.data_ptr(), "y": y.data_ptr()})
            equal(y.numpy()[:rows], expected(some(9, seed)[:rows]))
            assert not y.numpy()[rows:].any()
    told = report(session)
    assert told["keys"] == 3 and told["replays"] >= 12, told


@pytest.mark.parametrize("wrong", ["x", "y"])
def test_a_pointer_to_host_memory_is_found_between_replays(session, expected, wrong):
    x, y = encore_session.on_device(some(4)), encore_session.on_device(np.zeros((4, WIDTH), FLOAT))
    pointers, on_host = {"x": x.data_ptr(), "y": y.data_ptr()}, np.zeros((4, WIDTH), FLOAT)
    for seed in range(6):
        x.update_inplace(some(4, seed))
        bound_as(session, 4, pointers)
        equal(y.numpy(), expected(some(4, seed)))
        with pytest.raises(Exception, match=f"0 \\('{wrong}'\\) was bound as device memory, but its address"):
            bound_as(session, 4, {**pointers, wrong: on_host.ctypes.data})
    told = report(session)
    assert told["replays"] >= 4 and told["refused"] >= 5 and "was bound as device memory" in told["refusal"], told


def test_fresh_buffers_each_time(session, expected):
    kept = []
    for seed in range(8):
        run = Bound(session, {"x": some(4, seed)}, {"y": ((4, WIDTH), FLOAT)})
        equal(run.run()["y"], expected(some(4, seed)))
        kept.append(run)
    for seed, run in enumerate(kept):
        equal(run.outputs["y"].numpy(), expected(some(4, seed)))
    told = report(session)
    assert told["captures"] <= 2 and told["replays"] >= 5 and told["staged"] > 0, told


@pytest.mark.parametrize(("places", "captures"), [(3, 3), (10, 1)])
def test_large_tensors_that_move(encore, make_model, places, captures):
    """Few places have graphs of their own; of many, tensors are copied."""
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], "negate"),
        helper.make_node("Relu", ["n"], ["r"], "positive"),
        helper.make_node("Add", ["r", "x"], ["y"], "add"),
    ]
    session = automatic(make_model(nodes, {"x": ["n"]}, {"y": ["n"]}))
    x = np.resize(some(100).reshape(-1), 5 << 18)  # 5 MiB
    runs = [Bound(session, {"x": x + i}, {"y": (x.shape, FLOAT)}) for i in range(places)]
    for i in [*range(places), *range(places), *range(places)]:
        equal(runs[i].run()["y"], np.maximum(x + i, 0))
    told = report(session)
    assert told["captures"] == captures and told["replays"] >= places, told


def test_outputs_that_onnxruntime_allocates(session, expected):
    kept = []
    for seed in range(6):
        binding = encore_session.bind_unallocated(session, encore_session.on_device(some(4, seed)))
        session.run_with_iobinding(binding)
        kept.append(binding.get_outputs()[0])
        gc.collect()
    for seed, y in enumerate(kept):
        equal(y.numpy(), expected(some(4, seed)))


def test_a_state_in_one_buffer_advances_once_a_run(encore, make_model):
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["d"], "double"),
        helper.make_node("Add", ["d", "one"], ["y"], "add"),
    ]
    constants = [numpy_helper.from_array(np.array(v, FLOAT), n) for n, v in (("one", 1), ("two", 2))]
    session = automatic(make_model(nodes, {"x": [3]}, {"y": [3]}, constants))
    state, wanted = encore_session.on_device(np.zeros(3, FLOAT)), 0
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", state)
    binding.bind_ortvalue_output("y", state)
    for _ in range(6):
        session.run_with_iobinding(binding)
        wanted = 2 * wanted + 1
        equal(state.numpy(), np.full(3, wanted, FLOAT))
    assert report(session)["replays"] == 4


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_wherever_work_is(encore, model, expected, arrangement):
    stream = make_stream()
    session = automatic(model, **arranged(arrangement, stream))
    for seed in range(4):
        for rows in (2, 9):
            equal(session.run(None, {"x": some(rows, seed)})[0], expected(some(rows, seed)))
    assert report(session)["replays"] >= 4


def test_threads_with_shapes_of_their_own_and_in_common(session, expected):
    wanted = {(rows, seed): expected(some(rows, seed)) for rows in range(1, 7) for seed in range(5)}

    def work(thread):
        random = np.random.default_rng(thread)
        for _ in range(40):
            rows, seed = int(random.integers(1, 7)), int(random.integers(5))
            equal(session.run(None, {"x": some(rows, seed)})[0], wanted[rows, seed])

    assert not in_threads(8, work)
    assert report(session)["replays"] > 100


def test_threads_that_come_and_go_replay_what_those_before_captured(session, expected):
    """As a server has them that begins a thread for each request: onnxruntime has a stream for each."""
    wanted = [expected(some(4, seed)) for seed in range(12)]
    for seed, y in enumerate(wanted):
        assert not in_threads(1, lambda _, seed=seed, y=y: equal(session.run(None, {"x": some(4, seed)})[0], y))
    assert report(session)["replays"] >= 8


@pytest.mark.parametrize("threads", [9, 32])
def test_threads_that_take_turns(session, expected, threads):
    """As those of a pool do that is asked for one run at a time."""
    rounds = 5
    wanted = [expected(some(4, seed)) for seed in range(rounds)]
    turns = [threading.Semaphore(0) for _ in range(threads)]

    def work(thread):
        for seed in range(rounds):
            assert turns[thread].acquire(timeout=60)
            try:
                equal(session.run(None, {"x": some(4, seed)})[0], wanted[seed])
            finally:
                turns[(thread + 1) % threads].release()

    assert not in_threads(threads, work, meanwhile=turns[0].release)
    assert report(session)["replays"] >= threads * (rounds - 3), report(session)


def test_runs_that_nobody_waits_for(session, expected):
    runs = [Bound(session, {"x": some(4, seed)}, {"y": ((4, WIDTH), FLOAT)}) for seed in range(6)]
    options = encore_session.run_options(disable_synchronize_execution_providers=1)
    for run in runs:
        session.run_with_iobinding(run.binding, options)
    runs[0].binding.synchronize_outputs()
    for seed, run in enumerate(runs):
        equal(run.outputs["y"].numpy(), expected(some(4, seed)))


def test_the_most_used_are_kept(encore, model, expected):
    session = automatic(model, auto_graph_limit=4)
    for seed in range(4):
        for rows in range(1, 13):
            equal(session.run(None, {"x": some(rows, seed)})[0], expected(some(rows, seed)))
    told = report(session)
    assert (told["graphs"], told["captures"]) == (4, 4), told


def test_graphs_hold_no_more_bytes_than_they_may(encore, model, expected):
    session = automatic(model, auto_graph_mem_limit=1 << 20)
    for seed in range(4):
        for rows in range(1, 41):
            equal(session.run(None, {"x": some(rows, seed)})[0], expected(some(rows, seed)))
    told, held = report(session), onnxruntime_ep_encore.memory_report(session)["automatic_graphs"]
    assert 4 < told["graphs"] == held["graphs"] < 40, told
    assert held["workspace_bytes"] + held["node_bytes"] <= held["limit_bytes"] == 1 << 20, held
    assert "auto_graph_mem_limit" in told["refusal"] and told["crowded"] > 0, told
    by_rows = {shapes["inputs"]["x"][0]: shapes for shapes in told["shapes"]}
    assert sorted(by_rows) == list(range(1, 41)) and by_rows[40]["scratch_bytes"] == told["scratch_bytes"]
    assert sum(shapes["graphs"] for shapes in told["shapes"]) == told["graphs"]
    assert all(
        shapes["graph_nodes"] > 0 and shapes["workspace_bytes"] > 0 for shapes in told["shapes"] if shapes["graphs"]
    )


def test_a_graph_may_hold_half_of_the_memory(encore, model):
    told = onnxruntime_ep_encore.memory_report(automatic(model))
    assert told["automatic_graphs"]["limit_bytes"] == told["device"]["total_bytes"] // 2
    told = onnxruntime_ep_encore.memory_report(automatic(model, gpu_mem_limit=1 << 26))
    assert told["automatic_graphs"]["limit_bytes"] == 1 << 25


def test_a_graph_whose_tensors_move_is_captured_again_in_its_own_place(encore, model, expected):
    session = automatic(model, auto_graph_limit=1)
    first = Bound(session, {"x": some(4)}, {"y": ((4, WIDTH), FLOAT)})
    for seed in range(4):
        equal(first.run({"x": some(4, seed)})["y"], expected(some(4, seed)))
    second = Bound(session, {"x": some(4)}, {"y": ((4, WIDTH), FLOAT)})
    for seed in range(6):
        for run in (first, second):
            equal(run.run({"x": some(4, seed)})["y"], expected(some(4, seed)))
    told = report(session)
    assert told["graphs"] == 1 and told["captures"] <= 3 and told["replays"] >= 10 and told["eager"] == 0, told


def test_memory_is_flat(session):
    """But for what graphs work in, which is as large as the largest asks for, and a few times that on the way."""
    random = np.random.default_rng(5)

    def held():
        told = onnxruntime_ep_encore.memory_report(session)
        (graphs,) = [one["bytes"] for one in told["holders"] if one["name"] == "scratch of automatic graphs"]
        assert graphs < 5 * report(session)["scratch_bytes"]
        return told["arena"]["held_bytes"] - graphs

    for rows in (*range(1, 200), *range(1, 200)):
        session.run(None, {"x": some(rows)})
    before = held()
    for _ in range(600):
        session.run(None, {"x": some(int(random.integers(1, 200)))})
    # What graphs have given back is held until all that was under way is seen to be done.
    assert held() <= before + 5 * report(session)["scratch_bytes"]


def test_a_fault_names_its_node(encore, make_model):
    constants = [numpy_helper.from_array(-np.arange(6, dtype=FLOAT), "table")]
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["g"], "look_up"),
        helper.make_node("Neg", ["g"], ["n"], "negate"),
        helper.make_node("Relu", ["n"], ["y"], "positive"),
    ]
    session = automatic(make_model(nodes, {"i": ([2], TensorProto.INT64)}, {"y": [2]}, constants))
    for _ in range(2):
        for _ in range(4):
            equal(session.run(None, {"i": np.array([1, 0])})[0], np.array([1, 0], FLOAT))
        with pytest.raises(Exception, match="look_up.*index 6 is outside"):
            session.run(None, {"i": np.array([6, 0])})


def test_random_numbers_go_on(encore, make_model):
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], "random", seed=3.0),
        helper.make_node("Add", ["r", "x"], ["y"], "add"),
    ]
    model = make_model(nodes, {"x": [50]}, {"y": [50]})
    sessions = [make_session(model), automatic(model)]
    x = np.zeros(50, FLOAT)
    seen = [[session.run(None, {"x": x})[0] for _ in range(5)] for session in sessions]
    for eager, replayed in zip(*seen):
        equal(eager, replayed)
    assert len({y.tobytes() for y in seen[0]}) == 5


def test_what_is_sized_by_data_stays_between(encore, make_model):
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["s"], "square"),
        helper.make_node("Sub", ["s", "x"], ["d"], "less"),
        helper.make_node("NonZero", ["d"], ["n"], "find"),
        helper.make_node("Cast", ["n"], ["c"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Neg", ["c"], ["y"], "negate"),
    ]
    session = automatic(make_model(nodes, {"x": [6]}, {"y": [1, "k"]}))
    for seed in range(5):
        x = np.random.default_rng(seed).integers(0, 3, 6).astype(FLOAT)
        equal(session.run(None, {"x": x})[0], -np.array(np.nonzero(x * x - x), FLOAT))
    before, after = onnxruntime_ep_encore.region_report(session)
    assert before["replays"] == 3 and after["first_runs"] >= 1, (before, after)


def test_captures_are_not_awaited(session, expected):
    with onnxruntime_ep_encore.captures_held_back(session):
        for seed in range(3):
            equal(session.run(None, {"x": some(3, seed)})[0], expected(some(3, seed)))
    told = report(session)
    assert told["captures"] == 0 and "held back" in told["refusal"], told
    for seed in range(40):
        equal(session.run(None, {"x": some(3, seed)})[0], expected(some(3, seed)))
    assert report(session)["captures"] in (1, 2)  # another one without copies, where tensors happen to stay


def test_captures_beside_others_that_hold_them_back(session, expected):
    over = threading.Event()

    def hold():
        while not over.is_set():
            with onnxruntime_ep_encore.captures_held_back(session):
                pass

    wanted = {rows: expected(some(rows)) for rows in range(1, 30)}

    def work(_):
        for _ in range(3):
            for rows, y in wanted.items():
                equal(session.run(None, {"x": some(rows)})[0], y)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert not in_threads(4, work)
    finally:
        over.set()
        holder.join()


def test_where_memory_runs_out_graphs_make_room(encore, model, expected):
    session = automatic(model, gpu_mem_limit=6 << 20, **{"arena.initial_chunk_size_bytes": 1 << 16})
    x = some(5000)
    for seed in range(4):
        equal(session.run(None, {"x": some(5000, seed)})[0], expected(some(5000, seed)))
    assert report(session)["graphs"] == 1
    large = some(18000)
    equal(session.run(None, {"x": large})[0], expected(large))
    for _ in range(3):
        equal(session.run(None, {"x": x})[0], expected(x))


def test_no_more_memory_is_needed_than_for_a_first_run(encore, make_model):
    """What is wide comes first, and goes before the output is made, which is as wide."""
    nodes = [
        helper.make_node("Concat", ["x"] * 6, ["wide"], "widen", axis=1),
        helper.make_node("Exp", ["wide"], ["e"], "exp"),
        helper.make_node("ReduceMax", ["e"], ["narrow"], "narrow"),
        helper.make_node("Add", ["x", "narrow"], ["sum"], "add"),
        helper.make_node("Concat", ["sum"] * 6, ["y"], "widen_again", axis=1),
    ]
    model = make_model(nodes, {"x": ["n", WIDTH]}, {"y": ["n", 6 * WIDTH]})
    x = some(1 << 10)  # 64 KiB
    wanted = np.tile(x + np.exp(x).max(), 6)

    def run(times, limit, auto_graph):
        told = {"gpu_mem_limit": limit, "arena_extend_strategy": "kSameAsRequested"}
        session = make_session(model, regions=1, auto_graph=auto_graph, **told)
        for _ in range(times):
            np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-5)
        return session

    def suffices(limit):
        try:
            return run(1, limit, 0)
        except Exception as error:
            assert "device memory is exhausted" in str(error)

    least = next(limit for limit in range(1 << 18, 1 << 22, 1 << 14) if suffices(limit))
    for auto_graph in (0, 1):
        run(6, least, auto_graph)
    assert report(run(6, 4 * least, 1))["replays"] == 4


@needs_graphs
def test_with_graphs_that_were_asked_for(encore, model, expected):
    session = automatic(model, enable_cuda_graph=1)
    run = Bound(session, {"x": some(4)}, {"y": ((4, WIDTH), FLOAT)})
    for seed in range(5):
        equal(run.run({"x": some(4, seed)})["y"], expected(some(4, seed)))
    assert onnxruntime_ep_encore.region_report(session) == []


def test_sessions_come_and_go(encore, model, expected):
    for seed in range(3):
        session = automatic(model)
        for _ in range(3):
            equal(session.run(None, {"x": some(3, seed)})[0], expected(some(3, seed)))
        del session
        gc.collect()


def test_two_bodies_and_what_is_around_them(encore, make_model):
    branch = lambda op, name: helper.make_graph(
        [helper.make_node(op, ["s"], [name], f"in_{name}")], name, [], [helper.make_tensor_value_info(name, 1, [4])]
    )
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["q"], "square"),
        helper.make_node("Sub", ["q", "x"], ["s"], "less"),
        helper.make_node("If", ["c"], ["b"], "choose", then_branch=branch("Neg", "t"), else_branch=branch("Abs", "e")),
        helper.make_node("Add", ["b", "q"], ["a"], "add"),
        helper.make_node("Mul", ["a", "a"], ["y"], "again"),
    ]
    session = automatic(make_model(nodes, {"x": [4], "c": ([1], TensorProto.BOOL)}, {"y": [4]}))
    for seed in range(6):
        x, c = np.random.default_rng(seed).standard_normal(4).astype(FLOAT), np.array([seed % 2 == 0])
        s = x * x - x
        equal(session.run(None, {"x": x, "c": c})[0], ((-s if c else np.abs(s)) + x * x) ** 2)
    (told,) = onnxruntime_ep_encore.region_report(session)  # the device decides which of them runs
    assert told["nodes"] == 5 and told["replays"] == 4, told


def test_profiles_and_logs_are_made(encore, model, expected, tmp_path):
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = make_session(model, options, regions=1, auto_graph=1)
    for seed in range(3):
        equal(session.run(None, {"x": some(3, seed)})[0], expected(some(3, seed)))
    assert session.end_profiling()


def test_what_is_told_of_a_region(session):
    session.run(None, {"x": some(3)})
    told = report(session)
    assert told["region"] == "MatMul node 'product0' to Add node 'add4'" and told["nodes"] == 15, told
    assert told["scratch_bytes"] >= 3 * WIDTH * 4, told
    assert onnxruntime_ep_encore.outside_report(session) == []


def test_why_runs_are_eager(encore, model):
    """No room: of two shapes in turn one is captured, and the other is not used more."""
    session = automatic(model, auto_graph_limit=1)
    for _ in range(6):
        for rows in (2, 3):
            session.run(None, {"x": some(rows)})
    told = report(session)
    assert told["crowded"] >= 4 and told["eager"] == told["crowded"] + told["moved"] + told["refused"], told
    assert "auto_graph_limit" in told["refusal"], told


def test_the_tensor_that_moved_is_told(encore, model):
    session = automatic(model)
    rows = (5 << 20) // (4 * WIDTH)
    runs = [Bound(session, {"x": some(rows)}, {"y": ((rows, WIDTH), FLOAT)}) for _ in range(2)]
    for run in runs:
        run.run()
    assert report(session)["refusal"] == "'x', of 5242880 bytes, is at a place that no graph has"


def test_what_is_outside_is_told(encore, make_model):
    def body(op):
        nodes = [helper.make_node(op, ["made"], [f"{op} y"], f"inner {op}")]
        return helper.make_graph(
            nodes, f"{op}s", [], [helper.make_tensor_value_info(f"{op} y", TensorProto.FLOAT, None)]
        )

    nodes = [
        helper.make_node("Neg", ["x"], ["negative"], "neg"),
        helper.make_node("Exp", ["negative"], ["made"], "exp"),
        helper.make_node("NonZero", ["made"], ["places"], "places"),
        helper.make_node("If", ["flag"], ["y"], "choice", then_branch=body("Abs"), else_branch=body("Flatten")),
    ]
    inputs = {"x": ["n"], "flag": ([], TensorProto.BOOL)}
    session = automatic(make_model(nodes, inputs, {"y": ["n"], "places": ([1, "m"], TensorProto.INT64)}))
    session.run(None, {"x": np.ones(3, FLOAT), "flag": np.array(True)})
    assert report(session)["region"] == "Neg node 'neg' to Exp node 'exp'"
    told = {(one["inside"], one["node"]): one["why"] for one in onnxruntime_ep_encore.outside_report(session)}
    assert told["", "NonZero node 'places'"] == "an output's size depends on data"
    assert told["", "If node 'choice'"] == (
        "control flow, which onnxruntime runs: data decides between the branches of If node 'choice', whose outputs 0 "
        "may not have the same shape"
    )
    assert "alone" in told["If node 'choice', body 'Abss'", "Abs node 'inner Abs'"], told
    assert len(told) == 4


@pytest.mark.parametrize(("regions", "replays"), [("1", []), ("all", [3])])
def test_a_node_alone(encore, make_model, regions, replays):
    nodes = [helper.make_node("Neg", ["x"], ["y"], "negate")]
    session = make_session(make_model(nodes, {"x": ["n"]}, {"y": ["n"]}), regions=regions, auto_graph=1)
    for i in range(5):
        equal(session.run(None, {"x": np.array([i, 2], FLOAT)})[0], -np.array([i, 2], FLOAT))
    assert [region["replays"] for region in onnxruntime_ep_encore.region_report(session)] == replays


def sized_by_data(i, x):
    """What is a region behind a NonZero, two nodes that make last{i} of x."""
    return [
        helper.make_node("NonZero", [x], [f"places{i}"], f"places{i}"),
        helper.make_node("Cast", [f"places{i}"], [f"cast{i}"], f"cast{i}", to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", [f"cast{i}"], [f"last{i}"], f"last{i}", keepdims=0),
    ]


def test_of_very_many_regions_the_smallest_are_none(encore, make_model):
    """Each of them costs onnxruntime a look at the whole model."""
    nodes, x = [], "x"
    for i in range(257):
        nodes += [*sized_by_data(i, x), helper.make_node("Add", [x, f"last{i}"], [f"sum{i}"], f"sum{i}")]
        x = f"sum{i}"
    session = automatic(make_model(nodes[:-1], {"x": ["n"]}, {"last256": []}))
    assert session.run(None, {"x": np.ones(3, FLOAT)})[0] == 2
    told = {one["node"]: one["why"] for one in onnxruntime_ep_encore.outside_report(session)}
    assert {node for node, why in told.items() if "larger" in why} == {
        "Cast node 'cast256'",
        "ReduceMax node 'last256'",
    }
    assert len(told) == 257 + 2


def test_as_many_regions_as_there_may_be(encore, make_model):
    """A node alone is alone then, and not because of them."""
    nodes, x = [], "x"
    for i in range(256):
        nodes += sized_by_data(i, x)
        x = f"last{i}"
    nodes += [helper.make_node("NonZero", [x], ["places"]), helper.make_node("Cast", ["places"], ["y"], "alone", to=1)]
    session = automatic(make_model(nodes, {"x": ["n"]}, {"y": ["r", "m"]}))
    told = {one["node"]: one["why"] for one in onnxruntime_ep_encore.outside_report(session)}
    assert told["Cast node 'alone'"] == "alone: nothing beside it can run with it"
    assert len(told) == 257 + 1
