"""Control flow that only data on the device decides, inside of regions: graphs have both branches, or a loop's body."""

import re
import threading

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from test_bodies_in_regions import HANDS_ON, ONNXRUNTIME, choice, outside, rows, some
from test_control_flow import on_cpu
from test_control_flow_regions import model, plain
from test_regions import regions

pytestmark = pytest.mark.core
FLOAT, INT = np.float32, np.int64


def automatic(made, **options):
    return es.make_session(made, plain(), **{"auto_graph": 1, **options})


def check(text, *feeds, inside=("If", "Loop"), times=4, weights=(), **options):
    """Run by run, bit for bit as single nodes compute it, and nearly as the CPU does; the session."""
    made = model(text, **dict(weights))
    single = es.make_session(made, plain(), regions=0, auto_graph=0)
    session = automatic(made, **options)
    for op in inside:
        assert outside(session, op) == []
    for _ in range(times):
        for feed in feeds:
            expected = single.run(None, feed)
            for got, wanted, of_cpu in zip(session.run(None, feed), expected, on_cpu(made, feed), strict=True):
                np.testing.assert_array_equal(got, wanted)
                np.testing.assert_allclose(got, of_cpu, rtol=1e-5, atol=1e-5)
    return session


def region_of(session):
    """The one that has the nodes with bodies; those of bodies run by themselves where it has no graph."""
    return max(onnxruntime_ep_encore.region_report(session), key=lambda region: region["nodes"])


def assert_captured(session, keys=1):
    """Once for all that data decides, with each set of shapes; once more where tensors stay."""
    region = region_of(session)
    assert (region["keys"], region["refused"]) == (keys, 0), region
    assert keys <= region["captures"] <= 2 * keys, region
    assert region["replays"] > 0
    return region


def chosen(then, otherwise, shape="[n, m]", before="", after="y = Abs(r)", inputs="float[n, m] x", more=""):
    """A model with an If by whether the mean of x is below zero; branches read u and make p."""
    return f"""({inputs}) => (float{shape} y) <float zero = {{0.0}}, float[1] w = {{1.5}}, int64 one = {{1}},
            int64[1] at = {{0}}{more}> {{
        u = Exp(x) mean = ReduceMean <keepdims = 0> (x) c = Less(mean, zero) {before}
        r = If <then_branch = yes () => (float{shape} p) {{ {then} }},
                else_branch = no () => (float{shape} p) {{ {otherwise} }}> (c)
        {after} }}"""


def both(*shape):
    """Feeds for which data says one thing, and the other."""
    return [{"x": some(*shape, seed=seed) + side} for seed, side in enumerate(FLOAT([3, -3, -2, 2]))]


THEN, ELSE = "q = Neg(u) p = Tanh(q)", "q = Sin(u) p = Mul(q, w)"


# ---- If


def test_branches_take_turns():
    session = check(chosen(THEN, ELSE), *both(3, 4))
    assert_captured(session)
    assert onnxruntime_ep_encore.outside_report(session) == []


def test_shapes_change():
    session = check(chosen(THEN, ELSE), *both(3, 4), *both(1, 2), *both(0, 2)[:1])
    assert_captured(session, keys=3)


def test_a_condition_that_is_an_input():
    feeds = [{**feed, "go": np.array(go)} for feed in rows(2) for go in (True, False, False)]
    text = chosen(THEN, ELSE, inputs="float[n, m] x, bool go").replace("> (c)", "> (go)")
    assert_captured(check(text, *feeds))


def test_a_condition_with_one_element():
    text = chosen(THEN, ELSE, before="d = Unsqueeze(c, at)").replace("> (c)", "> (d)")
    assert_captured(check(text, *both(3, 4)))


def test_a_condition_of_data_and_shapes():
    text = chosen(
        THEN,
        ELSE,
        before="s = Shape(x) k = Gather(s, at0) many = Less(one, k) d = And(c, many)",
        more=", int64 at0 = {0}",
    ).replace("> (c)", "> (d)")
    assert_captured(check(text, *both(3, 4), *both(1, 4)), keys=2)


