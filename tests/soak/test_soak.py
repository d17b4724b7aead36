"""The soak passes for a moment, and finds what is planted."""

import argparse

import pytest
import soak

MIX = soak.parse_mix(soak.MIX)
GROWTH = 256 << 20


def test_it_passes(capsys):
    assert soak.soak(3, 4, 1, MIX, ["graphs", "eager", "automatic", "unified"], GROWTH) == 0, capsys.readouterr().out


def test_each_action_is_tried_however_slow_the_machine(capsys):
    assert soak.soak(0, 1, 1, MIX, ["graphs", "unified"], GROWTH) == 0, capsys.readouterr().out


def test_a_wrong_answer_is_an_error(monkeypatch, capsys):
    right = soak.Model.check

    def check(model, y, x, i):
        right(model, y + (0.01 if len(x) == 5 else 0), x, i)  # what a session that is opened is asked

    monkeypatch.setattr(soak.Model, "check", check)
    assert soak.soak(2, 2, 1, {"open": 1, "plain": 1}, ["eager"], GROWTH) > 0
    assert "ERROR open: AssertionError" in capsys.readouterr().out


def test_growth_is_an_error(monkeypatch, capsys):
    sizes = iter([0, GROWTH + 1])
    monkeypatch.setattr(soak, "host_bytes", lambda: next(sizes))
    assert soak.soak(1, 1, 1, {"plain": 1}, ["eager"], GROWTH) == 1
    assert "ERROR host memory: MemoryError: has grown by 256 MiB" in capsys.readouterr().out


def test_an_unknown_action_is_named():
    with pytest.raises(argparse.ArgumentTypeError, match="'grahp=8' is no ACTION=WEIGHT; actions are graph, fault"):
        soak.parse_mix("grahp=8")
