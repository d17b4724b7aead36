"""The same as symptoms.py, of values that are no numbers, or come of such."""

import numpy as np
from compare import has_no_mean
from symptoms import as_of, contents, no_number


def only_nan_is_wanted(finding):
    """The CPU EP has NaN."""
    return np.isnan(finding.wanted) & ~np.isnan(finding.got)


def orders_nan(finding):
    return np.isnan(contents(finding)).any(axis=finding.node.attrs.get("axis", -1), keepdims=True)


def hands_nan_on(finding):
    """What something that is no finite number has a part in, and which is none or should be NaN; places may be any."""
    if finding.node.op in ("ArgMax", "ArgMin"):
        odd = ~np.isfinite(contents(finding))
        return odd.any(axis=finding.node.attrs.get("axis", 0)).reshape(finding.got.shape)
    if finding.got.dtype.kind != "f":
        return no_number(finding)
    return no_number(finding) & (~np.isfinite(finding.got) | np.isnan(finding.wanted))


def clips_by_nan(finding):
    """Numbers of one side and NaN of the other, of a bound that is NaN."""
    bounds = [contents(finding, i) for i in (1, 2) if i < len(finding.node.inputs) and finding.node.inputs[i]]
    bounds += [finding.node.attrs.get(name, 0) for name in ("min", "max")]
    return any(np.isnan(bound).any() for bound in bounds) and np.isnan(finding.wanted) != np.isnan(finding.got)


def has_no_sum(finding):
    """NaN, in rows to be normalized of which the sum is infinite."""
    return np.isnan(finding.got) & has_no_mean(finding.node, finding.arrays)


def chooses_nan(finding):
    """Of Hardmax: ones and zeros of rows in which something is no number."""
    x, axis = contents(finding), finding.node.attrs.get("axis", -1 if finding.case.opset >= 13 else 1)
    axes = axis if finding.case.opset >= 13 else tuple(range(axis % x.ndim, x.ndim))
    return np.isnan(x).any(axis=axes, keepdims=True) & np.isin(finding.got, (0, 1))


def reduces_nan(finding):
    return np.isnan(finding.got) & (finding.node.attrs.get("reduction") in ("max", "min"))


def quantizes_nan(finding):
    """Of DynamicQuantizeLSTM, where the result is that of states of zeros for those that a factor makes NaN."""
    attrs = finding.node.attrs
    factors = {name: attrs.get(name) or [] for name in ("activation_alpha", "activation_beta")}
    if not np.isnan(sum(factors.values(), [])).any():
        return False
    return as_of(finding, **{name: np.nan_to_num(given).tolist() for name, given in factors.items() if given})


def bounds_nan(finding):
    """NaN, of which the activation makes one of its bounds."""
    attrs = finding.node.attrs
    bounds = {"Tanh": (-1, 1), "HardSigmoid": (0, 1), "Clip": attrs.get("activation_params")}
    bounds = bounds.get(attrs.get("activation")) or ()
    return np.isnan(finding.got) & np.isin(finding.wanted, np.array(bounds, finding.wanted.dtype))


def loses_nothing(finding):
    return finding.node.inputs[1].array.size == 0 and np.isnan(finding.got) | np.isnan(finding.wanted)
