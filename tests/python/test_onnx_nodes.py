"""ONNX's own node tests.

Encore passes them alone, but for those that docs/onnx-node-tests.md lists with the reason: no other, and each of these.
Of a function's body, which ONNX has as tests of their own, the CPU may have what is shape arithmetic and what Encore
lacks: the log has to say so.
"""

import re
import warnings
from pathlib import Path

import encore_session as es
import numpy as np
import onnx
import onnx_values
import onnxruntime as ort
import pytest
from onnx.backend.test import loader

ROOT = Path(__file__).resolve().parents[2]
IS_NEWEST = es.ORT_VERSION >= (1, 32)  # the one of which the page tells
PAGE = ROOT / "docs" / "onnx-node-tests.md"

# What random generators make, which may be ONNX's result by chance.
RANDOM = {
    r"^test_training_dropout(?!.*zero_ratio)": "the numbers of another random generator",
    r"^test_bernoulli": "random",
}
# What gives another result than ONNX's, each with the reason.
DIFFERENT = {
    **RANDOM,
    r"^test_resize_downsample_scales_(linear|cubic)_align_corners": "onnxruntime's CPU EP gives Encore's result too",
    r"^test_maxunpool_export_with_output_shape$": "onnxruntime's CPU EP gives Encore's result too",
}
# Not Encore's to pass, each with the reason.
EXCLUDED = {
    **DIFFERENT,
    r"^test_attention_.*_bf16_expanded": "operators that Encore lacks, and the CPU EP has them not for bfloat16",
}
if es.NEWEST_OPSET >= 28:
    EXCLUDED[r"^test_optional_(get|has)_element"] = "the CPU EP has no kernel of opset 28's version"
else:
    EXCLUDED[r"^test_mod_.*fmod_0"] = "floats without fmod, which are new in opset 28"
    EXCLUDED[r"^test_(compress|reversesequence|unique|onehot_with|celu|einsum_\w+)_b?float16"] = (
        "types that are new in it"
    )
    EXCLUDED[r"^test_swiglu"] = "an operator that is new in it"
    EXCLUDED[r"^test_bitshift_(left|right)_int"] = "types that are new in it"
    EXCLUDED[r"^test_spacetodepth_(dcr|crd)_mode_example$"] = "an attribute that is new in it"
    EXCLUDED[r"^test_attention_(?!.*_expanded).*_window"] = "an attribute that this onnxruntime's schema lacks"
if es.NEWEST_OPSET < 27:
    EXCLUDED[r"INT2|e8m0"] = "types that are newer than this onnxruntime"
    EXCLUDED[r"^test_range_b?float16_"] = "types that are new in opset 27"
    EXCLUDED[r"^test_(linear_attention|causal_conv)"] = "operators that are new in opset 27"
CONTROL_FLOW = {"If", "Loop", "Scan"}

# Why a node may be on the CPU: in any test, and in a function's body or that of a control flow.
TYPES = r"(in|out)put \d+ (is not known to be a tensor|has type string)"
ANYWHERE = [TYPES, r"antialias is set"]
IN_BODIES = [
    r"shape arithmetic; it stays on the CPU",
    r"Encore has no kernel for",
    r"onnxruntime puts a value in one place",
    r"no node of its body is on Encore",
]


def listed():
    """Operators of docs/operators.md: {name: [(first, last), ...]} of ai.onnx."""
    found = {}
    for line in (ROOT / "docs" / "operators.md").read_text().splitlines():
        if match := re.match(r"\| ai\.onnx \| (\w+) \| (\d+)(?:–(\d+))?", line):
            found.setdefault(match[1], []).append((int(match[2]), int(match[3] or match[2])))
    assert found, "docs/operators.md lists no operators"
    return found


def listed_tests():
    """The page's: {name: why Encore does not pass it alone}."""
    rows = (re.fullmatch(r"\| (.*) \| (.*) \|", line) for line in PAGE.read_text().splitlines())
    return {name: row[1] for row in rows if row for name in re.findall(r"test_\w+", row[2])}


def operators(case):
    return {node.domain + node.op_type for node in case.model.graph.node}


def has_body(case):
    return "_expanded" in case.name or bool(operators(case) & CONTROL_FLOW)


with warnings.catch_warnings():  # the tests' own arithmetic warns
    warnings.simplefilter("ignore")
    CASES = loader.load_model_tests(kind="node")
LISTED = listed_tests()


def is_single(case):
    """Whether the page tells of it."""
    return "_expanded" not in case.name


