"""Runs whose outputs lie where inputs do."""

from pathlib import Path

import numpy as np
import pytest
from encore_session import EAGER, HAS_GRAPHS, assert_all_on_encore, in_new_process, on_device, run_options
from harness import _Model, bind_at, session


def check_in_place(case, shared):
    """`shared`: of some outputs the inputs that they share memory with. Against a run in which none do."""
    model = _Model(case, case.dtype)
    options = {"enable_cuda_graph": 1, "min_num_runs_before_cuda_graph_capture": 1} if HAS_GRAPHS else {}
    sess = session(model.model, **options)
    assert_all_on_encore(sess)
    wanted = dict(zip(model.outputs, sess.run(model.outputs, model.feeds, run_options(EAGER))))
    binding = sess.io_binding()
    values = {name: on_device(value) for name, value in model.feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in model.outputs:
        at = shared.get(int(name[1:]))
        values[name] = on_device(np.zeros_like(wanted[name])) if at is None else values[f"x{at}"]
        binding.bind_ortvalue_output(name, values[name])
    for when in ("eager", "captured", "replayed") if HAS_GRAPHS else ("eager",):
        for name, value in model.feeds.items():
            values[name].update_inplace(value)
        sess.run_with_iobinding(binding, run_options(EAGER if when == "eager" else None))
        if when == "captured":  # by several runs, of which each goes on from what the one before left
            continue
        for name in model.outputs:
            np.testing.assert_array_equal(values[name].numpy(), wanted[name], err_msg=f"{when}: {name}")


def check_in_order(order, module, function):
    """Calls the module's function where the virtual GPU runs a launch's threads in that order."""
    code = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport {module}\n{module}.{function}()\n"
    in_new_process(code, ENCORE_VIRTUAL_ORDER=order)


def check_refused(case, shared, words):
    """A run is refused whose outputs begin where those inputs do, which are smaller."""
    model = _Model(case, case.dtype)
    sess = session(model.model)
    assert_all_on_encore(sess)
    wanted = dict(zip(model.outputs, sess.run(model.outputs, model.feeds, run_options(EAGER))))
    values = {name: on_device(value) for name, value in (model.feeds | wanted).items()}
    sess = session(model.model)  # as a first run: an automatic graph may have copies of both
    binding = sess.io_binding()
    for name in model.feeds:
        binding.bind_ortvalue_input(name, values[name])
    for output, name in ((f"y{o}", f"x{i}") for o, i in shared.items()):
        bind_at(binding, name, model.feeds[name], values[output].data_ptr())
    for name in wanted:
        binding.bind_ortvalue_output(name, values[name])
    with pytest.raises(Exception, match=words):
        sess.run_with_iobinding(binding, run_options(EAGER))
