"""Models as functions (encore.graphed): runs that nobody waits for, what goes wrong in them, and threads."""

import ctypes
import gc
import sys
import threading
import time
import types
import weakref

import encore_session
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from encore_session import (
    in_threads,
    is_gone,
    make_session,
    make_stream,
)
from graphed_cases import (
    FLOAT,
    Consumer,
    Tensor,
    X,
    Y,
    as_array,
    equal,
    from_dlpack,
    function,
    of_each_kind,
    on_device,
    on_virtual,
    some,
)
from onnx import TensorProto, helper, numpy_helper
from test_default_stream import VirtualApplication

pytestmark = pytest.mark.core

BUSY_S = 0.2


@pytest.fixture
def lookup(make_model):
    node = helper.make_node("Gather", ["x", "i"], ["y"], "lookup")
    return make_model([node], {"x": [5, 2], "i": (["n"], TensorProto.INT64)}, {"y": ["n", 2]})


# ---- without a wait


class Busy(VirtualApplication):
    """Whose default stream has so much to do."""

    def keep(self, seconds=BUSY_S):
        self.call("sleep", ctypes.c_int64(int(seconds * 1e6)))


@on_virtual
@of_each_kind
def test_start_waits_for_nothing(encore, negation, make):
    run, busy = function(negation), Busy()
    for seed in range(4):  # recorded, captured, replayed
        x = make(some(3, seed))
        run.submit(x).result()
        busy.keep()
        began = time.monotonic()
        future = run.submit(x)
        assert time.monotonic() - began < BUSY_S / 2 and not future.done()
        y = future.result()
        assert future.done() and time.monotonic() - began > BUSY_S * 0.9
        equal(as_array(y), -some(3, seed))
        assert future.result() is y


@on_virtual
def test_runs_come_after_the_default_stream_and_it_after_them(encore, negation):
    """The application fills x, lets it run, overwrites x and copies y, and nobody waits."""
    application, run = VirtualApplication(), function(negation)
    shape = (64, 256)
    x, seen = (encore_session.empty_on_device(shape) for _ in range(2))
    for byte in (0x3E, 0x3F, 0x40, 0x41, 0x42):
        application.be_busy()
        application.fill(x, byte)
        tensor = Tensor(x)
        future = run.submit(tensor)
        assert tensor.streams == [1]  # DLPack's name of the default stream, for the owner to order its own before
        application.fill(x, 0)
        application.copy(seen, future.outputs.value)
        application.wait()
        equal(seen.numpy(), np.full(shape, -np.frombuffer(bytes([byte] * 4), FLOAT)[0]))
        assert future.outputs is future.result()


@on_virtual
def test_outputs_are_taken_over_on_any_stream(encore, negation, monkeypatch):
    application, run, stream = VirtualApplication(), function(negation), make_stream()
    monkeypatch.setattr(Consumer, "stream", stream.get_handle())
    seen = encore_session.empty_on_device((64, 256))
    for seed in range(4):
        x = on_device(some(64, seed))
        application.be_busy()
        y = run.submit(x).outputs
        ort.copy_tensors([y.value], [seen], stream)
        application.call("synchronize", stream=stream.get_handle())
        equal(seen.numpy(), -some(64, seed))


@pytest.fixture
def torch_stream(monkeypatch):
    """A torch that knows no more than encore.graphed asks it; its current stream is this one, and not the default."""
    stream = make_stream()

    class TorchTensor(Tensor):
        dtype = None

        def contiguous(self):
            return self

    def take_over(exporter):
        monkeypatch.setattr(Consumer, "stream", stream.get_handle())
        return TorchTensor(from_dlpack(exporter).value)

    current = types.SimpleNamespace(cuda_stream=stream.get_handle())
    cuda = types.SimpleNamespace(current_stream=lambda device: current)
    TorchTensor.__module__ = "torch"
    monkeypatch.setitem(
        sys.modules, "torch", types.SimpleNamespace(Tensor=TorchTensor, cuda=cuda, from_dlpack=take_over)
    )
    return stream


@on_virtual
def test_torchs_current_stream_goes_on_after_the_run(encore, negation, torch_stream):
    import torch

    application, run = VirtualApplication(), function(negation)
    handle = torch_stream.get_handle()
    x = encore_session.empty_on_device((64, 256))
    seen = encore_session.empty_on_device((64, 256))
    fill = lambda byte: application.library.encore_virtual_fill(
        ctypes.c_void_p(handle), ctypes.c_void_p(x.data_ptr()), byte, ctypes.c_size_t(4 * 64 * 256)
    )
    for byte in (0x3E, 0x3F, 0x40, 0x41):
        fill(byte)
        application.call("synchronize", stream=handle)  # as the tensor's own __dlpack__ would see to
        application.be_busy()
        future = run.submit(torch.Tensor(x))
        fill(0)
        assert type(future.outputs) is torch.Tensor
        ort.copy_tensors([future.outputs.value], [seen], torch_stream)
        application.call("synchronize", stream=handle)
        equal(seen.numpy(), np.full((64, 256), -np.frombuffer(bytes([byte] * 4), FLOAT)[0]))
        future.result()


