"""What a finding shows: the conditions under which a difference is accepted."""

import dataclasses

import numpy as np
from element_types import FLOATS, INTEGERS, NUMPY


def contents(finding, i=0):
    """The contents of an input."""
    value = finding.node.inputs[i]
    return finding.arrays.get(value.name, value.array)


def _floats(finding):
    values = [value for value in finding.node.inputs if value is not None and value.type in FLOATS]
    return [finding.arrays.get(value.name, value.array) for value in values]


def gap(finding):
    with np.errstate(all="ignore"):
        apart = np.abs(finding.got.astype(np.float64) - finding.wanted.astype(np.float64))
    return np.where(_gap_is_none(finding), 0, apart)  # also where both are infinite or NaN


def _gap_is_none(finding):
    return (finding.got == finding.wanted) | (np.isnan(finding.got) & np.isnan(finding.wanted))


def says(*words):
    return lambda finding: any(word in finding.text for word in words)


# ---- values


def scales_are_far_apart(finding):
    """Or are no scales at all."""
    with np.errstate(all="ignore"):
        scales = np.abs([scale.astype(np.float64).max(initial=0) for scale in _floats(finding)])
        return not scales.max() ** 2 / scales.min() < 1e4


def a_step_apart(finding):
    """Of integers that floats were rounded to."""
    return finding.got.dtype.kind in "iu" and bool((gap(finding) <= 1).all())


def not_finite(finding):
    return any(not np.isfinite(array).all() for array in _floats(finding))


def has_nan(finding):
    return any(np.isnan(array).any() for array in _floats(finding))


def differs(finding, near=1e-2):
    """Where results are further apart than any rounding; in integers, where they differ."""
    if finding.got.dtype.kind != "f":
        return finding.got != finding.wanted
    return ~np.isclose(finding.got.astype(np.float64), finding.wanted.astype(np.float64), near, near, equal_nan=True)


def _differs_where(finding, odd, axis):
    """Results differ only for rows along an axis in which something is odd."""
    rows = odd.any(axis=axis, keepdims=True)
    differ = np.asarray(finding.got != finding.wanted)
    differ &= ~((finding.got != finding.got) & (finding.wanted != finding.wanted))
    return not (differ.reshape(rows.shape if differ.size == rows.size else differ.shape) & ~rows).any()


def orders_nan(finding):
    return _differs_where(finding, np.isnan(contents(finding)), finding.node.attrs.get("axis", -1))


def hands_nan_on(finding):
    """Of what is not finite: each number that differs is no finite one, or NaN is wanted; places may be any."""
    if not not_finite(finding):
        return False
    if finding.got.dtype.kind != "f":
        return _differs_where(finding, ~np.isfinite(contents(finding)), finding.node.attrs.get("axis", 0))
    return bool((~np.isfinite(finding.got) | np.isnan(finding.wanted))[differs(finding)].all())


def reduces_nan(finding):
    return finding.node.attrs.get("reduction") in ("max", "min") and bool(np.isnan(finding.got[differs(finding)]).all())


def peaks_beside(finding):
    """The peak of each band is where it should be, or a bin beside it."""
    places = finding.got.argmax(axis=0) - finding.wanted.argmax(axis=0)
    return bool((np.abs(places) <= 1).all())


def goes_far_below(finding):
    """A Softplus is among the activations, and what differs is no number, or infinite, on the CPU EP."""
    if "Softplus" not in finding.node.attrs.get("activations", []):
        return False
    return not np.isfinite(finding.wanted[differs(finding)]).any()


def grows_without_bound(finding):
    """A gate is a Softplus or a Relu, and states are far from what they began as."""
    gates = {"Softplus", "Relu", "LeakyRelu", "ThresholdedRelu", "Elu", "Affine"}
    return bool(gates & set(finding.node.attrs.get("activations", []))) and np.nanmax(np.abs(finding.wanted)) > 1000


