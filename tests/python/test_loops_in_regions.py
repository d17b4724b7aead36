"""Loop and Scan inside of regions, where shapes and constants say how often a body runs: each iteration is replayed."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from test_bodies_in_regions import ONNXRUNTIME, check_all, outside, rows, some
from test_by_data import region_of
from test_control_flow_regions import assert_replayed, model, plain
from test_regions import regions

pytestmark = pytest.mark.core


def loop(makes, body, carried="u", made="r", outputs="", count="k", begins="", values="float[] a", more=""):
    """A model with a Loop of as many iterations as x has rows, or `count`; it carries a, and the body makes `makes`."""
    return f"""(float[n, m] x) => (float[] y{outputs}) <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}},
            int64[1] at = {{0}}, int64[1] first = {{1}}, float[1] w = {{1.5}}{more}> {{
        u = Exp(x) s = Shape(x) k = Gather(s, zero)
        {made} = Loop <body = step (int64 i, bool c, {values}) => (bool d, {makes}) {{ {body} }}>
            ({count}, {begins}, {carried})
        y = Abs(r) }}"""


LOOP = "Exp Shape Gather Loop Abs"
STEP = "float[] b", "d = Identity(c) e = Neg(a) b = Add(e, u)"


def check_inside(text, wanted, *feeds, by_data=None):
    session = check_all(text, wanted, *feeds, by_data=by_data, options=plain)
    assert outside(session, "Loop") == []
    assert_replayed(session)


def test_iterations_are_counted_by_shapes():
    session = check_all(loop(*STEP), [LOOP, "Neg Add"], *rows(1, 3, 0, 8))
    (region,) = onnxruntime_ep_encore.region_report(session)  # the body has none beside it
    assert (region["keys"], region["captures"], region["eager"]) == (4, 4, 0)
    assert onnxruntime_ep_encore.outside_report(session) == []


@pytest.mark.parametrize("count", [-1, 0, 1, 7])
def test_a_constant_count(count):
    """Negative ones are none."""
    text = loop(*STEP, count="n", more=f", int64 n = {{{count}}}")
    check_inside(text, ["Exp Loop Abs", "Neg Add", "Shape Gather"], *rows(2))


@pytest.mark.parametrize("count", [2**40, 10_000])
def test_long_loops_are_left_or_one_body(count):
    """Which a graph runs again and again."""
    text = loop("float[] b", "d = Less(i, two) e = Neg(a) b = Add(e, u)", count="n", more=f", int64 n = {{{count}}}")
    check_inside(text, ["Neg Add", "Shape Gather"], *rows(2), by_data=["Exp Loop Abs", "Neg Add", "Shape Gather"])
    session = es.make_session(model(text), plain(), regions=1, auto_graph=0)
    assert outside(session, "Loop") == [f"{ONNXRUNTIME}: Loop node '(unnamed, makes r)' has too many iterations"]


def test_what_is_collected():
    """With the number of the iteration, a number of the host's, and what the body hands on."""
    text = loop(
        "float[] b, float[] f, int64 j, float[] g, float[] h",
        "d = Identity(c) e = Gather(u, i) b = Add(a, e) f = Mul(b, w) j = Add(i, k) g = Identity(a) h = Identity(w)",
        made="r, all, n, before, ws",
        outputs=", float[] all, int64[] n, float[] before, float[] ws",
    )
    check_inside(text, [LOOP, "Gather Add Mul"], *rows(3, 1, 6))


def test_no_iterations_make_empty_outputs():
    text = loop(
        "float[n, m] b, float[m, 2] f",
        "d = Identity(c) b = Neg(a) g = ReduceSum(b, at) h = Transpose(g) f = Concat <axis = 1> (h, h)",
        made="r, all",
        outputs=", float[] all",
        values="float[n, m] a",
    )
    check_inside(text, [LOOP, "Neg ReduceSum Transpose Concat"], *rows(0, 2))


