"""Rules of all Python tests: in CI a test that skips has failed, since it would be green with nothing run."""

import gc
import os
import re
from pathlib import Path

# Threads of numpy's would wait for work beside the other tests; read when numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The tests of several devices need some; read when the library is loaded.
os.environ.setdefault("ENCORE_VIRTUAL_DEVICES", "2")

import pytest
from encore_session import FREES_LATE, ORT_VERSION

OPERATORS = Path(__file__).parent / "ops"
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def _as_failure(report):
    """Turns a skip's report into a failure that says why it skipped."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {reason}"


# What onnxruntimes before these cannot be asked: their CPU EP, the reference of the operator cases, is wrong there or
# knows less. Encore's own answers are the same under every onnxruntime, and checked under the newest. Found in a test's
# id: file.py::test[case].
TOO_OLD_BEFORE = {
    (1, 26): {
        r"versions\[(.*\b)?26\b|::test_training\[BatchNormalization-26": "an opset that it does not know",
        r"\[AveragePool.*count_include_pad=1": "counts pads beyond those that were given",
        r"test_layer_norm_far_from_zero": "loses the small differences of large values",
        r"test_shapes\[Resize.*\[-1,-2\]": "mixes up axes out of order",
        r"::test_(one|two)_dimensions?\[reflect\]": "pads by reflection further than there is something to reflect",
        r"\[CumProd-26|::test_node\[test_(cumprod|bitcast|swish|tensorscatter)": "operators that are newer",
        r"::test_node\[test_attention_4d_.*(padded_kv|nonpad)": "inputs that Attention has had since opset 24",
        r"::test_versions_of_(global_)?lengths\[26\]|::test_length_versions\[22\]": "an opset that it does not know",
        r"::test_node\[test_(de)?quantizelinear_u?int2": "integers of two bits",
        r"::test_node\[test_dft_irfft|::test_transforms_that_are_none": "one-sided inverse transforms",
        r"recurrent.*::test_(activations|a_default_that|arguments_go_to)": "tells kernels no lists of strings",
        r"dynamic_lstm.*-activations-": "the same",
        r"::test_affine_grids\[.*float64": "computes in float",
        r"::test_deform(_far_away$|\[.*float64)": "has no DeformConv, and onnx's reference knows less",
        r"::test_what_does_not_fit$": "another message",
        r"growing_masks.*\[llama-cache_int8": "attributes of GroupQueryAttention's",
        r"folded_constants.*::test_what_is_wrong_is_so_in_runs": "fails sessions by what it folds itself",
    },
    (1, 27): {
        r"test_special_values\[Erf": "loses NaN",
        r"test_empty_integers\[Reduce(Max|Min)": "has no identity for empty integers",
        r"::test_powers_of_two|FLOAT8E8M0|::test_scales_that_are_powers_of_two": "float8e8m0",
        r"::test_gather\[32-uint8-2-True": "some of two bits",
        r"::test_agrees_with_the_cpu$": "another reading of Attention's masks",
        r"growing_masks.*\[qwen": "attributes of GroupQueryAttention's",
    },
    (1, 28): {
        r"\[QMoE-|moe.*::test_misaligned$|::test_packed_weights|::test_quantized_shapes": "QMoE's newer inputs",
        r"group_query.*::test_what_does_not_fit_fails\[|::test_options\[weights": "GroupQueryAttention's newer inputs",
        r"group_query.*::test_shapes\[.*_norm_": "the same",
    },
    (1, 29): {
        r"\[(MRotaryEmbedding|MatMulBlockQ\w+)-|::test_gated_(rms|add\[)": "an operator that it does not know",
        r"group_query.*::test_positions_out_of_range_fail|block_weights.*::test_floats\[": "the same",
        r"::test_contrib_linear_attention(\[|_refuses_shapes)": "an attribute of LinearAttention's",
        r"::test_nothing_but_minus_infinity": "starts MaxPool from the lowest finite number",
        r"::test_their_defaults": "has others for recurrent activations",
        r"growing_masks.*\[gptoss": "attributes of GroupQueryAttention's",
    },
    (1, 30): {
        r"::test_options_of_pages\[.*(weights|sinks|causal|places|offset)": "PagedAttention's newer inputs",
        r"::test_(float8_pages|pages_of_codes|options_of_pages_of_int4|codes_that|a_byte_of_two)": "the same",
        r"::test_.*latent_rows|::test_(one_graph|what_is_out|pages_that_are)\w+\[.*(int4|latent)": "the same",
        r"::test_hints_are|::test_shapes_that_do_not_fit\[(places|sinks)-": "the same",
        r"::test_options\[causal|::test_a_window_takes_new_keys": "attributes of GroupQueryAttention's",
        r"::test_what_is_declined_is_logged": "PagedAttention's newer inputs",
        r"\[(GatedDeltaNet|Varlen\w+)-|::test_gated_delta|::test_packed_sequences": "an operator that it does not know",
        r"::test_contrib_causal_conv": "attributes of CausalConvWithState's",
        r"::test_linear_attention_gate|::test_gated_add_against": "no kernel for it",
        r"::test_hashes": "an operator that it does not know",
    },
    (1, 31): {
        r"::test_selected_keys": "SparsePagedAttention",
        r"\[(LinearAttention|CausalConvWithState)-27": "an operator that it does not know",
        r"\[(Packed)?SparseAttentionIndexer-|\[DynamicSparseAttention-": "an operator that it does not know",
        r"::test_(indexers|chosen_keys)_refuse|::test_a_rotation_that_begins_behind": "the same",
        r"::test_states_may_be_the_same_memory|::test_what_is_kept_may_lie": "the same",
        r"::test_linear_attention_refuses|::test_causal_conv_refuses": "an operator that it does not know",
        r"contrib_(elementwise.*::test_(scaled_silu|special_values$)|norm.*::test_(branch|p(re|ost)_mix))": "the same",
        r"::test_(packed_hashes|sequences_that_are_none)|contrib_elementwise.*::test_what_does": "the same",
        r"contrib_norm.*::test_(activations|engram)|::test_hashes_(with_opt|where)": "newer inputs and attributes",
        r"\[GatedDeltaNet-.*-gated_delta-\d-1": "wants keys and values apart",
        r"block_weights.*::test_gather_floats": "weights in narrow floats",
        r"\[QMoE-.*-block32-normalize": "an attribute of QMoE's",
        r"::test_(one|two)_dimensions?\[wrap\]": "wraps what a pad has not cropped yet",
        r"properties.*::test_pad\[(reflect|wrap)\]": "the same, and reflects what is cropped",
        r"::test_empty_input\[": "crashes in convolutions of nothing",
        r"::test_antialias_beyond_the_image": "from 1.27 on fails at what lies outside",
    },
    (1, 32): {
        r"group_query.*::test_options\[weights\w*_q_norm_epsilon_": "attributes of GroupQueryAttention's",
        r"\[GatedDeltaNet-.*-(kda|True)[-_]|\[GatedDeltaNet-.*-0111000010-": "GatedDeltaNet's newer gates and changes",
        r"\[Range-.*-vast": "counts them in floating point",
        r"\[Q?MoE-.*-swiglu_li=0\.5-swiglu_li=1-": "attributes of MoE's",
    },
}


def pytest_addoption(parser):
    parser.addoption(
        "--representative",
        action="store_true",
        help="of each test in tests/ops only as many cases as it takes to have each value of each parameter, which for "
        "an operator case is its operator, opset and type; under an older onnxruntime nothing marked with `newest`, "
        "and of operators a case of each test, and one of each operator, opset and type in any",
    )
    parser.addoption(
        "--few",
        action="store_true",
        help="a case of each test, and one of each operator, opset and type in any",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is collected stays, and so tests that collect garbage need not look through all of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    """Before 1.28 onnxruntime frees tensors through what has gone with their session: garbage goes with its test, not
    in the middle of another one, when that memory serves somebody else."""
    done = yield
    if not FREES_LATE:
        gc.collect()
        gc.freeze()  # what is left stays, as what was collected
    return done


def pytest_collection_modifyitems(config, items):
    too_old = [pattern for newer, patterns in TOO_OLD_BEFORE.items() if ORT_VERSION < newer for pattern in patterns]
    _leave_out(config, items, lambda item: any(re.search(pattern, item.nodeid) for pattern in too_old))
    few = config.getoption("few")
    if few or config.getoption("representative"):
        seen = {}
        is_older = ORT_VERSION < max(TOO_OLD_BEFORE)
        whole = lambda item: not few and not item.path.is_relative_to(OPERATORS)
        adds = lambda item: whole(item) or _adds(item, seen, few or is_older)
        _leave_out(config, items, lambda item: is_older and item.get_closest_marker("newest") or not adds(item))


def _leave_out(config, items, unwanted):
    left = [item for item in items if unwanted(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(left)
        items[:] = [item for item in items if item not in gone]


def _adds(item, seen, few):
    """Whether the item has something of which no earlier item of its test had anything, or with `few` no earlier item
    at all had the kernel; `seen` is filled."""
    callspec = getattr(item, "callspec", None)
    if not callspec:
        return True
    test = item.nodeid.partition("[")[0]
    values = {(name, _kind(value)) for name, value in callspec.params.items()}
    if few:
        values = {test} | {kind for _, kind in values if isinstance(kind, tuple)}
    known = seen.setdefault("" if few else test, set())
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
