"""Models that compute with their own shapes on the device. onnxruntime captures none that copies between host and
device, so with graphs all of their nodes are one, which passes to kernels what it has computed on the host."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi
from test_fusion import made_one, on_cpu

pytestmark = pytest.mark.core
INT64, FLOAT, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
NUMPY = {INT64: np.int64, FLOAT: np.float32, BOOL: bool, TensorProto.FLOAT16: np.float16}


class Network:
    """Nodes, named as what they make, and constants."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, value, dtype=np.int64):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, op, *inputs, output=None, **attrs):
        output = output or f"v{len(self.nodes)}"
        outputs = [output] if isinstance(output, str) else output
        self.nodes.append(helper.make_node(op, list(inputs), outputs, outputs[0], **attrs))
        return output

    def shape(self, x):
        return self.node("Shape", x)

    def dim(self, x, axis):
        return self.node("Gather", self.shape(x), self.constant(axis))


def positions(net, x):
    """The rows of x that are not its first, as indices into all rows: what indexing with several ranges exports to."""
    rows, columns = net.dim(x, 0), net.dim(x, 1)
    one, zero = net.constant(1), net.constant(0)
    row = net.node("Unsqueeze", net.node("Range", zero, rows, one), net.constant([1]))
    column = net.node("Range", zero, columns, one)
    at = net.node("Add", net.node("Mul", row, columns), column)
    flat = net.node("Reshape", x, net.node("Unsqueeze", net.node("Mul", rows, columns), net.constant([0])))
    return net.node("Gather", flat, at)


def scaled(net, x):
    """By the root of its last dimension, as exported attention is."""
    size = net.node("Cast", net.dim(x, -1), to=FLOAT)
    return net.node("Mul", x, net.node("Sqrt", size))


MODELS = {"positions": positions, "scaled": scaled}


def model_of(make_model, build, kind=FLOAT):
    net = Network()
    net.node("Identity", build(net, "x"), output="y")
    return make_model(net.nodes, {"x": (["n", "m"], kind)}, {"y": (["n", "m"], kind)}, net.constants)


def numbers(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).uniform(-4, 4, shape).astype(dtype)


def as_one(capfd, model, **options):
    session, sizes = made_one(capfd, lambda o: es.make_session(model, o, enable_cuda_graph=1, **options))
    assert sizes == [len(es.nodes_on(session)[es.EP_NAME])]
    es.assert_all_on_encore(session)
    return session


def bound_for(session, model, feeds):
    outputs = {o.name: (w.shape, w.dtype) for o, w in zip(session.get_outputs(), on_cpu(model, feeds), strict=True)}
    return es.Bound(session, feeds, outputs)


def agrees(got, model, feeds, rtol=1e-6):
    for (name, array), wanted in zip(got.items(), on_cpu(model, feeds), strict=True):
        np.testing.assert_allclose(array, wanted, rtol=rtol, atol=1e-6, err_msg=name)


@es.needs_graphs
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_it_is_captured(encore, make_model, capfd, build):
    """A graph for each shape, replayed with new contents; and eagerly, with any."""
    model = model_of(make_model, build)
    session = as_one(capfd, model)
    bounds = {}
    for seed in range(4):
        for graph_id, shape in enumerate([(2, 3), (5, 1), (1, 40)], 1):
            feeds = {"x": numbers(shape, seed)}
            bound = bounds.setdefault(graph_id, bound_for(session, model, feeds))
            agrees(bound.run(feeds, graph_id=graph_id), model, feeds)
    states = {report["id"]: report["state"] for report in onnxruntime_ep_encore.graph_report(session)}
    assert states == dict.fromkeys(bounds, "ready")
    for shape in [(4, 4), (0, 3)]:
        feeds = {"x": numbers(shape)}
        (got,) = session.run(None, feeds, es.run_options(es.EAGER))
        agrees({"y": got}, model, feeds)


def test_without_graphs_it_stays_as_it_is(encore, make_model, capfd):
    """onnxruntime copies, and computes on the CPU what Encore leaves there."""
    model = model_of(make_model, scaled)
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options, regions=0))
    assert sizes == []
    assert "Sqrt" in es.nodes_on(session)["CPUExecutionProvider"]


@es.needs_graphs
def test_it_need_not_be_one(encore, make_model):
    with pytest.raises(capi.Fail, match="graph capture feature"):
        es.make_session(model_of(make_model, scaled), enable_cuda_graph=1, fuse_nodes=0)


