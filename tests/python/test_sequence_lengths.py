"""Recurrent layers whose sequences are as long as data says: in regions they read the lengths on the device."""

import encore_session as es
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import numpy_helper
from test_bodies_in_regions import outside, some
from test_by_data import region_of
from test_control_flow import on_cpu
from test_control_flow_regions import model, plain

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FLOAT, INT = np.float32, np.int64


def layer(op, hidden=8, direction="forward", of="Cast <to = 6> (n)", inputs=", int64[b] n", attributes=""):
    """A model with a layer of 4 inputs, whose lengths are `of`."""
    count, gates = 2 if direction == "bidirectional" else 1, GATES[op]
    rng = np.random.default_rng(hidden)
    weights = {
        name: rng.uniform(-0.5, 0.5, shape).astype(FLOAT)
        for name, shape in {
            "w": (count, gates * hidden, 4),
            "r": (count, gates * hidden, hidden),
            "b": (count, 2 * gates * hidden),
        }.items()
    }
    more = ", yc" if op == "LSTM" else ""
    ends = "float[] ends, float[] cells" if more else "float[] ends"
    cells = "cells = Neg(yc)" if more else ""
    text = f"""(float[t, b, 4] x{inputs}) => (float[] y, {ends}) {{ u = Tanh(x) lengths = {of}
        all, yh{more} = {op} <hidden_size = {hidden}, direction = "{direction}"{attributes}> (u, w, r, b, lengths)
        y = Abs(all) ends = Neg(yh) {cells} }}"""
    return model(text, **weights)


def least(op):
    """What older onnxruntimes' CPUs make of an RNN's sequence without steps is what was in memory."""
    return 1 if op == "RNN" and es.ORT_VERSION < (1, 32) else 0


def feeds(*lengths, steps=7):
    return [{"x": some(steps, len(one), 4, seed=seed), "n": INT(one)} for seed, one in enumerate(lengths)]


def check(made, given, keys):
    single, session = (es.make_session(made, plain(), **options) for options in (dict(regions=0), dict(auto_graph=1)))
    assert onnxruntime_ep_encore.outside_report(session) == []
    for _ in range(3):
        for feed in given:
            got = session.run(None, feed)
            for one, wanted, of_cpu in zip(got, single.run(None, feed), on_cpu(made, feed), strict=True):
                np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(one, of_cpu, rtol=1e-5, atol=1e-6)
    region = region_of(session)
    assert (region["keys"], region["refused"]) == (keys, 0) and region["replays"] > 0, region


@pytest.mark.core
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_lengths_come_from_the_device(op, direction):
    """One graph has all of them: full ones, short ones and none."""
    attributes = ", linear_before_reset = 1" if op == "GRU" else ""
    none = least(op)
    given = feeds([7, 3, none], [1, 7, 2], [none, none, none], [7, 7, 7])
    check(layer(op, direction=direction, attributes=attributes), given, 1)


@pytest.mark.parametrize("op", GATES)
def test_other_ways_of_making_steps(op):
    """Of many sequences, and of units that no launch has for all steps."""
    check(layer(op, hidden=6, direction="bidirectional"), feeds([3, least(op), 7], [7, 7, 7]), 1)
    many = np.random.default_rng(0).integers(least(op), 8, (2, 40))
    check(layer(op), feeds(*many), 1)


def test_shapes_change():
    check(layer("GRU"), [*feeds([7, 3]), *feeds([2, 9, 0, 4], steps=9), *feeds([1], steps=1)], 3)


def test_lengths_that_are_an_input():
    made = layer("LSTM", of="Identity(n)", inputs=", int32[b] n")
    given = [{**feed, "n": feed["n"].astype(np.int32)} for feed in feeds([7, 2], [0, 5])]
    check(made, given, 1)


def weights_of(op):
    return {one.name: numpy_helper.to_array(one) for one in layer(op).graph.initializer}


def test_lengths_that_shapes_tell_are_on_the_host():
    """All are as long as there are steps."""
    text = """(float[t, b, 4] x) => (float[] y) <int64 zero = {0}, int64[1] one = {1}> {
        u = Tanh(x) s = Shape(x) k = Gather(s, zero) steps = Cast <to = 6> (k) batch = Gather(s, one)
        lengths = Expand(steps, batch) all, yh = GRU <hidden_size = 8> (u, w, r, b, lengths) y = Abs(all) }"""
    check(model(text, **weights_of("GRU")), [{"x": some(7, 3, 4)}, {"x": some(4, 1, 4)}], 2)


@pytest.mark.core
@pytest.mark.parametrize("bad", [-1, 8])
def test_a_bad_length_fails_the_run(bad):
    """With the name of the node; the next run is a good one."""
    made = layer("GRU")
    session = es.make_session(made, plain(), auto_graph=1)
    good, wrong = feeds([7, 3], [2, bad])
    for _ in range(3):
        np.testing.assert_allclose(session.run(None, good)[0], on_cpu(made, good)[0], rtol=1e-5, atol=1e-6)
        with pytest.raises(Exception, match=rf"GRU node '\(unnamed, makes all\)'.*{bad}"):
            session.run(None, wrong)


def test_a_layer_alone_reads_them_on_the_host():
    text = """(float[t, b, 4] x, int32[b] n) => (float[] y, float[] ends) {
        y, ends = GRU <hidden_size = 8> (x, w, r, b, n) }"""
    session = es.make_session(model(text, **weights_of("GRU")), plain(), auto_graph=1)
    assert "alone" in outside(session, "GRU")[0]
    with pytest.raises(Exception, match="a sequence has length 8; X has 7 steps"):
        session.run(None, {"x": some(7, 2, 4), "n": np.int32([8, 1])})
