"""Models as functions (encore.graphed): every kind of value, sessions, shapes, and what is refused."""

import gc
import pickle
from types import MappingProxyType

import encore_session
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from encore_session import (
    ARRANGEMENTS,
    arranged,
    make_session,
    make_stream,
    needs_graphs,
    needs_late_free,
)
from graphed_cases import (
    FLOAT,
    Tensor,
    X,
    Y,
    as_array,
    equal,
    from_dlpack,
    function,
    of_each_kind,
    on_device,
    on_host,
    on_virtual,
    some,
)
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_encore import graphed

pytestmark = pytest.mark.core


def identity(make_model, kind, **ends):
    node = helper.make_node("Identity", ["x"], ["y"], "same")
    return make_model([node], {"x": (["n"], kind)}, {"y": (["n"], kind)}, **ends)


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


def test_any_rank(encore, make_model):
    """onnxruntime tells of it as of a scalar's shape."""
    run = function(make_model([helper.make_node("Neg", ["x"], ["y"], "negate")], {"x": None}, {"y": None}))
    for x in (X, X[0], np.array(1, FLOAT)):
        equal(run(x), -x)
    equal(run.warm_up([(2, 3)])(X), -X)


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
    y = function(identity(make_model, TensorProto.FLOAT))(Tensor(x))
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
    for asked in (True, "True"):
        with pytest.raises(TypeError, match="graphed.. has no keyword 'enable_cuda_graph': its graphs"):
            graphed(negation.SerializeToString(), enable_cuda_graph=asked)
    equal(graphed(negation.SerializeToString(), enable_cuda_graph="0")(some(2)), -some(2))


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


def test_pad_may_be_a_text_and_the_sessions(encore, negation):
    for options in ({"pad": "n:2,4"}, {"pad": MappingProxyType({"n": (2, 4)})}):
        session = onnxruntime_ep_encore.session(negation.SerializeToString(), auto_graph=True, regions=True, **options)
        assert keys(graphed(session).warm_up()) == 2


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