def is_no_half(finding):
    """To a real signal, from more or less than the half of its spectrum that says it all."""
    attrs, length = finding.node.attrs, finding.got.shape
    if not (attrs.get("inverse", 0) and attrs.get("onesided", 0)):
        return False
    given, inputs = contents(finding).shape, finding.node.inputs
    by_input = len(inputs) > 2 and inputs[2]
    axis = int(contents(finding, 2)) if by_input else attrs.get("axis", -2 if finding.case.opset >= 20 else 1)
    return given[axis] != length[axis] // 2 + 1


def transposes_beside_vector(finding):
    """The first of two factors is a matrix and to be transposed, the second a vector."""
    matrix, vector = contents(finding), contents(finding, 1)
    return bool(finding.node.attrs.get("transA", 0)) and matrix.ndim > 1 and vector.ndim == 1


def cancels(finding):
    """Small beside the largest, as a sum is of which the terms are large."""
    most = np.abs(finding.wanted.astype(np.float64)).max()
    return bool(np.isfinite(most) and gap(finding).max() <= 1e-6 * most)


def is_turned(finding):
    """Each result is 0 or 1, and the right one where nothing is left to chance."""
    if finding.got is None:
        return True
    x, got = np.broadcast_to(contents(finding), finding.got.shape), finding.got
    sure = np.isin(x, (0, 1))
    return bool(np.isin(got, (0, 1)).all() and (got == x)[sure].all())


def adds_up_to_nothing(finding):
    """An input is empty, and so the result is zero."""
    empty = any(value is not None and value.array.size == 0 for value in finding.node.inputs[:2])
    return empty and not finding.got.any()


def is_empty(finding):
    return any(value is not None and value.array.size == 0 for value in finding.node.inputs)


def nearly(finding):
    """Doubles, no more than a few of a float's digits apart; or both beyond all numbers."""
    if finding.got.dtype != np.float64:
        return False
    beyond = (np.abs(finding.got) > 1e300) & (np.abs(finding.wanted) > 1e300)
    near = np.isclose(finding.got, finding.wanted, 1e-6, 1e-6, equal_nan=True)
    return (near | beyond).all()


def by_one(finding):
    return finding.got.dtype.kind in "iu" and gap(finding).max() == 1


def out_of_range(finding):
    """Each that differs is a float beyond the integers that it is to become."""
    source, kind = contents(finding), finding.node.makes()[0].type
    if kind not in INTEGERS or source.dtype.kind != "f":
        return False
    info = np.iinfo(NUMPY[kind])
    source = source.astype(np.float64)
    inside = (source > float(info.min) - 1) & (source < float(info.max) + 1)
    return not (inside & (finding.got != finding.wanted)).any()


def _axes(finding):
    node, rank = finding.node, contents(finding).ndim
    axes = contents(finding, 1).tolist() if len(node.inputs) > 1 else node.attrs.get("axes")
    if not axes and node.attrs.get("noop_with_empty_axes") == 1:
        return ()
    return tuple({axis % rank for axis in axes}) if axes else tuple(range(rank))


def overflows(finding):
    """Integers: where the results differ, what is added up is beyond the type, or beyond the digits of doubles."""
    array = contents(finding)
    if array.dtype.kind != "i":
        return False
    sizes = np.abs(array.astype(np.float64))
    if finding.node.op in ("ReduceL2", "ReduceSumSquare"):
        sizes **= 2
    multiplies = finding.node.op == "ReduceProd"
    combine = np.prod if multiplies else np.sum
    by_doubles = multiplies or finding.node.op == "ReduceL1" or array.dtype == np.int64
    most = 2**53 if by_doubles else np.iinfo(array.dtype).max
    with np.errstate(all="ignore"):
        largest = combine(sizes, axis=_axes(finding)).reshape(finding.got.shape)
    return not ((finding.got != finding.wanted) & (largest < min(most, np.iinfo(array.dtype).max))).any()


def no_slope(finding):
    return not np.isfinite(finding.node.attrs.get("alpha", 0))


def beyond_when_quantized(finding):
    """Halves, or blocks of floats: each that differs is more than an int32 when it is divided."""
    with np.errstate(all="ignore"):
        inside = np.abs(contents(finding)) / np.abs(contents(finding, 1)).min(initial=np.inf) < 2**31
    by_another_way = finding.node.inputs[0].type != "float" or finding.node.attrs.get("block_size")
    return by_another_way and not (inside & (finding.got != finding.wanted)).any()


