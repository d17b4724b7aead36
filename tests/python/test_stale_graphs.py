"""Graphs whose inputs or outputs have been freed since: a program that binds anew for each request gets its answers."""

import gc
import weakref

import encore_session
import numpy as np
import onnxruntime_ep_encore
import pytest
from encore_session import Bound, make_session, needs_graphs, only_if
from onnx import helper, numpy_helper

pytestmark = pytest.mark.core

FLOAT = np.float32
W = np.arange(12, dtype=FLOAT).reshape(4, 3)
REQUESTS = 6


@pytest.fixture
def model(make_model):
    """y = x + w."""
    node = helper.make_node("Add", ["x", "w"], ["y"], "add")
    return make_model([node], {"x": ["n", 3]}, {"y": ["n", 3]}, [numpy_helper.from_array(W, "w")])


@pytest.fixture
def session(encore, model):
    return make_session(model, enable_cuda_graph=1)


def some(seed):
    return np.random.default_rng(seed).standard_normal(W.shape).astype(FLOAT)


def states(session):
    return {report["id"]: report["state"] for report in onnxruntime_ep_encore.graph_report(session)}


def fresh_values(session, x):
    return Bound(session, {"x": x}, {"y": (x.shape, FLOAT)}).run()["y"]


def output_of_onnxruntime(session, x):
    binding = encore_session.bind_unallocated(session, encore_session.on_device(x))
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy()


@needs_graphs
@pytest.mark.parametrize("answer", [fresh_values, output_of_onnxruntime])
def test_a_binding_for_each_request(session, answer):
    strangers = []
    for seed in range(REQUESTS):
        x = some(seed)
        np.testing.assert_array_equal(answer(session, x), x + W)
        gc.collect()
        strangers += [encore_session.on_device(np.full_like(W, 7)) for _ in range(4)]
    assert all((value.numpy() == 7).all() for value in strangers), "a replay wrote there"


@needs_graphs
def test_an_input_of_the_host_is_bound_again(session):
    y = encore_session.empty_on_device(W.shape)
    binding = session.io_binding()
    binding.bind_ortvalue_output("y", y)
    for seed in range(REQUESTS):
        x = some(seed)
        binding.bind_cpu_input("x", x)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(y.numpy(), x + W)


@needs_graphs
def test_shapes_may_change_with_the_bindings(session):
    for n in (4, 1, 4):  # w is of four rows; one row is broadcast
        x = some(n)[:n]
        run = Bound(session, {"x": x}, {"y": (W.shape, FLOAT)})
        np.testing.assert_array_equal(run.run()["y"], x + W)
        del run
        gc.collect()


@needs_graphs
def test_a_stale_graph_is_told_and_captured_again(session):
    run = Bound(session, {"x": W}, {"y": (W.shape, FLOAT)})
    run.run()
    assert states(session) == {0: "ready"}
    del run
    gc.collect()
    assert states(session) == {0: "stale"}
    run = Bound(session, {"x": W}, {"y": (W.shape, FLOAT)})
    for seed in range(3):
        np.testing.assert_array_equal(run.run({"x": some(seed)})["y"], some(seed) + W)
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert (report["state"], report["replays"]) == ("ready", 2)


@needs_graphs
def test_what_lives_on_is_replayed(session):
    """A binding whose output onnxruntime allocates, and values that outlive their bindings."""
    x = encore_session.on_device(W)
    binding = encore_session.bind_unallocated(session, x)
    for seed in range(4):
        x.update_inplace(some(seed))
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), some(seed) + W)
    assert onnxruntime_ep_encore.graph_report(session)[0]["replays"] == 3

    y = encore_session.empty_on_device(W.shape)
    for seed in range(4):
        x.update_inplace(some(seed))
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_ortvalue_output("y", y)
        session.run_with_iobinding(binding, encore_session.run_options(1))
        np.testing.assert_array_equal(y.numpy(), some(seed) + W)
    assert onnxruntime_ep_encore.graph_report(session)[1]["replays"] == 3


@needs_graphs
def test_captures_in_vain_are_told_once(session, capfd):
    for seed in range(2 * REQUESTS):
        fresh_values(session, some(seed))
        gc.collect()
    said = capfd.readouterr().err
    assert said.count("graph id 0 is captured anew at each run") == 1, said
    assert "update_inplace" in said


# ---- sessions of encore.session, which know what is bound


@pytest.fixture
def watched(encore, model):
    return onnxruntime_ep_encore.session(model.SerializeToString(), enable_cuda_graph=True)


@needs_graphs
def test_other_buffers_are_refused_while_the_old_ones_live(watched):
    first, second = (Bound(watched, {"x": W}, {"y": (W.shape, FLOAT)}) for _ in range(2))
    np.testing.assert_array_equal(first.run()["y"], 2 * W)
    with pytest.raises(ValueError, match=r"graph 0 was captured with another buffer for 'x', 'y', which is still in"):
        second.run()
    np.testing.assert_array_equal(second.run(graph_id=1)["y"], 2 * W)
    np.testing.assert_array_equal(second.run(graph_id=encore_session.EAGER)["y"], 2 * W)
    for seed in range(3):
        np.testing.assert_array_equal(first.run({"x": some(seed)})["y"], some(seed) + W)
    first.binding.bind_ortvalue_input("x", encore_session.on_device(-W))
    with pytest.raises(ValueError, match="another buffer for 'x'"):
        first.run()
    first.binding.bind_ortvalue_input("x", first.inputs["x"])
    np.testing.assert_array_equal(first.run({"x": W})["y"], 2 * W)