def test_one_branch_hands_on_what_is_there():
    session = check(chosen("p = Identity(u)", ELSE), *both(3, 4))
    assert_captured(session)
    assert_captured(check(chosen("p = Identity(x)", "p = Identity(u)"), *both(3, 4)))


def test_several_outputs_of_several_types():
    text = """(float[n] x, int64[k] i) => (float[n] y, int64[k] j, bool[n] b) {
        mean = ReduceMean <keepdims = 0> (x) k = Cast <to = 1> (i) m = ReduceMean <keepdims = 0> (k) c = Less(mean, m)
        y, j, b = If <
            then_branch = yes () => (float[n] p, int64[k] q, bool[n] r) { p = Neg(x) q = Identity(i) r = Less(x, p) },
            else_branch = no () => (float[n] p, int64[k] q, bool[n] r) { p = Abs(x) q = Neg(i) r = Less(p, x) }>
            (c) }"""
    feeds = [{"x": feed["x"].reshape(-1), "i": INT([1, 2, 3])} for feed in both(2, 3)]
    assert_captured(check(text, *feeds))


def test_an_output_that_nobody_wants():
    text = """(float[n] x) => (float[n] y) <float zero = {0.0}> {
        mean = ReduceMean <keepdims = 0> (x) c = Less(mean, zero)
        y, unread = If <
            then_branch = yes () => (float[n] p, float[n] q) { p = Neg(x) q = Sin(x) },
            else_branch = no () => (float[n] p, float[n] q) { p = Abs(x) q = Cos(x) }> (c) }"""
    assert_captured(check(text, *({"x": feed["x"].reshape(-1)} for feed in both(2, 3))))


def test_numbers_of_the_host_that_both_branches_read():
    """They are put on the device before it decides, whichever branch runs."""
    text = chosen(
        "k = Cast <to = 1> (s) q = Mul(u, k) p = Neg(q)",
        "k = Cast <to = 1> (s) q = Div(u, k) h = Add(q, k) p = Tanh(h)",
        before="s = Shape(x)",
    )
    assert_captured(check(text, *both(3, 2), *both(1, 2)), keys=2)


def test_branches_in_branches():
    inner = """t = ReduceMax <keepdims = 0> (x) d = Less(t, limit)
        p = If <then_branch = yes2 () => (float[n, m] i) {{ j = Mul(u, w) i = Neg(j) }},
                else_branch = no2 () => (float[n, m] i) {{ i = Sin(u) }}> ({})"""
    for condition in ("d", "outer"):
        text = chosen(
            inner.format(condition),
            ELSE,
            before="high = ReduceMax <keepdims = 0> (u) outer = Less(high, one_f)",
            more=", float limit = {-2.5}, float one_f = {1.0}",
        )
        assert_captured(check(text, *both(3, 4), *({"x": some(3, 4) - k} for k in FLOAT([0.1, 1, 5]))))


def test_a_branch_by_shapes_in_one_by_data():
    """The host knows which, and the graph has that one alone."""
    inner = """l = Gather(s, at0) o = Equal(l, one)
        p = If <then_branch = yes2 () => (float[n, m] i) { i = Mul(u, w) },
                else_branch = no2 () => (float[n, m] i) { i = Sin(u) }> (o)"""
    text = chosen(inner, ELSE, before="s = Shape(x)", more=", int64 at0 = {0}")
    assert_captured(check(text, *both(3, 4), *both(1, 4)), keys=2)


def test_what_only_branches_read():
    text = chosen("q = Neg(z) p = Tanh(q)", "p = Mul(u, z)", inputs="float[n, m] x, float[n, m] z")
    feeds = [{**feed, "z": some(3, 4, seed=9)} for feed in both(3, 4)]
    session = check(text, *feeds, inside=("If",) if HANDS_ON else ())
    if HANDS_ON:
        assert_captured(session)


