"""The fuzzer knows every operator, says the same each time, and can find something."""

import compose
import fuzz
import listed
import numpy as np
import pytest
import trial
from encore_session import ORT_VERSION, only_if
from proposals import PROPOSALS

# Composing a case asks the CPU EP, which before 1.30 does not survive some.
needs_a_sturdy_reference = only_if(ORT_VERSION >= (1, 30))


def test_every_operator_has_a_proposal():
    assert not compose.UNKNOWN, "operators of docs/operators.md that nothing in tests/fuzz proposes a node of"


def test_every_proposal_is_of_an_operator():
    assert set(PROPOSALS) <= set(compose.ROWS)


def test_the_page_is_read_whole():
    listed_rows = [line for line in listed.PAGE.read_text().splitlines() if line.startswith(("| ai.onnx", "| com."))]
    assert sum(map(len, compose.ROWS.values())) == len(listed_rows)


@needs_a_sturdy_reference
@pytest.mark.parametrize("number", range(5000, 5040))
def test_a_number_gives_the_same_case(number):
    one, other = compose.compose(number), compose.compose(number)
    assert str(one) == str(other) and one.options == other.options and one.level == other.level
    for a, b in zip(one.feeds() + one.constants(), other.feeds() + other.constants(), strict=True):
        np.testing.assert_array_equal(a.array, b.array)


@needs_a_sturdy_reference
def test_a_wrong_answer_is_found(encore_with_wrong_answers):
    found = [trial.try_case(compose.compose(number)).finding for number in range(200, 260)]
    assert sum(finding is not None and finding.kind == "values" for finding in found) > 10


@pytest.fixture
def encore_with_wrong_answers(monkeypatch):
    def run(session, contents):
        made = right(session, contents)
        return {name: ~array if array.dtype == bool else array + array.dtype.type(3) for name, array in made.items()}

    right = trial._Session.run
    monkeypatch.setattr(trial._Session, "run", run)


@needs_a_sturdy_reference
def test_a_refusal_is_found(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no")

    monkeypatch.setattr(trial.encore_session, "make_session", refuse)
    sound = (case for case in map(compose.compose, range(1000)) if case.nodes and not case.refused)
    # Of some operators no reference is known.
    found = next(finding for finding in (trial.try_case(case).finding for case in sound) if finding)
    assert found.kind == "refused"


CHILD = """
import os, sys
first, count = map(int, sys.argv[2:])
for number in range(first, first + count):
    print("case", number, flush=True)
    print("phase Encore", flush=True)
    if number % 1000 == 7:
        print("terminate called by itself", file=sys.stderr, flush=True)
        os.abort()
    print("nodes 2 3", flush=True)
print("end", flush=True)
"""


def test_a_crash_is_narrowed_down_to_one_case(monkeypatch, tmp_path, capsys):
    (tmp_path / "fuzz.py").write_text(CHILD)
    monkeypatch.setattr(fuzz, "HERE", tmp_path)
    assert fuzz.Campaign(seed=5, seconds=0.5, jobs=1).run() == 1
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0]
        == "python tests/fuzz/fuzz.py --repeat 5000007  # Encore ended with signal 6: terminate called by itself"
    )
    assert any("66.7% of them on Encore" in line for line in lines)