@on_virtual
def test_inputs_may_change_at_once(encore, negation):
    run, busy = function(negation), Busy()
    for seed in range(4):
        x, y = some(64, seed), encore_session.on_device(some(64, seed))
        busy.keep(0.03)
        futures = [run.submit(x), run.submit(y)]
        x[:] = 0
        y.update_inplace(np.zeros((64, 256), FLOAT))
        equal(futures[0].result(), -some(64, seed))
        equal(futures[1].result().numpy(), -some(64, seed))


@on_virtual
@pytest.mark.parametrize("asked_for", [True, False])
def test_inputs_live_as_long_as_the_run(encore, pair, asked_for):
    run, busy = function(pair), Busy()
    run(on_device(X), Y)
    x, y = on_device(X), Y.copy()
    address, array = x.value.data_ptr(), weakref.ref(y)
    busy.keep()
    future = run.submit(x, y)
    del x, y
    if not asked_for:
        del future
    gc.collect()
    assert array() is not None
    others = [encore_session.on_device(np.zeros((3, 4), FLOAT)) for _ in range(8)]
    assert address not in [each.data_ptr() for each in others], "its memory is somebody else's"
    if asked_for:
        equal(future.result().total.numpy(), X + Y + Y)
    else:
        equal(run(X, Y).total, X + Y + Y)
        run.submit(X, Y).result()
    assert array() is None
    assert address in [encore_session.on_device(np.zeros((3, 4), FLOAT)).data_ptr() for _ in range(8)]


@on_virtual
def test_runs_that_nobody_asks_for(encore, negation):
    run, busy = function(negation), Busy()
    inputs = [on_device(some(4, seed)) for seed in range(50)]
    busy.keep()
    for x in inputs:
        run.submit(x)
    assert len(run._abandoned) == 50
    equal(run(some(4)), -some(4))
    run.submit(some(4)).result()
    assert not run._abandoned
    for _ in range(100):
        run.submit(some(4)).result()
    assert len(run._completions._free) <= 51


def test_nothing_need_be_kept(encore, negation):
    """A session, its callable and its run go at once, the device's memory before the session."""
    for _ in range(8):
        onnxruntime_ep_encore.graphed(negation.SerializeToString()).submit(on_device(some(2)))
    gc.collect()


def test_several_at_a_time(encore, negation):
    run = function(negation)
    futures = [run.submit(some(1 + seed % 3, seed)) for seed in range(40)]
    for seed in reversed(range(40)):
        equal(futures[seed].result(), -some(1 + seed % 3, seed))


@on_virtual
def test_a_wait_is_for_one_run_and_leaves_other_threads_alone(encore, negation):
    run, busy = function(negation), Busy()
    run(some(3)), run(some(3))
    busy.keep()
    first = run.submit(some(3))
    busy.keep(5 * BUSY_S)
    second = run.submit(some(3, 1))
    count = 0
    waiter = threading.Thread(target=first.result)
    waiter.start()
    while waiter.is_alive():
        count += 1
        time.sleep(0.001)
    assert count > 50 * BUSY_S
    assert first.done() and not second.done()
    equal(second.result(), -some(3, 1))


# ---- what goes wrong


ROWS = np.arange(10, dtype=FLOAT).reshape(5, 2)


@of_each_kind
def test_errors_name_the_node_at_the_end(encore, lookup, make):
    run = function(lookup)
    x = make(ROWS)
    for turn in range(6):
        bad = run.submit(x, np.int64([1, 100 + turn]))
        good = run.submit(x, np.int64([turn % 5, 0]))
        with pytest.raises(Exception, match=rf"Gather node 'lookup': index {100 + turn} is outside \[-5, 5\)"):
            run(x, np.int64([100 + turn]))
        equal(as_array(good.result()), ROWS[[turn % 5, 0]])
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf"Gather node 'lookup': index {100 + turn} is outside \[-5, 5\)"):
                bad.result()
        assert bad.done()


def test_an_error_is_of_its_own_run_alone(encore, lookup):
    run = function(lookup)
    kinds = [np.int64([0, 1]), np.int64([7]), np.int64([3]), np.int64([-9, 9]), np.int64([4, 4, 4])]
    for _ in range(5):
        futures = [run.submit(ROWS, each) for each in kinds]
        equal(run(ROWS, np.int64([2])), ROWS[[2]])
        for each, indices in zip(futures, kinds):
            if np.all(np.abs(indices) < 5):
                equal(each.result(), ROWS[indices])
            else:
                with pytest.raises(RuntimeError, match="Gather node 'lookup': index -?[79] is outside"):
                    each.result()