def test_a_branch_that_has_not_run_yet():
    """Has convolutions, which libraries may want to run before they are captured."""
    text = """(float[n, 4, h, w] x) => (float[n, 4, h, w] y) <float zero = {0.0}> {
        mean = ReduceMean <keepdims = 0> (x) c = Less(mean, zero)
        y = If <then_branch = yes () => (float[n, 4, h, w] p) { q = Conv <pads = [1, 1, 1, 1]> (x, v) p = Relu(q) },
                else_branch = no () => (float[n, 4, h, w] p) { p = Conv <pads = [1, 1, 1, 1]> (x, v) }> (c) }"""
    made = model(text, v=some(4, 4, 3, 3).round())
    session = automatic(made)
    assert outside(session, "If") == []
    for side in FLOAT([3] * 4 + [-3, 3] * 20):
        feed = {"x": (some(2, 4, 5, 6) + side).round()}
        np.testing.assert_allclose(session.run(None, feed)[0], on_cpu(made, feed)[0], rtol=1e-4, atol=1e-2)
    assert region_of(session)["replays"] > 0


# ---- Loop


def loop(
    body, values="float[n, m] a", begins="u", makes="float[n, m] b", count="", go="", made="r", before="", more=""
):
    """A model with a Loop whose body makes its next condition d of what it carries."""
    return f"""(float[n, m] x) => (float[n, m] y) <float zero = {{0.0}}, float half = {{0.5}}, float eps = {{0.01}},
            int64 one = {{1}}, int64 most = {{6}}, int64[1] at = {{0}}{more}> {{
        u = Exp(x) {before}
        {made} = Loop <body = step (int64 i, bool c, {values}) => (bool d, {makes}) {{ {body} }}>
            ({count}, {go}, {begins})
        y = Abs(r) }}"""


HALVE = "b = Mul(a, half) t = ReduceMax <keepdims = 0> (b) d = Less(eps, t)"


def test_a_loop_until_values_are_small():
    feeds = [{"x": some(3, 4, seed=seed) * seed} for seed in range(5)]
    session = check(loop(HALVE), *feeds)
    assert_captured(session)


@pytest.mark.parametrize("count", ["most", "k", "q"])
def test_with_a_trip_count_as_well(count):
    """That is a constant, one of shapes, or data."""
    text = loop(
        HALVE,
        count=count,
        before="s = Shape(x) k = Gather(s, one) v = ReduceMax <keepdims = 0> (u) q = Cast <to = 7> (v)",
    )
    assert_captured(check(text, *({"x": some(3, 4, seed=seed) * seed} for seed in range(5))))


def test_a_count_that_is_data():
    """No iterations, too, and less than none."""
    text = loop(
        "d = Identity(c) b = Add(a, half)", count="q", before="v = ReduceMax <keepdims = 0> (x) q = Cast <to = 7> (v)"
    )
    assert_captured(check(text, *({"x": some(3, 4) + side} for side in FLOAT([0, 5, -9, 2]))))


def test_a_condition_that_does_not_hold_at_first():
    text = loop(HALVE, go="g", before="v = ReduceMax <keepdims = 0> (x) g = Less(zero, v)")
    assert_captured(check(text, *({"x": some(3, 4) + side} for side in FLOAT([0, 5, -9, 2]))))


def test_the_number_of_the_iteration():
    body = "j = Cast <to = 1> (i) k = Mul(j, half) b = Sub(a, k) t = ReduceMax <keepdims = 0> (b) d = Less(zero, t)"
    assert_captured(check(loop(body), *({"x": some(3, 4, seed=seed)} for seed in range(4))))


def test_the_condition_as_a_value():
    body = "b0 = Mul(a, half) k = Cast <to = 1> (c) b = Mul(b0, k) t = ReduceMax <keepdims = 0> (b) d = Less(eps, t)"
    assert_captured(check(loop(body), *({"x": some(3, 4, seed=seed)} for seed in range(3))))


def test_vectors_of_one():
    """The body says so of its number and of the condition; and makes another condition than it is given."""
    body = "j = Cast <to = 1> (i) k = Mul(j, half) b = Sub(a, k) t = ReduceMax <keepdims = 0> (b) e = Less(zero, t)"
    text = loop(body + " f = Unsqueeze(e, at) d = And(f, c)", makes="float[n, m] b", values="float[n, m] a")
    feeds = [{"x": some(3, 4, seed=seed)} for seed in range(4)]
    assert_captured(
        check(text.replace("int64 i, bool c", "int64[1] i, bool[1] c").replace("(bool d,", "(bool[1] d,"), *feeds)
    )
    session = check(text.replace("(bool d,", "(bool[] d,"), *feeds)
    refusals = [region["refusal"] for region in onnxruntime_ep_encore.region_report(session)]
    assert any("the condition of a loop changes its shape" in refusal for refusal in refusals)


