"""One node on the CPU EP and on Encore, run with many inputs: they agree, or both refuse."""

import numpy as np
import onnxruntime as ort
from encore_session import assert_all_on_encore, on_cpu
from harness import _onnx_type, session
from onnx import helper


class Both:
    """`inputs` are arrays of the types and ranks to come, or None; every dimension is open."""

    def __init__(self, op, inputs, attrs=None, opset=21, outputs=1):
        names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
        node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name="it", **(attrs or {}))
        values = [
            helper.make_tensor_value_info(n, _onnx_type(x.dtype), [f"{n}_{d}" for d in range(x.ndim)])
            for n, x in zip(names, inputs)
            if x is not None
        ]
        results = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
        graph = helper.make_graph([node], "case", values, results)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        quiet = ort.SessionOptions()
        quiet.log_severity_level = 4
        self._cpu = on_cpu(model, quiet)
        self.encore = session(model)
        assert_all_on_encore(self.encore)

    def agree(self, *inputs, rtol=0, atol=0):
        feeds = {f"x{i}": np.asarray(x, order="C") for i, x in enumerate(inputs) if x is not None}
        wanted, refused = _outcome(self._cpu, feeds)
        got, why = _outcome(self.encore, feeds)
        assert bool(why) == bool(refused), f"Encore: {why or got}, the CPU EP: {refused or wanted}"
        if why:
            assert "'it'" in why
            return
        for g, w in zip(got, wanted, strict=True):
            assert g.shape == w.shape and g.dtype == w.dtype
            np.testing.assert_allclose(g, w, rtol=rtol, atol=atol)


def _quiet():
    options = ort.RunOptions()
    options.log_severity_level = 4
    return options


def _outcome(sess, feeds):
    try:
        return sess.run(None, feeds, _quiet()), None
    except Exception as error:
        return None, str(error)