def test_a_value_that_grows():
    grows = "d = Identity(c) b = Concat <axis = 0> (a, x)"
    text = loop("float[] b, float[] f", f"{grows} f = ReduceSum(b)", made="r, all", outputs=", float[] all")
    check_inside(text, [LOOP, "Concat ReduceSum"], *rows(1, 4, 2))
    text = loop("float[] b, float[] f", f"{grows} f = Neg(b)", made="r, all", outputs=", float[] all")
    session = es.make_session(model(text), auto_graph=1)
    assert "Loop" in sum(regions(session), [])
    for _ in range(2):
        with pytest.raises(Exception, match=r"Loop node '\(unnamed, makes r\)'.*must keep its shape"):
            session.run(None, rows(3)[0])


CONDITIONS = {
    "the number": "d = Less(i, two)",
    "the number, and the last one": "f = Less(i, two) d = And(f, c)",
    "shapes": "t = Shape(b) l = Gather(t, zero) d = Less(l, most)",
}


@pytest.mark.parametrize("count", ["k", ""])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_loop_that_ends_by_its_condition(condition, count):
    body = f"b = Concat <axis = 0> (a, x) {CONDITIONS[condition]}"
    wanted = [LOOP] if count else ["Exp Loop Abs", "Shape Gather"]
    check_inside(loop("float[] b", body, count=count, more=", int64 most = {9}"), wanted, *rows(1, 3, 5))


@pytest.mark.parametrize("go", [0, 1])
def test_a_loop_that_begins_with_a_condition(go):
    check_inside(loop(*STEP, begins="go", more=f", bool go = {{{go}}}"), [LOOP, "Neg Add"], *rows(1, 3))


VECTORS = {
    "the number": ("int64[1] i, bool c", "d = Identity(c)", ""),
    "the condition": ("int64 i, bool[1] c", "d = Identity(c)", "go"),
    "the next condition": ("int64 i, bool[] c", "d = Reshape(c, first)", "go"),
}


@pytest.mark.parametrize("what", VECTORS)
def test_vectors_of_one(what):
    """The body says whether its number is one, and the caller, or the body before, whether the condition is."""
    ends, condition, begins = VECTORS[what]
    text = loop(
        "float[] b, int64[] f, bool[] g",
        f"{condition} e = Neg(a) b = Add(e, u) f = Identity(i) g = Not(c)",
        made="r, all, not",
        outputs=", int64[] all, bool[] not",
        begins=begins,
        more=", bool[1] go = {1}",
    ).replace("int64 i, bool c", ends)
    check_inside(text, [LOOP, "Neg Add"], *rows(3, 1, 4))


def test_a_condition_that_the_device_computes():
    body = "b = Add(a, u) t = ReduceMax <keepdims = 0> (b) d = Less(t, limit)"
    text = loop("float[] b", body, more=", float limit = {20.0}")
    check_inside(text, ["Add ReduceMax Less"], *rows(1, 5), by_data=[LOOP, "Add ReduceMax Less"])
    session = es.make_session(model(text), plain(), regions=1, auto_graph=0)
    assert outside(session, "Loop") == [
        f"{ONNXRUNTIME}: the next condition in the body of Loop node '(unnamed, makes r)' reads on the host what is "
        "not there"
    ]


def test_sizes_by_the_number_of_the_iteration():
    body = """d = Identity(c) j = Add(i, one) f = Unsqueeze(j, at) g = Slice(x, at, f) h = ReduceSum(g)
              l = Add(h, a) b = Expand(l, s)"""
    check_inside(loop("float[] b", body), [LOOP, "ReduceSum Add"], *rows(1, 4))


def test_a_count_that_is_data():
    text = loop(*STEP, count="q").replace(
        "k = Gather(s, zero)", "k = Gather(s, zero) v = ReduceMax <keepdims = 0> (x) q = Cast <to = 7> (v)"
    )
    inside = ["Exp ReduceMax Cast Loop Abs", "Neg Add", "Shape Gather"]
    check_inside(text, ["Neg Add", "Shape Gather", "ReduceMax Cast"], *rows(1, 3), by_data=inside)
    session = es.make_session(model(text), plain(), regions=1, auto_graph=0)
    assert outside(session, "Loop") == [f"{ONNXRUNTIME}: what it does is not known from shapes"]


