"""What only the C API has: a stream for one run, notifications between streams, pinned memory, and statistics."""

import threading

import c_api
import numpy as np
import onnxruntime_ep_encore
import pytest
from c_application import DEVICE, PINNED, SHARED
from encore_session import EAGER, ORT_VERSION, in_new_process, needs_graphs, trace
from onnx import helper, numpy_helper
from test_streams import ASYNC, HOST_WAITS, ON_VIRTUAL_GPU, close, some, streams, traced, waits

pytestmark = pytest.mark.core


# ---- a stream for one run (RunOptionsSetSyncStream)


@pytest.mark.parametrize("graphs", [0, 1])
def test_a_run_is_on_the_stream_it_was_given(make_application, layer, graphs):
    application = make_application(enable_cuda_graph=graphs)
    entries = {"gpu_graph_id": EAGER, **ASYNC}
    for seed in range(20):
        close(application.run(some(seed), **entries), layer[1](some(seed)))
    if ON_VIRTUAL_GPU:
        seen = trace(application, lambda: application.run(some(), **entries))
        assert streams(seen) == {application.handle()}


def test_runs_on_two_given_streams_at_once_share_no_memory(layer, tmp_path):
    """Also where onnxruntime asks for memory of intermediates before it says on which stream they are, up to 1.28."""
    in_new_process(
        f"""
import pathlib, c_application as c, onnxruntime as ort, test_c_application as t
model = {layer[0].SerializeToString()!r}
api, env = c.start(pathlib.Path({str(tmp_path)!r}))
cpu = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
t.run_in_turns(c.Application(api, env, model, use_tf32=0, regions=0), lambda x: cpu.run(None, {{"x": x}})[0])
""",
        ENCORE_VIRTUAL_DELAY_US="200",
    )


def run_in_turns(application, layer):
    """On two streams, with nobody waiting."""
    streams = application.stream, application.make_stream()
    borders = [(application.make_tensor(), application.make_tensor()) for _ in streams]
    xs = [some(seed) for seed in range(60)]
    inputs, outputs = ([application.make_tensor(PINNED) for _ in xs] for _ in range(2))
    for value, x in zip(inputs, xs):
        application.contents(value)[:] = x
    for i, (before, after) in enumerate(zip(inputs, outputs)):
        stream, (application.x, application.y) = streams[i % 2], borders[i % 2]
        application.copy(before, application.x, stream)
        application.execute(stream, **ASYNC)
        application.copy(application.y, after, stream)
    application.wait(*streams)
    for value, x in zip(outputs, xs):
        close(application.contents(value), layer(x))


@needs_graphs
def test_a_graph_is_not_captured_on_the_stream_of_a_run(make_application, layer):
    application = make_application(enable_cuda_graph=1)
    for _ in range(2):
        with pytest.raises(c_api.Failed, match="user_compute_stream"):
            application.run(some())
    close(application.run(some(), gpu_graph_id=EAGER), layer[1](some()))


def replayed(application, x, stream):
    """The output; the copies around the replay name no stream, and wait."""
    application.host[:] = x
    application.copy(application.host_value, application.x)
    application.execute(stream)
    application.copy(application.y, application.host_value)
    return application.host.copy()


@needs_graphs
def test_a_graph_that_is_captured_is_replayed_on_the_stream_of_its_session(make_application, layer):
    application = make_application(enable_cuda_graph=1)
    application.execute()
    for seed in range(5):
        close(replayed(application, some(seed), application.stream), layer[1](some(seed)))
    (report,) = onnxruntime_ep_encore.graph_report(application)
    assert report["replays"] == 5
    if ON_VIRTUAL_GPU:
        of_the_session = streams(trace(application, application.execute))
        assert streams(trace(application, lambda: application.execute(application.stream))) == of_the_session
        assert application.handle() not in of_the_session


# ---- host memory and the application's stream


