"""Models as functions (encore.graphed): every kind of value, runs that nobody waits for, and what is refused."""

import ctypes
import gc
import pickle
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
    ARRANGEMENTS,
    arranged,
    in_threads,
    make_session,
    make_stream,
    needs_graphs,
    needs_late_free,
    only_if,
)
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi
from onnxruntime_ep_encore import graphed
from test_default_stream import VirtualApplication

pytestmark = pytest.mark.core

FLOAT = np.float32
BUSY_S = 0.2
AS_BOOL = [False] if encore_session.ORT_VERSION < (1, 30) else []  # which older ones want to know
on_virtual = only_if(encore_session.on_virtual_gpu())


class Tensor:
    """One of another library's, in device memory or the host's, as far as DLPack knows."""

    def __init__(self, value):
        self.value = value  # an OrtValue on the device, or an array
        self.exports = getattr(value, "_ortvalue", value)
        self.streams = []

    def __dlpack_device__(self):
        return self.exports.__dlpack_device__()

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return self.exports.__dlpack__(stream=stream)

    def numpy(self):
        return as_array(self.value)


class Consumer:
    """How the library takes tensors over: on this stream."""

    stream = 1


def from_dlpack(exporter):
    if isinstance(exporter, np.ndarray):
        return Tensor(exporter)
    capsule = exporter.__dlpack__(stream=Consumer.stream)
    return Tensor(ort.OrtValue(capi.OrtValue.from_dlpack(capsule, *AS_BOOL)))


def on_device(array):
    return Tensor(encore_session.on_device(array))


def on_host(array):
    return Tensor(array)


@pytest.fixture(scope="module")
def pair(make_model):
    """total = x + 2 y, and difference = x - y."""
    nodes = [
        helper.make_node("Add", ["x", "y"], ["t"], "add"),
        helper.make_node("Add", ["t", "y"], ["total"], "add_again"),
        helper.make_node("Sub", ["x", "y"], ["the.difference"], "subtract"),
    ]
    shape = ["n", 4]
    return make_model(nodes, {"x": shape, "y": shape}, {"total": shape, "the.difference": shape})


@pytest.fixture(scope="module")
def negation(make_model):
    """y = -x, by way of nodes enough for a run to take a moment."""
    names = ["x", *(f"t{i}" for i in range(8)), "y"]
    nodes = [helper.make_node("Neg", [a], [b], f"neg{i}") for i, (a, b) in enumerate(zip(names, names[1:]))]
    return make_model(nodes, {"x": ["n", 256]}, {"y": ["n", 256]})


@pytest.fixture
def lookup(make_model):
    node = helper.make_node("Gather", ["x", "i"], ["y"], "lookup")
    return make_model([node], {"x": [5, 2], "i": (["n"], TensorProto.INT64)}, {"y": ["n", 2]})


def identity(make_model, kind, **ends):
    node = helper.make_node("Identity", ["x"], ["y"], "same")
    return make_model([node], {"x": (["n"], kind)}, {"y": (["n"], kind)}, **ends)


def function(model, **options):
    return graphed(make_session(model, **options))


def as_array(value):
    return value if isinstance(value, np.ndarray) else value.numpy()


def some(rows, seed=0, width=256):
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(FLOAT)


X, Y = some(3, 1, 4), some(3, 2, 4)
equal = np.testing.assert_array_equal


# ---- how it is called


def test_inputs_by_place_and_by_name(encore, pair):
    run = function(pair)
    for made in (run(X, Y), run(X, y=Y), run(y=Y, x=X), run(**{"x": X, "y": Y}), run.submit(X, y=Y).result()):
        total, difference = made
        equal(total, X + Y + Y)
        equal(difference, X - Y)


def test_several_outputs_have_their_names(encore, pair):
    made = function(pair)(X, Y)
    assert isinstance(made, tuple) and len(made) == 2
    equal(made.total, made[0])
    equal(made["the.difference"], made[1])
    equal(made[-1], made[1])
    assert list(made._asdict()) == list(made._fields) == ["total", "the.difference"]
    with pytest.raises(AttributeError, match="no output is 'sum'; there are total, the.difference"):
        _ = made.sum
    equal(pickle.loads(pickle.dumps(made)).total, made.total)