def test_loops_in_loops_and_branches():
    text = """(float[n, m] x) => (float[] y, float[] all) <int64 zero = {0}, int64 one = {1}, int64 two = {2}> {
        u = Exp(x) s = Shape(x) k = Gather(s, zero) big = Less(one, k)
        y, all = If <
            then_branch = yes () => (float[] p, float[] q) {
                v = Neg(u)
                p, q = Loop <body = outer (int64 i, bool c, float[] a) => (bool d, float[] b, float[] e) {
                    d = Identity(c) odd = Mod(i, two) even = Equal(odd, zero)
                    f = If <then_branch = even () => (float[] g) { g = Add(a, u) },
                            else_branch = odd () => (float[] g) { g = Sub(a, v) }> (even)
                    b, e = Loop <body = inner (int64 j, bool c2, float[] h) => (bool d2, float[] l, float[] o) {
                        d2 = Identity(c2) l = Mul(h, x) o = Sub(l, a) }> (two, , f) }> (k, , v) },
            else_branch = no () => (float[] p, float[] q) { p = Identity(u) q = Sin(p) }> (big) }"""
    session = check_all(text, ["Exp Shape Gather Less If", "Mul Sub", "Identity Sin"], *rows(1, 3, 2), options=plain)
    assert_replayed(session)
    assert onnxruntime_ep_encore.outside_report(session) == []


def assert_one_body(session, keys):
    """Each set of shapes has a graph; what the body has for itself ran in the eager runs alone."""
    whole = region_of(session)
    assert (whole["keys"], whole["refused"]) == (keys, 0), whole
    assert keys <= whole["captures"] <= 2 * keys and whole["replays"] > 0, whole


def test_a_loop_too_long_to_be_had_one_by_one():
    """By its shapes, known once it runs: a graph has its body once then, and of a short one each iteration."""
    made = model(loop(*STEP))
    single, session = (es.make_session(made, plain(), **options) for options in (dict(regions=0), dict(auto_graph=1)))
    feeds = rows(3, 1500, 0, 1600)
    for _ in range(4):
        for feed in feeds:
            np.testing.assert_array_equal(session.run(None, feed)[0], single.run(None, feed)[0])
    assert outside(session, "Loop") == []
    assert_one_body(session, 4)


def test_what_a_long_loop_collects():
    """The host knows how much, so that who reads it is in the same region."""
    text = loop(
        "float[] b, float[] f, int64 j",
        "d = Identity(c) e = Gather(u, i) b = Add(a, e) f = Mul(b, w) j = Add(i, k)",
        made="r, all, n",
        outputs=", float[] twice, int64[] n",
    ).replace("y = Abs(r)", "y = Abs(r) twice = Add(all, all)")
    session = check_all(text, ["Exp Shape Gather Loop Abs Add", "Gather Add Mul"], *rows(3, 1000, 0, 1100))
    assert_one_body(session, 4)


def test_what_a_long_loop_collects_outlives_its_iterations():
    """Each of which works in memory that the others work in, too."""
    text = (
        loop(
            "float[] b, float[] f",
            """d = Identity(c) e = Mul(a, w) g = Gather(x, i) h = Sub(g, e) b = Tanh(h)
            f = ReduceSum <keepdims = 0> (h, at)""",
            made="r, all",
            outputs=", float[] sums",
        )
        .replace("y = Abs(r)", "y = Abs(r) sums = MatMul(all, mix)")
        .replace("first = {1}", "first = {1}, float[4, 2] mix = {1, 2, 3, 4, 5, 6, 7, 8}")
    )
    made = model(text)
    single, session = (es.make_session(made, plain(), **options) for options in (dict(regions=0), dict(auto_graph=1)))
    for _ in range(4):
        for feed in rows(900, 3, 800):
            for got, wanted in zip(session.run(None, feed), single.run(None, feed), strict=True):
                np.testing.assert_array_equal(got, wanted)
    assert_one_body(session, 3)


def test_long_loops_in_loops():
    """What is around counts: a graph has each iteration of the outer loop, with the inner body once."""
    text = loop(
        "float[] b",
        """d = Identity(c)
        h = Loop <body = inner (int64 j, bool c2, float[] l) => (bool d2, float[] o) {
            d2 = Identity(c2) p = Gather(x, j) q = Mul(p, w) o = Sub(q, l) }> (k, , a)
        b = Tanh(h)""",
    )
    session = check_all(text, [LOOP, "Gather Mul Sub"], *rows(2, 40, 50))
    assert_one_body(session, 3)


