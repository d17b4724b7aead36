"""Regions in bodies of If, Loop and Scan: what belongs to them, memory, and that automatic graphs replay them."""

import encore_session as es
import numpy as np
import onnx.parser
import onnxruntime as ort
import onnxruntime_ep_encore
import pytest
from onnx import numpy_helper
from test_control_flow import on_cpu
from test_regions import FUNCTION, regions

pytestmark = pytest.mark.core
FLOAT, INT = np.float32, np.int64
YES, NO = np.array(True), np.array(False)
SIDE = 256  # of weights


def some(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(FLOAT)


def model(text, functions="", **weights):
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18, "local" : 1]> g {text} {functions}')
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return made


def same(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def check(text, wanted, *feeds, by_data=None, functions="", options=lambda: None, **how):
    """The regions, given as words, and that they compute what single nodes do, bit for bit, run by run; a session with
    automatic graphs that has done so, whose regions may be others, as data decides in them."""
    made = model(text, functions)
    single, joined, automatic = (
        es.make_session(made, options(), **how, **{"regions": 0, "auto_graph": 0, **more})
        for more in ({}, {"regions": 1}, {"auto_graph": 1})
    )
    assert regions(joined) == sorted(sorted(region.split()) for region in wanted)
    assert regions(automatic) == sorted(sorted(region.split()) for region in by_data or wanted)
    assert regions(single) == []
    for _ in range(3):
        for feed in feeds:
            expected = single.run(None, feed)
            same(joined.run(None, feed), expected)
            same(automatic.run(None, feed), expected)
    return automatic


def told(session, what):
    """By region, in no order."""
    return sorted(region[what] for region in onnxruntime_ep_encore.region_report(session))


def assert_replayed(session):
    assert min(told(session, "replays")) > 0, onnxruntime_ep_encore.region_report(session)


def on_cpu_nodes(session):
    return sorted(es.nodes_on(session).get("CPUExecutionProvider", []))


def loop(body, outputs="float[n] y", carried="x", before="", after=""):
    """A model with a Loop of k iterations over a value."""
    made = outputs.split()[-1]
    return f"""(int64 k, float[n] x) => ({outputs}) {{ {before}
        {made if not after else "z"} = Loop <body = step (int64 i, bool c, float[n] a) => (bool d, float[m] b)
            {{ {body} }}> (k, , {carried}) {after} }}"""


def feeds(*counts, rows=5):
    return [{"k": np.array(count), "x": some(rows, seed=count)} for count in counts]


# ---- what belongs to them


def test_a_body_and_what_is_around_it():
    session = check(
        loop(
            "d = Identity(c) e = Neg(a) f = Add(e, u) b = Tanh(f)",
            before="t = Exp(x) u = Abs(t)",
            carried="u",
            after="w = Neg(z) y = Relu(w)",
        ),
        ["Exp Abs", "Neg Add Tanh", "Neg Relu"],
        *feeds(3, 0, 10),
    )
    assert_replayed(session)


def test_what_a_loop_counts_on_the_host_stays_there():
    """Several nodes that compute with the iteration number, for the condition and for the sizes of a Slice."""
    session = check(
        """(int64 k, float[n] x) => (float[n] y) <int64 most = {4}, int64 two = {2}, int64[1] zero = {0}> {
             y = Loop <body = step (int64 i, bool c, float[n] a) => (bool d, float[n] b) {
                 e = Less(i, most) d = And(e, c)
                 j = Add(i, two) f = Unsqueeze(j, zero) g = Slice(x, zero, f) s = ReduceSum <keepdims = 1> (g)
                 h = Mul(a, s) b = Tanh(h) }> (k, , x) }""",
        ["ReduceSum Mul Tanh"],
        *feeds(2, 9),
    )
    assert on_cpu_nodes(session) == ["Add", "And", "Less", "Unsqueeze"]


def test_a_condition_of_shapes_stays_on_the_host():
    session = check(
        """(int64 k, float[n] x) => (float[m] y) <int64 most = {12}, int64 zero = {0}> {
             y = Loop <body = step (int64 i, bool c, float[p] a) => (bool d, float[q] b) {
                 e = Tanh(a) b = Concat <axis = 0> (e, x)
                 s = Shape(b) l = Gather(s, zero) d = Less(l, most) }> (k, , x) }""",
        ["Tanh Concat"],
        *feeds(9, 2),
    )
    assert on_cpu_nodes(session) == ["Gather", "Less"]


def test_a_condition_that_the_device_computes_is_inside():
    check(
        loop(
            "e = Add(a, a) s = ReduceMax <keepdims = 0> (e) d = Less(s, s0) b = Neg(e)",
            before="s0 = ReduceSum <keepdims = 0> (x)",
        ),
        ["Add ReduceMax Less Neg"],
        *feeds(5, 1),
    )


def test_what_computes_with_shapes_is_inside():
    """Of carried values, and of values from outside."""
    check(
        """(int64 k, float[n, 6] x) => (float[n, 6] y) <int64[1] all = {-1}, int64[1] one = {1}, int64[1] zero = {0}> {
             u = Exp(x)
             y = Loop <body = step (int64 i, bool c, float[n, 6] a) => (bool d, float[n, 6] b) {
                 d = Identity(c) s = Shape(u) r = Gather(s, zero) f = Concat <axis = 0> (all, r) g = Reshape(a, f)
                 h = Tanh(g) v = Shape(a) j = Reshape(h, v) m = Cast <to = 1> (r) b = Div(j, m) }> (k, , u) }""",
        [inside := "Shape Gather Concat Reshape Tanh Shape Reshape Cast Div"],
        *({"k": np.array(k), "x": some(n, 6)} for k, n in ((4, 3), (1, 2))),
        by_data=[inside, "Exp Loop"],
    )


def test_what_comes_from_outside_is_not_on_the_host():
    """Sizes that the graph around computes, and that a body has as an input."""
    session = check(
        """(int64 k, float[n, m] x, int64[1] to) => (int64[1] p, float[l, q] y) <int64[1] two = {2}> {
             s = Shape(x) e = Mul(s, two) u = Exp(x)
             p, y = Loop <body = step (int64 i, bool c, int64[1] o) => (bool d, int64[1] o, float[q] b) {
                 d = Identity(c) f = Expand(u, e) g = Neg(f) h = Reshape(g, o) j = Tanh(h) b = Abs(j) }> (k, , to) }""",
        ["Tanh Abs"],
        *({"k": np.array(k), "x": some(1, 1), "to": INT([4])} for k in (3, 1)),
    )
    assert "Mul" in on_cpu_nodes(session)


def test_bodies_in_bodies():
    """Each reads what regions around it make."""
    session = check(
        """(int64 k, bool go, float[n] x) => (float[n] y) {
             t = Exp(x) u = Abs(t)
             y = Loop <body = step (int64 i, bool c, float[n] a) => (bool d, float[n] b) {
                 d = Identity(c) e = Add(a, u) f = Tanh(e)
                 g = If <then_branch = yes () => (float[n] p) { q = Mul(f, u) p = Neg(q) },
                         else_branch = no () => (float[n] r) { s = Sub(f, t) r = Sin(s) }> (go)
                 h = Scan <num_scan_inputs = 1, body = inner (float v) => (float w) { z = Cos(v) w = Neg(z) }> (g)
                 j = Sub(h, f) b = Tanh(j) }> (k, , u) }""",
        ["Exp Abs", *(inside := ["Add Tanh", "Mul Neg", "Sub Sin", "Cos Neg", "Scan Sub Tanh"])],
        *({"k": np.array(k), "go": go, "x": some(4)} for k in (3, 1) for go in (YES, NO)),
        by_data=["Exp Abs Loop" if es.ORT_VERSION >= (1, 28) else "Exp Abs", *inside],  # which hands on what is read
    )
    assert_replayed(session)


def test_a_body_without_any():
    session = check(loop("d = Identity(c) b = Tanh(a)"), [], *feeds(3))
    assert told(session, "replays") == []


def test_outputs_that_are_inputs():
    check(
        """(int64 k, float[n] x, float[n] w) => (float[n] y, float[n] z, float[l, n] all, float[l2, n] u) {
             y, z, all, u = Loop <body = step (int64 i, bool c, float[n] a, float[n] b)
                 => (bool c, float[n] b, float[n] e, float[n] b, float[n] e) {
                 d = Tanh(a) e = Neg(d) }> (k, , x, w) }""",
        ["Tanh Neg"],
        *({"k": np.array(k), "x": some(4), "w": some(4, seed=k)} for k in (3, 0, 6)),
    )


def plain():
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def test_regions_without_inputs():
    """Of constants alone, and of random numbers, which go on."""
    session = check(
        """(int64 k, float[3] x) => (float[3] y) <float[3] w = {1.0, 2.0, 3.0}> {
             y = Loop <body = step (int64 i, bool c, float[3] a) => (bool d, float[3] b) {
                 d = Identity(c) e = Neg(w) f = Exp(e) q = Unique(f) g = Add(a, q) b = Tanh(g) }> (k, , x) }""",
        ["Neg Exp", "Add Tanh"],
        *({"k": np.array(k), "x": some(3)} for k in (3, 1)),
        options=plain,
    )
    assert_replayed(session)
    check(
        """(int64 k, float[4] x) => (float[4] y, float[l, 4] all) {
             y, all = Loop <body = step (int64 i, bool c, float[4] a) => (bool d, float[4] a, float[4] b) {
                 d = Identity(c) e = RandomNormal <shape = [4], seed = 3.0> () b = Tanh(e) }> (k, , x) }""",
        ["RandomNormal Tanh"],
        *({"k": np.array(k), "x": some(4)} for k in (5, 1)),
    )


@pytest.mark.parametrize("late", [0, 1])
def test_functions_in_a_body(late):
    check(
        loop("d = Identity(c) e = Sin(a) f = Relu(e) g = local.f(f) b = Neg(g)"),
        ["Sin Relu", "Exp Abs Neg"] if late else ["Sin Relu Exp Abs Neg"],
        *feeds(3, 1),
        functions=FUNCTION,
        config={"session.disable_aot_function_inlining": late},
    )


@pytest.mark.parametrize("prefer_nhwc", [0, 1])
def test_layouts(prefer_nhwc):
    made = model(
        """(bool go, float[n, 4, h, w] x) => (float[n, 8, h, w] y) {
             t = Conv <pads = [1, 1, 1, 1]> (x, v) u = Relu(t)
             y = If <then_branch = yes () => (float[n, 8, h, w] a) {
                         b = Conv <pads = [1, 1, 1, 1]> (u, q) e = Relu(b) f = Conv <pads = [1, 1, 1, 1]> (e, q)
                         a = Add(f, u) },
                     else_branch = no () => (float[n, 8, h, w] g) {
                         l = Conv <pads = [1, 1, 1, 1]> (u, q) g = Relu(l) }> (go) }""",
        v=some(8, 4, 3, 3).round(),
        q=some(8, 8, 3, 3).round(),
    )
    session = es.make_session(made, auto_graph=1, prefer_nhwc=prefer_nhwc)
    assert len(regions(session)) == 3
    for shape in ((2, 4, 5, 6), (1, 4, 3, 9)):
        for go in (YES, NO) * 5:  # where tensors move, the fourth run has a graph that copies them all
            feed = {"go": go, "x": some(*shape).round()}
            np.testing.assert_allclose(session.run(None, feed)[0], on_cpu(made, feed)[0], rtol=1e-5, atol=1e-4)
    assert_replayed(session)


# ---- constants


W = f"float[{SIDE}, {SIDE}]"
SHARED = {
    "a body alone": f"""y = Loop <body = s (int64 i, bool c, {W} a) => (bool c, {W} b) {{
        e = Add(a, w) b = Tanh(e) }}> (k, , x)""",
    "a body and the graph around it": f"""u = Mul(x, w) v = Neg(u)
        y = Loop <body = s (int64 i, bool c, {W} a) => (bool c, {W} b) {{ e = Add(a, w) b = Tanh(e) }}> (k, , v)""",
    "a body and a node alone": f"""u = Mul(x, w)
        y = Loop <body = s (int64 i, bool c, {W} a) => (bool c, {W} b) {{ e = Add(a, w) b = Tanh(e) }}> (k, , u)""",
    "a branch and a node alone in the other": f"""y = If <then_branch = t () => ({W} b) {{ e = Add(x, w) b = Tanh(e) }},
                                                            else_branch = f () => ({W} g) {{ g = Sub(x, w) }}> (go)""",
    "both branches": f"""y = If <then_branch = t () => ({W} b) {{ e = Add(x, w) b = Tanh(e) }},
                                 else_branch = f () => ({W} g) {{ h = Sub(x, w) g = Sin(h) }}> (go)""",
    "bodies in bodies": f"""y = Loop <body = s (int64 i, bool c, {W} a) => (bool c, {W} b) {{ e = Add(a, w) j = Tanh(e)
        b = If <then_branch = t () => ({W} m) {{ n = Add(j, w) m = Tanh(n) }},
                else_branch = f () => ({W} g) {{ h = Sub(j, w) g = Sin(h) }}> (go) }}> (k, , x)""",
}


@pytest.mark.parametrize("case", SHARED)
def test_a_constant_is_on_the_device_once(case):
    """Whichever nodes of whichever graphs read it; onnxruntime has none then."""
    made = model(f"(int64 k, bool go, {W} x) => ({W} y) {{ {SHARED[case]} }}", w=some(SIDE, SIDE))
    held = {}
    for on in (0, 1):
        session = es.make_session(made, regions=on)
        report = onnxruntime_ep_encore.memory_report(session)
        held[on] = report["arena"]["in_use_bytes"]
        for go in (YES, NO):
            feed = {"k": np.array(2), "go": go, "x": some(SIDE, SIDE, seed=3)}
            np.testing.assert_allclose(session.run(None, feed)[0], on_cpu(made, feed)[0], rtol=1e-5, atol=1e-5)
    assert held[1] == held[0] == SIDE * SIDE * 4


def test_constants_that_are_not_the_same():
    """Of one name and size in two bodies, and alike at the beginning."""
    first, second = some(SIDE, SIDE), some(SIDE, SIDE)
    second[-1, -1] += 1
    made = model(
        f"""(bool go, {W} x) => ({W} y) {{
              y = If <then_branch = t () => ({W} b) {{ e = Add(x, w) b = Tanh(e) }},
                      else_branch = f () => ({W} g) {{ h = Add(x, w) g = Tanh(h) }}> (go) }}"""
    )
    for branch, weights in zip(made.graph.node[0].attribute, (first, second)):
        branch.g.initializer.append(numpy_helper.from_array(weights, "w"))
    session = es.make_session(made, regions=1)
    assert onnxruntime_ep_encore.memory_report(session)["arena"]["in_use_bytes"] == 2 * SIDE * SIDE * 4
    for go in (YES, NO):
        feed = {"go": go, "x": some(SIDE, SIDE, seed=3)}
        np.testing.assert_allclose(session.run(None, feed)[0], on_cpu(made, feed)[0], rtol=1e-5, atol=1e-5)


# ---- automatic graphs


def automatic(text, **weights):
    return es.make_session(model(text, **weights), auto_graph=1)


def only(session):
    (region,) = onnxruntime_ep_encore.region_report(session)
    return region


def test_a_loop_is_captured_in_the_second_iteration():
    session = automatic(loop("d = Identity(c) e = Neg(a) f = Add(e, x) b = Tanh(f)"))
    for run, count in enumerate((100, 100, 50), 1):
        session.run(None, feeds(count)[0])
        seen = only(session)
        assert (seen["first_runs"], seen["captures"], seen["eager"]) == (1, 1, 0)
        assert seen["replays"] == (98, 198, 248)[run - 1]


def test_a_large_carried_value_has_a_graph_for_each_place():
    session = automatic(loop("d = Identity(c) e = Neg(a) b = Tanh(e)"))
    for _ in range(3):
        session.run(None, feeds(20, rows=(5 << 20) // 4)[0])
    seen = only(session)
    assert seen["staged"] == 0 and seen["captures"] <= 4 and seen["replays"] >= 50, seen


GROWS = """(int64 k, float[m] x, float[1] o) => (float[n] y, float[l] s) {
    y, s = Loop <body = step (int64 i, bool c, float[p] a) => (bool d, float[q] b, float t) {
        d = Identity(c) e = Tanh(a) b = Concat <axis = 0> (e, o) u = ReduceSum <keepdims = 0> (b)
        t = Neg(u) }> (k, , x) }"""


def test_a_value_that_grows_is_captured_once_it_has_come_back():
    session, eager = automatic(GROWS), es.make_session(model(GROWS), regions=0, auto_graph=0)
    grow = lambda rows, count=20: {"k": np.array(count), "x": some(rows), "o": FLOAT([0.5])}
    same(session.run(None, grow(3)), eager.run(None, grow(3)))
    assert (only(session)["first_runs"], only(session)["captures"]) == (20, 0)
    for _ in range(4):
        same(session.run(None, grow(3)), eager.run(None, grow(3)))
    seen = only(session)
    assert seen["captures"] <= 40 and seen["replays"] >= 40 and seen["eager"] == 0, seen
    same(session.run(None, grow(300)), eager.run(None, grow(300)))  # never before
    assert only(session)["captures"] == seen["captures"]


def test_more_lengths_than_graphs_are_kept():
    session = automatic(GROWS)
    for _ in range(5):
        session.run(None, {"k": np.array(300), "x": some(1), "o": FLOAT([0.5])})
    seen = only(session)
    assert seen["graphs"] == 128 and seen["captures"] <= 256 and seen["replays"] >= 256, seen


NAMED = """(int64 k, float[1] x, int64[1] at) => (float[1] y, float[l, 1] all)
    <float[6] table = {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}> {
    y, all = Loop <body = step (int64 i, bool c, float[1] a) => (bool d, float[1] b, float[1] t) {
        d = Identity(c) [looked_up] e = Gather(table, at) [added] b = Add(a, e) [turned] t = Neg(b) }> (k, , x) }"""


def test_faults_and_errors_in_a_body_name_their_node():
    session = automatic(NAMED)
    for _ in range(2):
        same(session.run(None, {"k": np.array(4), "x": FLOAT([1]), "at": INT([2])})[:1], [FLOAT([9])])
        with pytest.raises(Exception, match="Gather node 'looked_up': index 6 is outside"):
            session.run(None, {"k": np.array(4), "x": FLOAT([1]), "at": INT([6])})
    shapes = """(int64 k, float[n] x) => (float[p, q] y) <int64[2] to = {2, -1}> {
        y = If <then_branch = t () => (float[p, q] b) { e = Neg(x) [reshaped] b = Reshape(e, to) },
                else_branch = f () => (float[p, q] g) { h = Abs(x) g = Reshape(h, to) }> (go) }"""
    session = automatic(shapes.replace("int64 k", "bool go"))
    for _ in range(3):
        with pytest.raises(Exception, match="Reshape node 'reshaped': cannot infer the -1"):
            session.run(None, {"go": YES, "x": some(3)})
        same(session.run(None, {"go": YES, "x": some(4)}), [-some(4).reshape(2, 2)])


def test_threads_in_one_session():
    text = loop("d = Identity(c) e = Neg(a) f = Add(e, x) b = Tanh(f)")
    session, eager = automatic(text), es.make_session(model(text), regions=0, auto_graph=0)
    all_feeds = [feeds(count, rows=rows)[0] for count in (1, 7) for rows in (1, 2, 5)]
    wanted = [eager.run(None, feed) for feed in all_feeds]

    def work(first):
        for turn in range(20):
            i = (first + turn) % len(all_feeds)
            same(session.run(None, all_feeds[i]), wanted[i])

    assert not es.in_threads(6, work)
    assert only(session)["replays"] > 100


def test_the_body_of_a_function_is_left_until_it_is_in_its_place():
    """onnxruntime makes a Loop of a SequenceMap that nobody takes, and copies the body then."""
    made = model("""(seq(float[n]) s) => (seq(float[n]) t) {
        t = SequenceMap <body = each (float[n] a) => (float[n] b) { u = Neg(a) b = Exp(u) }> (s) }""")
    session = es.make_session(made, regions=1)
    feed = {"s": [some(2), some(3)]}
    for got, wanted in zip(session.run(None, feed)[0], on_cpu(made, feed)[0], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert ["Exp", "Neg"] in regions(session)
