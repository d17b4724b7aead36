"""Models that onnxruntime takes apart, by control flow or by sizes that depend on data: each part of them is replayed
(auto_graph), run by run, with inputs that change."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import helper, numpy_helper
from pieces import (
    CAPACITY,
    FLOAT,
    HEADS,
    INT,
    WIDTH,
    decoder,
    detector,
    exported,
    fixed,
    grown,
    shared,
    some,
    voice_activity,
)
from test_bodies_in_regions import HANDS_ON
from test_control_flow import on_cpu
from test_regions import regions

pytestmark = pytest.mark.core


def check(made, feeds, pieces):
    """Answers as the CPU's, run by run; by piece, how often it was replayed."""
    single, session = (es.make_session(made, regions=on, auto_graph=on) for on in (0, 1))
    held = [onnxruntime_ep_encore.memory_report(one)["arena"]["in_use_bytes"] for one in (single, session)]
    assert held[1] <= 1.05 * held[0]
    assert len(regions(session)) == pieces
    for feed in feeds:
        for got, wanted in zip(session.run(None, feed), on_cpu(made, feed), strict=True):
            assert got.shape == wanted.shape and got.dtype == wanted.dtype
            if got.dtype == FLOAT:
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
            else:
                np.testing.assert_array_equal(got, wanted)
    report = onnxruntime_ep_encore.region_report(session)
    assert len(report) == pieces and not any(region["refusal"] for region in report), report
    return sorted(region["replays"] for region in report)


def test_a_detector(encore):
    feeds = [
        {"picture": some(1, 3, *size, seed=seed), "threshold": FLOAT([0.3 + seed / 20])}
        for seed in range(5)
        for size in ((24, 32), (16, 16))
    ]
    replays = check(detector(), feeds, 3)
    assert replays[-1] >= 5  # of what is before; how much is kept is another number each time


def test_voice_activity(encore):
    made = voice_activity()
    session, state = es.make_session(made, auto_graph=1), np.zeros((2, 1, 16), FLOAT)
    for run in range(16):
        rate = (16000, 8000)[run % 3 == 0]
        feed = {"x": some(1, rate // 50, seed=run), "state": state, "rate": np.array(rate)}
        got, wanted = session.run(None, feed), on_cpu(made, feed)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        state = got[1]
    report = onnxruntime_ep_encore.region_report(session)
    # One has both networks, between which the device decides; before onnxruntime 1.28 it lacks what only these read.
    assert sorted(region["replays"] for region in report) == ([12] if HANDS_ON else [4, 8]), report


TOKENS = ((20, 3), (20, 7), (9, 11), (20, 3), (20, 30), (0, 5), (1, 5))


def past(room):
    return np.zeros((1, HEADS, room, WIDTH // HEADS), FLOAT)


def test_greedy_decoding_with_a_cache_that_grows(encore):
    """onnxruntime runs the loop, whose body is replayed."""
    feeds = [{"k": np.array(k), "first": INT([[first]]), "past": past(0)} for k, first in TOKENS if k]
    assert min(check(decoder(grown), feeds, 1)) >= 20


@pytest.mark.parametrize("cache", [shared, fixed])
def test_greedy_decoding_into_a_cache_that_has_room(encore, cache):
    """Data ends it, and a graph has all iterations and their tokens. How many keys there are only the device knows."""
    made = decoder(cache)
    session = es.make_session(made, auto_graph=1)
    assert onnxruntime_ep_encore.outside_report(session) == []
    for k, first in TOKENS * 2:
        feed = {"k": np.array(k), "first": INT([[first]]), "past": past(CAPACITY)}
        for got, wanted in zip(session.run(None, feed), on_cpu(made, feed), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    whole = min(onnxruntime_ep_encore.region_report(session), key=lambda region: region["nodes"])
    assert (whole["nodes"], whole["refused"], whole["eager"]) == (1, 0, 0), whole
    assert whole["replays"] > 8, whole


def test_a_cache_without_room(encore):
    session = es.make_session(decoder(shared), auto_graph=1)
    for _ in range(3):
        with pytest.raises(Exception, match=r"GroupQueryAttention node '\(unnamed, makes mixed0\)'.* 24"):
            session.run(None, {"k": np.array(40), "first": INT([[3]]), "past": past(CAPACITY)})
        session.run(None, {"k": np.array(20), "first": INT([[3]]), "past": past(CAPACITY)})


@pytest.mark.parametrize("positions", [CAPACITY, CAPACITY - 1])
def test_angles_for_all_of_a_cache(encore, positions):
    """Where there may be too few, the host has to know how many keys there are."""
    made = decoder(shared)
    made.graph.initializer.extend(
        numpy_helper.from_array(some(positions, WIDTH // HEADS // 2, seed=seed), name)
        for seed, name in enumerate(("cosines", "sines"))
    )
    for node in made.graph.node[0].attribute[0].g.node:
        if node.op_type == "GroupQueryAttention":
            node.input.extend(["cosines", "sines"])
            node.attribute.append(helper.make_attribute("do_rotary", 1))
    session = es.make_session(made, auto_graph=1)
    why = [one["why"] for one in onnxruntime_ep_encore.outside_report(session) if one["node"].startswith("Loop")]
    assert len(why) == (positions < CAPACITY), why
    for k, first in TOKENS * 2:
        feed = {"k": np.array(k), "first": INT([[first]]), "past": past(CAPACITY)}
        for got, wanted in zip(session.run(None, feed), on_cpu(made, feed), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_an_older_export_with_dynamic_axes(encore):
    feeds = []
    for seed in range(5):
        for n, length in ((1, 7), (3, 4), (2, 1)):
            mask = np.ones((n, length), INT)
            mask[-1, length // 2 + 1 :] = 0
            feeds.append({"x": some(n, length, 32, seed=seed), "mask": mask})
    assert check(exported(), feeds, 1)[0] >= 8
    es.assert_all_on_encore(es.make_session(exported(), regions=1))