def test_a_loop_too_long_for_a_graph():
    """Its body reads its number on the host: it has graphs of its own then."""
    body = """d = Identity(c) j = Mod(i, two) f = Unsqueeze(j, at) e = Slice(x, f, all) h = ReduceSum(e)
              l = Tanh(h) b = Add(a, l)"""
    session = check_all(
        loop("float[] b", body, more=", int64[1] all = {2}"), [LOOP, "ReduceSum Tanh Add"], *rows(3, 2000)
    )
    body, whole = sorted(onnxruntime_ep_encore.region_report(session), key=lambda region: region["nodes"])
    assert (whole["keys"], whole["captures"]) == (2, 1) and "as long loops do" in whole["refusal"], whole
    assert body["replays"] > 2000 and body["eager"] == 0, body


def test_scans():
    session = check_all(
        """(float[m] x, float[n, m] z, float[n, 3] v) => (float[] y, float[] all, float[] back) {
             u = Exp(x)
             r, all, back = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1], scan_output_directions = [0, 1],
                 body = step (float[m] a, float[m] e, float[3] f) => (float[m] b, float[m] g, float[3] h) {
                     t = Mul(a, e) b = Add(t, u) g = Neg(b) h = Tanh(f) }> (u, z, v)
             y = Abs(r) }""",
        ["Exp Scan Abs", "Mul Add Neg"],
        *({"x": some(4), "z": some(n, 4), "v": some(n, 3, seed=1)} for n in (1, 5, 2)),
    )
    assert_replayed(session)
    assert outside(session, "Scan") == []


def test_long_scans():
    """A graph has the body once, whatever their length; an eager run lets go of what an iteration has used."""
    made = model(
        """(float[m] x, float[n, m] z, float[n, 3] v) => (float[] y, float[] all, float[] back) <float half = {0.5}> {
             u = Exp(x)
             r, all, back = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1], scan_output_directions = [1, 0],
                 body = step (float[m] a, float[m] e, float[3] f) => (float[m] b, float[m] g, float[3] h) {
                     t = Mul(a, half) b = Add(t, e) g = Sub(b, u) h = Tanh(f) }> (u, z, v)
             y = Abs(r) }"""
    )
    single, eager, session = (
        es.make_session(made, plain(), **options)
        for options in (dict(regions=0), dict(regions=1, auto_graph=0), dict(auto_graph=1))
    )
    steps = (5000, 3, 6000)
    feeds = [{"x": some(4), "z": some(n, 4), "v": some(n, 3, seed=1)} for n in steps]
    for _ in range(3):
        for feed in feeds:
            wanted = single.run(None, feed)
            for tried in (eager, session):
                for got, exact in zip(tried.run(None, feed), wanted, strict=True):
                    np.testing.assert_array_equal(got, exact)
    assert outside(session, "Scan") == []
    assert_one_body(session, 3)
    shapes = {told["inputs"]["z"][0]: told for told in region_of(session)["shapes"]}
    assert all(shapes[n]["graph_nodes"] < 40 * shapes[n]["graphs"] for n in steps), shapes
    # The parts of what is collected are there until they are joined, each in a block of 256 bytes.
    for tried in (eager, session):
        arena = onnxruntime_ep_encore.memory_report(tried)["arena"]
        assert arena["peak_in_use_bytes"] < 2 * 2 * 6000 * 256, arena
    assert shapes[6000]["scratch_bytes"] < 64 << 10, shapes  # of a graph


@pytest.mark.parametrize("options", [dict(regions=1), dict(regions=0)])
@pytest.mark.parametrize(
    "directions, why",
    [
        ("scan_input_directions = [2]", "scan_input_directions has 2; 0 or 1 is wanted"),
        ("scan_output_directions = [-1]", "scan_output_directions has -1; 0 or 1 is wanted"),
        ("scan_output_directions = [0, 1]", "scan_output_directions has 2 values for 1"),
    ],
)
def test_directions_that_are_none(directions, why, options):
    text = f"""(float[m, n] x) => (float[] y) {{ u = Exp(x)
        r = Scan <num_scan_inputs = 1, {directions},
                  body = step (float[n] e) => (float[n] g) {{ f = Neg(e) g = Tanh(f) }}> (u)
        y = Abs(r) }}"""
    with pytest.raises(es.capi.InvalidArgument, match=rf"Scan node '\(unnamed, makes r\)'.*{why}"):
        es.make_session(model(text), **options)


