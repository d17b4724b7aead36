"""What a finding shows: the conditions under which a difference is accepted. Of values, which elements are: those that
differ, but for the rest, agree with what the reason says."""

import dataclasses
import re

import numpy as np
from compare import allowed, reached
from element_types import FLOATS, rounded
from proposals import PROPOSALS
from reference import Reference, Refused, Unknown
from written_model import FEED, Value


def contents(finding, i=0):
    """The contents of an input."""
    value = finding.node.inputs[i]
    return finding.arrays.get(value.name, value.array)


def has(finding, i):
    inputs = finding.node.inputs
    return i < len(inputs) and inputs[i] is not None


def floats(finding):
    values = [value for value in finding.node.inputs if value is not None and value.type in FLOATS]
    return [finding.arrays.get(value.name, value.array) for value in values]


def gap(finding):
    with np.errstate(all="ignore"):
        apart = np.abs(finding.got.astype(np.float64) - finding.wanted.astype(np.float64))
    return np.where(are_same(finding), 0, apart)  # also where both are infinite or NaN


def are_same(finding):
    return (finding.got == finding.wanted) | (np.isnan(finding.got) & np.isnan(finding.wanted))


def says(*words):
    return lambda finding: any(word in finding.text for word in words)


# ---- values: which elements


def is_near(finding, wanted, by=0):
    """Where the result is this instead, within what is allowed of the largest; of integers, `by` as much."""
    value = finding.node.makes()[finding.output]
    wanted = np.asarray(wanted)
    if wanted.shape != finding.got.shape:
        return np.full(finding.got.shape, False)
    wanted = rounded(wanted, value.type)
    if finding.got.dtype.kind != "f":
        return np.abs(finding.got.astype(np.float64) - wanted.astype(np.float64)) <= by
    relative, absolute = allowed(PROPOSALS[finding.node.domain, finding.node.op], value.type)
    most = np.abs(wanted.astype(np.float64)).max(initial=1, where=np.isfinite(wanted))
    numbers = finding.got.astype(np.float64), wanted.astype(np.float64)
    return np.isclose(*numbers, 4 * relative, 4 * absolute * most, equal_nan=True)


def _changed(finding, arrays, kind, attrs):
    """The node's Reference, and what it is given, of other inputs by their places, and of other attributes. None is for
    what is absent; `kind` is these inputs' type, and the outputs'."""
    node, given = finding.node, dict(finding.arrays)
    inputs = node.inputs + [None] * (1 + max(arrays, default=-1) - len(node.inputs))
    for i, array in arrays.items():
        if array is None:
            inputs[i] = None
            continue
        name = kind or (inputs[i].type if inputs[i] else str(array.dtype))
        inputs[i] = Value(f"{node.name}_other{i}", name, array, FEED)
        given[inputs[i].name] = np.asarray(array)
    outputs = [value and dataclasses.replace(value, type=kind or value.type) for value in node.outputs]
    attrs = {name: value for name, value in {**node.attrs, **attrs}.items() if value is not None}
    node = dataclasses.replace(node, inputs=inputs, outputs=outputs, attrs=attrs)
    return Reference(node, finding.case.opset), given


def made_of(finding, arrays, kind=None, **attrs):
    """What the CPU EP makes of them: all outputs, or None."""
    reference, given = _changed(finding, arrays, kind, attrs)
    try:
        return reference(given)
    except (Refused, Unknown):
        return None


def as_of(finding, arrays=None, **attrs):
    """Where the result is what the CPU EP makes of other inputs and attributes."""
    made = made_of(finding, arrays or {}, **attrs)
    return made is not None and is_near(finding, made[finding.output])


def made_by_onnx(finding, arrays, **attrs):
    """What onnx's own evaluator makes of them: all outputs, or None."""
    reference, given = _changed(finding, arrays, None, attrs)
    return reference.by_onnx(given)