@pytest.mark.parametrize("source", ["pinned", "pageable"])
@pytest.mark.parametrize("graphs", [0, 1] if ORT_VERSION >= (1, 28) else [0])  # before, a replay itself waits
def test_from_host_memory_to_host_memory_on_the_given_stream(make_application, layer, graphs, source):
    application = make_application(on_its_stream=True, enable_cuda_graph=graphs)
    application.execute()  # warms up, and captures
    xs = [some(seed) for seed in range(20)]
    if source == "pinned":
        inputs = [application.make_tensor(PINNED) for _ in xs]
        for value, x in zip(inputs, xs):
            application.contents(value)[:] = x
    else:
        inputs = [application.make_value_of(x) for x in xs]
    outputs = [application.make_tensor(PINNED) for _ in xs]

    def work():
        for before, after in zip(inputs, outputs):
            application.copy(before, application.x, application.stream)
            application.execute(**ASYNC)
            application.copy(application.y, after, application.stream)
        application.wait(application.stream)

    entries = trace(application, work) if ON_VIRTUAL_GPU else work()
    for value, x in zip(outputs, xs):
        close(application.contents(value), layer[1](x))
    if ON_VIRTUAL_GPU:
        assert streams(entries) == {application.handle()}
        # What is pageable may wait for its turn in a pinned buffer, never for the stream.
        *turns, last = [entry["what"] for entry in waits(entries)]
        assert last == "synchronize" and turns == ["synchronize event"] * len(turns)
        assert len(turns) <= (len(xs) if source == "pageable" else 0)


# ---- notifications between streams


class Relay:
    """A tensor that is copied when one stream gets to it, and then on, after a notification of that stream."""

    def __init__(self, application):
        self.application = application
        self.start, self.aside, self.between = (application.make_tensor() for _ in range(3))
        self.end = application.make_tensor(PINNED)
        self.first, self.second = application.stream, application.make_stream()
        stream = application.implementation(self.first)
        made = stream.make("CreateNotification", stream.address)
        self.notification = application.api.functions("OrtSyncNotificationImpl", made)

    def carry(self, x, waiting):
        """x, if nothing was too early."""
        self.application.host[:] = x
        self.application.copy(self.application.host_value, self.start)
        self.pass_on(waiting)
        return self.application.contents(self.end)

    def pass_on(self, waiting):
        for target in [*[self.aside] * 7, self.between]:
            self.application.copy(self.start, target, self.first)
        consumer = {"another stream": self.second, "the same stream": self.first, "the host": None}[waiting]
        self.notification.call("Activate", self.notification.address)
        self.notification.call("WaitOnDevice", self.notification.address, consumer)
        self.application.copy(self.between, self.end, self.last(waiting))
        self.application.wait(self.second, self.first)

    def last(self, waiting):
        return self.first if waiting == "the same stream" else self.second


WAITING = ["another stream", "the same stream", "the host"]  # the last for what is no stream of Encore's


@traced
@pytest.mark.parametrize("waiting", WAITING)
def test_a_notification_is_waited_for_by(make_application, waiting):
    relay = Relay(make_application())
    first, second, last = map(relay.application.handle, (relay.first, relay.second, relay.last(waiting)))
    entries = trace(relay.application, lambda: relay.pass_on(waiting))

    def those(*kinds):
        return [(entry["stream"], entry["what"]) for entry in entries if entry["what"] in kinds]

    assert those("copy", "record") == [*[(first, "copy")] * 8, (first, "record"), (last, "copy")]
    assert those("wait") == [(last, "wait")] * (waiting == "another stream")
    notified = [(first, "synchronize event")] * (waiting == "the host")
    assert those(*HOST_WAITS) == [*notified, (second, "synchronize"), (first, "synchronize")]


def test_nothing_overtakes_what_it_was_notified_of(layer, tmp_path):
    in_new_process(
        f"""
import pathlib, c_application as c, numpy as np, test_c_application as t
api, env = c.start(pathlib.Path({str(tmp_path)!r}))
relay = t.Relay(c.Application(api, env, {layer[0].SerializeToString()!r}))
for waiting in t.WAITING:
    for seed in range(10):
        np.testing.assert_array_equal(relay.carry(t.some(seed), waiting), t.some(seed))
""",
        ENCORE_VIRTUAL_DELAY_US="500",
    )