def minus_zero_as_boolean(finding):
    array = contents(finding).astype(np.float32)
    differ = finding.got != finding.wanted
    return finding.got.dtype == bool and (array[differ] == 0).all() and np.signbit(array[differ]).all()


def mask_is_short(finding):
    """It lacks dimensions, or has not all rows and keys."""
    inputs = finding.node.inputs
    if len(inputs) < 4 or inputs[3] is None or not says("attention_helper.h")(finding):
        return False
    mask, queries = inputs[3].array, inputs[0].array.shape[-2]
    return mask.ndim < 2 or mask.shape[-2] != queries or mask.shape[-1] < _keys(inputs)


def lengths_beyond_keys(finding):
    inputs = finding.node.inputs
    if len(inputs) < 7:
        return False
    lengths = contents(finding, 6)
    return ((lengths < 0) | (lengths > _keys(inputs))).any()


def mask_is_wide(finding):
    """It has more keys than there are, or rows for more queries."""
    inputs = finding.node.inputs
    mask = inputs[3].array if len(inputs) > 3 and inputs[3] is not None else None
    if mask is None or mask.ndim == 0:
        return False
    return mask.shape[-1] > _keys(inputs) or (mask.ndim > 1 and mask.shape[-2] > inputs[0].array.shape[-2])


def _keys(inputs):
    """Of Attention, with those of the past."""
    past = inputs[4].array.shape[2] if len(inputs) > 4 and inputs[4] is not None else 0
    return inputs[1].array.shape[-2] + past


def only_infinity_differs(finding):
    finite = np.isfinite(finding.wanted)
    return np.allclose(finding.got[finite], finding.wanted[finite], 1e-6, 1e-6)


def no_slope_of_zero(finding):
    return not ((contents(finding) != 0) & ~_gap_is_none(finding)).any() and not np.isfinite(contents(finding, 1)).all()


def near_a_kink(finding):
    """No further apart than a float's rounding of 1, times the factors."""
    attrs = finding.node.attrs
    if any(not abs(attrs.get(name, 0)) < 1e30 for name in ("alpha", "gamma")):
        return True  # what is multiplied first decides what overflows
    return gap(finding).max() <= 1e-6 * max(1, abs(attrs.get("alpha", 1.7)) * max(1, abs(attrs.get("gamma", 1.1))))


def near_a_sigmoid(finding):
    """No further apart than a few roundings of the products that a sigmoid's error goes through."""
    most = [np.abs(array).max(initial=0, where=np.isfinite(array)) for array in _floats(finding)]
    return gap(finding).max() <= 2e-7 * np.prod(most)


def at_the_ends_of_the_type(finding):
    """Infinity, for which a reference of another type or without ends knows none."""
    ends = 65504.0, float(np.float32(3.3895314e38)), np.finfo(np.float64).max
    differ = (finding.got != finding.wanted) & ~np.isnan(finding.wanted)
    return np.isinf(finding.wanted[differ]).all() and np.isin(np.abs(finding.got[differ]), ends).all()


def log_of_little(finding):
    """The sums of which these are the logarithms differ no more than sums of floats do."""
    with np.errstate(all="ignore"):
        sums = np.abs(np.exp(finding.got.astype(np.float64)) - np.exp(finding.wanted.astype(np.float64)))
    sizes = np.abs(contents(finding).astype(np.float64))
    return np.nanmax(sums, initial=0) <= 1e-6 * sizes.sum(where=np.isfinite(sizes))


def shrunk_in_float(finding):
    """Doubles, or integers beside which a float has no place for a bias's fraction."""
    if finding.got.dtype.kind == "f":
        beyond = np.isinf(finding.wanted) & (np.abs(finding.got) > np.finfo(np.float32).max)
        return nearly(dataclasses.replace(finding, wanted=np.where(beyond, finding.got, finding.wanted)))
    large = np.abs(contents(finding).astype(np.float64)) >= 2**16
    return not ((finding.got != finding.wanted) & ~large).any()


