"""Loops inside of regions that count by a value of their own, which the host hands on, as Keras' layers do in ONNX."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from test_bodies_in_regions import HANDS_ON, ONNXRUNTIME, check_all, outside, rows, some
from test_by_data import region_of
from test_control_flow import on_cpu
from test_control_flow_regions import assert_replayed, model, plain

pytestmark = pytest.mark.core
INT = np.int64


def counting(
    body="next = Add(at, one) d = Less(next, most)",
    makes="float[m] b, float[m] e",
    step="row = Gather(x, at) b = Add(a, row) e = Neg(b)",
    made="r, all",
    outputs=", float[] all, int32 last",
    begin="start",
    carried="u",
    values="float[m] a",
    go="",
    more="",
    after="y = Abs(r)",
    most="k = Gather(s, zero) most = Cast <to = 6> (k)",
    trips="",
):
    """A model with a Loop that begins at `begin`, and goes through the rows of x."""
    go = go or f"go = Less({begin}, most)"
    return f"""(float[n, m] x) => (float[] y{outputs}) <int64 zero = {{0}}, int64[1] first = {{0}}, int32 one = {{1}},
            int32 two = {{2}}, int32 start = {{0}}, float[1] w = {{1.5}}, int64[1] unit = {{1}}{more}> {{
        u = ReduceSum <keepdims = 0> (x, first) s = Shape(x) {most} {go}
        last, {made} = Loop <body = step (int64 i, bool c, int32 at, {values}) => (bool d, int32 next, {makes}) {{
            {body} {step} }}> ({trips}, go, {begin}, {carried})
        {after} }}"""


WHOLE = "ReduceSum Shape Gather Cast Less Loop Abs"
BODY = "Gather Add Neg"


def check_inside(text, wanted, *feeds, by_data=None):
    session = check_all(text, wanted, *feeds, by_data=by_data, options=plain)
    assert outside(session, "Loop") == []
    assert_replayed(session)
    return session


def test_a_counter_goes_through_the_rows():
    session = check_all(counting(), [WHOLE, BODY], *rows(1, 3, 0, 8))
    (region,) = onnxruntime_ep_encore.region_report(session)  # the body has none beside it
    assert (region["keys"], region["captures"], region["eager"]) == (4, 4, 0)
    assert onnxruntime_ep_encore.outside_report(session) == []


@pytest.mark.parametrize(
    "body, begin",
    [
        ("next = Add(at, two) d = Less(next, most)", "start"),
        ("next = Sub(at, one) f = Less(next, start) d = Not(f)", "top"),
        ("next = Sub(at, two) d = Greater(next, start)", "top"),
        ("f = Add(at, one) next = Mul(f, two) d = Less(next, most)", "start"),
    ],
)
def test_other_steps_than_by_one(body, begin):
    """Up, down, and further and further."""
    most = "k = Gather(s, zero) most = Cast <to = 6> (k) top = Sub(most, one)"
    text = counting(body, begin=begin, most=most)
    check_inside(text, [WHOLE + " Sub", BODY], *rows(1, 3, 9))


@pytest.mark.parametrize("trips", ["", "k", "four"])
def test_what_else_ends_it(trips):
    """A count, which may be less than the counter allows."""
    session = check_inside(counting(trips=trips, more=", int64 four = {4}"), [WHOLE, BODY], *rows(2, 7))
    assert session.run(None, rows(7)[0])[2] == (4 if trips == "four" else 7)


def test_a_counter_is_read_on_the_device():
    """In the body, behind the loop, and as an output; the host's last one is the device's."""
    text = counting(
        step="f = Cast <to = 1> (at) g = Cast <to = 1> (next) b = Mul(a, g) e = Add(b, f)",
        after="l = Cast <to = 1> (last) y = Mul(r, l)",
    )
    wanted = "ReduceSum Shape Gather Cast Less Loop Cast Mul"
    check_inside(text, [wanted, "Cast Cast Mul Add"], *rows(1, 3, 5))


def test_slices_by_a_counter():
    """Whose bounds are wanted on the host; no condition ends the loop."""
    text = counting(
        body="next = Add(at, one) d = Identity(c)",
        step="""f = Cast <to = 7> (at) g = Unsqueeze(f, first) h = Add(g, unit) j = Slice(x, g, h)
            row = Squeeze(j, first) b = Add(a, row) e = Neg(b)""",
        trips="k",
        go="go = Less(start, one)",
    )
    session = check_inside(text, [WHOLE, "Squeeze Add Neg"], *rows(1, 3, 0, 5))
    assert onnxruntime_ep_encore.region_report(session)


def test_counters_that_make_each_other():
    """And a condition that is carried; what the host needs not goes on on the device."""
    text = counting(
        body="next = Add(at, by) more = Less(next, most) d = Identity(go_on) still = Sub(next, at) n = Add(q, next)",
        values="int32 by, bool go_on, int32 q, float[m] a",
        makes="int32 still, bool more, int32 n, float[p] b, float[l] e",
        carried="one, yes, one, u",
        step="f = Cast <to = 1> (at) b = Add(a, f) e = Neg(b)",
        more=", bool yes = {1}",
        made="bys, goes, ks, r, all",
        outputs=", float[] all, int32 last, int32 ks, int32 bys, bool goes",
    )
    check_inside(text, [WHOLE, "Cast Add Neg"], *rows(1, 4, 0, 6))


@pytest.mark.parametrize("how", ["directly", "through an Identity"])
def test_values_that_are_handed_on_unchanged(how):
    """Are read from outside: constants, what the region makes, and a bound; they come out as they went in."""
    hands_on = {
        "directly": ("float[m] v, int32 top, float[1] f", ""),
        "through an Identity": (
            "float[m] v2, int32 top2, float[1] f2",
            "v2 = Identity(v) top2 = Identity(top) f2 = Identity(f)",
        ),
    }
    makes, nodes = hands_on[how]
    text = counting(
        body=f"next = Add(at, one) d = Less(next, top) {nodes}",
        values="float[m] a, float[m] v, int32 top, float[1] f",
        makes=f"float[p] b, {makes}, float[q] e",
        step="row = Gather(x, at) g = Mul(a, v) h = Add(g, row) b = Tanh(h) e = Mul(b, f)",
        carried="u, u, most, w",
        made="r, vs, tops, fs, all",
        outputs=", float[] all, float[m] vs, int32 tops, float[1] fs, int32 last",
    )
    session = check_all(text, [WHOLE, "Gather Mul Add Tanh Mul"], *rows(1, 3, 0, 6), options=plain)
    assert outside(session, "Loop") == []
    assert_replayed(session)


def test_what_is_unchanged_is_not_copied():
    """By loops that data decides about: a graph has no more than if the body reads it from outside."""
    nodes = []
    for carries in (True, False):
        values, makes, read = ("float[m] v", "float[m] v", "v") if carries else ("", "", "w")
        comma = ", " if carries else ""
        text = f"""(float[n, m] x) => (float[m] y) <float most = {{9.0}}, int64[1] first = {{0}}, int64 k = {{6}}> {{
            u = ReduceMax <keepdims = 0> (x, first) w = Exp(u)
            {"r, vs" if carries else "r"} = Loop <
                body = step (int64 i, bool c, float[m] a{comma}{values}) => (bool d, float[m] b{comma}{makes}) {{
                    e = Sub(a, {read}) b = Tanh(e) t = ReduceMax <keepdims = 0> (b) d = Less(t, most) }}>
                (k, , u{comma}{"w" if carries else ""})
            y = {"Sub(r, vs)" if carries else "Sub(r, w)"} }}"""
        session = es.make_session(model(text), plain(), auto_graph=1)
        single = es.make_session(model(text), plain(), regions=0)
        for _ in range(3):
            for feed in rows(3, 5):
                np.testing.assert_array_equal(session.run(None, feed)[0], single.run(None, feed)[0])
        assert outside(session, "Loop") == []
        nodes.append([told["graph_nodes"] / told["graphs"] for told in region_of(session)["shapes"]])
    assert nodes[0] == nodes[1]


def test_names_that_a_body_has_again():
    """What it calls so is its own, and so nothing is read from outside by that name."""
    text = counting(
        values="float[m] a, float[m] v, float[m] u",
        makes="float[m] b, float[m] v, float[m] e2, float[m] e",
        step="row = Gather(x, at) f = Add(a, row) b = Add(f, v) e2 = Sub(u, v) e = Neg(e2)",
        carried="u, u, x0",
        made="r, vs, us, all",
        outputs=", float[] all, float[m] vs, float[m] us, int32 last",
        most="k = Gather(s, zero) most = Cast <to = 6> (k) x0 = Exp(u)",
    )
    made, feeds = model(text), rows(1, 3, 0, 6)
    session = es.make_session(made, plain(), auto_graph=1)
    for _ in range(3):
        for feed in feeds:
            for got, wanted in zip(session.run(None, feed), on_cpu(made, feed), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_values_that_change_places():
    """Are none that are handed on unchanged."""
    text = counting(
        values="float[m] a, float[m] v",
        makes="float[p] b, float[m] f, float[q] e",
        step="row = Gather(x, at) b = Add(v, row) f = Identity(a) e = Neg(b)",
        carried="u, u",
        made="r, other, all",
        outputs=", float[] all, float[m] other, int32 last",
    )
    check_inside(text, [WHOLE, BODY], *rows(1, 3, 4))


def test_loops_in_loops_and_branches():
    """Which go by the counters of both."""
    text = counting(
        step="""odd = Mod(at, two) is_odd = Equal(odd, one)
            f = If <then_branch = odd () => (float[] g) { g = Neg(a) },
                    else_branch = even () => (float[] g) { h = Gather(x, at) g = Add(a, h) }> (is_odd)
            start_inside = Less(start, next)
            n, b = Loop <body = inner (int64 j, bool c2, int32 t, float[] l) => (bool d2, int32 t2, float[] o) {
                t2 = Add(t, one) d2 = Less(t2, next) v = Gather(x, t) o = Sub(v, l) }> (, start_inside, start, f)
            e = Neg(b)"""
    )
    inside = ["Gather Add", "Gather Sub"]
    by_data = [WHOLE, *inside, "Add Less", *["Less Loop Neg"] * HANDS_ON]  # of the inner one
    session = check_all(text, [WHOLE, *inside], *rows(1, 3, 0, 5), by_data=by_data, options=plain)
    assert outside(session, "Loop") == []
    assert_replayed(session)


def test_data_ends_it_after_all():
    """With a counter beside: as far as data goes, as before."""
    text = counting(
        body="next = Add(at, one) f = Less(next, most)",
        step="""row = Gather(x, at) b = Add(a, row) e = Neg(b) t = ReduceMax <keepdims = 0> (b)
            h = Less(t, limit) d = And(f, h)""",
        more=", float limit = {3.0}",
    )
    made, feeds = model(text), rows(3, 8, 1)
    single, session = (es.make_session(made, plain(), **options) for options in (dict(regions=0), dict(auto_graph=1)))
    for _ in range(4):
        for feed in feeds:
            for got, wanted in zip(session.run(None, feed), single.run(None, feed), strict=True):
                np.testing.assert_array_equal(got, wanted)
    assert outside(session, "Loop") == []


def test_a_bound_that_is_data():
    """The host lacks it, so data decides; without graphs the loop stays outside."""
    text = counting(most="v = ReduceMax <keepdims = 0> (x) h = Exp(v) most = Cast <to = 6> (h)")
    made = model(text)
    single, session, eager = (
        es.make_session(made, plain(), **options)
        for options in (dict(regions=0), dict(auto_graph=1), dict(regions=1, auto_graph=0))
    )
    assert outside(session, "Loop") == []
    assert outside(eager, "Loop") == [f"{ONNXRUNTIME}: what it does is not known from shapes"]
    for _ in range(4):
        for seed in range(3):
            feed = {"x": np.minimum(some(8, 4, seed=seed), 1.9)}
            wanted = single.run(None, feed)
            for tried in (session, eager):
                for got, exact in zip(tried.run(None, feed), wanted, strict=True):
                    np.testing.assert_array_equal(got, exact)


def test_a_loop_that_stays_outside():
    """A node of its body waits for a size; what it counts is right all the same."""
    text = counting(
        step="""row = Gather(x, at) z = NonZero(row) t = Cast <to = 1> (z) h = ReduceSum <keepdims = 0> (t)
            b = Add(a, h) e = Neg(b)"""
    )
    session = es.make_session(model(text), plain(), auto_graph=1)
    single = es.make_session(model(text), plain(), regions=0)
    assert "has an output whose size depends on data" in outside(session, "Loop")[0]
    for _ in range(3):
        for feed in rows(1, 3, 5):
            for got, wanted in zip(session.run(None, feed), single.run(None, feed), strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_a_long_one_is_one_body():
    """The host knows how often it runs, and so how much it collects."""
    text = counting(step="row = Gather(x, at) f = Mul(a, w) b = Sub(row, f) e = Neg(b)", after="y = Abs(all)")
    session = check_all(text, [WHOLE, "Gather Mul Sub Neg"], *rows(3, 1500, 0, 1600))
    region = region_of(session)
    assert (region["keys"], region["refused"]) == (4, 0) and region["replays"] > 0, region
    shapes = {told["inputs"]["x"][0]: told for told in region["shapes"]}
    assert all(shapes[n]["graph_nodes"] < 100 * shapes[n]["graphs"] for n in (1500, 1600)), shapes


def test_a_value_that_grows_in_a_long_one():
    """Has another shape each time: such a region runs eagerly."""
    text = counting(
        step="row = Slice(x, first, unit) b = Concat <axis = 0> (a, row) e = ReduceSum <keepdims = 0> (row)",
        values="float[k, m] a",
        carried="x",
        makes="float[l, m] b, float e",
    )
    session = check_all(text, [WHOLE.replace("ReduceSum ", ""), "Slice Concat ReduceSum"], *rows(3, 1100))
    assert outside(session, "Loop") == []


def keras(steps="m", hidden=3):
    """As tf2onnx writes an LSTM: weights and the number of steps are carried, and no count is given."""
    rng = np.random.default_rng(5)
    weights = {
        "kernel": rng.uniform(-0.5, 0.5, (4, 4 * hidden)).astype(np.float32),
        "recurrent": rng.uniform(-0.5, 0.5, (hidden, 4 * hidden)).astype(np.float32),
        "bias": rng.uniform(-0.5, 0.5, 4 * hidden).astype(np.float32),
    }
    text = f"""(float[n, t, 4] x) => (float[] y) <int32 time = {{0}}, int32[1] width = {{{hidden}}},
            float zero = {{0.0}}, int64[1] first = {{0}}, int64[1] second = {{1}}> {{
        turned = Transpose <perm = [1, 0, 2]> (x) shape = Shape(turned) narrow = Cast <to = 6> (shape)
        sizes = Slice(narrow, second, two) batch = Concat <axis = 0> (sizes, width) wide = Cast <to = 7> (batch)
        state = Expand(zero, wide) count = Slice(narrow, first, second) steps = Squeeze(count, first)
        real = Cast <to = 1> (steps) goes = Less(zero, real)
        n1, h1, c1, n2, k1, r1, b1, all = Loop <
            body = while (int64 i, bool c, int32 at, float[q, {hidden}] h, float[q, {hidden}] m, int32 n,
                          float[4, {4 * hidden}] k, float[{hidden}, {4 * hidden}] r, float[{4 * hidden}] b)
                => (bool d, int32 next, float[v, {hidden}] h2, float[w, {hidden}] m2, int32 n, float[4, {4 * hidden}] k,
                    float[{hidden}, {4 * hidden}] r, float[{4 * hidden}] b, float[u, {hidden}] made)
                <int32 one = {{1}}> {{
                next = Add(at, one) row = Gather(turned, at) p = MatMul(row, k) q0 = MatMul(h, r) s = Add(p, q0)
                z = Add(s, b) gi, gf, gc, go = Split <axis = 1> (z, parts)
                ai = Sigmoid(gi) af = Sigmoid(gf) ac = Tanh(gc) ao = Sigmoid(go)
                kept = Mul(af, m) fresh = Mul(ai, ac) m2 = Add(kept, fresh) tm = Tanh(m2) h2 = Mul(ao, tm)
                made = Identity(h2) a = Cast <to = 1> (next) e = Cast <to = 1> (n) d = Less(a, e) }}>
            (, goes, time, state, state, steps, kernel, recurrent, bias)
        y = Transpose <perm = [1, 0, 2]> (all) }}"""
    return model(text, **weights, two=INT([2]), parts=INT([hidden] * 4))


def test_keras_layers_are_one_region():
    made = keras()
    single, session = (es.make_session(made, plain(), **options) for options in (dict(regions=0), dict(auto_graph=1)))
    for _ in range(3):
        for n, t in ((2, 5), (1, 9), (3, 0), (2, 400)):
            feed = {"x": some(n, t, 4, seed=t)}
            np.testing.assert_allclose(session.run(None, feed)[0], single.run(None, feed)[0], rtol=1e-5, atol=1e-6)
    assert outside(session, "Loop") == []
    assert_replayed(session)
    region = region_of(session)
    assert (region["keys"], region["refused"]) == (4, 0), region
