"""Regions: one node of all that Encore can run together. Which nodes belong to one, and that they compute the same."""

import encore_session as es
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from onnx import helper, numpy_helper, parser
from onnxruntime.capi import onnxruntime_pybind11_state as capi
from test_fusion import MADE

pytestmark = pytest.mark.core
FLOAT, INT = np.float32, np.int64


def model(text, functions=""):
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18, "local" : 1]> g {text} {functions}')


def some(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-4, 4, shape).astype(FLOAT)


def regions(session):
    """The operators of each node that is made of several."""
    parts = [[node.op_type for node in part.get_nodes()] for part in session.get_provider_graph_assignment_info()]
    return sorted(sorted(part) for part in parts if len(part) > 1)


def check(text, wanted, *feeds, functions="", **how):
    """The regions, given as words, and that they compute what single nodes do, bit for bit."""
    session = es.make_session(model(text, functions), regions=1, **how)
    single = es.make_session(model(text, functions), regions=0, **how | {"auto_graph": 0})
    assert regions(session) == sorted(sorted(region.split()) for region in wanted)
    assert regions(single) == []
    names = [output.name for output in session.get_outputs()]
    for feed in feeds:
        for name, got, expected in zip(names, session.run(None, feed), single.run(None, feed), strict=True):
            np.testing.assert_array_equal(got, expected, err_msg=name)
    return session


X = [{"x": some(3, 4)}, {"x": some(5, 2, seed=1)}, {"x": some(0, 3)}]


def test_a_model_that_is_all_encores_is_one():
    check("(float[n, m] x) => (float[n, m] y) { a = Relu(x) b = Exp(a) y = Sub(b, x) }", ["Relu Exp Sub"], *X)


def test_nothing_is_one_if_nobody_asks_for_it_or_for_any_fusion():
    text = "(float[n, m] x) => (float[n, m] y) { a = Relu(x) y = Exp(a) }"
    assert regions(es.make_session(model(text), regions=0)) == []
    assert regions(es.make_session(model(text), regions=1, fuse_nodes=0)) == []


def test_it_is_said_of_how_many_nodes(capfd):
    options = ort.SessionOptions()
    options.log_severity_level = 0
    es.make_session(model("(float[n] x) => (float[n] y) { a = Relu(x) y = Exp(a) }"), options, regions=1)
    assert MADE + "2 nodes, a region" in capfd.readouterr().err


def test_what_computes_with_shapes_is_inside():
    """Sizes that are read on the host, and a number that a kernel gets; onnxruntime would copy without a region."""
    check(
        """(float[n, m] x) => (float[k] y, float[n, m] z, int64[1] size) <int64 one = {1}, int64[1] all = {-1}> {
             r = Relu(x) s = Shape(r) m_ = Gather(s, one) f = Cast <to = 1> (m_) root = Sqrt(f) z = Div(r, root)
             size = ReduceProd <keepdims = 1> (s) y = Reshape(z, size) }""",
        ["Relu Shape Gather Cast Sqrt Div ReduceProd Reshape"],
        *X,
    )


def test_sizes_that_are_computed_in_halves_are_inside():
    """As exporters of half models make a Range; bfloat16 alike."""
    for number in (10, 16):
        text = f"""(float[n, m] x) => (float[n, k] y, int64[k] z) <int64 zero = {{0}}, int64 one = {{1}}> {{
             r = Relu(x) s = Shape(r) m_ = Gather(s, one) f = Cast <to = {number}> (m_) root = Sqrt(f) up = Ceil(root)
             count = Cast <to = 7> (up) z = Range(zero, count, one) y = Gather <axis = 1> (r, z) }}"""
        check(text, ["Relu Shape Gather Cast Sqrt Ceil Cast Range Gather"], *X[:2])