def test_one_output_comes_alone(encore, negation):
    made = function(negation)(some(2))
    assert isinstance(made, np.ndarray)
    equal(made, -some(2))


def test_a_model_without_inputs(encore, make_model):
    node = helper.make_node("Neg", ["c"], ["y"], "negate")
    run = function(make_model([node], {}, {"y": [2]}, [numpy_helper.from_array(np.ones(2, FLOAT), "c")]))
    equal(run(), [-1, -1])
    equal(run.submit().result(), [-1, -1])
    equal(run.warm_up()(), [-1, -1])
    with pytest.raises(TypeError, match="1 inputs were given, and the model has no inputs"):
        run(X)


def test_an_input_named_self(encore, make_model):
    run = function(make_model([helper.make_node("Neg", ["self"], ["y"], "negate")], {"self": ["n"]}, {"y": ["n"]}))
    equal(run(self=X[0]), -X[0])


def test_it_says_what_it_takes(encore, pair):
    assert repr(function(pair)) == (
        "<graphed('x': tensor(float)[n, 4], 'y': tensor(float)[n, 4]) -> total, the.difference>"
    )


def test_from_a_model(encore, negation):
    run = graphed(negation.SerializeToString(), auto_graph=True, regions=True, use_tf32=False)
    for seed in range(5):
        equal(run(some(4, seed)), -some(4, seed))
    (region,) = onnxruntime_ep_encore.region_report(run.session)
    assert region["replays"] >= 3, region


# ---- what goes in comes out


WAYS = {"called": lambda run, *x: run(*x), "submitted": lambda run, *x: run.submit(*x).result()}
ways = pytest.mark.parametrize("call", WAYS.values(), ids=WAYS)
KINDS = {"array": lambda x: x, "dlpack": on_device, "dlpack_host": on_host, "OrtValue": encore_session.on_device}
of_each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@pytest.mark.parametrize(
    "make",
    [encore_session.on_device, ort.OrtValue.ortvalue_from_numpy, on_device, on_host],
    ids=["OrtValue", "OrtValue_host", "dlpack", "dlpack_host"],
)
@ways
def test_outputs_are_of_the_kind_of_inputs(encore, negation, make, call):
    run = function(negation)
    for seed in range(5):
        x = make(some(3, seed))
        y = call(run, x)
        assert type(y) is type(x)
        places = [getattr(each, "value", each) for each in (x, y)]
        assert len({getattr(each, "device_name", lambda: "array")() for each in places}) == 1
        equal(y.numpy(), -some(3, seed))


@ways
def test_the_first_input_on_the_device_says_the_kind(encore, pair, call):
    run = function(pair)
    for x, y, kind in (
        (X, encore_session.on_device(Y), ort.OrtValue),
        (X, on_device(Y), Tensor),
        (encore_session.on_device(X), on_device(Y), ort.OrtValue),
        (on_host(X), encore_session.on_device(Y), ort.OrtValue),
        (on_host(X), Y, Tensor),
        (X, on_host(Y), np.ndarray),
        (ort.OrtValue.ortvalue_from_numpy(X), Y, ort.OrtValue),
    ):
        total = call(run, x, y).total
        assert type(total) is kind
        equal(as_array(total), X + Y + Y)


def test_what_takes_nothing_over_gets_ortvalues(encore, negation):
    foreign = type("Foreign", (Tensor,), {"__module__": "nowhere"})
    made = function(negation)(foreign(encore_session.on_device(some(2))))
    assert isinstance(made, ort.OrtValue)
    equal(made.numpy(), -some(2))


def test_an_array_namespace_takes_over(encore, negation):
    class Namespace:
        from_dlpack = staticmethod(lambda exporter: ("taken", from_dlpack(exporter)))

    foreign = type("Foreign", (Tensor,), {"__array_namespace__": lambda self: Namespace})
    word, made = function(negation)(foreign(encore_session.on_device(some(2))))
    assert word == "taken"
    equal(made.numpy(), -some(2))