def test_values_that_change_places():
    body = "e = Mul(f, half) b = Identity(g) h = Identity(a) t = ReduceMax <keepdims = 0> (e) d = Less(eps, t)"
    text = loop(
        body,
        values="float[n, m] a, float[n, m] f, float[n, m] g",
        begins="u, u, x",
        makes="float[n, m] b, float[n, m] e, float[n, m] h",
        made="r, l, k",
    )
    assert_captured(check(text, *({"x": some(3, 4, seed=seed)} for seed in range(4))))


def test_words_until_the_last_one():
    """As a decoder generates, with the words so far in a buffer."""
    text = """(int64[1] first, int64[16] blank) => (int64[16] words, int64[1] last) <int64[1] stop = {3},
            int64 most = {16}, int64[1] at = {0}> {
        words, last = Loop <
            body = step (int64 i, bool c, int64[16] a, int64[1] w) => (bool d, int64[16] b, int64[1] v) {
            row = Gather(table, w) scores = MatMul(row, weights)
            v = ArgMax <axis = 1, keepdims = 0> (scores)
            k = Unsqueeze(i, at) b = ScatterElements(a, k, v)
            e = Equal(v, stop) f = Not(e) d = Squeeze(f) }> (most, , blank, first) }"""
    weights = {"table": some(12, 8, seed=3), "weights": some(8, 12, seed=4)}
    feeds = [{"first": INT([k]), "blank": np.full(16, -1)} for k in range(12)]
    session = check(text, *feeds, weights=weights.items())
    assert_captured(session)
    lengths = {int((session.run(None, feed)[0] >= 0).sum()) for feed in feeds}
    assert len(lengths) > 1, lengths  # data has decided


def test_a_branch_in_a_loop():
    body = """e = ReduceMean <keepdims = 0> (a) g = Less(e, one_f)
        b = If <then_branch = yes () => (float[n, m] p) { p = Mul(a, half) },
                else_branch = no () => (float[n, m] p) { q = Sqrt(a) p = Mul(q, near) }> (g)
        t = ReduceMax <keepdims = 0> (b) d = Less(eps, t)"""
    text = loop(body, more=", float one_f = {1.0}, float near = {0.9}")
    assert_captured(check(text, *({"x": some(3, 4, seed=seed) + seed} for seed in range(4))))


def test_a_loop_in_a_branch():
    inner = f"p = Loop <body = step (int64 i, bool k, float[n, m] a) => (bool d, float[n, m] b) {{ {HALVE} }}> (, , u)"
    text = chosen(inner, ELSE, more=", float half = {0.5}, float eps = {0.01}")
    assert_captured(check(text, *both(3, 4)))


def test_a_branch_by_data_in_a_loop_that_the_host_counts():
    """Each iteration has its own."""
    body = """d = Identity(c) e = ReduceMean <keepdims = 0> (a) g = Less(e, one_f)
        b = If <then_branch = yes () => (float[n, m] p) { p = Add(a, half) },
                else_branch = no () => (float[n, m] p) { p = Mul(a, half) }> (g)"""
    text = loop(body, count="most", more=", float one_f = {1.0}")
    assert_captured(check(text, *({"x": some(3, 4, seed=seed) + seed} for seed in range(4))))


def test_a_loop_in_a_loop():
    inner = "f = Mul(e, half) g = ReduceMax <keepdims = 0> (f) h = Less(eps2, g)"
    body = f"""j = Loop <body = more (int64 k, bool l, float[n, m] e) => (bool h, float[n, m] f) {{ {inner} }}> (, , a)
        b = Sub(a, j) v = Mul(b, half) t = ReduceMax <keepdims = 0> (v) d = Less(eps, t) z = Neg(v)"""
    text = loop(
        body.replace("b = Sub(a, j) v = Mul(b, half)", "v = Sub(a, j) b = Mul(v, half)"), more=", float eps2 = {0.1}"
    )
    assert_captured(check(text, *({"x": some(3, 4, seed=seed)} for seed in range(3))))


