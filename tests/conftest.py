"""Rules of all Python tests: in CI a test that skips has failed, since it would be green with nothing run."""

import os
import re
from pathlib import Path

import onnxruntime
import pytest

# The tests of several devices need some; read when the library is loaded.
os.environ.setdefault("ENCORE_VIRTUAL_DEVICES", "2")

OPERATORS = Path(__file__).parent / "ops"
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def _as_failure(report):
    """Turns a skip's report into a failure that says why it skipped."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {reason}"


# What onnxruntimes before these cannot be asked: their CPU EP, the reference of the operator cases, is wrong there or
# knows less. Encore's own answers are the same under every onnxruntime, and checked under the newest.
TOO_OLD_BEFORE = {
    (1, 26): {
        r"versions\[(.*\b)?26\b|^test_training\[BatchNormalization-26": "an opset that it does not know",
        r"\[AveragePool.*count_include_pad=1": "counts pads beyond those that were given",
        r"test_special_values\[Erf": "loses NaN",
        r"test_nothing_but_minus_infinity": "starts MaxPool from the lowest finite number",
        r"test_layer_norm_far_from_zero": "loses the small differences of large values",
        r"test_empty_integers\[Reduce(Max|Min)": "has no identity for empty integers",
        r"test_shapes\[Resize.*\[-1,-2\]": "mixes up axes out of order",
        r"^test_(one|two)_dimensions?\[reflect\]": "pads by reflection further than there is something to reflect",
        r"\[CumProd-26|^test_node\[test_(cumprod|bitcast|swish|tensorscatter)": "operators that are newer",
        r"^test_node\[test_attention_4d_.*(padded_kv|nonpad)": "inputs that Attention has had since opset 24",
        r"^test_versions_of_(global_)?lengths\[26\]|^test_length_versions\[22\]": "an opset that it does not know",
        r"^test_powers_of_two|FLOAT8E8M0|^test_scales_that_are_powers_of_two": "float8e8m0",
        r"^test_node\[test_(de)?quantizelinear_u?int2": "integers of two bits",
        r"^test_node\[test_dft_irfft|^test_transforms_that_are_none": "one-sided inverse transforms",
        r"^test_(activations|their_defaults|a_default_that|arguments_go_to)": "tells kernels no lists of strings",
        r"^test_agrees_with_the_cpu$": "another reading of Attention's masks",
        r"^test_affine_grids\[.*float64": "computes in float",
        r"^test_deform(_far_away$|\[.*float64)": "has no DeformConv, and onnx's reference knows less",
        r"^test_what_does_not_fit$": "another message",
        r"\[(MRotaryEmbedding|GatedDeltaNet|Varlen\w+|MatMulBlockQuantized\w+)-": "an operator that it does not know",
        r"^test_(gated_(add|rms|delta)|linear_attention_gate|scaled_silu|engram|branch|p(re|ost)_mix)": "the same",
        r"^test_((packed_)?hashes|sequences_that_are_none|packed_sequences|contrib_(linear|causal))": "the same",
        r"^test_special_values$|^test_positions_out_of_range_fail": "the same",
        r"\[QMoE-|^test_misaligned$|^test_packed_weights_that|^test_quantized_shapes": "inputs that QMoE has had since",
        r"^test_what_does_not_fit_fails\[-|^test_options\[(causal|weights)": "GroupQueryAttention's newer inputs",
        r"^test_(gather_)?floats\[|^test_gather\[32-uint8-2-True": "weights in narrow floats, and some of two bits",
    },
    (1, 30): {
        r"^test_options_of_pages\[.*(weights|sinks|causal|places|offset)": "PagedAttention's newer inputs",
        r"^test_(int|float)8_pages|^test_hints_are|^test_shapes_that_do_not_fit\[(places|sinks)-": "the same",
    },
    (1, 31): {
        r"^test_selected_keys": "SparsePagedAttention",
        r"\[(LinearAttention|CausalConvWithState)-27": "an operator that it does not know",
        r"\[(Packed)?SparseAttentionIndexer-|\[DynamicSparseAttention-": "an operator that it does not know",
        r"^test_(indexers|chosen_keys)_refuse": "the same",
        r"^test_states_may_be_the_same_memory|^test_what_is_kept_may_lie": "the same",
        r"^test_linear_attention_refuses|^test_causal_conv_refuses": "an operator that it does not know",
        r"^test_(one|two)_dimensions?\[wrap\]": "wraps what a pad has not cropped yet",
        r"^test_empty_input\[": "crashes in convolutions of nothing",
    },
}


def pytest_addoption(parser):
    parser.addoption(
        "--representative",
        action="store_true",
        help="of each test in tests/ops only as many cases as it takes to have each value of each parameter, which for "
        "an operator case is its operator, opset and type; and nothing that is marked with `newest`",
    )


def pytest_collection_modifyitems(config, items):
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    too_old = [pattern for newer, patterns in TOO_OLD_BEFORE.items() if version < newer for pattern in patterns]
    _leave_out(config, items, lambda item: any(re.search(pattern, item.name) for pattern in too_old))
    if config.getoption("representative"):
        seen = {}
        adds = lambda item: not item.path.is_relative_to(OPERATORS) or _adds(item, seen)
        _leave_out(config, items, lambda item: item.get_closest_marker("newest") or not adds(item))


def _leave_out(config, items, unwanted):
    left = [item for item in items if unwanted(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(left)
        items[:] = [item for item in items if item not in gone]


def _adds(item, seen):
    """Whether the item has something of which no earlier item of its test had anything; `seen` is filled."""
    callspec = getattr(item, "callspec", None)
    if not callspec:
        return True
    known = seen.setdefault(item.nodeid.partition("[")[0], set())
    values = {(name, _kind(value)) for name, value in callspec.params.items()}
    adds = not values <= known
    known |= values
    return adds


def _kind(value):
    """What stands for a parameter's value: the object, which all items share; for operator cases what kernel runs."""
    kind = [getattr(value, name, None) for name in ("op", "domain", "opset", "dtype", "channels_last")]
    return id(value) if None in kind else tuple(kind)


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