# ---- a run within a run


def test_a_run_within_another_on_its_stream_leaves_it_its_turn(make_application, make_model):
    """It is a logger's, and fails by a copy: so its end is told twice, by the copy and by onnxruntime."""
    done, seen = threading.Event(), []

    def nest():
        with pytest.raises(c_api.Failed, match="device memory is exhausted"):
            inner.execute()
        other.start()
        seen.append(done.wait(0.1))

    def log(message):
        if "Expected shape from model of {5,8}" in message and not seen:
            nest()

    def run_beside():
        beside.execute()
        done.set()

    relu = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 8]}, {"y": [5, 8]})  # which isn't true
    outer = make_application(relu.SerializeToString(), on_its_stream=True, log=log)
    beside = make_application(user_compute_stream=outer.handle())
    size = 1 << 20
    y = numpy_helper.from_array(np.zeros((size // 128, 4, 8), np.float32), "y")
    model = make_model([helper.make_node("Add", ["x", "y"], ["z"])], {"x": [4, 8]}, {"y": y.dims, "z": y.dims}, [y])
    limit = size + 8192
    inner = make_application(model.SerializeToString(), user_compute_stream=outer.handle(), gpu_mem_limit=limit)
    outer.y = inner.y = None  # which onnxruntime allocates
    other = threading.Thread(target=run_beside)
    outer.execute()
    other.join(60)
    assert seen == [False]
    assert done.is_set()


# ---- statistics of the allocator


def test_statistics_are_those_of_the_memory_report(make_application):
    application = make_application(gpu_mem_limit=64 << 20)
    for _ in range(3):
        application.run(some())
    stats, arena = application.stats(), onnxruntime_ep_encore.memory_report(application)["arena"]
    stats.pop("RequestedInUse", None)  # onnxruntime's own
    assert stats == {
        "Limit": 64 << 20,
        "InUse": arena["in_use_bytes"],
        "TotalAllocated": arena["held_bytes"],
        "MaxInUse": arena["peak_in_use_bytes"],
        "NumAllocs": arena["allocations"],
        "NumReserves": arena["reserves"],
        "NumArenaExtensions": arena["driver_allocations"],
        "NumArenaShrinkages": arena["shrinks"],
        "MaxAllocSize": arena["largest_bytes"],
    }


@pytest.mark.parametrize("where", [DEVICE, PINNED], ids=["device", "pinned"])
def test_no_limit_is_the_most_that_onnxruntime_can_read(make_application, where):
    application = make_application()
    application.make_tensor(where)
    assert application.stats(where)["Limit"] == 2**63 - 1


# ---- an allocator that sessions and applications share


def test_the_shared_allocator_takes_options_of_the_arena(make_application):
    application = make_application()
    application.share_allocator(**{"arena.max_mem": 4096, "arena.extend_strategy": 1})
    for _ in range(17):  # of 256 bytes each; the last has no memory, which onnxruntime lets pass
        application.make_tensor(SHARED)
    stats = application.stats(SHARED)
    assert stats["Limit"] == stats["InUse"] == stats["MaxInUse"] == 4096


@pytest.mark.parametrize(
    "options, said",
    [
        ({"arena.max_mem": "much"}, "'ep.cuda.arena.max_mem' is 'much'; it must be a number of bytes"),
        ({"arena.maxmem": "1"}, "did you mean 'ep.cuda.arena.max_mem'"),
        ({"enable_cuda_graph": "1"}, "'enable_cuda_graph' is no option of an allocator"),
    ],
    ids=str,
)
def test_other_options_of_a_shared_allocator_are_refused(make_application, options, said):
    application = make_application()
    with pytest.raises(c_api.Failed, match=said):
        application.share_allocator(**options)
    assert application.make_tensor(DEVICE)
