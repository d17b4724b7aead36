"""Rules of all Python tests: in CI a test that skips has failed, since it would be green with nothing run."""

import os

import pytest

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def _as_failure(report):
    """Turns a skip's report into a failure that says why it skipped."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    _as_failure(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    report = yield
    _as_failure(report)
    return report