@only_if(encore_session.ORT_VERSION >= (1, 30))  # before, its Python is not asked to bind such outputs
def test_an_output_of_another_binding_is_refused_rather_than_left_empty(watched):
    x, results = encore_session.on_device(W), []
    for binding in (encore_session.bind_unallocated(watched, x) for _ in range(2)):
        if results:
            with pytest.raises(ValueError, match="another buffer for 'y'"):
                watched.run_with_iobinding(binding)
        else:
            watched.run_with_iobinding(binding)
            results += binding.get_outputs()
    np.testing.assert_array_equal(results[0].numpy(), 2 * W)


@needs_graphs
def test_arrays_are_refused_rather_than_left_unread(watched):
    run = Bound(watched, {"x": W}, {"y": (W.shape, FLOAT)})
    feeds = {"x": W}
    np.testing.assert_array_equal(watched.run(None, feeds, encore_session.run_options(encore_session.EAGER))[0], 2 * W)
    with pytest.raises(Exception, match="is in host memory, but a replayed graph copies nothing"):
        watched.run(None, feeds)
    run.run()
    for attempt in (
        lambda options=None: watched.run(None, feeds, options),
        lambda options=None: watched.run_with_ort_values(["y"], run.inputs, options),
    ):
        with pytest.raises(
            ValueError, match=r"graph 0 is captured, and a replay would read none.* use run_with_iobind"
        ):
            attempt()
        assert len(attempt(encore_session.run_options(encore_session.EAGER))) == 1
    np.testing.assert_array_equal(run.run({"x": some(1)})["y"], some(1) + W)


@needs_graphs
def test_freed_buffers_are_no_reason_to_refuse(watched):
    for seed in range(REQUESTS):
        np.testing.assert_array_equal(fresh_values(watched, some(seed)), some(seed) + W)
        gc.collect()


@only_if(encore_session.ORT_VERSION >= (1, 30))  # release_captured_graph
def test_a_released_graph_may_have_other_buffers(watched):
    first, second = (Bound(watched, {"x": W}, {"y": (W.shape, FLOAT)}) for _ in range(2))
    first.run()
    watched.release_captured_graph(0)
    np.testing.assert_array_equal(second.run({"x": some(1)})["y"], some(1) + W)
    with pytest.raises(ValueError, match="another buffer"):
        first.run()


@needs_graphs
def test_an_output_is_not_moved_to_the_host_behind_a_capture(watched):
    run = Bound(watched, {"x": W}, {"y": (W.shape, FLOAT)})
    run.run()
    run.binding.clear_binding_outputs()
    run.binding.bind_output("y")
    with pytest.raises(ValueError, match="another buffer for 'y'"):
        run.run()
    run.binding.clear_binding_outputs()
    run.binding.bind_ortvalue_output("y", run.outputs["y"])
    np.testing.assert_array_equal(run.run({"x": some(1)})["y"], some(1) + W)


@needs_graphs
def test_run_options_may_be_given_another_graph(watched):
    first, second = (Bound(watched, {"x": W}, {"y": (W.shape, FLOAT)}) for _ in range(2))
    options = encore_session.run_options(1)
    watched.run_with_iobinding(first.binding, options)
    options.add_run_config_entry("gpu_graph_id", "2")
    watched.run_with_iobinding(first.binding, options)
    with pytest.raises(ValueError, match="graph 2 was captured with another buffer for 'x', 'y'"):
        watched.run_with_iobinding(second.binding, options)


@needs_graphs
@pytest.mark.parametrize("graph_id", [None, 1])
def test_no_run_options_are_kept(watched, graph_id):
    run = Bound(watched, {"x": W}, {"y": (W.shape, FLOAT)})
    options = encore_session.run_options(graph_id)
    watched.run_with_iobinding(run.binding, options)
    gone = weakref.ref(options)
    del options
    assert gone() is None


@pytest.mark.parametrize("graphs", [{}, {"enable_cuda_graph": True}], ids=["automatic", "asked"])
def test_run_options_are_given_the_id_that_they_stand_for(encore, model, graphs):
    """To ask for one that is not there takes tens of microseconds, and onnxruntime asks in each bound run."""
    session = onnxruntime_ep_encore.session(model.SerializeToString(), **graphs)
    for given in (None, "0", "7"):
        options = encore_session.run_options(given)
        bound = Bound(session, {"x": some(0)}, {"y": (W.shape, FLOAT)})
        for _ in range(2):
            session.run_with_iobinding(bound.binding, options)
        assert options.get_run_config_entry("gpu_graph_id") == (given or "0")
        np.testing.assert_array_equal(bound.outputs["y"].numpy(), some(0) + W)