# ---- what stays outside, and why


def left(text, op, **options):
    session = automatic(model(text), **options)
    for feed in both(3, 4) * 2:
        np.testing.assert_allclose(session.run(None, feed)[0], on_cpu(model(text), feed)[0], rtol=1e-5, atol=1e-5)
    (why,) = outside(session, op)
    assert why.startswith(f"{ONNXRUNTIME}: ")
    return why.removeprefix(f"{ONNXRUNTIME}: ")


def test_branches_that_make_other_shapes():
    text = chosen("p = Concat <axis = 0> (u, u)", "p = Neg(u)", shape="[]")
    branches = "the branches of If node '(unnamed, makes r)'"
    assert left(text, "If") == f"data decides between {branches}, whose outputs 0 may not have the same shape"


def test_values_that_grow():
    body = "b = Concat <axis = 0> (a, x) t = ReduceSum <keepdims = 0> (b) k = Abs(t) d = Less(k, limit)"
    text = loop(body, values="float[k, m] a", makes="float[l, m] b", more=", float limit = {1.0}").replace(
        "(float[n, m] y)", "(float[] y)"
    )
    why = left(text, "Loop")
    assert "whose value 'a' may change its shape; a buffer of the most that there will be" in why


def test_sizes_by_the_number_of_the_iteration():
    body = f"k = Unsqueeze(i, at) e = Slice(x, at, k) f = ReduceSum <keepdims = 0> (e) g = Add(a, f) {HALVE}".replace(
        "Mul(a, half)", "Mul(g, half)"
    )
    assert "reads on the host what is not there" in left(loop(body, count="most"), "Loop")


def test_without_graphs():
    session = automatic(model(chosen(THEN, ELSE)), auto_graph=0, regions=1)
    assert [why.split(":")[0] for why in outside(session, "If")] == [ONNXRUNTIME]
    assert "If" not in sum(regions(session), [])


@es.only_if(es.on_virtual_gpu())
def test_a_driver_that_lacks_them():
    code = """
from test_by_data import *
session = automatic(model(chosen(THEN, ELSE)))
(why,) = outside(session, "If")
assert why.endswith("is not known from shapes, and the virtual GPU was told to have no conditional nodes"), why
for feed in both(3, 4) * 3:
    np.testing.assert_allclose(session.run(None, feed)[0], on_cpu(model(chosen(THEN, ELSE)), feed)[0], rtol=1e-5)
"""
    es.in_new_process(code, ENCORE_VIRTUAL_CONDITIONALS="0")


# ---- around it


def picks(**more):
    made = model(
        chosen(
            "p = Gather(u, i)",
            ELSE,
            inputs="float[n, m] x, int64[n] i",
            before="f = Cast <to = 1> (i) g = ReduceMax <keepdims = 0> (f) h = Mul(g, zero) d = Less(mean, h)",
        ).replace("> (c)", "> (d)")
    )
    node = next(node for node in made.graph.node if node.op_type == "If")
    node.name = "choose"
    node.attribute[0].g.node[0].name = "pick"
    return automatic(made, **more)


def test_a_fault_names_the_node_in_the_branch_that_ran():
    session = picks()
    assert outside(session, "If") == []
    yes, no = {"x": some(3, 4) - 9, "i": INT([0, 7, 1])}, {"x": some(3, 4) + 9, "i": INT([0, 7, 1])}
    for _ in range(4):
        with pytest.raises(Exception, match="Gather node 'pick'"):
            session.run(None, yes)
        assert session.run(None, no)[0].shape == (3, 4)
    assert region_of(session)["replays"] > 0