@es.needs_graphs
def test_what_no_copy_stands_in_the_way_of_stays_as_it_is(encore, make_model, capfd):
    """Sizes that nobody but an Expand reads."""

    def build(net, x):
        size = net.node("Add", net.dim(x, 0), net.constant(1))
        sizes = net.node("Concat", net.node("Unsqueeze", size, net.constant([0])), net.constant([1]), axis=0)
        return net.node("Expand", net.node("ReduceMax", x), sizes)

    model = make_model_of(make_model, build, ["n", "m"])
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options, enable_cuda_graph=1, regions=0))
    assert sizes == []
    assert "Concat" in es.nodes_on(session)["CPUExecutionProvider"]


# What shapes are computed with: of the dimensions s of x, a vector of four, or n, the first, a scalar. Each result is
# wanted on the host, as sizes, and on the device.
VALUES = {
    "Add": lambda net, s, n: net.node("Add", s, n),
    "Sub": lambda net, s, n: net.node("Sub", n, s),
    "Mul": lambda net, s, n: net.node("Mul", s, net.constant([[1], [2]])),
    "Div": lambda net, s, n: net.node("Div", net.node("Sub", s, net.constant(4)), net.constant(2)),
    "Mod": lambda net, s, n: net.node("Mod", net.node("Sub", s, net.constant(4)), net.constant(3)),
    "Min": lambda net, s, n: net.node("Min", s, n, net.constant(2)),
    "Max": lambda net, s, n: net.node("Max", s, n),
    "Neg": lambda net, s, n: net.node("Neg", s),
    "Abs": lambda net, s, n: net.node("Abs", net.node("Sub", s, net.constant(3))),
    "Equal": lambda net, s, n: net.node("Cast", net.node("Equal", s, n), to=INT64),
    "Less": lambda net, s, n: net.node("Cast", net.node("Less", s, n), to=INT64),
    "LessOrEqual": lambda net, s, n: net.node("Cast", net.node("LessOrEqual", s, n), to=INT64),
    "Greater": lambda net, s, n: net.node("Cast", net.node("Greater", s, n), to=INT64),
    "GreaterOrEqual": lambda net, s, n: net.node("Cast", net.node("GreaterOrEqual", s, n), to=INT64),
    "logic": lambda net, s, n: logic(net, s, n),
    "Where": lambda net, s, n: net.node("Where", net.node("Greater", s, n), s, net.constant([[7], [8]])),
    "Gather": lambda net, s, n: net.node("Gather", s, net.constant([[3, -1], [0, 2]])),
    "Gather rows": lambda net, s, n: net.node("Gather", table(net, s), net.constant([-1, 1]), axis=1),
    "Slice": lambda net, s, n: net.node(
        "Slice", s, net.constant([3]), net.constant([-9]), net.constant([0]), MINUS_TWO
    ),
    "Concat": lambda net, s, n: net.node("Concat", table(net, s), table(net, s), axis=1),
    "Split": lambda net, s, n: net.node("Split", s, net.constant([1, 3]), output=["first", "rest"])[1],
    "Squeeze": lambda net, s, n: net.node(
        "Squeeze", net.node("Unsqueeze", s, net.constant([0, -1])), net.constant([0])
    ),
    "Reshape": lambda net, s, n: net.node("Reshape", s, net.constant([0, -1])),
    "Flatten": lambda net, s, n: net.node("Flatten", table(net, s), axis=0),
    "Identity": lambda net, s, n: net.node("Identity", s),
    "Transpose": lambda net, s, n: net.node("Transpose", table(net, s), perm=[1, 0]),
    "Expand": lambda net, s, n: net.node("Expand", s, net.constant([2, 1])),
    "Tile": lambda net, s, n: net.node("Tile", s, net.constant([2])),
    "Range": lambda net, s, n: net.node("Range", net.constant(9), n, net.constant(-2)),
    "Range of reals": lambda net, s, n: whole(net, net.node("Range", real(net, 0.5), as_real(net, n), real(net, 0.75))),
    "ConstantOfShape": lambda net, s, n: net.node(
        "ConstantOfShape", net.node("Unsqueeze", n, net.constant([0])), value=numpy_helper.from_array(np.array([5]))
    ),
    "ReduceProd": lambda net, s, n: net.node("ReduceProd", s, keepdims=0),
    "ReduceSum": lambda net, s, n: net.node("ReduceSum", s, net.constant([0])),
    "ReduceMax": lambda net, s, n: net.node("ReduceMax", s),
    "ReduceMin": lambda net, s, n: net.node("ReduceMin", s, keepdims=0),
    "Floor": lambda net, s, n: whole(net, net.node("Floor", net.node("Div", as_real(net, s), real(net, 2)))),
    "Ceil": lambda net, s, n: whole(net, net.node("Ceil", net.node("Mul", as_real(net, s), real(net, 0.3)))),
    "Sqrt": lambda net, s, n: whole(net, net.node("Sqrt", as_real(net, s))),
    "Reciprocal": lambda net, s, n: whole(net, net.node("Div", real(net, 2), net.node("Reciprocal", as_real(net, s)))),
    "Pow": lambda net, s, n: whole(net, net.node("Pow", as_real(net, s), real(net, 0.5))),
    "Pow of whole numbers": lambda net, s, n: net.node("Pow", s, net.constant([2, 0, -1, 3])),
    "int32": lambda net, s, n: whole(net, net.node("Add", net.node("Cast", s, to=6), net.constant(1, np.int32))),
}
if es.ORT_VERSION >= (1, 28):  # before, the CPU EP has zeros there
    VALUES["reduced nothing"] = lambda net, s, n: of_nothing(net, s)