def as_by_onnx(finding, arrays=None, by=0, **attrs):
    """Where the result is what onnx's own evaluator makes of them."""
    made = made_by_onnx(finding, arrays or {}, **attrs)
    return made is not None and is_near(finding, made[finding.output], by)


def trembles(finding):
    """Halves, no further apart than results are of inputs that have each been rounded once more."""
    node, spread = finding.node, np.zeros(finding.got.shape)
    random, halves = np.random.default_rng(0), {"float16": 2.0**-11, "bfloat16": 2.0**-8}
    given = [(i, value) for i, value in enumerate(node.inputs) if value is not None and value.type in halves]
    if node.makes()[finding.output].type not in halves:
        return False
    for _ in range(8):
        other = {}
        for i, value in given:
            array = contents(finding, i).astype(np.float32)
            other[i] = array * (1 + random.uniform(-1, 1, array.shape) * halves[value.type]).astype(np.float32)
        made = made_of(finding, other)
        if made is None or made[finding.output].shape != spread.shape:
            return False
        with np.errstate(all="ignore"):
            spread = np.fmax(spread, np.abs(made[finding.output] - finding.wanted.astype(np.float64)))
    return gap(finding) <= 4 * spread


def beside_largest(part):
    """No further apart than a part of the largest."""

    def near(finding):
        numbers = finding.wanted.astype(np.float64)
        return gap(finding) <= part * np.abs(numbers).max(initial=0, where=np.isfinite(numbers))

    return near


def _reference(finding):
    return next(reference for reference in finding.case.references if reference.node is finding.node)


def comes_of(odd):
    """Where the result changes with the inputs' elements that are odd, of which odd(array) says which."""
    return lambda finding: reached(_reference(finding), finding.arrays, finding.output, odd)


no_number = comes_of(lambda array: ~np.isfinite(array))


# ---- anything else


def is_empty(finding):
    return any(value is not None and value.array.size == 0 for value in finding.node.inputs)


def has_nan(finding):
    return any(np.isnan(array).any() for array in floats(finding))


def has_vast_direction(finding):
    """Of a Scan, one that is 0 or 1 in its lowest 32 bits alone."""
    told = re.search(r"scan_(?:in|out)put_directions has (-?\d+); 0 or 1 is wanted", finding.text)
    return told and int(told[1]) % 2**32 in (0, 1)


def of_nothing(finding):
    return finding.node.inputs[0].array.size == 0


def of_nothing_from_the_end(finding):
    """An axis is counted from the end, of an empty input."""
    node = finding.node
    axes = node.inputs[1].array.reshape(-1).tolist() if len(node.inputs) > 1 else node.attrs.get("axes", [])
    return of_nothing(finding) and min([node.attrs.get("axis", 0), *axes]) < 0


def without_axes(finding):
    node = finding.node
    return node.attrs.get("axes") == [] or (len(node.inputs) == 2 and node.inputs[1].array.size == 0)


def in_another_session(finding):
    """Where what comes before may be computed on another side, to another last digit."""
    return "another session" in finding.when


def mask_is_short(finding):
    """It lacks dimensions, or has not all rows and keys."""
    inputs = finding.node.inputs
    if len(inputs) < 4 or inputs[3] is None or not says("attention_helper.h")(finding):
        return False
    mask, queries = inputs[3].array, inputs[0].array.shape[-2]
    return mask.ndim < 2 or mask.shape[-2] != queries or mask.shape[-1] < keys(inputs)


def mask_is_wide(finding):
    """It has more keys than there are, or rows for more queries."""
    inputs = finding.node.inputs
    mask = inputs[3].array if len(inputs) > 3 and inputs[3] is not None else None
    if mask is None or mask.ndim == 0:
        return False
    return mask.shape[-1] > keys(inputs) or (mask.ndim > 1 and mask.shape[-2] > inputs[0].array.shape[-2])


def keys(inputs):
    """Of Attention, with those of the past."""
    past = inputs[4].array.shape[2] if len(inputs) > 4 and inputs[4] is not None else 0
    return inputs[1].array.shape[-2] + past
