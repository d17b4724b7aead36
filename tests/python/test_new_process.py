"""A test's child process that fails says how it ended, and its last words; one that was forked can't use the device."""

import pytest
from encore_session import HAS_GRAPHS, ORT_VERSION, in_new_process, only_if
from onnx import helper

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


# ---- forked processes

FORKED = """
import gc, os, signal, sys
import encore_session as e, numpy as np, onnxruntime as ort
signal.alarm(100)  # whoever hangs
x = np.float32([[-1, 2, -3]])
def make(**options):
    own = ort.SessionOptions()
    own.intra_op_num_threads = 1  # onnxruntime's own threads are not in the child either
    return e.make_session({model!r}, own, **options)
sessions = [make(), make(enable_cuda_graph={graphs})]
value, written = e.on_device(x), e.on_device(x)
def bound(session):
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("y", written)
    session.run_with_iobinding(binding)
for session in sessions:
    for _ in range(4):
        bound(session)
sessions[0].run(None, {{"x": x}})
child = os.fork()
if child == 0:
    signal.alarm(50)
    uses = [make, value.numpy, lambda: e.on_device(x), lambda: value.update_inplace(x)]
    uses += [lambda session=session: bound(session) for session in sessions]
    uses += [lambda: sessions[0].run(None, {{"x": x}})]
    for number, use in enumerate(uses if {used} else ()):
        try:
            use()
        except Exception as error:
            assert "this process was forked" in str(error) and "'spawn'" in str(error), error
        else:
            raise AssertionError(f"use {{number}} works")
    del session, sessions, value, written, uses, bound
    gc.collect()
    {end}
state = os.waitpid(child, 0)[1]
assert os.waitstatus_to_exitcode(state) == 3, state
sessions[0].run(None, {{"x": x}})
"""


def forked(make_model, used, end):
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 3]}, {"y": [1, 3]}).SerializeToString()
    in_new_process(FORKED.format(model=model, graphs=int(HAS_GRAPHS), used=used, end=end))


@only_if(ORT_VERSION < (1, 30))  # later ones hang then by themselves, without Encore too: a thread of theirs logs
def test_a_forked_process_exits(make_model):
    forked(make_model, used=False, end="sys.exit(3)")


@pytest.mark.parametrize("used", [True, False])
def test_a_forked_process_is_told_that_it_cannot_use_the_device(make_model, used):
    """And lets go of its sessions. multiprocessing's end so."""
    forked(make_model, used=used, end="os._exit(3)")