def test_an_error_that_nobody_asks_for_is_nobody_elses(encore, lookup):
    run = function(lookup)
    for _ in range(10):
        run.submit(ROWS, np.int64([77]))
        equal(run(ROWS, np.int64([2])), ROWS[[2]])
        equal(run.session.run(None, {"x": ROWS, "i": np.int64([1])})[0], ROWS[[1]])
        equal(run.submit(ROWS, np.int64([3])).result(), ROWS[[3]])


@of_each_kind
def test_an_error_leaves_nothing_to_the_garbage_collector(encore, make_model, make):
    """Neither one of the device's nor one from before it."""
    three = numpy_helper.from_array(np.array([3], np.int64), "three")
    nodes = [
        helper.make_node("Reshape", ["i", "three"], ["j"], "reshape"),
        helper.make_node("Gather", ["x", "j"], ["y"], "lookup"),
    ]
    run = function(make_model(nodes, {"x": [5, 2], "i": (["n"], TensorProto.INT64)}, {"y": [3, 2]}, [three]))
    x = make(ROWS)
    gc.collect()
    gc.disable()
    try:
        bad = [run.submit(x, np.int64([77, 0, 1])), run.submit(x, np.int64([0, 1]))]
        for each, words in zip(bad, ["index 77", "reshape"]):
            with pytest.raises(Exception, match=words):
                each.result()
        seen = [weakref.ref(each) for each in [run, *bad]]
        del run, bad, each
        assert [each() for each in seen] == [None] * 3
    finally:
        gc.enable()


def test_what_fails_before_the_device_is_told_by_result(encore, make_model):
    four = numpy_helper.from_array(np.array([4, 3], np.int64), "shape")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], "reshape")]
    run = function(make_model(nodes, {"x": ["n", 3]}, {"y": [4, 3]}, [four]))
    table = np.arange(12, dtype=FLOAT).reshape(4, 3)
    bad, good = run.submit(table[:3]), run.submit(table)
    with pytest.raises(Exception, match="reshape"):
        bad.result()
    assert bad.done()
    with pytest.raises(Exception, match="reshape"):
        _ = bad.outputs
    equal(good.result(), table)


def test_a_completion_that_is_none_is_refused(encore, negation):
    session = make_session(negation)
    entries = {"disable_synchronize_execution_providers": 1, "ep.cuda.completion": "soon"}
    bound = encore_session.Bound(session, {"x": some(2)}, {"y": ((2, 256), FLOAT)})
    with pytest.raises(Exception, match="'ep.cuda.completion' is 'soon'; it must be what encore_completion_new"):
        bound.run(**entries)


def test_a_run_whose_end_fails_leaves_its_stream_to_other_threads(encore, negation):
    session = make_session(negation, use_ep_level_unified_stream=1)
    bound = encore_session.Bound(session, {"x": some(2)}, {"y": ((2, 256), FLOAT)})
    entries = {"disable_synchronize_execution_providers": 1, "ep.cuda.completion": "soon"}
    with pytest.raises(Exception, match="'ep.cuda.completion' is 'soon'"):
        bound.run(**entries)
    made = []
    thread = threading.Thread(target=lambda: made.append(bound.run()["y"]), daemon=True)
    thread.start()
    assert is_gone(thread, 20)
    equal(made[0], -some(2))


# ---- threads


def test_eight_threads(encore, negation):
    run = function(negation, regions=1, auto_graph=1)
    start = threading.Barrier(8)

    def work(thread):
        start.wait()
        for turn in range(40):
            x = some(1 + (thread + turn) % 4, 100 * thread + turn)
            way = turn % 4
            if way == 0:
                y = run(x)
            elif way == 1:
                y = run(encore_session.on_device(x)).numpy()
            elif way == 2:
                y = run.submit(x).result()
            else:
                y = run.submit(on_device(x)).result().numpy()
            equal(y, -x)

    assert not in_threads(8, work)
    (region,) = onnxruntime_ep_encore.region_report(run.session)
    assert region["replays"] > 100, region


def test_errors_in_other_threads(encore, lookup):
    run = function(lookup)

    def work(thread):
        for turn in range(60):
            if thread % 2:
                with pytest.raises(
                    Exception, match=f"Gather node 'lookup': index {10 * thread + turn % 5 + 10} is outs"
                ):
                    indices = np.int64([10 * thread + turn % 5 + 10])
                    run.submit(ROWS, indices).result() if turn % 2 else run(ROWS, indices)
            else:
                indices = np.int64([turn % 5, thread % 5])
                equal(run.submit(ROWS, indices).result() if turn % 2 else run(ROWS, indices), ROWS[indices])

    assert not in_threads(8, work)


def test_who_starts_and_who_asks_are_different_threads(encore, negation):
    run = function(negation)
    futures = {}
    assert not in_threads(4, lambda thread: futures.update({thread: run.submit(some(3, thread))}))
    assert not in_threads(4, lambda thread: equal(futures[3 - thread].result(), -some(3, 3 - thread)))
    one = run.submit(some(3))
    assert not in_threads(4, lambda _: equal(one.result(), -some(3)))
