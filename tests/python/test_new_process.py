"""A test's child process that fails says how it ended, and its last words."""

import pytest
from encore_session import in_new_process

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    "end, said",
    [
        ("sys.exit(3)", "the process exited with 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process was ended by SIGKILL"),
        ("os.abort()", "(?s)the process was ended by SIGABRT.*Fatal Python error: Aborted"),
    ],
)
def test_how_a_process_ended_is_said(end, said):
    code = (
        f"import os, signal, sys\nprint(*range(100), sep='\\n', flush=True)\nsys.stderr.write('last words\\n')\n{end}"
    )
    with pytest.raises(AssertionError, match=said) as caught:
        in_new_process(code)
    words = str(caught.value).splitlines()
    assert "last words" in words
    assert "... 40 lines before" in words and "39" not in words and words.index("40") < words.index("99")


def test_long_code_reaches_a_process_that_imports_onnxruntime():
    assert in_new_process(f"import onnxruntime; print(len({'x' * 60000!r}))").stdout.split() == ["60000"]