def test_the_area_of_a_square_is_computed_inside():
    """As torch's exporter writes it, where it knows two dimensions to be the same."""
    check(
        """(float[n, side, side] x) => (float[n, area] y) <int64 one = {1}, int64 two = {2}, int64[1] all = {-1}> {
             r = Relu(x) s = Shape(r) side_ = Gather(s, one) squared = Pow(side_, two) area_ = Reshape(squared, all)
             dims = Concat <axis = 0> (all, area_) y = Reshape(r, dims) }""",
        ["Relu Shape Gather Pow Reshape Concat Reshape"],
        {"x": some(2, 3, 3)},
        {"x": some(3, 5, 5)},
    )


def test_a_whole_number_to_a_broken_power_is_left_to_the_device():
    """It is not the power of the whole part."""
    check(
        """(float[n] x) => (float[n] y, int64[1] z) <float half = {0.5}> {
             r = Relu(x) s = Shape(r) z = Pow(s, half) f = Cast <to = 1> (z) y = Div(r, f) }""",
        ["Relu Shape Pow Cast Div"],
        {"x": some(9)},
        {"x": some(26)},
    )


def test_how_often_a_tensor_is_repeated_is_counted_inside():
    """As exporters repeat along one of a tensor's dimensions: the others get a one each."""
    check(
        """(float[n, m] x) => (float[k, m] y, int64[2, 3] z) <int64[1] zero = {0}, int64 two = {2}, int64[1] all = {-1},
             int64[3] places = {1, -2, 2}, int64[1] one = {1}> {
             r = Relu(x) s = Shape(r) n_ = Gather(s, zero) both = Concat <axis = 0> (one, n_)
             hot = OneHot(zero, two, both) repeats = Reshape(hot, all) y = Tile(r, repeats)
             z = OneHot <axis = 0> (places, two, both) }""",
        ["Relu Shape Gather Concat OneHot OneHot Reshape Tile"],
        *X[:2],
    )


@pytest.mark.parametrize("places", ["r = Reshape <allowzero = 1> (a, all)", "r = Gather <axis = 1> (a, none)"])
def test_sizes_may_be_computed_of_vast_tensors_of_nothing(places):
    """[2^40, 0] has no elements, and nothing is to be done for each of its rows."""
    text = f"""(float[n, m] x) => (float[k] y) <int64[1] one = {{1}}, int64[2] vast = {{1099511627776, 0}},
                 int64[0] none = {{}}, int64[1] all = {{0}}, int64[1] flat = {{-1}}> {{
                 e = ConstantOfShape <value: tensor = int64[1] {{1}}> (vast) s = Shape(x) rows = Slice(s, all, one)
                 a = Add(e, rows) {places} c = Reshape <allowzero = 1> (r, all)
                 t = Concat <axis = 0> (c, flat) y = Reshape(x, t) }}"""
    session = es.make_session(model(text), regions=1)
    np.testing.assert_array_equal(session.run(None, X[0])[0], X[0]["x"].reshape(-1))


def test_what_waits_for_sizes_is_none_of_them():
    check(
        """(float[n, m] x) => (float[k] y) { a = Relu(x) b = Neg(a) u = Unique(b) c = Exp(u) y = Abs(c) }""",
        ["Relu Neg", "Exp Abs"],
        *X,
    )


def test_no_path_leaves_and_comes_back():
    check(
        """(float[n, m] x) => (float[n, m] y, int64[2, k] z) <float zero = {0.0}> {
             a = Relu(x) b = Neg(a) z = NonZero(b) s = Shape(z) f = Cast <to = 1> (s) g = ReduceSum <keepdims = 0> (f)
             c = Exp(b) d = Add(c, g) y = Abs(d) }""",
        ["Relu Neg Exp", "Cast ReduceSum Add Abs Shape"],
        *X[:2],
    )


def test_one_node_stays_one():
    session = check("(float[n, m] x) => (float[k] y) { a = Relu(x) u = Unique(a) y = Exp(u) }", [], *X)
    assert sorted(es.nodes_on(session)[es.EP_NAME]) == ["Exp", "Relu", "Unique"]


