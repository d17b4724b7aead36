"""Control flow inside of regions: what depends on shapes alone is chosen on the host, and replayed as it was chosen."""

import encore_session as es
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from test_control_flow import on_cpu
from test_control_flow_regions import assert_replayed, check, model, plain
from test_regions import regions

pytestmark = pytest.mark.core
FLOAT, INT = np.float32, np.int64
HANDS_ON = es.ORT_VERSION >= (1, 28)  # what bodies read comes to a fused node, whoever else reads it
ONNXRUNTIME = "control flow, which onnxruntime runs"


def some(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(FLOAT)


def rows(*counts, **more):
    return [{"x": some(n, 4, seed=n), **more} for n in counts]


def outside(session, op):
    """Why nodes of the operator are in no region."""
    return [one["why"] for one in onnxruntime_ep_encore.outside_report(session) if one["node"].startswith(op)]


def check_all(text, wanted, *feeds, **how):
    """As check(), and against the CPU; a session with automatic graphs that has done so."""
    session = check(text, wanted, *feeds, **how)
    for feed in feeds:
        for got, expected in zip(session.run(None, feed), on_cpu(model(text), feed), strict=True):
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    return session


def choice(then, otherwise, before="u = Exp(x)", after="y = Abs(r)", inputs="float[n, m] x", condition="c"):
    """A model with an If by whether x has one row; branches make p."""
    return f"""({inputs}) => (float[] y) <int64 zero = {{0}}, int64 one = {{1}}, int64[1] first = {{1}},
            int64[1] two = {{2}}, int64[1] at = {{0}}, int64[1] all = {{-1}}, float[1] w = {{1.5}}> {{
        {before} s = Shape(x) k = Gather(s, zero) c = Equal(k, one)
        r = If <then_branch = yes () => (float[] p) {{ {then} }},
                else_branch = no () => (float[] p) {{ {otherwise} }}> ({condition})
        {after} }}"""


CHOICE = "Exp Shape Gather Equal If Abs"


# ---- If by shapes


def test_branches_are_chosen_by_shapes():
    session = check_all(
        choice("q = Neg(u) p = Tanh(q)", "q = Sin(u) p = Mul(q, w)"), [CHOICE, "Neg Tanh", "Sin Mul"], *rows(1, 2, 1, 3)
    )
    (region,) = onnxruntime_ep_encore.region_report(session)  # what branches have is no region beside it
    assert (region["keys"], region["captures"], region["eager"]) == (3, 3, 0)
    assert onnxruntime_ep_encore.outside_report(session) == []


def test_branches_of_other_ranks():
    """As torch's older exporter writes what it squeezes."""
    session = check_all(choice("p = Squeeze(u, at)", "p = Identity(u)"), [CHOICE], *rows(1, 2, 1, 3))
    assert_replayed(session)


def test_a_condition_that_is_constant():
    text = choice("q = Neg(u) p = Tanh(q)", "p = Mul(u, w)", condition="no").replace(
        "float[1] w", "bool no = {0}, float[1] w"
    )
    check_all(text, ["Exp If Abs", "Neg Tanh", "Shape Gather Equal"], *rows(1, 2), options=plain)


def test_a_condition_that_is_data():
    """Or may be, like an input that lies on the host."""
    feeds = [{**feed, "go": np.array(go)} for feed in rows(1, 2) for go in (True, False)]
    inputs = "float[n, m] x, bool go"
    session = check_all(
        choice("p = Neg(u)", "p = Sin(u)", inputs=inputs, condition="go"),
        ["Shape Gather Equal"],
        *feeds,
        by_data=["Exp If Abs", "Shape Gather Equal"],
    )
    assert outside(session, "If") == []
    text = choice(
        "p = Neg(u)", "p = Sin(u)", "u = Exp(x) t = ReduceMax <keepdims = 0> (u) d = Less(t, w0)", condition="d"
    )
    check_all(
        text.replace("float[1] w", "float w0 = {2.5}, float[1] w"),
        ["Exp ReduceMax Less", "Shape Gather Equal"],
        *rows(1, 2),
        by_data=["Exp ReduceMax Less If Abs", "Shape Gather Equal"],
    )


def test_a_condition_that_another_node_reads_on_the_host():
    """Which stays outside, so that both have it there."""
    check_all(
        choice(
            "p = Neg(u)",
            "p = Sin(u)",
            after="""t = Exp(r) z = Unique(t)
            y = If <then_branch = yes () => (float[] o) { o = Unique(z) },
                    else_branch = no () => (float[] o) { o = Sin(z) }> (c)""",
        ),
        [],
        *rows(1, 2),
    )


# ---- what branches read


def test_what_the_region_makes_and_constants():
    check_all(
        choice("q = Mul(u, w) t = Add(q, v) p = Neg(t)", "p = Mul(v, w)", "v = Sin(x) u = Exp(v)"),
        [f"Sin {CHOICE}", "Mul Add Neg"],
        *rows(1, 2),
    )


def test_what_the_region_reads_as_well():
    check_all(
        choice("q = Neg(x) p = Tanh(q)", "p = Sin(x)"),
        ["Shape Gather Equal If Abs", "Neg Tanh"],
        *rows(1, 2),
        options=plain,
    )


def test_what_nothing_else_reads():
    """Before onnxruntime 1.28 the region would not have it."""
    session = check_all(
        choice("q = Neg(z) p = Tanh(q)", "p = Mul(u, z)", inputs="float[n, m] x, float[n, m] z"),
        [CHOICE, "Neg Tanh"] if HANDS_ON else ["Neg Tanh"],
        *({**feed, "z": some(*feed["x"].shape, seed=9)} for feed in rows(1, 2, 3)),
    )
    lost = (
        f"{ONNXRUNTIME}: its bodies read 'z', which onnxruntime before 1.28 hands on to no node that is made of several"
    )
    assert outside(session, "If") == ([] if HANDS_ON else [lost])


def test_what_waits_for_others():
    """A value that branches alone read, and that another region is not to be joined with."""
    check_all(
        choice(
            "q = Neg(z) p = Tanh(q)",
            "p = Mul(u, z)",
            "u = Exp(x) e = Exp(v) f = Neg(e) z = Unique(f)",
            inputs="float[n, m] x, float[f] v",
        ),
        [CHOICE, "Exp Neg", "Neg Tanh"] if HANDS_ON else ["Exp Neg", "Neg Tanh"],
        *rows(1, 2, v=FLOAT([0.5])),
    )


def test_sizes_that_the_host_has():
    """Which branches read, compute with, and have on the device, too."""
    session = check_all(
        choice(
            """a = Add(k, one) b = Unsqueeze(a, at) d = Slice(s, first, two) f = Concat <axis = 0> (b, d)
               p = Expand(u, f)""",
            """h = Cast <to = 1> (k) i = Div(u, h) g = Reshape(i, all) d = Slice(s, first, two)
               f = Concat <axis = 0> (all, d) p = Reshape(g, f)""",
        ),
        [CHOICE, "Cast Div Reshape"],
        *rows(1, 2, 1, 5),
    )
    assert_replayed(session)
    assert outside(session, "If") == []


def test_a_branch_of_nothing():
    """But a constant, which onnxruntime has made of it."""
    check_all(choice("p = Identity(w)", "p = Mul(w, w)"), ["Shape Gather Equal If Abs"], *rows(1, 2))


def test_branches_in_branches():
    inner = """g = Shape(t) l = Gather(g, one) o = Equal(l, k)
        p = If <then_branch = yes2 () => (float[] i) { j = Mul(t, u) i = Neg(j) },
                else_branch = no2 () => (float[] i) { i = Sin(t) }> (o)"""
    text = choice("t = Neg(u) " + inner, "t = Cos(u) h = Tanh(t) p = Add(h, x)")
    feeds = [{"x": some(*shape)} for shape in ((1, 1), (1, 2), (2, 2), (3, 1))]
    session = check_all(text, [CHOICE, "Mul Neg", "Cos Tanh Add"], *feeds)
    assert_replayed(session)
    assert onnxruntime_ep_encore.outside_report(session) == []


def test_a_branch_in_a_body_that_onnxruntime_runs():
    """Its region is one of the loop's body, and replayed there."""
    session = check_all(
        """(int64 k, float[n, m] x) => (float[n, m] y) <int64 zero = {0}, int64 one = {1}> {
             y = Loop <body = step (int64 i, bool c, float[n, m] a) => (bool d, float[n, m] b) {
                 d = Identity(c) e = Neg(a) s = Shape(e) r = Gather(s, zero) t = Equal(r, one)
                 f = If <then_branch = yes () => (float[n, m] p) { q = Mul(e, x) p = Tanh(q) },
                         else_branch = no () => (float[n, m] p) { p = Sin(e) }> (t)
                 b = Mul(f, x) }> (k, , x) }""",
        ["Neg Shape Gather Equal If Mul", "Mul Tanh"],
        *({**feed, "k": np.array(k)} for feed in rows(1, 2) for k in (3, 0)),
    )
    assert_replayed(session)


def test_names_that_are_used_again():
    """In both branches, and of what the region makes; which is another value in each."""
    session = check_all(
        choice("y = Neg(u) p = Tanh(y)", "y = Sin(u) p = Mul(y, w)"), [CHOICE, "Neg Tanh", "Sin Mul"], *rows(1, 2)
    )
    assert_replayed(session)


@pytest.mark.parametrize("prefer_nhwc", [0, 1])
def test_convolutions_in_branches(prefer_nhwc):
    made = model(
        """(float[n, 4, h, w] x) => (float[n, 4, h, w] y) <int64 zero = {0}, int64 one = {1}> {
             t = Conv <pads = [1, 1, 1, 1]> (x, v) u = Relu(t) s = Shape(x) k = Gather(s, zero) c = Equal(k, one)
             r = If <then_branch = yes () => (float[n, 4, h, w] p) {
                         b = Conv <pads = [1, 1, 1, 1]> (u, v) e = Relu(b)
                         f = Conv <pads = [1, 1, 1, 1]> (e, v) p = Add(f, u) },
                     else_branch = no () => (float[n, 4, h, w] p) { p = Conv <pads = [1, 1, 1, 1]> (u, v) }> (c)
             g = Conv <pads = [1, 1, 1, 1]> (r, v) y = Relu(g) }""",
        v=some(4, 4, 3, 3).round(),
    )
    session = es.make_session(made, auto_graph=1, prefer_nhwc=prefer_nhwc)
    for n in (1, 2) * 3:
        feed = {"x": some(n, 4, 5, 6).round()}
        np.testing.assert_allclose(session.run(None, feed)[0], on_cpu(made, feed)[0], rtol=1e-5, atol=1e-3)
    assert outside(session, "If") == []
    assert_replayed(session)


def test_what_only_others_run_keeps_it_outside():
    session = check_all(
        choice("q = Neg(u) z = Reshape(q, all) p = Unique(z)", "p = Sin(u)"), ["Neg Reshape"], *rows(1, 2)
    )
    place = "in the then_branch of If node '(unnamed, makes r)'"
    assert outside(session, "If") == [
        f"{ONNXRUNTIME}: Unique node '(unnamed, makes p)' {place} has an output whose size depends on data"
    ]
    session = check_all(choice("z = SequenceConstruct(u) p = SequenceAt(z, zero)", "p = Sin(u)"), [], *rows(1, 2))
    assert outside(session, "If") == [
        f"{ONNXRUNTIME}: SequenceConstruct node '(unnamed, makes z)' {place} is not Encore's"
    ]


# ---- around it


def test_a_fault_names_the_node_in_the_branch():
    made = model(choice("p = Gather(u, i)", "p = Sin(u)", inputs="float[n, m] x, int64[l] i"))
    made.graph.node[4].name = "choose"
    made.graph.node[4].attribute[0].g.node[0].name = "pick"
    for auto in (0, 1):
        session = es.make_session(made, regions=1, auto_graph=auto)
        assert "If" in sum(regions(session), []) or not HANDS_ON
        for _ in range(3):
            with pytest.raises(Exception, match="Gather node 'pick'"):
                session.run(None, rows(1, i=INT([7]))[0])
        np.testing.assert_array_equal(session.run(None, rows(2, i=INT([7]))[0])[0].shape, (2, 4))


def test_an_error_names_both_nodes():
    made = model(
        choice("p = Add(u, u)", "p = Add(u, z)", before="u = Exp(x) z = Exp(v)", inputs="float[n, m] x, float[l] v")
    )
    made.graph.node[5].name = "choose"
    made.graph.node[5].attribute[1].g.node[0].name = "sum"
    session = es.make_session(made, regions=1)
    with pytest.raises(Exception, match="If node 'choose': Add node 'sum'"):
        session.run(None, rows(2, v=some(3))[0])


def test_padding_leaves_it_outside_if_its_length_decides():
    text = (
        choice("p = Neg(u)", "p = Sin(u)").replace("float[] y", "float[n, m] y").replace("float[] p", "float[n, m] p")
    )
    session = es.make_session(model(text), auto_graph=1, pad="n:4")
    assert outside(session, "If") == [f"{ONNXRUNTIME}: 'pad' pads 'n': If node '(unnamed, makes r)' goes by its length"]
    for feed in rows(1, 2, 3) * 2:
        np.testing.assert_allclose(session.run(None, feed)[0], on_cpu(model(text), feed)[0], rtol=1e-5)


def test_it_is_written_down(tmp_path):
    es.make_session(model(choice("q = Neg(u) p = Tanh(q)", "p = Mul(u, w)")), regions=1, dump_regions=tmp_path)
    (text,) = (text for file in tmp_path.glob("*/00_as_claimed.txt") if "If(" in (text := file.read_text()))
    for words in (
        " = If(c, u) ",
        "then_branch {",
        "else_branch {",
        "  in outer u: f32[n, m]",
        " = Mul(u, w)",
        " = encore.Region(u)",
    ):
        assert words in text, text


def test_constants_of_branches_are_on_the_device_once():
    side = 256
    made = model(
        f"""(float[{side}, n] x) => (float[{side}, n] y) <int64 one = {{1}}> {{
          u = MatMul(w, x) s = Shape(x) k = Gather(s, one) c = Equal(k, one)
          r = If <then_branch = yes () => (float[{side}, n] p) {{ a = MatMul(w, u) p = Neg(a) }},
                  else_branch = no () => (float[{side}, n] p) {{ p = MatMul(w, u) }}> (c)
          y = Abs(r) }}""",
        w=some(side, side),
    )
    session = es.make_session(made, regions=1)
    assert onnxruntime_ep_encore.memory_report(session)["arena"]["in_use_bytes"] == side * side * 4
    for n in (1, 3):
        feed = {"x": some(side, n)}
        np.testing.assert_allclose(session.run(None, feed)[0], on_cpu(made, feed)[0], rtol=1e-3, atol=1e-2)


@es.needs_graphs
def test_onnxruntime_captures_a_model_whose_branches_are_chosen():
    made = model(
        choice("q = Neg(u) p = Tanh(q)", "p = Mul(u, w)")
        .replace("float[] y", "float[n, m] y")
        .replace("float[] p", "float[n, m] p")
    )
    session = es.make_session(made, regions=1, enable_cuda_graph=1)
    for n in (1, 2):
        bound = es.Bound(session, {"x": some(n, 4)}, {"y": ([n, 4], FLOAT)})
        for seed in range(5):
            feed = {"x": some(n, 4, seed=seed)}
            np.testing.assert_allclose(bound.run(feed, graph_id=n)["y"], on_cpu(made, feed)[0], rtol=1e-5)
    assert [graph["replays"] > 0 for graph in onnxruntime_ep_encore.graph_report(session)] == [True, True]


def test_a_branch_hands_on_a_constant_without_elements():
    text = """(bool c) => (int32[k] y) <int32[0] none = {}> {
        y = If <then_branch = yes () => (int32[] p) { p = Identity(none) },
                else_branch = no () => (int32[] q) { q = Identity(none) }> (c) }"""
    unfolded = ort.SessionOptions()
    unfolded.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = es.make_session(model(text), unfolded, auto_graph=1)
    for c in (True, False, True):
        np.testing.assert_array_equal(session.run(None, {"c": np.array(c)})[0], np.array([], np.int32))