def test_device_tensors_are_not_copied(encore, make_model):
    if encore_session.on_virtual_gpu():
        run = function(identity(make_model, TensorProto.FLOAT))
        x = on_device(X[0])
        done = encore_session.trace(run.session, lambda: run(x))
        assert not [step for step in done if step["what"] == "copy" and step["name"].startswith("host")]
    x = encore_session.on_device(X[0])
    y = graphed(make_session(identity(make_model, TensorProto.FLOAT)))(Tensor(x))
    equal(y.numpy(), X[0])


@of_each_kind
@ways
def test_bools(encore, make_model, make, call):
    node = helper.make_node("Not", ["x"], ["y"], "not")
    run = function(make_model([node], {"x": (["n"], TensorProto.BOOL)}, {"y": (["n"], TensorProto.BOOL)}))
    x = np.array([True, False, True])
    y = call(run, make(x))
    equal(as_array(y).astype(bool), ~x)


def test_types_that_numpy_lacks(encore, make_model):
    run = function(identity(make_model, TensorProto.BFLOAT16))
    x = ort.OrtValue.ortvalue_from_shape_and_type([3], TensorProto.BFLOAT16, "gpu", 0, encore_session.NVIDIA)
    for y in (run(x), run.submit(x).result()):
        assert y.data_type() == "tensor(bfloat16)" and y.shape() == [3]
    assert run(Tensor(x)).value.data_type() == "tensor(bfloat16)"
    with pytest.raises(TypeError, match="'x' can't be taken: no array has its type: the model wants 'x': tensor.bfl"):
        run(X[0])


def test_arrays_of_any_layout(encore, negation):
    run = function(negation)
    base = some(6)
    read_only = some(3)
    read_only.flags.writeable = False
    for x in (base[::2], np.asfortranarray(base), base[:, ::-1], base[:0], read_only, base.T.copy().T):
        equal(run(x), -x)
        equal(run.submit(x).result(), -x)
        equal(run(encore_session.on_device(np.ascontiguousarray(x))).numpy(), -x)


def test_scalars(encore, make_model):
    run = function(make_model([helper.make_node("Neg", ["x"], ["y"], "negate")], {"x": []}, {"y": []}))
    for x in (FLOAT(3), np.array(3, FLOAT)):
        assert run(x) == -3 and run.submit(x).result() == -3 and np.shape(run(x)) == ()


def test_strings_go_with_arrays(encore, make_model):
    nodes = [helper.make_node("Identity", ["s"], ["t"], "same"), helper.make_node("Neg", ["x"], ["y"], "negate")]
    ends = {"s": (["n"], TensorProto.STRING), "x": ["n"]}, {"t": (["n"], TensorProto.STRING), "y": ["n"]}
    run = function(make_model(nodes, *ends))
    s = np.array(["a", "b"], object)
    for made in (run(s, X[0]), run.submit(s, X[0]).result(), run(s, on_host(X[0]))):
        assert list(made.t) == ["a", "b"]
        equal(as_array(made.y), -X[0])
    with pytest.raises(TypeError, match="input 's' has strings, which go with arrays alone"):
        run(s, encore_session.on_device(X[0]))
    with pytest.raises(TypeError, match="input 's' can't be taken: the type is float32, and the model wants 's'"):
        run(X[0], X[0])


def test_strings_that_come_out_are_arrays(encore, make_model):
    node = helper.make_node("Cast", ["x"], ["y"], "print", to=TensorProto.STRING)
    run = function(make_model([node], {"x": (["n"], TensorProto.INT64)}, {"y": (["n"], TensorProto.STRING)}))
    for x in (np.int64([1, 2]), on_host(np.int64([1, 2])), on_device(np.int64([1, 2]))):
        assert list(run(x)) == list(run.submit(x).result()) == ["1", "2"]