MINUS_TWO = "minus two"


def real(net, value):
    return net.constant(value, np.float32)


def as_real(net, value):
    return net.node("Cast", value, to=FLOAT)


def whole(net, value):
    return net.node("Cast", value, to=INT64)


def table(net, s):
    return net.node("Reshape", s, net.constant([2, 2]))


def logic(net, s, n):
    above, below = net.node("Greater", s, n), net.node("Less", s, net.constant(5))
    both, one = net.node("And", above, below), net.node("Xor", above, net.node("Not", below))
    return net.node("Cast", net.node("Or", both, one), to=INT64)


def of_nothing(net, s):
    """The values that change no other: the ends of each type's range, and infinities."""
    nothing = net.node("Slice", s, *(net.constant([n]) for n in (4, 9)))
    of_32 = net.node("Cast", nothing, to=6)
    reduced = [net.node(f"Reduce{how}", nothing) for how in ("Min", "Max", "Sum", "Prod")]
    reduced += [whole(net, net.node(f"Reduce{how}", of_32)) for how in ("Min", "Max")]
    least = net.node("ReduceMin", as_real(net, nothing))
    reduced.append(whole(net, net.node("Greater", least, real(net, np.finfo(np.float32).max))))
    return net.node("Concat", *reduced, axis=0)


@es.needs_graphs
@pytest.mark.parametrize("what", VALUES)
def test_what_shapes_are_computed_with(encore, make_model, capfd, what):
    net = Network()
    net.constants.append(numpy_helper.from_array(np.array([-2]), MINUS_TWO))
    s = net.shape("x")
    value = VALUES[what](net, s, net.node("Gather", s, net.constant(0)))
    clipped = net.node("Min", net.node("Max", value, net.constant(0)), net.constant(6))
    sizes = net.node("Reshape", clipped, net.constant([-1]))
    # As the dimensions of a tensor, a few at a time; and as numbers among those of x.
    head = net.node("Slice", sizes, net.constant([0]), net.constant([5]))
    net.node("ConstantOfShape", head, output="made", value=numpy_helper.from_array(np.array([3], np.float32)))
    first = net.node("Reshape", net.node("Slice", net.node("Reshape", "x", net.constant([-1])), *two(net)), "scalar")
    net.constants.append(numpy_helper.from_array(np.array([], np.int64), "scalar"))
    net.node("Add", net.node("Cast", value, to=FLOAT), first, output="y")
    net.node("Identity", value, output="value")
    outputs = {"made": (None, FLOAT), "y": (None, FLOAT), "value": (None, INT64)}
    model = make_model(net.nodes, {"x": (["a", "b", "c", "d"], FLOAT)}, outputs, net.constants)
    session = as_one(capfd, model)
    for graph_id, shape in enumerate([(3, 1, 5, 4), (4, 2, 2, 7)]):
        for seed in range(3):
            feeds = {"x": numbers(shape, seed)}
            if seed == 0:
                bound = bound_for(session, model, feeds)
            agrees(bound.run(feeds, graph_id=graph_id), model, feeds)


def two(net):
    return net.constant([0]), net.constant([1])


