"""Loops that collect, inside of regions: where data says how often they run, a graph has room for what they collect,
and as much as there is comes out of it."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from test_bodies_in_regions import ONNXRUNTIME, outside, some
from test_by_data import HALVE, automatic, both, check, chosen, loop, region_of
from test_control_flow import on_cpu
from test_control_flow_regions import model, plain
from test_regions import regions

pytestmark = pytest.mark.core
FLOAT, INT = np.float32, np.int64


def collecting(body=HALVE + " e = Neg(b)", outputs=", float[k, n, m] all", **more):
    text = loop(body, **{"makes": "float[n, m] b, float[n, m] e", "made": "r, all", **more})
    return text.replace("(float[n, m] y)", f"(float[n, m] y{outputs})")


def feeds_of(*sides):
    return [{"x": some(3, 4, seed=seed) + side} for seed, side in enumerate(FLOAT(sides))]


def lengths(session, feeds):
    return [len(session.run(None, feed)[1]) for feed in feeds]


def assert_replayed(session, first_runs=1):
    region = region_of(session)
    assert (region["keys"], region["refused"], region["first_runs"]) == (1, 0, first_runs), region
    assert region["captures"] <= 2 * first_runs and region["replays"] > 0, region
    assert onnxruntime_ep_encore.outside_report(session) == []


# ---- until data ends it


def test_as_long_as_data_says():
    feeds = feeds_of(0, -3, 2, 1)
    session = check(collecting(), *feeds)
    assert len(set(lengths(session, feeds))) > 1  # data has decided
    assert_replayed(session)


def test_more_than_there_is_room_for():
    """Such a run is done again, and from then on there is room."""
    feeds = feeds_of(*[-2] * 4, 9, *[-2, 9] * 4)
    session = check(collecting(), *feeds, times=1)
    assert max(lengths(session, feeds)) > 16
    assert_replayed(session, first_runs=2)


@pytest.mark.parametrize("shapes", ["float[n, m] e", "float[] e"])
def test_no_iterations(shapes):
    """Whose shape is that of none, as the model tells it; also in the first run, which says how much room there is."""
    text = collecting(
        HALVE + " e = Neg(b)",
        outputs=f", float{'[k, n, m]' if 'n' in shapes else '[]'} all",
        makes=f"float[n, m] b, {shapes}",
        go="g",
        before="v = ReduceMax <keepdims = 0> (x) g = Less(zero, v)",
    )
    feeds = feeds_of(-90, 0, -90, 2)
    session = check(text, *feeds)
    assert lengths(session, feeds)[0] == 0
    assert_replayed(session)


@pytest.mark.parametrize("count", ["most", "k", "q"])
def test_with_a_trip_count_as_well(count):
    """That is a constant, one of shapes, or data."""
    text = collecting(
        count=count,
        before="s = Shape(x) k = Gather(s, one) v = ReduceMax <keepdims = 0> (u) q = Cast <to = 7> (v)",
    )
    assert_replayed(check(text, *feeds_of(0, -3, 2, 1)))


def test_a_count_that_is_data():
    text = collecting(
        "d = Identity(c) b = Add(a, half) e = Neg(b)",
        count="q",
        before="v = ReduceMax <keepdims = 0> (x) q = Cast <to = 7> (v)",
    )
    feeds = feeds_of(0, 5, -90, 2)
    session = check(text, *feeds)
    assert 0 in lengths(session, feeds)
    assert_replayed(session)


def test_rows_of_many_sizes():
    """With values from outside, the number of the iteration, what is handed on, and one that nobody wants."""
    text = collecting(
        HALVE
        + """ e = Less(a, half) f = ReduceMax <keepdims = 0> (a) g = Cast <to = 10> (u) h = Identity(i) j = Identity(w)
              k2 = Slice(a, at, at) l = Less(w, f) o = Neg(a)""",
        outputs=""", bool[p, n, m] es, float[p] fs, float16[p, n, m] gs, int64[p] hs, float[p, 3] js, float[p, 0, m] ks,
                   bool[p, 3] ls""",
        makes="""float[n, m] b, bool[n, m] e, float f, float16[n, m] g, int64 h, float[3] j, float[0, m] k2, bool[3] l,
                 float[n, m] o""",
        made="r, es, fs, gs, hs, js, ks, ls, unread",
        more=", float[3] w = {1.0, 2.0, 3.0}",
    )
    assert_replayed(check(text, *({"x": some(3, 5, seed=seed) * seed} for seed in range(4))))


def test_what_reads_it_comes_behind():
    """In another region, for its length has to be known there."""
    text = collecting(outputs=", float[n, m] z").replace(
        "y = Abs(r)", "y = Abs(r) s = ReduceSum <keepdims = 0> (all, at) v = Mul(s, y) z = Neg(v)"
    )
    session = check(text, *feeds_of(0, -3, 2, 1))
    assert [["Abs", "Exp", "Loop"], ["Mul", "Neg", "ReduceSum"]] == [
        one for one in regions(session) if "Less" not in one
    ]
    report = onnxruntime_ep_encore.region_report(session)
    assert not any(region["refused"] for region in report), report
    assert region_of(session)["replays"] > 0


def test_tokens_until_the_last_one():
    """As a decoder generates them."""
    text = """(int64[1] first, int64 most) => (int64[n, 1] tokens, float[n, 1] sure) <int64[1] stop = {3}> {
        last, tokens, sure = Loop <
            body = step (int64 i, bool c, int64[1] w) => (bool d, int64[1] v, int64[1] token, float[1] best) {
            row = Gather(table, w) scores = MatMul(row, weights)
            v = ArgMax <axis = 1, keepdims = 0> (scores) token = Identity(v)
            best = ReduceMax <keepdims = 0> (scores, axis)
            e = Equal(v, stop) f = Not(e) d = Squeeze(f) }> (most, , first) }"""
    weights = {"table": some(12, 8, seed=3), "weights": some(8, 12, seed=4), "axis": INT([1])}
    feeds = [{"first": INT([k]), "most": np.array(most)} for most in (24, 5) for k in range(12)]
    session = check(text, *feeds, weights=weights.items())
    assert_replayed(session, first_runs=region_of(session)["first_runs"])
    assert region_of(session)["first_runs"] <= 2
    assert len({len(session.run(None, feed)[0]) for feed in feeds}) > 2


@pytest.mark.parametrize("count", ["", "most"])
def test_outputs_that_lie_where_inputs_do(count):
    """What such a run reads it could not read again, if it lacked room. There is enough for what a constant bounds."""
    made = model(collecting(count=count))
    single, session = es.make_session(made, plain(), regions=0, auto_graph=0), automatic(made)
    x = some(3, 4)
    state = es.on_device(x)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", state)
    binding.bind_ortvalue_output("y", state)
    for _ in range(4):
        binding.bind_output("all", "cpu")
        session.run_with_iobinding(binding)
        x, collected = single.run(None, {"x": x})
        np.testing.assert_array_equal(state.numpy(), x)
        np.testing.assert_array_equal(binding.get_outputs()[1].numpy(), collected)
    (region,) = (one for one in onnxruntime_ep_encore.region_report(session) if "Abs" in one["region"])
    assert (region["captures"], region["refused"]) == ((1, 0) if count else (0, 3)), region
    assert bool(count) or "an output lies where an input does" in region["refusal"]


def test_more_steps_than_are_recorded():
    """The first run takes as many as long loops do; of what a graph takes it says nothing."""
    nodes = " ".join(f"a{n + 1} = Neg(a{n}) b{n} = Sin(a{n + 1})" for n in range(20))
    body = f"a0 = Identity(a) {nodes} b = Mul(a20, near) t = ReduceMax <keepdims = 0> (b) d = Less(eps, t)"
    body += f" e = Sum({', '.join(f'b{n}' for n in range(20))})"
    feeds = feeds_of(0, 7)
    session = check(collecting(body, more=", float near = {0.96875}"), *feeds)
    assert max(lengths(session, feeds)) > 250
    assert_replayed(session, first_runs=region_of(session)["first_runs"])


def test_many_threads():
    """Each with as much as its own run has collected, while some lack room."""
    made = model(collecting())
    session, feeds = automatic(made), feeds_of(-2, 9, 0, 3)
    expected = [on_cpu(made, feed)[1] for feed in feeds]
    assert max(map(len, expected)) > 16

    def work(first):
        for k in range(30):
            feed = (first + k) % len(feeds)
            np.testing.assert_allclose(session.run(None, feeds[feed])[1], expected[feed], rtol=1e-5, atol=1e-6)

    assert not es.in_threads(4, work)
    assert region_of(session)["replays"] > 0


# ---- as often as a constant says


COUNTED = " f = Mul(a, half) b = Add(f, x) e = Neg(b)"


@pytest.mark.parametrize("count", [20, 200, 3000])
@pytest.mark.parametrize("condition", ["d = Identity(c)", "d = Constant <value = bool {1}> ()", ""])
def test_as_often_as_a_constant_says(count, condition):
    """Each iteration is in the graph, or the body, in as many; what is read behind is in the same one."""
    text = collecting(
        condition + COUNTED, outputs=", float[k, n, m] z", count="times", more=f", int64 times = {{{count}}}"
    ).replace("y = Abs(r)", "y = Abs(r) z = Neg(all)")
    if not condition:
        text = text.replace("(bool d, ", "(bool c, ")
    session = check(text, *feeds_of(0, 1), times=3)
    assert_replayed(session)
    assert region_of(session)["eager"] == 0
    assert ["Abs", "Exp", "Loop", "Neg"] in regions(session)


def test_a_long_loop_in_a_loop():
    """It collects as much each time, so it may be in one that data ends."""
    inner = """rr, alls = Loop <
        body = more (int64 j, bool c2, float[n, m] g) => (bool d2, float[n, m] h, float[n, m] l) {
        d2 = Identity(c2) h = Mul(g, near) l = Neg(h) }> (times, , a)
        t1 = ReduceSum <keepdims = 0> (alls, at) f = Add(t1, rr)"""
    text = collecting(f"{inner} e = Neg(f) {HALVE}", count="most", more=", int64 times = {3000}, float near = {0.999}")
    made = model(text)
    session = automatic(made)
    assert outside(session, "Loop") == []
    for feed in feeds_of(0, -3, 2) * 3:
        for got, wanted in zip(session.run(None, feed), on_cpu(made, feed), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    assert region_of(session)["replays"] > 0


# ---- what stays outside, and why


COLLECTS = "data decides how often Loop node '(unnamed, makes {})' runs, which collects outputs"


def test_in_a_branch():
    """Whose outputs would be as long as data says."""
    inner = f"""v, all = Loop <body = step (int64 i, bool k, float[n, m] a) => (bool d, float[n, m] b, float[n, m] e) {{
        {HALVE} e = Neg(b) }}> (, , u) z = ReduceSum <keepdims = 0> (all, at) p = Add(z, v)"""
    session = automatic(model(chosen(inner, "p = Sin(u)", more=", float half = {0.5}, float eps = {0.01}")))
    (why,) = outside(session, "If")
    assert why == f"{ONNXRUNTIME}: {COLLECTS.format('v')}"
    for feed in both(3, 4) * 3:
        session.run(None, feed)


@es.needs_graphs
def test_where_onnxruntime_captures():
    """A replay of its own tells no lengths."""
    session = es.make_session(model(collecting()), plain(), regions=1, enable_cuda_graph=1, graph_on_error="eager")
    assert outside(session, "Loop") == [f"{ONNXRUNTIME}: {COLLECTS.format('r')}"]