def test_what_is_not_run_draws_no_random_numbers():
    text = chosen(
        "q = RandomUniformLike <seed = 3.0> (u) p = Add(q, u)", "q = RandomNormalLike <seed = 4.0> (u) p = Mul(q, u)"
    )
    made = model(text)
    single = es.make_session(made, plain(), regions=0, auto_graph=0)
    session = automatic(made)
    assert outside(session, "If") == []
    for feed in both(3, 4) * 4:
        np.testing.assert_array_equal(session.run(None, feed)[0], single.run(None, feed)[0])
    assert region_of(session)["replays"] > 0


def test_captures_that_are_held_back():
    """Runs are eager meanwhile, and nothing is lost."""
    made = model(chosen(THEN, ELSE))
    session = automatic(made)
    with onnxruntime_ep_encore.captures_held_back(session):
        for feed in both(3, 4) * 2:
            np.testing.assert_allclose(session.run(None, feed)[0], on_cpu(made, feed)[0], rtol=1e-5, atol=1e-5)
        assert region_of(session)["captures"] == 0
        assert "held back" in region_of(session)["refusal"]
    for feed in both(3, 4) * 10:
        np.testing.assert_allclose(session.run(None, feed)[0], on_cpu(made, feed)[0], rtol=1e-5, atol=1e-5)
    assert region_of(session)["replays"] > 0


def test_branches_share_their_memory():
    """One of them runs, so what a graph works in is that of the larger one."""
    side = 256
    text = chosen("q = Neg(u) t = Abs(q) v = Sqrt(t) p = Add(v, q)", "q = Neg(u) t = Abs(q) v = Relu(t) p = Sub(v, q)")
    session = check(text, *both(side, side))
    one = check(text.replace("v = Sqrt(t)", "v = Neg(t)"), *both(side, side))
    scratch = region_of(session)["scratch_bytes"]
    assert scratch == region_of(one)["scratch_bytes"]
    assert scratch <= 6 * side * side * 4
    assert onnxruntime_ep_encore.memory_report(session)["arena"]["in_use_bytes"] < 12 * side * side * 4


def test_many_threads():
    made = model(loop("""e = ReduceMean <keepdims = 0> (a) g = Less(e, one_f)
        b = If <then_branch = yes () => (float[n, m] p) { p = Mul(a, half) },
                else_branch = no () => (float[n, m] p) { q = Sqrt(a) p = Mul(q, half) }> (g)
        t = ReduceMax <keepdims = 0> (b) d = Less(eps, t)""", more=", float one_f = {1.0}"))  # fmt: skip
    session = automatic(made)
    feeds = [{"x": some(3, 4, seed=seed) + seed % 3} for seed in range(8)]
    expected = [on_cpu(made, feed)[0] for feed in feeds]
    wrong = []

    def work(first):
        for k in range(30):
            feed = (first + k) % len(feeds)
            got = session.run(None, feeds[feed])[0]
            if not np.allclose(got, expected[feed], rtol=1e-5, atol=1e-6):
                wrong.append(feed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert region_of(session)["replays"] > 0


def test_it_is_written_down(tmp_path):
    automatic(model(loop(HALVE)), dump_regions=tmp_path)
    (text,) = (text for file in tmp_path.glob("*/00_as_claimed.txt") if "Loop(" in (text := file.read_text()))
    assert re.search(r"body \{\s+by data beyond \d+\s+in i: i64", text), text


@es.needs_graphs
def test_onnxruntime_captures_a_model_that_data_controls():
    for text in (chosen(THEN, ELSE), loop(HALVE)):
        made = model(text)
        session = es.make_session(made, plain(), regions=1, enable_cuda_graph=1)
        bound = es.Bound(session, both(3, 4)[0], {"y": ([3, 4], FLOAT)})
        for feed in both(3, 4) * 3:
            np.testing.assert_allclose(bound.run(feed)["y"], on_cpu(made, feed)[0], rtol=1e-5, atol=1e-5)
        (graph,) = onnxruntime_ep_encore.graph_report(session)
        assert graph["replays"] > 5


def test_a_condition_of_shapes_is_the_hosts():
    """As it was: the graph has the branch that was chosen."""
    session = automatic(model(choice("q = Neg(u) p = Tanh(q)", "p = Mul(u, w)")))
    for feed in rows(1, 2) * 3:
        session.run(None, feed)
    assert region_of(session)["captures"] == 2
