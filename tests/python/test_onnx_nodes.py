"""ONNX's own node tests, for every operator that Encore lists: all nodes on Encore, no fallback."""

import re
import warnings
from pathlib import Path

import encore_session as es
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.backend.test import loader

ROOT = Path(__file__).resolve().parents[2]
NEWEST_OPSET = 26  # the newest that onnxruntime 1.31 calls released; later tests are tried as this one
OLDEST_HOST_OPSET = 23  # of onnxruntime 1.24

# Not Encore's to pass, each with the reason.
EXCLUDED = {
    r"_expanded": "the function body of another test, made of many small nodes",
    r"^test_training_dropout(?!.*zero_ratio)": "the numbers of another random generator",
    r"_(string|str)(_|$)|strings|_STRING": "strings",
    r"(?i)u?int[24]|float4|float8e8m0|fnuz": "types that Encore does not have",
    r"^test_identity_(opt|sequence)|sequence|optional": "sequences and optionals",
    r"^test_cast_no_saturate": "casts to float8 that do not saturate",
    r"^test_resize_.*antialias": "declined with a reason: antialias",
    r"^test_resize_downsample_scales_(linear|cubic)_align_corners": "onnxruntime's CPU EP gives Encore's result too",
    r"^test_mod_.*fmod_0": "floats without fmod, new in an opset that no onnxruntime has released",
    r"^test_scan_sum$": "Scan of version 8, of which onnxruntime lets no plugin make a kernel",
    r"^test_(if_seq|if_opt|loop13_seq|loop16_seq_none)$": "sequences and optionals as values of If and Loop",
    r"^test_constant$": "becomes an initializer: no node is left",
}
# For tests with one of these, all nodes but those may be elsewhere: their bodies hold shape arithmetic, and conditions.
CONTROL_FLOW = {"If", "Loop", "Scan"}


def listed():
    """Operators of docs/operators.md: {name: [(first, last), ...]} of ai.onnx."""
    found = {}
    for line in (ROOT / "docs" / "operators.md").read_text().splitlines():
        if match := re.match(r"\| ai\.onnx \| (\w+) \| (\d+)(?:–(\d+))?", line):
            found.setdefault(match[1], []).append((int(match[2]), int(match[3] or match[2])))
    assert found, "docs/operators.md lists no operators"
    return found


def has_numpy_types(case):
    """Whether the test's values can be handed to onnxruntime as arrays. The others' types are covered by tests/ops."""
    return all(
        isinstance(v, np.ndarray) and v.dtype.kind in "fiub" and v.dtype.isbuiltin == 1
        for d in case.data_sets
        for side in d
        for v in side
    )


def cases():
    operators = listed()
    with warnings.catch_warnings():  # the tests' own arithmetic warns
        warnings.simplefilter("ignore")
        found = loader.load_model_tests(kind="node")
    for case in found:
        used = {n.domain + n.op_type for n in case.model.graph.node}
        excluded = [p for p in EXCLUDED if re.search(p, case.name) and not (p == "_expanded" and used & CONTROL_FLOW)]
        if not excluded and has_numpy_types(case) and (used & CONTROL_FLOW or used <= set(operators)):
            yield pytest.param(case, id=case.name)


@pytest.mark.parametrize("case", list(cases()))
def test_node(case):
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for opset in model.opset_import:
        opset.version = min(opset.version, NEWEST_OPSET if es.ORT_VERSION >= (1, 31) else OLDEST_HOST_OPSET)
    model.ir_version = min(model.ir_version, 10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = es.make_session(model, options)
    if any(n.op_type in CONTROL_FLOW for n in model.graph.node):
        assert not CONTROL_FLOW & set(es.nodes_on(session).get("CPUExecutionProvider", []))
    else:
        es.assert_all_on_encore(session)
    for given, wanted in case.data_sets:
        feeds = {item.name: value for item, value in zip(session.get_inputs(), given, strict=True)}
        for got, want in zip(session.run(None, feeds), wanted, strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape
            if want.dtype.kind == "f":
                np.testing.assert_allclose(got, want, rtol=max(case.rtol, 1e-5), atol=max(case.atol, 1e-6))
            else:
                np.testing.assert_array_equal(got, want)