def test_sizes_that_are_an_input_cut():
    """Whoever reads on the host what comes from outside is not inside."""
    feeds = [{"x": some(3, 4), "to": INT([2, 6])}, {"x": some(2, 2), "to": INT([-1, 1])}]
    check(
        """(float[n, m] x, int64[2] to) => (float[k, l] y) { a = Relu(x) b = Neg(a) r = Reshape(b, to) c = Exp(r)
             y = Abs(c) }""",
        ["Relu Neg", "Exp Abs"],
        *feeds,
    )


def test_sizes_that_depend_on_data_cut_at_their_reader():
    check(
        """(float[n, m] x) => (float[k, l] y) <int64[1] one = {1}, int64[1] all = {-1}> {
             a = Relu(x) b = Neg(a) s = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (s) rows = Reshape(i, all)
             sizes = Concat <axis = 0> (rows, one, one) e = Expand(b, sizes) c = Exp(e) y = Squeeze(c, one) }""",
        ["Relu Neg", "ReduceMax Cast Reshape Concat", "Exp Squeeze"],
        {"x": FLOAT([[2.5]])},
    )


def test_sizes_that_two_regions_want_stay_on_the_cpu():
    session = check(
        """(float[n, m] x) => (float[k] y) <int64 one = {1}, int64[1] all = {-1}> {
             s = Shape(x) m_ = Gather(s, all) a = Relu(x) b = Neg(a) t = Concat <axis = 0> (all, m_) r = Reshape(b, t)
             u = Unique(r) c = Exp(u) d = Abs(c) v = Tile(d, m_) w = Cos(v) y = Sin(w) }""",
        ["Relu Neg", "Exp Abs", "Cos Sin"],
        *X[:2],
    )
    assert sorted(es.nodes_on(session)["CPUExecutionProvider"]) == ["Concat", "Gather"]


def test_what_only_a_later_region_reads_is_there():
    """A shape of the model's input, for a Reshape behind a cut; and weights that are computed."""
    check(
        """(float[n, m] x) => (float[k] y) <float[1] w = {2.0}> {
             a = Relu(x) b = Neg(a) u = Unique(b) s = Shape(x) f = Cast <to = 1> (s) g = ReduceSum <keepdims = 1> (f)
             c = Mul(u, g) y = Mul(c, w) }""",
        ["Relu Neg", "Shape Cast ReduceSum Mul Mul"],
        *X,
    )


