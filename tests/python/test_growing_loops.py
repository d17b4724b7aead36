"""Loops that data ends, and whose values grow: where there are few iterations a graph has each of them."""

import onnxruntime_ep_encore
import pytest
from test_bodies_in_regions import outside, some
from test_by_data import assert_captured, automatic, check, loop
from test_control_flow_regions import model

pytestmark = pytest.mark.core


def caching(past="[k, m]", present="[l, m]", count="most", makes="", made="", outputs="", **more):
    """Each iteration attends to the rows of all before, which Concat keeps, until data says so."""
    text = loop(
        """q = Concat <axis = 0> (p, a) z = Transpose(q) v = MatMul(a, z) f = Softmax(v) g = MatMul(f, q)
        h = Sigmoid(g) o = Mul(a, h) b = Mul(o, half) t = ReduceMax <keepdims = 0> (b) d = Less(eps, t)""",
        values=f"float[n, m] a, float{past} p",
        begins="u, x",
        makes=f"float[n, m] b, float{present} q{makes}",
        made=f"r, grown{made}",
        count=count,
        **more,
    )
    return text.replace("(float[n, m] y)", f"(float[n, m] y{outputs})")


def refusal(session):
    (why,) = {region["refusal"] for region in onnxruntime_ep_encore.region_report(session)} - {""}
    return why.replace("Concat node '(unnamed, makes q)': ", "")


GROWS = "Loop node '(unnamed, makes r)': the loop's value 'p' begins with shape [3,4] and goes on with [6,4]"
SHRINKING = [{"x": some(3, 4, seed=seed) - seed} for seed in range(5)]


@pytest.mark.parametrize("past, present", [("[k, m]", "[l, m]"), ("[]", "[]")])
def test_a_cache_that_grows(past, present):
    """In a loop of few iterations: a graph has each of them, which runs if the one before says so."""
    session = check(caching(past, present), *SHRINKING)
    assert_captured(session)
    assert onnxruntime_ep_encore.outside_report(session) == []


def test_a_cache_that_grows_beside_what_is_collected():
    text = caching(
        makes=", float[n, m] e, int64 j",
        made=", all, n",
        outputs=", float[k, n, m] all, int64[k] n",
    ).replace("d = Less(eps, t)", "d = Less(eps, t) e = Neg(b) j = Identity(i)")
    session = check(text, *SHRINKING)
    assert_captured(session)
    lengths = {len(session.run(None, feed)[1]) for feed in SHRINKING}
    assert len(lengths) > 1, lengths  # data has decided


def test_caches_that_grow_by_a_count_of_shapes():
    text = caching("[]", "[]", count="k").replace("u = Exp(x)", "u = Exp(x) s = Shape(x) k = Gather(s, one)")
    session = check(text, *SHRINKING, *({"x": some(2, m, seed=m)} for m in (1, 6)))
    assert_captured(session, keys=3)


def test_a_cache_that_does_not_grow_in_the_first_run():
    """Which has no iteration, and tells nothing; the capture that follows does."""
    text = caching("[]", "[]", go="begins", before="high = ReduceMax <keepdims = 0> (x) begins = Less(zero, high)")
    session = check(text, {"x": some(3, 4) - 9}, *SHRINKING, times=5)
    (region,) = (one for one in onnxruntime_ep_encore.region_report(session) if one["refused"])
    assert "the loop's value 'p' begins" in region["refusal"] and region["replays"] > 0, region


def test_a_cache_that_is_read_behind_the_loop():
    """Data says how long it is: bodies have graphs of their own."""
    text = caching("[]", "[]", outputs=", float[] c").replace("y = Abs(r)", "y = Abs(r) c = Neg(grown)")
    assert refusal(check(text, *SHRINKING)) == f"{GROWS}, and is read behind the loop, whose end data decides"


@pytest.mark.parametrize("count", ["", "far"])
def test_a_cache_that_may_grow_long(count):
    """A graph would have the body as often."""
    session = check(caching("[]", "[]", count=count, more=", int64 far = {5000}"), *SHRINKING)
    assert f"{GROWS}, and a graph has the body of such a loop once; a buffer" in refusal(session)
    session = automatic(model(caching(count=count, more=", int64 far = {5000}")))
    (why,) = outside(session, "Loop")
    assert "whose value 'p' may change its shape; a buffer of the most" in why