def cases():
    """Those which need the CPU, but not for an operator that Encore lacks."""
    known = set(listed())
    for case in CASES:
        excluded = any(re.search(pattern, case.name) for pattern in EXCLUDED)
        on_its_own = IS_NEWEST and is_single(case) and case.name not in LISTED
        if not (excluded or on_its_own) and (has_body(case) or operators(case) <= known):
            yield pytest.param(case, id=case.name)


def compare(got, want, case):
    if isinstance(want, list):
        for one, other in zip(got, want, strict=True):
            compare(one, other, case)
        return
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.dtype.kind == "f":
        rounding = 2e-3 if want.dtype == np.float16 else 1e-5
        # A Fourier transform's sums cancel to nothing but the rounding of what they add up.
        summed = 1e-7 * np.abs(want).max(initial=0) if re.match("test_(dft|stft)", case.name) else 0
        np.testing.assert_allclose(got, want, rtol=max(case.rtol, rounding), atol=max(case.atol, 1e-6, summed))
    elif onnx_values.is_numpys(want):
        np.testing.assert_array_equal(got, want)
    elif want.dtype.name == "bfloat16" and not case.name.startswith("test_cast"):
        rounded = dict(rtol=1.6e-2, atol=1e-3)  # two roundings
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), **rounded)
    else:  # numpy's assertions don't know the type
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def assert_the_rest_has_a_reason(session, case, said):
    allowed = "|".join(ANYWHERE + (IN_BODIES if has_body(case) else []))
    reasons = re.findall(r"(\w+) node '.*?' is not on Encore: (.*)", said)
    for op, why in reasons:
        assert re.search(allowed, why), f"{op} is not on Encore: {why}"
    assert set(es.nodes_on(session).get("CPUExecutionProvider", [])) <= {op for op, _ in reasons}


def make_session(case):
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for opset in model.opset_import:
        opset.version = min(opset.version, es.NEWEST_OPSET)
    model.ir_version = min(model.ir_version, 10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return es.make_session(model, options, log_placement=1)


def check(session, case):
    for given, wanted in [map(onnx_values.plain, map(list, sides)) for sides in case.data_sets]:
        feeds = {item.name: value for item, value in zip(session.get_inputs(), given, strict=True)}
        for got, want in zip(onnx_values.run(session, feeds, wanted), wanted, strict=True):
            compare(got, want, case)


@pytest.mark.parametrize("case", list(cases()))
def test_node(case, capfd):
    session = make_session(case)
    assert_the_rest_has_a_reason(session, case, capfd.readouterr().err)
    check(session, case)


REFUSALS = es.capi.Fail, es.capi.InvalidGraph, es.capi.NotImplemented, es.capi.RuntimeException


def why_not_alone(case, capfd):
    """Empty if Encore passes the test alone."""
    session = error = None
    try:
        session = make_session(case)
    except REFUSALS as raised:
        error = str(raised)
    said = capfd.readouterr().err
    reasons = {said_shortly(op, why) for op, why in re.findall(r"(\w+) node '.*?' is not on Encore: (.*)", said)}
    if reasons:
        return "; ".join(sorted(reason for reason in reasons if "shape arithmetic" not in reason) or sorted(reasons))
    if error:
        return f"onnxruntime: {re.split(' : |, Error ', error)[-1].splitlines()[0]}"
    assert set(es.nodes_on(session)) <= {es.EP_NAME}, "nodes are elsewhere, and nobody says why"
    try:
        check(session, case)
    except AssertionError:
        if different := reason_in(DIFFERENT, case):
            return different
        raise
    return reason_in(RANDOM, case)


def reason_in(reasons, case):
    return next((why for pattern, why in reasons.items() if re.search(pattern, case.name)), "")


def said_shortly(op, why):
    """A reason of the log, with what the page can do without left out."""
    why = re.sub(r"; supported: .*|\x1b\[\w*", "", why)
    return (
        f"no kernel for {missing[1]}"
        if (missing := re.fullmatch("Encore has no kernel for (.*)", why))
        else f"{op}: {why}"
    )


@es.only_if(IS_NEWEST)
@pytest.mark.newest
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if is_single(case)])
def test_alone(case, capfd, record_property):
    why = why_not_alone(case, capfd)
    record_property("why", why)  # tools/node_tests.py writes the page of these
    assert why == LISTED.get(case.name, ""), f"{PAGE.name} says otherwise; `./encore docs` writes it"