@es.needs_graphs
def test_a_constant_is_read_on_both_sides(encore, make_model, capfd):
    def build(net, x):
        two = net.constant([2, 1])
        rows = net.node("Tile", x, two)
        return net.node(
            "Mul", net.node("Mul", rows, net.node("Cast", two, to=FLOAT)), net.node("Cast", net.dim(x, 0), to=1)
        )

    model = make_model_of(make_model, build, ["n", 2])
    session = as_one(capfd, model)
    feeds = {"x": numbers((3, 2))}
    agrees(bound_for(session, model, feeds).run(feeds), model, feeds)


def make_model_of(make_model, build, shape, kind=FLOAT):
    net = Network()
    net.node("Identity", build(net, "x"), output="y")
    return make_model(net.nodes, {"x": (shape, kind)}, {"y": (None, kind)}, net.constants)


@es.needs_graphs
def test_what_only_gives_a_tensor_another_shape_moves_nothing(encore, make_model, capfd):
    if not es.on_virtual_gpu():
        return

    def build(net, x):
        flat = net.node("Flatten", net.node("Unsqueeze", scaled(net, x), net.constant([0])), axis=2)
        return net.node("Relu", net.node("Squeeze", net.node("Unsqueeze", flat, net.constant([1])), net.constant([1])))

    model = make_model_of(make_model, build, ["n", "m"])
    session = as_one(capfd, model)
    lines = es.trace(session, lambda: session.run(None, {"x": numbers((3, 4))}, es.run_options(es.EAGER)))
    kernels = [line["name"] for line in lines if line["what"] == "kernel"]
    # The number from the host, a product, and Relu.
    assert len(kernels) == 3, kernels