@of_each_kind
@ways
def test_sizes_by_data_and_nodes_on_the_cpu(encore, make_model, make, call):
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"], "places"),
        helper.make_node("Shape", ["places"], ["counts"], "counts"),
        helper.make_node("Neg", ["x"], ["y"], "negate"),
    ]
    ends = {"places": ([1, "m"], TensorProto.INT64), "counts": ([2], TensorProto.INT64), "y": ["n"]}
    run = function(make_model(nodes, {"x": ["n"]}, ends))
    for x in (FLOAT([1, 0, 2]), FLOAT([0, 0]), FLOAT([5])):
        made = call(run, make(x))
        equal(as_array(made.places)[0], np.flatnonzero(x))
        equal(as_array(made.counts), [1, np.count_nonzero(x)])
        equal(as_array(made.y), -x)


def test_results_stay_what_they_are(encore, negation):
    run = function(negation)
    kept = []
    for seed in range(30):
        x = some(3, seed)
        kept += [
            (x, run(x)),
            (x, run(encore_session.on_device(x))),
            (x, run(on_device(x))),
            (x, run.submit(x).result()),
        ]
        assert kept[-1][1].flags.owndata  # pinned memory is lent
        gc.collect()
    for x, y in kept:
        equal(as_array(y), -x)


# ---- what is refused


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda run: run(), TypeError, r"inputs are missing: 'x': tensor\(float\)\[n, 4\], 'y'"),
        (lambda run: run(X), TypeError, r"an input is missing: 'y': tensor\(float\)\[n, 4\]"),
        (lambda run: run(X, Y, X), TypeError, "3 inputs were given, and the model has 'x'.*'y'"),
        (lambda run: run(X, Y, z=X), TypeError, "there is no input 'z': the model has 'x'.*'y'"),
        (lambda run: run(X, x=Y), TypeError, "input 'x' was given twice, by its place and by its name"),
        (lambda run: run(X, None), TypeError, "input 'y' is a NoneType, which is no array or tensor"),
        (
            lambda run: run(X.tolist(), Y),
            TypeError,
            "input 'x' is a list, which is no array or tensor: the model wants",
        ),
        (lambda run: run(X, 3.0), TypeError, "input 'y' is a float"),
        (lambda run: run(X.astype(np.float64), Y), TypeError, "'x' can't be taken: the type is float64, and .* tensor"),
        (lambda run: run(X.astype(">f4"), Y), TypeError, "'x' can't be taken: the type is >f4"),
        (lambda run: run(X, np.array("a")), TypeError, "'y' can't be taken: the type is <U1"),
        (
            lambda run: run(X[0], Y),
            ValueError,
            r"'x' can't be taken: the shape is \[4\], .* 'x': tensor\(float\)\[n, 4",
        ),
        (lambda run: run(X, Y[:, :3]), ValueError, r"'y' can't be taken: the shape is \[3, 3\]"),
        (lambda run: run(X, on_device(Y[:, :3])), ValueError, r"'y' can't be taken: the shape is \[3, 3\]"),
        (lambda run: run(X, on_device(np.int64([1]))), TypeError, r"'y' can't be taken: the type is tensor\(int64\)"),
        (lambda run: run(X, encore_session.on_device(np.int64([1]))), TypeError, r"the type is tensor\(int64\)"),
        (lambda run: run.submit(X), TypeError, "an input is missing: 'y'"),
        (lambda run: run.submit(X, Y[0]), ValueError, "'y' can't be taken: the shape is"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(encore, pair, call, error, words):
    run = function(pair)
    with pytest.raises(error, match=words):
        call(run)
    equal(run(X, Y).total, X + Y + Y)


def test_what_another_library_refuses_names_the_input(encore, negation):
    class Refuses(Tensor):
        def __dlpack__(self, *, stream=None):
            raise BufferError("it requires a gradient")

    with pytest.raises(TypeError, match="input 'x' can't be taken: it requires a gradient"):
        function(negation)(Refuses(encore_session.on_device(some(2))))


@on_virtual  # which has two devices
def test_tensors_of_another_device_are_refused(encore, negation):
    run, other = function(negation), function(negation, device=1)
    x = encore_session.on_device(some(2), 1)
    for there in (x, Tensor(x)):
        with pytest.raises(ValueError, match="'x' can't be taken: it is on GPU 1, and the session on GPU 0: copy it"):
            run(there)
        equal(other(there).numpy(), -some(2))
    with pytest.raises(ValueError, match="it is on GPU 0, and the session on GPU 1"):
        other(on_device(some(2)))
    equal(other(some(2)), -some(2))


def test_memory_of_no_device_that_is_known(encore, negation):
    class Elsewhere(Tensor):
        def __dlpack_device__(self):
            return 10, 0  # ROCm

    with pytest.raises(ValueError, match="it is on a device of DLPack's type 10, and the session on GPU 0"):
        function(negation)(Elsewhere(encore_session.on_device(some(2))))


@needs_late_free
def test_values_of_another_session_of_the_device(encore, negation):
    first, second = function(negation), function(negation)
    y = first(encore_session.on_device(some(2)))
    equal(second(y).numpy(), some(2))
    del first
    gc.collect()
    equal(second(y).numpy(), some(2))


def test_sequences_and_optional_values_are_refused(encore, make_model):
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    at = numpy_helper.from_array(np.int64(0), "at")
    taken = make_model([helper.make_node("SequenceAt", ["x", "at"], ["y"], "at")], {}, {"y": ["n"]}, [at])
    taken.graph.input.append(helper.make_value_info("x", sequence))
    given = make_model([helper.make_node("SequenceConstruct", ["x"], ["y"], "one")], {"x": ["n"]}, {})
    given.graph.output.append(helper.make_value_info("y", sequence))
    perhaps = make_model([helper.make_node("OptionalGetElement", ["x"], ["y"], "get")], {}, {"y": ["n"]})
    perhaps.graph.input.append(helper.make_value_info("x", optional))
    for model, words in (
        (taken, r"input 'x' is seq\(tensor\(float\)\), and graphed\(\) has tensors alone: use session.run"),
        (given, r"output 'y' is seq\(tensor\(float\)\)"),
        (perhaps, r"input 'x' is optional\(tensor\(float\)\)"),
    ):
        with pytest.raises(TypeError, match=words):
            function(model)


# ---- sessions


def test_sessions_that_are_not_encores(encore, negation):
    session = ort.InferenceSession(negation.SerializeToString(), providers=["CPUExecutionProvider"])
    with pytest.raises(ValueError, match="the session is not on Encore; its providers are CPUExecutionProvider"):
        graphed(session)


@needs_graphs
def test_sessions_with_graphs_of_onnxruntimes_protocol(encore, negation):
    words = "enable_cuda_graph: its graphs replay with the buffers that they were captured with"
    with pytest.raises(ValueError, match=f"the session has {words}"):
        graphed(make_session(negation, enable_cuda_graph=1))
    with pytest.raises(ValueError, match=f"the session has {words}"):
        graphed(onnxruntime_ep_encore.session(negation.SerializeToString(), enable_cuda_graph=True))
    with pytest.raises(TypeError, match="graphed.. has no keyword 'enable_cuda_graph': its graphs"):
        graphed(negation.SerializeToString(), enable_cuda_graph=True)


def test_a_session_takes_no_options(encore, negation):
    session = make_session(negation)
    for keywords in ({"pad": {"n": 4}}, {"session_options": ort.SessionOptions()}, {"device_id": 1}):
        with pytest.raises(TypeError, match=f"a session, which is made already: '{next(iter(keywords))}' is for who"):
            graphed(session, **keywords)


def test_options_that_the_provider_refuses(encore, negation):
    with pytest.raises(RuntimeError, match="did you mean 'auto_graph'"):
        graphed(negation.SerializeToString(), auto_grph=True)
    with pytest.raises(TypeError, match="no keyword 'providers'"):
        graphed(negation.SerializeToString(), providers=[])


def test_stock_goes_on_beside_it(encore, negation):
    session = make_session(negation)
    run = graphed(session)
    bound = encore_session.Bound(session, {"x": some(3)}, {"y": ((3, 256), FLOAT)})
    for seed in range(5):
        x = some(3, seed)
        future = run.submit(x)
        equal(session.run(None, {"x": x})[0], -x)
        equal(bound.run({"x": x})["y"], -x)
        equal(run(x), -x)
        equal(future.result(), -x)
    assert run.session is session


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_wherever_work_and_copies_are(encore, negation, arrangement):
    stream = make_stream()
    run = function(negation, **arranged(arrangement, stream))
    for seed in range(5):
        x = some(3, seed)
        futures = [run.submit(x), run.submit(on_device(x)), run.submit(encore_session.on_device(x))]
        equal(run(x), -x)
        for each in futures:
            equal(as_array(each.result()), -x)


def test_a_session_whose_nodes_run_in_several_threads(encore, pair):
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    run = graphed(make_session(pair, options))
    for seed in range(20):
        x = some(3, seed, 4)
        equal(run.submit(x, Y).result().total, x + Y + Y)
        equal(run.submit(encore_session.on_device(x), Y).result().total.numpy(), x + Y + Y)


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


# ---- shapes ahead


def captures(run):
    return sum(region["captures"] for region in onnxruntime_ep_encore.region_report(run.session))


def keys(run):
    return sum(region["keys"] for region in onnxruntime_ep_encore.region_report(run.session))


def test_warm_up_captures(encore, pair):
    graphs = {"regions": 1, "auto_graph": 1}
    by_shape = function(pair, **graphs).warm_up([{"x": (1, 4), "y": (1, 4)}, [(2, 4), (2, 4)]])
    by_name = function(pair, **graphs).warm_up(n=[1, 2])
    for run in (by_shape, by_name):
        assert keys(run) == 2 and captures(run) >= 2
        before = captures(run)
        equal(run(X[:2], Y[:2]).total, (X + Y + Y)[:2])
        assert keys(run) == 2 and captures(run) == before
    assert keys(function(pair, **graphs).warm_up(n=3)) == 1


def test_warm_up_of_one_input(encore, negation):
    run = function(negation, regions=1, auto_graph=1).warm_up([(1, 256), (2, 256), (5, 256)])
    assert keys(run) == 3


def test_warm_up_of_all_combinations(encore, make_model):
    nodes = [helper.make_node("Add", ["x", "x"], ["t"], "a"), helper.make_node("Neg", ["t"], ["y"], "b")]
    model = make_model(nodes, {"x": ["b", "s", 2]}, {"y": ["b", "s", 2]})
    assert keys(function(model, regions=1, auto_graph=1).warm_up(b=[1, 2], s=[3, 4, 5])) == 6


def test_warm_up_with_the_lengths_of_pad(encore, negation):
    run = graphed(negation.SerializeToString(), auto_graph=True, regions=True, pad={"n": [2, 4]}).warm_up()
    before = captures(run)
    assert keys(run) == 2 and before >= 2
    for rows in (1, 2, 3, 4):
        equal(run(some(rows)), -some(rows))
        equal(run.submit(on_device(some(rows))).result().numpy(), -some(rows))
    assert keys(run) == 2


@pytest.mark.parametrize(
    "warm_up, error, words",
    [
        (lambda run: run.warm_up(), TypeError, "no length was given for n of 'x': tensor"),
        (lambda run: run.warm_up(m=1), TypeError, "no input has a dimension 'm'; there are n"),
        (lambda run: run.warm_up([(1, 4)]), TypeError, r"\(1, 4\) is no shape for each input"),
        (lambda run: run.warm_up([{"z": (1, 4)}]), TypeError, "there is no input 'z'"),
        (lambda run: run.warm_up([{"x": (1, 4)}]), TypeError, "no length was given for n of 'y'"),
        (lambda run: run.warm_up([[(1, 4), (1, 5)]]), ValueError, r"'y' can't be taken: the shape is \[1, 5\]"),
        (lambda run: run.warm_up([(1, 4)], n=1), TypeError, "takes shapes, or lengths of dimensions"),
    ],
)
def test_shapes_that_are_none(encore, pair, warm_up, error, words):
    with pytest.raises(error, match=words):
        warm_up(function(pair))


# ---- the package


def test_the_package_needs_no_numpy_until_then():
    code = """
        import sys
        sys.modules["numpy"] = None
        import onnxruntime_ep_encore
        print(onnxruntime_ep_encore.graphed.__name__)
    """
    assert (
        encore_session.in_new_process("import textwrap; exec(textwrap.dedent('''" + code + "'''))").stdout
        == "graphed\n"
    )