def loses_nothing(finding):
    return finding.node.inputs[1].array.size == 0


def power_overflows(finding):
    """Integers, of which the power is no number of the type, or beyond doubles, where the results differ."""
    if finding.got.dtype.kind != "i":
        return False
    with np.errstate(all="ignore"):
        power = np.power(contents(finding).astype(np.float64), contents(finding, 1).astype(np.float64))
    differ = finding.got != finding.wanted
    return not (differ & (np.abs(power) < min(2**53, np.iinfo(finding.got.dtype).max))).any()


def beyond_doubles(finding):
    """Where the results differ, an operand is an integer that no double is."""
    if finding.got.dtype.kind not in "iu":
        return False
    large = [np.abs(contents(finding, i).astype(np.float64)) > 2**53 for i in (0, 1)]
    return not ((finding.got != finding.wanted) & ~(large[0] | large[1])).any()


def rounded_on_the_way(finding):
    """Halves that are no whole numbers, apart by a rounding of the largest for each step."""
    kind = finding.node.inputs[-1].type
    if kind not in ("float16", "bfloat16"):
        return False
    most = max(np.abs(array).max(initial=0) for array in [finding.wanted, *_floats(finding)])
    return gap(finding).max() <= 4 * most * {"float16": 2.0**-11, "bfloat16": 2.0**-8}[kind]


def drops(finding):
    return len(finding.node.inputs) == 3 and contents(finding, 2).any()


def has_no_terms(finding):
    """What is multiplied is empty, so nothing is added up."""
    return any(array.size == 0 for array in _floats(finding)[:2])


def overflows_on_the_way(finding):
    """Each product that differs."""
    with np.errstate(all="ignore"):
        most = np.prod(np.maximum(np.abs(contents(finding)), 1), axis=_axes(finding)).reshape(finding.got.shape)
        return not np.isfinite(most[differs(finding)]).any()


def multiplies_beyond_numbers(finding):
    """A product of many, which one order of them takes beyond all numbers."""
    infinite = (~np.isfinite(finding.got) | ~np.isfinite(finding.wanted))[differs(finding)]
    return finding.node.attrs.get("reduction") == "mul" and bool(infinite.size and infinite.all())


def tanh_of_nan(finding):
    got = finding.got[differs(finding)]
    return finding.node.attrs.get("activation") == "Tanh" and bool(got.size and np.isnan(got).all())


def hardly_varies(finding):
    """Rows that are all but constant: what is left of them is rounding, which a small epsilon enlarges."""
    epsilon = max(finding.node.attrs.get("epsilon", 1e-5), 1e-12)
    sizes = [np.abs(array).max(initial=0, where=np.isfinite(array)) for array in _floats(finding)]
    return gap(finding).max() <= 4e-6 * sizes[0] * max(1, *sizes[1:]) / np.sqrt(epsilon)


def _deviates_by(finding, least):
    """Of MeanVarianceNormalization: results differ, and nowhere where numbers are further from their means."""
    x = contents(finding).astype(np.float64)
    deviation = x.std(axis=tuple(finding.node.attrs.get("axes", (0, 2, 3))), keepdims=True)
    differ = gap(finding) > 2e-3
    return bool(differ.any() and not (differ & (deviation > least)).any())


def hardly_deviates(finding):
    """Halves, no further from their means than the 1e-9 that is added to that shows, where results differ."""
    return finding.node.inputs[0].type == "float16" and _deviates_by(finding, 1e-6)


def is_flat(finding):
    """Alike but for the last digits of a float, where results differ."""
    return contents(finding).size > 0 and _deviates_by(finding, 1e-6 * np.abs(contents(finding)).max())


def is_drawn(finding):
    """Something was left to chance, as a hostile node does."""
    attrs = finding.node.attrs
    if finding.node.op == "Multinomial":
        return says("beside the first session's")(finding) or np.isfinite(contents(finding)).sum(-1).max(initial=0) != 1
    if "Normal" in finding.node.op:
        return attrs.get("scale", 1.0) != 1e-30 or abs(attrs.get("mean", 0.0)) < 1
    return attrs.get("low", 0.0) != attrs.get("high", 1.0)


