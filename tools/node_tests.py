"""Prints docs/onnx-node-tests.md, of a run of tests/python/test_onnx_nodes.py with the library in $ENCORE_LIBRARY."""

import collections
import contextlib
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1] / "tests" / "python" / "test_onnx_nodes.py"

HEAD = """\
# ONNX's node tests that Encore does not pass alone

ONNX {onnx} has {count} node tests, function bodies not counted. Encore passes {passed} of them with every node on the
device. These are the others, by what keeps them from it; what Encore does not take, onnxruntime's CPU EP runs, if it
can. `tests/python/test_onnx_nodes.py` fails where this page is wrong, and `./encore docs` writes it.

| Reason | Tests |
|---|---|
"""


class Results:
    """A plugin of pytest's, which collects what test_alone records."""

    def __init__(self):
        self.why, self.failed = {}, []

    def pytest_runtest_logreport(self, report):
        if report.when != "call":
            return
        recorded = dict(report.user_properties)
        if "why" in recorded:
            self.why[report.nodeid.partition("[")[2].rstrip("]")] = recorded["why"]
        elif report.failed:
            self.failed.append(report.nodeid)


def main(arguments):
    import onnx

    results = Results()
    with contextlib.redirect_stdout(sys.stderr):
        pytest.main(["-q", "--tb=no", "-r", "N", "-k", "test_alone", *arguments, str(TESTS)], plugins=[results])
    if results.failed or not results.why:
        return f"not written, because these fail: {' '.join(results.failed) or 'all'}"
    by_reason = collections.defaultdict(list)
    for name, why in results.why.items():
        by_reason[why].append(name)
    passed = len(by_reason.pop("", []))
    print(HEAD.format(count=len(results.why), passed=passed, onnx=onnx.__version__), end="")
    for why, names in sorted(by_reason.items()):
        print(f"| {why} | {' '.join(f'`{name}`' for name in sorted(names))} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