@es.needs_graphs
@pytest.mark.parametrize("prefer_nhwc", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_groups_inside_are_one_as_ever(encore, make_model, capfd, dtype, prefer_nhwc):
    """Convolutions with channels last, and a product with its bias, between shapes that are computed with."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def build(net, x):
        for i, channels in enumerate([(1, 8), (8, 8)]):
            weights = numbers((channels[1], channels[0], 3, 3), i).round()
            x = net.node("Conv", x, net.constant(weights, dtype), net.constant(np.ones(8), dtype), pads=[1] * 4)
            x = net.node("Relu", x)
        x = net.node("Div", x, net.node("Cast", net.dim(x, 2), to=kind))
        rows = net.node(
            "Reshape", x, net.node("Concat", net.constant([-1]), net.node("Slice", net.shape(x), *last(net)), axis=0)
        )
        sums = net.node("MatMul", rows, net.constant(numbers((6, 5)).round(), dtype))
        return net.node("Add", sums, net.constant(np.arange(5), dtype))

    def last(net):
        return net.constant([3]), net.constant([4])

    model = make_model_of(make_model, build, ["n", 1, "h", 6], kind)
    session = es.make_session(model, enable_cuda_graph=1, use_tf32=1, prefer_nhwc=prefer_nhwc)
    es.assert_all_on_encore(session, layout_asked=prefer_nhwc)
    for seed in range(3):
        feeds = {"x": numbers((2, 1, 4, 6), seed).round().astype(dtype)}
        if seed == 0:
            bound = bound_for(session, model, feeds)
        agrees(bound.run(feeds), model, feeds, rtol=4e-3 if dtype == "float16" else 1e-5)


@es.needs_graphs
def test_threads_have_graphs_of_their_own(encore, make_model, capfd):
    model = model_of(make_model, positions)
    session = as_one(capfd, model)

    def work(thread):
        feeds = {"x": numbers((3 + thread, 4), thread)}
        bound = bound_for(session, model, feeds)
        for seed in range(20):
            feeds = {"x": numbers((3 + thread, 4), seed)}
            agrees(bound.run(feeds), model, feeds)

    assert not es.in_threads(4, work)


# ---- what goes wrong


def picked(net, x):
    """Rows of a table, by indices that the caller gives and that count from a dimension."""
    table = net.constant(np.arange(12).reshape(4, 3), np.float32)
    at = net.node("Sub", net.node("Cast", x, to=INT64), net.dim(x, 0))
    return net.node("Gather", table, at, output="looked up")


@es.needs_graphs
def test_a_bad_index_names_its_node(encore, make_model, capfd):
    model = make_model_of(make_model, picked, ["n"])
    session = as_one(capfd, model)
    good = {"x": np.float32([2, 3, 4, 5])[:3]}
    bound = bound_for(session, model, good)
    agrees(bound.run(good), model, good)
    with pytest.raises((capi.Fail, RuntimeError), match="Gather node 'looked up': index 6 is outside"):
        bound.run({"x": np.float32([9, 3, 3])})
    agrees(bound.run(good), model, good)


@es.needs_graphs
def test_what_does_not_fit_names_its_node(encore, make_model, capfd):
    build = lambda net, x: net.node("Reshape", scaled(net, x), net.constant([-1, 4]), output="reshaped")
    session = as_one(capfd, make_model_of(make_model, build, ["n", "m"]))
    with pytest.raises((capi.Fail, capi.InvalidArgument), match="Reshape node 'reshaped': cannot infer the -1"):
        session.run(None, {"x": numbers((5, 2))}, es.run_options(es.EAGER))
    assert session.run(None, {"x": numbers((6, 2))}, es.run_options(es.EAGER))[0].shape == (3, 4)


@es.needs_graphs
def test_no_shape_is_that_large(encore, make_model, capfd):
    """A number of a long range on the host: said, and the session stays usable."""

    def build(net, x):
        numbers = net.node(
            "Range", net.constant(0), net.node("Mul", net.dim(x, 0), net.constant(50000)), net.constant(1)
        )
        one = net.node("Gather", numbers, net.constant([7]), output="one of them")
        return net.node("Mul", net.node("Expand", x, one), net.node("Cast", net.dim(x, 0), to=FLOAT))

    session = as_one(capfd, make_model_of(make_model, build, ["n"]))
    (got,) = session.run(None, {"x": np.float32([3])}, es.run_options(es.EAGER))
    assert (got == np.full(7, 3)).all()
    with pytest.raises((capi.Fail, capi.InvalidArgument), match="Range node 'v.*': a tensor of 2800000 bytes"):
        session.run(None, {"x": np.zeros(7, np.float32)}, es.run_options(es.EAGER))


@es.needs_graphs
@pytest.mark.parametrize("divisor", ["rows - 2", "index"])
def test_shapes_that_cannot_be_computed(encore, make_model, capfd, divisor):
    def build(net, x):
        rows = net.dim(x, 0)
        if divisor == "index":
            bad = net.node("Gather", net.shape(x), rows, output="bad")
        else:
            bad = net.node("Div", rows, net.node("Sub", rows, net.constant(2)), output="bad")
        size = net.node("Unsqueeze", net.node("Abs", bad), net.constant([0]))
        sums = net.node("Expand", net.node("ReduceSum", x, keepdims=0), size)
        return net.node("Mul", sums, net.node("Cast", rows, to=FLOAT))

    session = as_one(capfd, make_model_of(make_model, build, ["n", 3]))
    says = r"Gather node 'bad': index 2 is outside \[-2, 2\)" if divisor == "index" else "Div node 'bad': .* by zero"
    with pytest.raises((capi.Fail, capi.InvalidArgument), match=says):
        session.run(None, {"x": numbers((2, 3))}, es.run_options(es.EAGER))
    assert len(session.run(None, {"x": numbers((1, 3))}, es.run_options(es.EAGER))) == 1


@es.needs_graphs
@pytest.mark.parametrize("why", ["data", "input", "no host op"])
def test_what_cannot_be_one_is_refused_as_ever(encore, make_model, capfd, why):
    """Sizes that depend on data or are an input, and arithmetic that Encore does not have on the host."""

    def build(net, x):
        if why == "data":
            size = net.node("Cast", net.node("ReduceMax", x, keepdims=0), to=INT64)
        elif why == "input":
            size = net.node("Gather", "sizes", net.constant(0))
        else:
            size = net.node("Cast", net.node("Exp", net.node("Cast", net.dim(x, 0), to=FLOAT)), to=INT64)
        rows = net.node("Expand", x, net.node("Unsqueeze", size, net.constant([0])))
        return net.node("Mul", rows, net.node("Cast", net.dim(x, 0), to=FLOAT))

    net = Network()
    net.node("Identity", build(net, "x"), output="y")
    inputs = {"x": (["n"], FLOAT)} | ({"sizes": ([2], INT64)} if why == "input" else {})
    model = make_model(net.nodes, inputs, {"y": (None, FLOAT)}, net.constants)
    with pytest.raises(capi.Fail, match="graph capture feature"):
        es.make_session(model, enable_cuda_graph=1)
    session = es.make_session(model, enable_cuda_graph=1, **{"graph_on_error": "eager"})
    feeds = {"x": np.float32([3])} | ({"sizes": np.array([4, 5])} if why == "input" else {})
    agrees({"y": session.run(None, feeds)[0]}, model, feeds)