# ---- shapes


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


def only_nan_is_wanted(finding):
    """Where the results differ, the CPU EP has NaN."""
    return bool(np.isnan(finding.wanted[differs(finding)]).all())


def almost_singular(finding):
    """A matrix of which an inverse in the type has few digits."""
    matrices = contents(finding).astype(np.float64)
    return not np.isfinite(matrices).all() or np.linalg.cond(matrices).max() > 100


def in_another_session(finding):
    """Where what comes before may be computed on another side, to another last digit."""
    return "another session" in finding.when


def writes_twice(finding):
    """Without a reduction, to one place, where one of the updates stays."""
    if finding.node.attrs.get("reduction", "none") != "none":
        return False
    there = np.concatenate([contents(finding, i).reshape(-1) for i in (0, 2)])
    if not np.isin(finding.got[finding.got == finding.got], there).all():
        return False
    data, indices = contents(finding), contents(finding, 1).astype(np.int64)
    if finding.node.op == "ScatterND":
        places = indices.reshape(-1, indices.shape[-1]) % data.shape[: indices.shape[-1]]
        return len(np.unique(places, axis=0)) < len(places)
    axis = finding.node.attrs.get("axis", 0)
    places = np.sort(indices % data.shape[axis], axis=axis)
    return bool((np.diff(places, axis=axis) == 0).any())


def adds_in_any_order(finding):
    """Floats that are added or multiplied."""
    if finding.got.dtype.kind != "f" or finding.node.attrs.get("reduction") not in ("add", "mul"):
        return False
    least = {"float": 2.0**-23, "double": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    terms = [np.abs(contents(finding, i).astype(np.float64)) for i in (0, 2)]
    most = max(np.abs(finding.wanted.astype(np.float64)).max(), *(term.max(initial=0) for term in terms))
    # A rounding for each that may come to one place, of half of which none is likely to be the largest.
    roundings = 1 + min(terms[1].size, 64)
    return bool(gap(finding).max() <= roundings * most * least[finding.node.inputs[0].type])


def as_of_floats(finding):
    """Doubles as good as floats, beside the largest."""
    if finding.got.dtype != np.float64:
        return False
    return bool(np.nanmax(gap(finding), initial=0) <= 1e-5 * np.nanmax(np.abs(finding.wanted), initial=0))


def lengths_hide_keys(finding):
    """Of QAttention: results differ only of batches that are shorter than their rows."""
    x, inputs = contents(finding), finding.node.inputs
    if len(inputs) < 6 or inputs[5] is None or contents(finding, 5).shape != x.shape[:1]:
        return False
    short, differ = contents(finding, 5) < x.shape[1], differs(finding)
    return bool(differ.any() and not differ[~short].any())


def few_differ(finding, part=0.01):
    apart = gap(finding)
    return bool((apart > part * np.abs(finding.wanted.astype(np.float64)).max()).mean() <= 0.01)


def has_vast_attribute(finding):
    numbers = [value for value in finding.node.attrs.values() if isinstance(value, float)]
    return any(not abs(number) < 1e9 for number in numbers)


def lengths_pass_their_total(finding):
    """Of GroupQueryAttention."""
    return (contents(finding, 5) >= contents(finding, 6)).any()


def has_nan_attribute(finding):
    """An attribute has a number that is none."""
    lists = [value for value in finding.node.attrs.values() if isinstance(value, list)]
    return any(number != number for numbers in lists for number in numbers)


def has_no_range(finding):
    """What is quantized lies so near to zero that 255 steps have no width."""
    x = contents(finding)
    return x.size > 0 and np.float32(max(x.max(), 0) - min(x.min(), 0)) / np.float32(255) == 0


def has_no_scale(finding):
    """A scale that is no positive number, or, where results differ, values that are none."""
    with np.errstate(all="ignore"):
        scales = np.asarray(contents(finding, 1)).astype(np.float64)
    x = contents(finding).astype(np.float64)
    return not ((scales > 0) & np.isfinite(scales)).all() or not np.isfinite(x[differs(finding)]).any()