def test_what_is_read_inside_and_outside():
    """An output that is read inside, too, a value that another node reads, one that is two outputs' maker, and an input
    that is an output."""
    check(
        """(float[n, m] x) => (float[n, m] a, float[n, m] b, float[k] u, float[n, m] y) {
             a = Relu(x) b = Neg(a) c = Exp(a) u = Unique(c) y = Add(c, b) }""",
        ["Relu Neg Exp Add"],
        *X,
    )
    node = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
    ends = [helper.make_tensor_value_info(name, 1, ["n"]) for name in "xyc"]
    constants = [numpy_helper.from_array(some(3), "c")]
    graph = helper.make_graph(node, "g", ends[:1], [*ends, ends[1]][:3], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session, single = (es.make_session(made, regions=r) for r in (1, 0))
    assert regions(session) == [["Exp", "Relu"]]
    for got, wanted in zip(*(s.run(None, {"x": some(5)}) for s in (session, single)), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_absent_inputs_and_outputs_that_nobody_reads():
    check(
        """(float[n, m] x) => (float[k, m] y) <float high = {1.5}, int64[1] two = {2}> {
             a = Clip(x, , high) v, i = TopK(a, two) f = Cast <to = 1> (i) y = Neg(f) }""",
        ["Clip TopK Cast Neg"],
        *X[:2],
    )


def test_equal_constants_and_constant_nodes():
    check(
        """(float[n, 2] x) => (float[n, 2] y) <float[2] c = {1.0, 2.0}, float[2] d = {1.0, 2.0}> {
             a = Add(x, c) b = Mul(a, d) e = Constant <value = float[2] {1.0, 2.0}> () f = Sub(b, e) y = Div(f, c) }""",
        ["Add Mul Sub Div"],
        {"x": some(3, 2)},
    )


def test_constants_that_a_caller_may_change_are_none():
    nodes = [helper.make_node("Add", ["x", "c"], ["a"]), helper.make_node("Reshape", ["a", "to"], ["b"])]
    nodes.append(helper.make_node("Exp", ["b"], ["y"]))
    ends = [helper.make_tensor_value_info(name, 1, ["n"]) for name in "xcy"]
    ends.insert(2, helper.make_tensor_value_info("to", 7, [1]))
    constants = [numpy_helper.from_array(FLOAT([3]), "c"), numpy_helper.from_array(INT([-1]), "to")]
    graph = helper.make_graph(nodes, "g", ends[:3], ends[3:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = es.make_session(made, regions=1)
    assert regions(session) == []
    for feeds in ({}, {"c": FLOAT([5])}):
        (y,) = session.run(None, {"x": FLOAT([1, 2]), **feeds})
        np.testing.assert_allclose(y, np.exp(FLOAT([1, 2]) + feeds.get("c", FLOAT([3]))), rtol=1e-6)


def test_bodies_read_what_is_inside():
    """A branch reads values of a region's, one of which nobody else does; a path through it is one, too."""
    text = """(bool c, float[n] x) => (float[n] z, float[n] o) {
             a = Relu(x) b = Neg(a) o = Exp(b)
             y = If <then_branch = t () => (float[n] q) { q = Neg(a) },
                     else_branch = e () => (float[n] w) { w = Add(b, x) }> (c)
             d = Add(y, b) z = Abs(d) }"""
    feeds = [{"c": np.array(c), "x": some(5)} for c in (True, False)]
    check(text, ["Relu Neg Exp", "Add Abs"], *feeds, auto_graph=0)
    check(text, ["Relu Neg Exp If Add Abs"], *feeds, auto_graph=1)  # the device decides


def test_what_a_body_reads_on_the_host_stays_there():
    text = """(bool c, float[n, 2] x) => (float[k] z) <int64[1] two = {2}, int64[1] all = {-1}> {
             s = Shape(x) d = Mul(s, two) a = Relu(x) b = Exp(a)
             y = If <then_branch = t () => (float[k] q) { q = Reshape(b, all) },
                     else_branch = e () => (float[k] w) { v = Expand(x, d) w = Reshape(v, all) }> (c)
             n = Neg(y) z = Abs(n) }"""
    feed = {"c": np.array(True), "x": some(3, 2)}
    check(text, ["Shape Mul Relu Exp If Neg Abs"], feed, auto_graph=1)
    session = check(text, ["Relu Exp", "Neg Abs"], feed, auto_graph=0)
    assert "Mul" in es.nodes_on(session)["CPUExecutionProvider"]


FUNCTION = '<domain: "local", opset_import: ["" : 18]> f (x) => (y) { z = Exp(x) y = Abs(z) }'


@pytest.mark.parametrize("late", [0, 1])
def test_functions(late):
    """onnxruntime puts in their nodes before it asks for regions, or once it has those of the others."""
    check(
        "(float[n, m] x) => (float[n, m] y) { a = Relu(x) b = Sin(a) c = local.f(b) y = Neg(c) }",
        ["Relu Sin", "Exp Abs Neg"] if late else ["Relu Sin Exp Abs Neg"],
        *X,
        functions=FUNCTION,
        config={"session.disable_aot_function_inlining": late},
    )


# Older ones compile the first regions before the last answer, which is what refuses graphs, is there.
@es.only_if(es.ORT_VERSION >= (1, 28))
def test_a_region_made_before_keeps_no_graph_from_being_captured():
    text = "(float[3, 4] x) => (float[3, 4] y) { a = Relu(x) b = Sin(a) c = local.f(b) y = Neg(c) }"
    late = {"session.disable_aot_function_inlining": 1}
    session = es.make_session(model(text, FUNCTION), config=late, regions=1, enable_cuda_graph=1)
    bound = es.Bound(session, X[0], {"y": ((3, 4), FLOAT)})
    for seed in range(3):
        x = some(3, 4, seed=seed)
        got = bound.run({"x": x})["y"]
        np.testing.assert_allclose(got, -np.exp(np.sin(np.maximum(x, 0))), rtol=1e-5)
    assert onnxruntime_ep_encore.graph_report(session)[0]["state"] == "ready"


@es.needs_graphs
def test_sizes_are_inside_of_a_captured_graph():
    """Without regions the same model is one node if onnxruntime would have to copy; with them it is one anyway."""
    text = """(float[n, m] x) => (float[m, n] y) <int64[2] order = {1, 0}> {
             s = Shape(x) t = Gather(s, order) r = Reshape(x, t) f = Cast <to = 1> (s) g = ReduceSum <keepdims = 0> (f)
             y = Mul(r, g) }"""
    session = es.make_session(model(text), regions=1, enable_cuda_graph=1)
    assert len(regions(session)) == 1
    for graph_id, shape in enumerate([(3, 4), (5, 2)], 1):
        bound = es.Bound(session, {"x": some(*shape)}, {"y": (shape[::-1], FLOAT)})
        for seed in range(3):
            x = some(*shape, seed=seed)
            np.testing.assert_array_equal(
                bound.run({"x": x}, graph_id)["y"], x.reshape(shape[::-1]) * FLOAT(sum(shape))
            )
    assert [report["replays"] for report in onnxruntime_ep_encore.graph_report(session)] == [2, 2]


@pytest.mark.parametrize("level", ["DISABLE_ALL", "ENABLE_BASIC", "ENABLE_ALL"])
@pytest.mark.parametrize("prefer_nhwc", [0, 1])
def test_layouts_and_levels(make_model, prefer_nhwc, level):
    weights = [numpy_helper.from_array(some(8, c, 3, 3, seed=c).round(), f"w{c}") for c in (4, 8)]
    nodes = [
        helper.make_node("Conv", ["x", "w4"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w8"], ["c"], pads=[1] * 4),
        helper.make_node("Shape", ["c"], ["s"], end=2),
        helper.make_node("Concat", ["s", "rest"], ["t"], axis=0),
        helper.make_node("Reshape", ["c", "t"], ["y"]),
    ]
    constants = [*weights, numpy_helper.from_array(INT([-1]), "rest")]
    made = make_model(nodes, {"x": ["n", 4, "h", "w"]}, {"y": ["n", 8, "k"]}, constants)
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    session = es.make_session(made, options, regions=1, prefer_nhwc=prefer_nhwc)
    assert len(regions(session)) == 1
    es.assert_all_on_encore(session)
    single = es.make_session(made, regions=0, fuse_nodes=0)
    for feeds in ({"x": some(2, 4, 5, 6).round()}, {"x": some(1, 4, 3, 9).round()}):
        np.testing.assert_allclose(*(s.run(None, feeds)[0] for s in (session, single)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("regions", [0, 1])
def test_an_output_that_nobody_wants_is_none_in_another_layout(make_model, regions):
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a", ""], "pool", kernel_shape=[2, 2]),
        helper.make_node("Relu", ["a"], ["y"], "relu"),
    ]
    made = make_model(nodes, {"x": ["n", 2, 3, "w"]}, {"y": ["n", 2, 2, "v"]})
    session = es.make_session(made, regions=regions, prefer_nhwc=1)
    es.assert_all_on_encore(session, layout_asked=True)
    x = some(2, 2, 3, 4)
    wanted = np.maximum(np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3)).max((-1, -2)), 0)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)


# ---- who it was


NAMED = [
    helper.make_node("Abs", ["x"], ["a"], "first"),
    helper.make_node("Cast", ["i"], ["at"], "whole numbers", to=7),
    helper.make_node("Gather", ["a", "at"], ["b"], "looked up"),
    helper.make_node("Reshape", ["b", "to"], ["y"], "reshaped"),
]


@pytest.fixture
def named(make_model):
    to = numpy_helper.from_array(INT([2, -1]), "to")
    return make_model(NAMED, {"x": ["n", "m"], "i": ["k"]}, {"y": [2, "l"]}, [to])


def test_errors_and_faults_name_their_node(named):
    session = es.make_session(named, regions=1)
    assert len(regions(session)) == 1
    x, good = some(3, 1), FLOAT([0, 2])
    for i, words in (
        (FLOAT([0, 1, 2]), "Reshape node 'reshaped': cannot infer the -1"),
        (FLOAT([0, 7]), "Gather node 'looked up': index 7 is outside"),
    ):
        with pytest.raises((capi.Fail, capi.InvalidArgument, RuntimeError), match=words):
            session.run(None, {"x": x, "i": i})
        np.testing.assert_array_equal(session.run(None, {"x": x, "i": good})[0], np.abs(x)[[0, 2]])


def test_traces_name_their_nodes(named):
    if not es.on_virtual_gpu():
        return
    session = es.make_session(named, regions=1)
    lines = es.trace(session, lambda: session.run(None, {"x": some(3, 1), "i": FLOAT([0, 2])}))
    assert {"first", "whole numbers", "looked up"} <= {line["label"] for line in lines if line["what"] == "kernel"}


def test_memory_is_held_by_the_node_that_keeps_it(make_model):
    weights = numpy_helper.from_array(some(64, 64), "w")
    nodes = [helper.make_node("Relu", ["x"], ["a"], "first"), helper.make_node("MatMul", ["a", "w"], ["y"], "product")]
    session = es.make_session(make_model(nodes, {"x": ["n", 64]}, {"y": ["n", 64]}, [weights]), regions=1)
    assert len(regions(session)) == 1
    held = {holder["name"]: holder["bytes"] for holder in onnxruntime_ep_encore.memory_report(session)["holders"]}
    assert held.get("product", 0) >= 64 * 64 * 4


def test_nodes_without_names():
    session = check(
        "(float[n] x) => (float[a, b] y) <int64[2] to = {2, -1}> { r = Relu(x) y = Reshape(r, to) }",
        ["Relu Reshape"],
        {"x": some(4)},
    )
    with pytest.raises((capi.Fail, capi.InvalidArgument), match=r"makes y\)': cannot infer the -1"):
        session.run(None, {"x": some(3)})


# ---- how large


def chain(count, cut=0):
    """Nodes in a row; with `cut` each of that many is one that waits."""
    nodes = []
    for i in range(count):
        op = "NonZero" if cut and i % cut == cut - 1 else "Relu" if i % 2 else "Neg"
        made = f"v{i + 1}"
        nodes.append(helper.make_node(op, [f"v{i}"], [f"z{i}" if op == "NonZero" else made]))
        if op == "NonZero":
            nodes += [
                helper.make_node("Cast", [f"z{i}"], [f"f{i}"], to=1),
                helper.make_node("Slice", [f"f{i}", "zero", "one", "one"], [made]),
            ]
    constants = [numpy_helper.from_array(INT([n]), name) for n, name in ((0, "zero"), (1, "one"))]
    ends = [[helper.make_tensor_value_info(name, 1, ["n", "m"])] for name in ("v0", f"v{count}")]
    graph = helper.make_graph(nodes, "g", *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_ten_thousand_nodes_in_a_row():
    session = es.make_session(chain(10000), _plain(), regions=1)
    assert [len(region) for region in regions(session)] == [10000]
    x = some(3, 4)
    np.testing.assert_array_equal(session.run(None, {"v0": x})[0], np.zeros((3, 4)))


def test_two_thousand_branches(make_model):
    nodes = []
    for i in range(2000):
        nodes += [helper.make_node("Add", ["x", "one"], [f"a{i}"]), helper.make_node("Relu", [f"a{i}"], [f"b{i}"])]
    nodes.append(helper.make_node("Sum", [f"b{i}" for i in range(2000)], ["y"]))
    one = numpy_helper.from_array(FLOAT([1]), "one")
    session = es.make_session(make_model(nodes, {"x": ["n"]}, {"y": ["n"]}, [one]), _plain(), regions=1)
    assert [len(region) for region in regions(session)] == [4001]
    np.testing.assert_array_equal(session.run(None, {"x": FLOAT([1, -3, 0])})[0], [4000, 0, 2000])


def test_many_regions_in_a_row():
    session = es.make_session(chain(500, cut=10), _plain(), regions=1)
    assert len(regions(session)) == 51
    assert session.run(None, {"v0": some(3, 4)})[0].shape == (2, 0)


def _plain():
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


GATE = "(float[n, 8] x, float[n, 8] up) => (float[n, 8] y) { s = Sigmoid(x) g = Mul(x, s) t = Mul(g, up) y = Relu(t) }"


@pytest.mark.parametrize("regions", [0, 1])
def test_what_became_of_a_region_is_written(tmp_path, regions):
    es.make_session(model(GATE), regions=regions, dump_regions=tmp_path / "new" / "folder")
    (folder,) = (tmp_path / "new" / "folder").iterdir()
    claimed, after = sorted(folder.iterdir())
    assert (claimed.name, after.name) == ("00_as_claimed.txt", "01_gates.txt")
    assert "g: f32[n, 8] = Mul(x, s)" in claimed.read_text()
    assert "t: f32[n, 8] = encore.Gate(x, up)" in after.read_text()


def test_convolutions_in_a_region_are_written_with_the_names_of_dimensions(tmp_path):
    text = """(float[n, 1, h, w] x) => (float[n, 1, h, w] y) <float[1, 1, 1, 1] k = {2.0}>
                { a = Relu(x) b = Conv(a, k) c = Conv(b, k) y = Tanh(c) }"""
    es.make_session(model(text), regions=1, use_tf32=1, dump_regions=tmp_path)
    (file,) = tmp_path.glob("*/*_channels_last.txt")
    assert "a: f32[n, h, w, 1] = Relu(" in file.read_text(), file.read_text()


def test_a_pass_says_why_it_left_something(tmp_path):
    text = """(float[n, 8] x, float[n, m] z) => (float[n, 8] y) <float[8] gamma = {1, 1, 1, 1, 1, 1, 1, 1}>
                { s = Add(x, z) y = LayerNormalization(s, gamma) }"""
    es.make_session(model(text), regions=1, dump_regions=tmp_path)
    (file,) = tmp_path.glob("*/01_residuals.txt")
    assert "# LayerNormalization node '" in file.read_text()
    assert "does not become a sum and its norm: the terms of the sum may have different shapes" in file.read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="'dump_regions'.*file.*cannot be written"):
        es.make_session(model(GATE), regions=1, dump_regions=tmp_path / "file")


def agrees(folder, text, step, wanted, tolerance=1e-6, **feed):
    """The plan ends with this step, among so many, and gives what single nodes do; onnxruntime changes nothing."""
    options = {"fuse_elementwise": 0}
    sessions = [
        es.make_session(model(text), _plain(), regions=r, dump_regions=folder / str(r), **options) for r in (1, 0)
    ]
    lines = sorted((folder / "1").glob("*/*.txt"))[-1].read_text().splitlines()
    steps = [line for line in lines if " = " in line and not line.startswith("const ")]
    assert len(steps) == wanted and step in " ".join(steps), steps
    for got, expected in zip(*(session.run(None, feed) for session in sessions), strict=True):
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


X_TO_Y = "(float[n, 8] x) => (float[n, 8] y)"
TANH = f"""{X_TO_Y} <float three = {{3}}, float c = {{0.044715}}, float r = {{0.7978845608}}, float one = {{1}},
  float half = {{0.5}}> {{ q = Pow(x, three) d = Mul(q, c) e = Add(x, d) f = Mul(e, r) t = Tanh(f) s = Add(t, one)
  h = Mul(x, half) y = Mul(h, s) }}"""
QUICK = f"{X_TO_Y} <float a = {{1.702}}> {{ b = Mul(x, a) s = Sigmoid(b) q = Mul(x, s) y = Relu(q) }}"
BIAS = f"""{X_TO_Y} <float[8] b = {{1, 2, 3, 4, 5, 6, 7, 8}}, float r = {{1.4142135}}, float one = {{1}},
  float half = {{0.5}}> {{ a = Add(x, b) d = Div(a, r) e = Erf(d) s = Add(e, one) p = Mul(a, s) y = Mul(p, half) }}"""
CASTS = f"{X_TO_Y} {{ a = Relu(x) w = Cast <to = 11> (a) b = Cast <to = 1> (w) y = Tanh(b) }}"
SAME = f"{X_TO_Y} {{ a = Exp(x) b = Relu(a) c = Relu(a) d = Sqrt(c) y = Sub(d, b) }}"


@pytest.mark.parametrize(
    "text, step, wanted",
    [
        (TANH, "com.microsoft.FastGelu(x)", 1),
        (QUICK, "com.microsoft.QuickGelu(x)", 2),
        (BIAS, "com.microsoft.BiasGelu(x, b)", 1),
        (CASTS, "Tanh(a)", 2),
        (SAME, "Sub(d, ", 4),
    ],
)
def test_passes_for_regions(tmp_path, text, step, wanted):
    agrees(tmp_path, text, step, wanted, x=some(5, 8))


def test_products_read_transposed_factors(tmp_path):
    text = """(float[n, 8] x, float[n, 8] z) => (float[n, n] y) <float half = {0.5}>
                { t = Transpose <perm = [1, 0]> (z) p = MatMul(x, t) s = Mul(p, half) y = Tanh(s) }"""
    agrees(tmp_path, text, "com.microsoft.FusedMatMul(x, z)", 2, x=some(5, 8), z=some(5, 8, seed=1))


def test_transpositions_are_joined(tmp_path):
    text = """(float[a, b, c] x) => (float[d, e, f] y)
                { r = Relu(x) s = Transpose <perm = [1, 2, 0]> (r) t = Transpose <perm = [1, 2, 0]> (s) y = Tanh(t) }"""
    agrees(tmp_path, text, "Transpose(r) {perm = [2, 0, 1]}", 3, tolerance=0, x=some(2, 3, 4))


@pytest.mark.parametrize("size", [4, 6])
def test_a_split_of_other_sizes_fails(size):
    """Though its parts could be read where they are."""
    text = "(float[n, 2] x) => (float[m, 2] y) <int64[2] s = {2, 3}> { r = Abs(x) p, q = Split(r, s) y = Exp(p) }"
    session = es.make_session(model(text), regions=1)
    assert session.run(None, {"x": some(5, 2)})[0].shape == (2, 2)
    with pytest.raises(Exception, match=f"Split node.*add up to 5, the dimension is {size}"):
        session.run(None, {"x": some(size, 2)})


def test_a_dimension_below_zero_is_none():
    """onnxruntime says that of a Pad which crops more than there is."""
    text = "(float[2] x) => (float[n] y) <int64[2] pads = {-4, 0}> { r = Relu(x) p = Pad(r, pads) y = Exp(p) }"
    session = es.make_session(model(text), regions=1)
    with pytest.raises(Exception, match="Pad node"):
        session.run(None, {"x": some(2)})


def test_the_report_of_regions_without_graphs():
    session = es.make_session(model("(float[n] x) => (float[n] y) { a = Relu(x) y = Exp(a) }"), regions=1, auto_graph=0)
    for _ in range(3):
        session.run(None, {"x": np.ones(3, np.float32)})
    (told,) = onnxruntime_ep_encore.region_report(session)
    assert (told["first_runs"], told["eager"], told["replays"], told["nodes"]) == (1, 2, 0, 2)
    assert "auto_graph=1" in told["refusal"]
