"""Dimensions that are padded (pad), where regions have If, Loop and Scan inside: the same answers, of few shapes."""

import encore_session as es
import numpy as np
import pytest
from test_bodies_in_regions import ONNXRUNTIME, outside, some
from test_by_data import ELSE, HALVE, THEN, chosen, loop, region_of
from test_collecting_loops import collecting
from test_control_flow_regions import model, plain

pytestmark = pytest.mark.core
FLOAT, INT = np.float32, np.int64
PAD = "n:2,4,8"
ROWS = (1, 2, 3, 4, 5, 7, 8, 9)


def feeds_of(*sides, **more):
    return [{"x": some(rows, 4, seed=rows) + side, **more} for rows in ROWS for side in FLOAT(sides)]


def check(text, feeds, inside=True, pad=PAD, **options):
    """Answers as nodes alone have them; the session, whose regions have seen few lengths."""
    made = model(text)
    single = es.make_session(made, plain(), regions=0, auto_graph=0)
    session = es.make_session(made, plain(), **{"auto_graph": 1, "pad": pad, **options})
    for feed in feeds * 3:
        for got, wanted in zip(session.run(None, feed), single.run(None, feed), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    if inside:
        assert [why for op in ("If", "Loop", "Scan") for why in outside(session, op)] == []
        whole = region_of(session)
        assert whole["keys"] == 4, whole  # the fourth is longer than all lengths
        assert whole["padded"] >= len(feeds) // 2
        if options.get("auto_graph", 1):
            assert whole["replays"] > 10 and whole["refused"] == 0, whole
    return session


def why_left(session, op):
    (why,) = outside(session, op)
    assert why.startswith(f"{ONNXRUNTIME}: 'pad' pads 'n': "), why
    return why.removeprefix(f"{ONNXRUNTIME}: 'pad' pads 'n': ")


# ---- inside


@pytest.mark.parametrize("branches", [(THEN, ELSE), ("p = Identity(u)", "p = Softmax <axis = 1> (u)")])
def test_branches_between_which_data_decides(branches):
    """By the mean of all rows, which leaves out what is added."""
    check(chosen(*branches), feeds_of(-3, 3))


@pytest.mark.parametrize("auto_graph", [0, 1])
def test_a_branch_by_another_dimension(auto_graph):
    text = """(float[n, m] x) => (float[n, m] y) <int64 one = {1}> {
        u = Exp(x) s = Shape(x) k = Gather(s, one) g = Equal(k, one)
        r = If <then_branch = yes () => (float[n, m] p) { q = Neg(u) p = Tanh(q) },
                else_branch = no () => (float[n, m] p) { q = Sin(u) v = Abs(q) p = Mul(v, u) }> (g)
        y = Abs(r) }"""
    check(text, feeds_of(0), auto_graph=auto_graph)


def test_a_branch_by_an_input():
    text = chosen(THEN, ELSE, inputs="float[n, m] x, bool go").replace("> (c)", "> (go)")
    check(text, [{**feed, "go": np.array(go)} for feed in feeds_of(0) for go in (True, False)])


@pytest.mark.parametrize("count", [5, 3000])
def test_a_loop_that_a_constant_counts(count):
    """Whose iterations are in the graph, or whose body is; and what it collects."""
    text = collecting(
        "d = Identity(c) f = Mul(a, half) b = Add(f, x) e = Neg(b)", count="times", more=f", int64 times = {{{count}}}"
    )
    check(text, feeds_of(0) if count == 5 else feeds_of(0)[::2] + feeds_of(0)[1::2])


def test_a_loop_that_an_input_ends():
    """What it collects is as long as that says, and as wide as the dimension was."""
    text = collecting("d = Identity(c) f = Mul(a, half) b = Add(f, x) e = Neg(b)", count="k").replace(
        "(float[n, m] x)", "(float[n, m] x, int64 k)"
    )
    check(text, [{**feed, "k": np.array(k)} for feed in feeds_of(0) for k in (3, 0, 11)])


def test_a_branch_in_a_loop_and_a_scan():
    body = """d = Identity(c) j = Mod(i, two) o = Equal(j, zero_)
        b = If <then_branch = yes () => (float[n, m] p) { p = Mul(a, half) },
                else_branch = no () => (float[n, m] p) { q = Sqrt(a) p = Mul(q, near) }> (o)"""
    more = ", int64 two = {2}, int64 zero_ = {0}, float near = {0.9}"
    check(loop(body, count="most", more=more), feeds_of(0))
    check(
        """(float[n, m] x) => (float[] y, float[m, n] all) <int64 zero = {0}> {
             u = Exp(x) t = Transpose <perm = [1, 0]> (u) first = Gather <axis = 1> (u, zero)
             r, all = Scan <num_scan_inputs = 1, body = step (float[n] a, float[n] e) => (float[n] b, float[n] g) {
                 b = Add(a, e) g = Neg(b) }> (first, t)
             y = Abs(r) }""",
        feeds_of(0),
    )


def test_two_dimensions():
    text = chosen(THEN, ELSE)
    feeds = [{"x": some(n, m, seed=n) + side} for n in (1, 3, 4) for m in (2, 5, 7) for side in FLOAT([-3, 3])]
    session = check(text, feeds, inside=False, pad="n:4;m:8")
    assert outside(session, "If") == []
    assert region_of(session)["keys"] == 1


# ---- outside, as without pad, and why


def test_rows_that_come_together_in_a_branch():
    session = check(chosen(THEN, "q = Hardmax <axis = 1> (u) p = Mul(q, w)"), feeds_of(-3, 3))
    assert outside(session, "If") == []
    session = check(
        chosen(THEN, "q0 = ReduceMean <keepdims = 1> (u, at) q = Mul(q0, w) p = Mul(q, u)"),
        feeds_of(-3, 3),
        inside=False,
    )
    why = why_left(session, "If")
    assert why == (
        "ReduceMean node '(unnamed, makes q0)' to Mul node '(unnamed, makes p)', in a body of If node '(unnamed, makes "
        "r)', brings rows together, which masks keep apart there"
    )


def test_a_loop_that_its_rows_end():
    session = check(loop(HALVE), feeds_of(0, 3), inside=False)
    assert "brings rows together" in why_left(session, "Loop")
    body = "b = Mul(a, half) s = Shape(a) k = Gather(s, zero_) d = Less(i, k)"
    session = check(loop(body, more=", int64 zero_ = {0}"), feeds_of(0), inside=False)
    assert why_left(session, "Loop") == "Loop node '(unnamed, makes r)' may end by its length, or by its rows"


def test_a_branch_by_the_length():
    text = """(float[n, m] x) => (float[n, m] y) <int64 zero = {0}, int64 one = {1}> {
        u = Exp(x) s = Shape(x) k = Gather(s, zero) g = Equal(k, one)
        r = If <then_branch = yes () => (float[n, m] p) { q = Neg(u) p = Tanh(q) },
                else_branch = no () => (float[n, m] p) { q = Sin(u) p = Mul(q, u) }> (g)
        y = Abs(r) }"""
    session = check(text, feeds_of(0), inside=False)
    assert why_left(session, "If") == "If node '(unnamed, makes r)' goes by its length"


def test_as_often_as_there_are_rows():
    text = """(float[n, m] x) => (float[] y) <int64 zero = {0}> {
        u = Exp(x) s = Shape(x) k = Gather(s, zero)
        r = Loop <body = step (int64 i, bool c, float[n, m] a) => (bool d, float[n, m] b) {
            d = Identity(c) e = Neg(a) b = Add(e, u) }> (k, , u)
        y = Abs(r) }"""
    session = check(text, feeds_of(0), inside=False)
    assert why_left(session, "Loop") == "Loop node '(unnamed, makes r)' goes by its length"


def test_a_scan_along_another_dimension():
    """Beside the one that is padded; and not along it."""
    text = """(float[n, m] x) => (float[] y, float[k, n] all) <int64[1] last = {1}> {
        u = Exp(x) s = ReduceMin <keepdims = 0> (u, last)
        r, all = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [%d],
            body = step (float[n] a, float[n] e) => (float[n] b, float[n] g) { b = Sub(e, a) g = Neg(b) }> (s, u)
        y = Abs(r) }"""
    for axis in (0, 1):
        check((text % axis).replace("[k, n] all", "[n, k] all" if axis == 1 else "[k, n] all"), feeds_of(0, 1))
    along = text.replace("scan_input_axes = [1]", "scan_input_axes = [0]").replace("last = {1}", "last = {0}")
    along = (
        (along % 0).replace("float[n] a, float[n] e", "float[m] a, float[m] e").replace("=> (float[n]", "=> (float[m]")
    )
    session = check(along.replace("float[n] g", "float[m] g").replace("[k, n] all", "[k, m] all"), feeds_of(0), False)
    assert why_left(session, "Scan").endswith("goes along it")


def test_a_loop_that_counts():
    """By a number of the host's, through columns; those that go by the rows stay outside."""
    text = """(float[n, m] x) => (float[n] y, float[k, n] all) <int64 axis = {%d}, int32 zero = {0}, int32 one = {1},
            int64[1] last = {1}> {
        u = Exp(x) a0 = ReduceMin <keepdims = 0> (u, last)
        s = Shape(x) k = Gather(s, axis) most = Cast <to = 6> (k) go = Less(zero, most)
        at, r, all = Loop <body = step (int64 i, bool c, int32 at, float[n] a)
                               => (bool d, int32 next, float[n] b, float[n] e) {
            next = Add(at, one) d = Less(next, most) f = Gather <axis = 1> (x, at) b = Sub(f, a) e = Neg(b) }>
            (, go, zero, a0)
        y = Abs(r) }"""
    check(text % 1, feeds_of(0, 1))
    made = model(text % 0)
    session = es.make_session(made, plain(), auto_graph=1, pad=PAD)
    assert "goes by its length" in why_left(session, "Loop")
