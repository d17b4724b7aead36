"""Each stage of `./encore test` says what it would run, whole and in brief; nothing is built or run for it."""

import sys
from itertools import count
from types import SimpleNamespace

import pytest
from encore_session import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import suite

pytestmark = pytest.mark.newest


@pytest.fixture
def stages(monkeypatch):
    """stages(late): those of the whole suite after a run, each with its commands, on a machine that is late or not."""
    ran = []
    for name in ("_format", "_generated", "_demo", "_ctest", "_check_library", "_wheel", "_stream"):
        monkeypatch.setattr(suite, name, lambda *command, name=name: ran.append((name, *map(str, command))) or [])
    monkeypatch.setattr(suite.site_of_docs, "build", lambda: ran.append("site"))
    monkeypatch.setattr(
        suite.env, "build", lambda *targets: ran.append((targets, suite.os.environ.get("NVCC_APPEND_FLAGS")))
    )
    monkeypatch.setattr(suite.env, "setup", lambda: None)
    monkeypatch.setattr(suite.env, "ort_folder", lambda version: version)
    monkeypatch.setattr(suite, "IN_CI", True)
    run_stage = suite._run_stage

    def run_and_keep(stage, *rest):
        run_stage(stage, *rest)
        stage.ran = ran[:]
        ran.clear()

    def make(late):
        summary = []
        monkeypatch.setattr(suite, "time", SimpleNamespace(monotonic=count(0, 6000 if late else 0).__next__))
        monkeypatch.setattr(suite, "_run_stage", run_and_keep)
        monkeypatch.setattr(suite, "_print_summary", lambda stages, seconds: summary.extend(stages))
        assert suite.run() == 0, [stage.outcome for stage in summary]
        return {stage.name: stage for stage in summary}

    return make


def test_each_stage_runs_something_of_its_own(stages):
    ran = [repr(stage.ran) for stage in stages(late=False).values()]
    assert "[]" not in ran and len(set(ran)) == len(ran)


def test_a_late_machine_runs_less_where_a_stage_can_be_brief(stages):
    whole, late = stages(late=False), stages(late=True)
    assert whole.keys() == late.keys()
    assert all(stage.outcome == "passed" for stage in whole.values())
    for name, stage in late.items():
        assert (stage.ran != whole[name].ran) == bool(stage.in_brief), name
        assert stage.outcome == ("passed in brief" if stage.in_brief else "passed")
    assert sum(bool(stage.in_brief) for stage in late.values()) >= 5