def scan_along(attributes, makes="e = Neg(b)"):
    """A model with a Scan of [l, n, m] along n, and of [n, 2], with a state [l, m]."""
    return f"""(float[l, n, m] x, float[n, 2] z) => (float[] y, float[] all) <int64[1] at = {{1}}> {{
        u = Exp(x) s = ReduceMin <keepdims = 0> (u, at) w = Tanh(z)
        r, all = Scan <num_scan_inputs = 2, {attributes},
            body = step (float[l, m] a, float[l, m] f, float[2] g) => (float[l, m] b, float[l, m] e) {{
                h = ReduceSum <keepdims = 0> (g) j = Mul(f, h) b = Sub(j, a) {makes} }}> (s, u, w)
        y = Abs(r) }}"""


@pytest.mark.parametrize(
    "attributes",
    [
        "scan_input_axes = [1, 0]",
        "scan_input_axes = [-2, 0], scan_output_axes = [2]",
        "scan_input_axes = [1, -2], scan_output_axes = [-2]",
        "scan_input_axes = [1, 0], scan_output_axes = [-3]",
        """scan_input_axes = [1, 0], scan_output_axes = [1], scan_input_directions = [1, 0],
           scan_output_directions = [1]""",
    ],
)
def test_scans_along_other_dimensions(attributes):
    """Or the same ones, counted from the last."""
    text = scan_along(attributes)
    feeds = [{"x": some(k, n, 3, seed=n), "z": some(n, 2)} for k, n in ((2, 4), (1, 1), (3, 7))]
    session = check_all(text, ["Exp ReduceMin Tanh Scan Abs", "ReduceSum Mul Sub Neg"], *feeds, options=plain)
    assert outside(session, "Scan") == []
    assert_replayed(session)


def test_a_long_scan_along_another_dimension():
    made = model(scan_along("scan_input_axes = [1, 0], scan_output_axes = [1]"))
    single, session = (es.make_session(made, plain(), **options) for options in (dict(regions=0), dict(auto_graph=1)))
    feeds = [{"x": some(2, n, 3, seed=n), "z": some(n, 2) / 8} for n in (1200, 3)]
    for _ in range(3):
        for feed in feeds:
            for got, wanted in zip(session.run(None, feed), single.run(None, feed), strict=True):
                np.testing.assert_array_equal(got, wanted)
    assert_one_body(session, 2)


@pytest.mark.parametrize(
    "attributes", ["scan_input_axes = [3, 0]", "scan_input_axes = [1, -3]", "scan_output_axes = [3]"]
)
@pytest.mark.parametrize("options", [dict(auto_graph=1), dict(regions=0)])
def test_dimensions_that_are_none(attributes, options):
    """onnxruntime says so."""
    with pytest.raises(Exception, match="axis|axes|dimension"):
        session = es.make_session(model(scan_along(attributes)), **options)
        session.run(None, {"x": some(2, 4, 3), "z": some(4, 2)})


def test_a_scan_along_a_dimension_that_may_not_be_there():
    text = """(float[] x) => (float[] y) { u = Exp(x)
        r = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
                  body = step (float[] e) => (float[p] g) { f = Neg(e) g = Tanh(f) }> (u)
        y = Abs(r) }"""
    made = model(text)
    made.graph.input[0].type.tensor_type.ClearField("shape")
    session = es.make_session(made, plain(), auto_graph=1)
    why = "scans along a dimension of which the model does not tell that it is there"
    assert outside(session, "Scan") == [f"{ONNXRUNTIME}: Scan node '(unnamed, makes r)' {why}"]
    feed = {"x": some(2, 3)}
    np.testing.assert_allclose(session.run(None, feed)[0], np.abs(np.tanh(-np.exp(feed["x"]))), rtol=1e-6)
