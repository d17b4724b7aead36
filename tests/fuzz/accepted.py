"""Where Encore and the CPU EP may differ, each with the reason: of one operator, and as narrow as can be."""

import dataclasses
from collections.abc import Callable

import numpy as np
from element_types import FLOATS, INTEGERS, NUMPY

REFUSED, SERVED, VALUES, SHAPE = "refused", "served", "values", "shape"


@dataclasses.dataclass
class Accepted:
    operators: str
    kind: str
    reason: str
    when: Callable = lambda finding: True


def _reads(finding):
    """The contents of the node's inputs; None for one that is absent."""
    return [finding.arrays.get(value.name) if value is not None else None for value in finding.node.inputs]


def _wrong(finding):
    """What was got and wanted, of the first output whose values differ."""
    for value, wanted in zip(finding.node.makes(), finding.wanted):
        got = finding.arrays[value.name]
        if got.shape == wanted.shape and not np.array_equal(got, wanted, equal_nan=got.dtype.kind == "f"):
            return got, wanted
    return None


def has_nan(finding):
    return any(array is not None and array.dtype.kind == "f" and np.isnan(array).any() for array in _reads(finding))


def of_type(*names):
    return lambda finding: finding.node.inputs[0].type in names


def within(relative):
    """Of doubles, beyond the tolerance but no more than so far."""

    def near(finding):
        got, wanted = _wrong(finding)
        return of_type("double")(finding) and np.allclose(got, wanted, relative, relative, equal_nan=True)

    return near


def by_one(finding):
    """Integers that an interpolation rounds."""
    got, wanted = _wrong(finding)
    return got.dtype.kind in "iu" and np.abs(got.astype(np.int64) - wanted.astype(np.int64)).max() == 1


def is_empty(finding):
    return finding.node.inputs[0].array.size == 0


def out_of_range(finding):
    """Of floats: each that differs is beyond the integers that it is to become."""
    got, wanted = _wrong(finding)
    source, kind = _reads(finding)[0], finding.node.makes()[0].type
    if kind not in INTEGERS or finding.node.inputs[0].type in INTEGERS:
        return False
    info = np.iinfo(NUMPY[kind])
    inside = (source > float(info.min) - 1) & (source < float(info.max) + 1)
    return not (inside & (got != wanted)).any()


def sum_overflows(finding):
    array = _reads(finding)[0]
    if array.dtype.kind != "i":
        return False
    with np.errstate(all="ignore"):
        return np.abs(array.astype(np.float64)).sum() > np.iinfo(array.dtype).max


def flag(*names):
    """One of these attributes is neither 0 nor 1."""
    return lambda finding: any(finding.node.attrs.get(name, 0) not in (0, 1) for name in names)


def says(*words):
    return lambda finding: all(word in finding.text for word in words)


def both(*conditions):
    return lambda finding: all(condition(finding) for condition in conditions)


def resizes_by_axes_from_the_end(finding):
    attrs = finding.node.attrs
    return attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch" and min(attrs.get("axes", [0])) < 0


def has_no_axes(finding):
    return len(finding.node.inputs) == 2 and finding.node.inputs[1].array.size == 0


ACCEPTED = [
    Accepted(
        "HardSwish Erf Gelu FastGelu BiasGelu QuickGelu",
        VALUES,
        "the CPU EP computes doubles with constants or polynomials of a float's precision",
        within(1e-6),
    ),
    Accepted(
        "MaxPool GlobalMaxPool ReduceMax ReduceMin ArgMax ArgMin LogSoftmax Softmax",
        VALUES,
        "with NaN among the numbers the CPU EP's answer depends on the place; Encore's is NaN",
        has_nan,
    ),
    Accepted("Upsample Resize", VALUES, "integers between two pixels are rounded from floats", by_one),
    Accepted("MaxPool AveragePool", SERVED, "the CPU EP refuses to pool nothing", is_empty),
    Accepted("Cast CastLike", VALUES, "ONNX leaves open what a float beyond the integers becomes", out_of_range),
    Accepted(
        "ReduceMean", VALUES, "the CPU EP takes means of means, which differ where a sum overflows", sum_overflows
    ),
    Accepted("Resize", SHAPE, "the CPU EP mixes up axes from the end with a policy", resizes_by_axes_from_the_end),
    Accepted(
        "Squeeze",
        SHAPE,
        "an empty list of axes names none, as onnx infers; the CPU EP takes it for absent",
        has_no_axes,
    ),
]


def reason_for(finding):
    """Why this difference is accepted, or None."""
    for entry in ACCEPTED:
        if finding.node.op in entry.operators.split() and finding.kind == entry.kind and entry.when(finding):
            return entry.reason
    return None
