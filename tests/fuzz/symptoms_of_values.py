"""The same as symptoms.py, of the values of one operator or a few."""

import numpy as np
from element_types import INTEGERS, NUMPY
from onnx import numpy_helper
from symptoms import (
    as_of,
    beside_largest,
    contents,
    floats,
    gap,
    is_empty,
    is_near,
    keys,
    made_of,
    of_nothing,
    says,
)


def peaks_beside(finding):
    """Each band of which the peak is where it should be, or a bin beside it."""
    return np.abs(finding.got.argmax(axis=0) - finding.wanted.argmax(axis=0)) <= 1


def goes_far_below(finding):
    """A Softplus is among the activations, and the CPU EP has no number."""
    return ~np.isfinite(finding.wanted) & ("Softplus" in finding.node.attrs.get("activations", []))


def grows_without_bound(finding):
    """A gate is a Softplus or a Relu, and the states of a batch are far from what they began as."""
    gates = {"Softplus", "Relu", "LeakyRelu", "ThresholdedRelu", "Elu", "Affine"}
    if not gates & set(finding.node.attrs.get("activations", [])):
        return False
    axes = tuple(axis for axis in range(finding.got.ndim) if axis != finding.got.ndim - 2)
    return ~(np.abs(finding.wanted) <= 1000).all(axis=axes, keepdims=True)


def is_no_half(finding):
    """To a real signal, from more or less than the half of its spectrum that says it all: cut, or filled with zeros."""
    attrs, length = finding.node.attrs, finding.got.shape
    if not (attrs.get("inverse", 0) and attrs.get("onesided", 0)):
        return False
    x, inputs = contents(finding), finding.node.inputs
    by_input = len(inputs) > 2 and inputs[2]
    axis = int(contents(finding, 2)) if by_input else attrs.get("axis", -2 if finding.case.opset >= 20 else 1)
    half = length[axis] // 2 + 1
    if x.shape[axis] == half:
        return False
    kept = np.take(x, range(min(half, x.shape[axis])), axis)
    lacking = [(0, half - kept.shape[axis] if d == axis % x.ndim else 0) for d in range(x.ndim)]
    return as_of(finding, {0: np.pad(kept, lacking)})


def transposes_beside_vector(finding):
    """The first of two factors is a matrix and to be transposed, the second a vector."""
    matrix, vector = contents(finding), contents(finding, 1)
    beside = bool(finding.node.attrs.get("transA", 0)) and matrix.ndim > 1 and vector.ndim == 1
    return beside and as_of(finding, {0: matrix.swapaxes(-1, -2)}, transA=0)


def cancels(finding):
    """Small beside the largest, as a sum is of which the terms are large."""
    most = np.abs(finding.wanted.astype(np.float64)).max(initial=0, where=np.isfinite(finding.wanted))
    return gap(finding) <= 1e-6 * most


def is_turned(finding):
    """Each result that is 0 or 1, and the right one where nothing is left to chance."""
    if finding.difference is None:
        return True
    x, got = np.broadcast_to(contents(finding), finding.got.shape), finding.got
    return np.isin(got, (0, 1)) & (~np.isin(x, (0, 1)) | (got == x))


def adds_up_to_nothing(finding):
    """Zeros, where an input is empty."""
    return is_empty(finding) and finding.got == 0


def nearly(finding):
    """Doubles, no more than a few of a float's digits apart; or both beyond all numbers."""
    if finding.got.dtype != np.float64:
        return False
    beyond = (np.abs(finding.got) > 1e300) & (np.abs(finding.wanted) > 1e300)
    return np.isclose(finding.got, finding.wanted, 1e-6, 1e-6, equal_nan=True) | beyond


def by_one(finding):
    return finding.got.dtype.kind in "iu" and gap(finding) <= 1


def all_of_nothing(finding):
    """All, of an empty input."""
    return np.full(finding.got.shape, of_nothing(finding))


def scales_are_far_apart(finding):
    """Results at an end of the type, where scales are far apart, or are no scales at all."""
    with np.errstate(all="ignore"):
        scales = np.abs([scale.astype(np.float64).max(initial=0) for scale in floats(finding)])
        apart = not scales.max() ** 2 / scales.min() < 1e4
    info = np.iinfo(finding.got.dtype)
    return apart & (np.isin(finding.got, (info.min, info.max)) | np.isin(finding.wanted, (info.min, info.max)))


def out_of_range(finding):
    """Floats beyond the integers that they are to become."""
    source, kind = contents(finding), finding.node.makes()[0].type
    if kind not in INTEGERS or source.dtype.kind != "f":
        return False
    info = np.iinfo(NUMPY[kind])
    source = source.astype(np.float64)
    return ~((source > float(info.min) - 1) & (source < float(info.max) + 1))


def _axes(finding):
    """Of a reduction."""
    node, rank = finding.node, contents(finding).ndim
    axes = contents(finding, 1).tolist() if len(node.inputs) > 1 else node.attrs.get("axes")
    if not axes and node.attrs.get("noop_with_empty_axes") == 1:
        return ()
    return tuple({axis % rank for axis in axes}) if axes else tuple(range(rank))


def overflows(finding):
    """Integers, of which the sum is beyond the type, or beyond the digits of doubles."""
    array = contents(finding)
    if array.dtype.kind != "i":
        return False
    sizes = np.abs(array.astype(np.float64))
    if finding.node.op in ("ReduceL2", "ReduceSumSquare"):
        sizes **= 2
    multiplies = finding.node.op == "ReduceProd"
    sizes = np.maximum(sizes, multiplies)  # a product is beyond on its way to a zero, too
    combine = np.prod if multiplies else np.sum
    by_doubles = multiplies or finding.node.op == "ReduceL1" or array.dtype == np.int64
    most = min(2**53 if by_doubles else np.inf, np.iinfo(array.dtype).max)
    with np.errstate(all="ignore"):
        return combine(sizes, axis=_axes(finding)).reshape(finding.got.shape) >= most


def no_slope(finding):
    """What is above zero and as it was, beside a slope that is no number."""
    if np.isfinite(finding.node.attrs.get("alpha", 0)):
        return False
    return (contents(finding) >= 0) & (finding.got == contents(finding))


def beyond_when_quantized(finding):
    """Halves, or blocks of floats, of more than an int32 when they are divided."""
    with np.errstate(all="ignore"):
        inside = np.abs(contents(finding)) / np.abs(contents(finding, 1)).min(initial=np.inf) < 2**31
    by_another_way = finding.node.inputs[0].type != "float" or finding.node.attrs.get("block_size")
    return bool(by_another_way) and ~inside


def minus_zero_as_boolean(finding):
    array = contents(finding).astype(np.float32)
    return finding.got.dtype == bool and (array == 0) & np.signbit(array)


def lengths_beyond_keys(finding):
    inputs = finding.node.inputs
    return len(inputs) > 6 and as_of(finding, {6: contents(finding, 6).clip(0, keys(inputs))})


def no_slope_of_zero(finding):
    return (contents(finding) == 0) & ~np.isfinite(contents(finding, 1))


def as_in_doubles(finding):
    """Where the result is that of doubles, which have the digits of what is near 1."""
    op, attrs, x = finding.node.op, finding.node.attrs, contents(finding).astype(np.float64)
    defaults = {"Selu": (1.67326319217681884765625, 1.05070102214813232421875)}.get(op, (1.0, 1.0))
    alpha, *more = (float(attrs.get(*of)) for of in zip(("alpha", "gamma", "beta"), (*defaults, 1.0)))
    with np.errstate(all="ignore"):
        made = {
            "Celu": lambda: np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha)),
            "Elu": lambda: np.where(x > 0, x, alpha * np.expm1(x)),
            "Selu": lambda: more[0] * np.where(x > 0, x, alpha * np.expm1(x)),
            "ParametricSoftplus": lambda: alpha * np.logaddexp(0, more[1] * x),
        }
        return is_near(finding, made[op]())


def near_a_sigmoid(finding):
    """No further apart than a few roundings of the products that a sigmoid's error goes through."""
    most = [np.abs(array).max(initial=0, where=np.isfinite(array)) for array in floats(finding)]
    return gap(finding) <= 2e-7 * np.prod(most)


def at_the_ends_of_the_type(finding):
    """Infinity, for which a reference of another type or without ends knows none."""
    ends = 65504.0, float(np.float32(3.3895314e38)), np.finfo(np.float64).max
    return np.isinf(finding.wanted) & np.isin(np.abs(finding.got), ends)


def log_of_little(finding):
    """The sums of which these are the logarithms differ no more than sums of floats do, and have one where they are no
    more than that."""
    with np.errstate(all="ignore"):
        got, wanted = np.exp(finding.got.astype(np.float64)), np.exp(finding.wanted.astype(np.float64))
    sizes = np.abs(contents(finding).astype(np.float64)).sum(axis=_axes(finding)).reshape(finding.got.shape)
    return np.where(np.isnan(got), wanted <= 1e-6 * sizes, ~(np.abs(got - wanted) > 1e-6 * sizes))


def shrunk_in_float(finding):
    """Doubles, or integers beside which a float has no place for a bias's fraction, or which a bias is no number of."""
    if finding.got.dtype.kind != "f":
        sizes, attrs = np.abs(contents(finding).astype(np.float64)), finding.node.attrs
        vast = not abs(attrs.get("bias", 0)) < np.iinfo(finding.got.dtype).max
        return (sizes >= 2**16) | ((sizes > attrs.get("lambd", 0.5)) & vast)
    return nearly(finding) | (np.isinf(finding.wanted) & (np.abs(finding.got) > np.finfo(np.float32).max))


def power_overflows(finding):
    """Integers, of which the power is no number of the type, or beyond doubles."""
    if finding.got.dtype.kind != "i":
        return False
    with np.errstate(all="ignore"):
        power = np.power(contents(finding).astype(np.float64), contents(finding, 1).astype(np.float64))
    return ~(np.abs(power) < min(2**53, np.iinfo(finding.got.dtype).max))


def beyond_doubles(finding):
    """An operand is an integer that no double is."""
    if finding.got.dtype.kind not in "iu":
        return False
    large = [np.abs(contents(finding, i).astype(np.float64)) > 2**53 for i in (0, 1)]
    return large[0] | large[1]


def _steps(finding):
    """Of a Loop or a Scan, as many as there are rows."""
    node, rows = finding.node, contents(finding, -1)
    if node.op == "Loop":
        return max(1, int(contents(finding).max())) if node.inputs[0] else 1
    return rows.shape[node.attrs.get("scan_input_axes", [0])[0]]


def rounded_on_the_way(finding):
    """Halves that are no whole numbers, apart by what a rounding of the largest for each step adds up to."""
    kind = finding.node.inputs[-1].type
    if kind not in ("float16", "bfloat16"):
        return False
    most = max(np.abs(array).max(initial=0) for array in [finding.wanted, *floats(finding)])
    rounding = most * {"float16": 2.0**-11, "bfloat16": 2.0**-8}[kind]
    return gap(finding) <= rounding * max(4, 2 * np.sqrt(_steps(finding)))


def drops(finding):
    """Of Dropout in training, what is dropped, or stays and is larger."""
    if not (len(finding.node.inputs) == 3 and contents(finding, 2).any()):
        return False
    if finding.difference is None or finding.got.dtype == bool:
        return True
    ratio = contents(finding, 1) if finding.node.inputs[1] else 0.5
    with np.errstate(all="ignore"):
        return (finding.got == 0) | is_near(finding, contents(finding) / (1 - ratio))


def has_no_terms(finding):
    """What is multiplied is empty, so nothing but what is added to it is left."""
    if not any(array.size == 0 for array in floats(finding)[:2]):
        return False
    added = contents(finding, 2) if len(finding.node.inputs) > 2 else np.zeros([], np.float32)
    if finding.node.op == "Conv":
        return is_near(finding, np.zeros_like(finding.got) + added.reshape([-1] + [1] * (finding.got.ndim - 2)))
    with np.errstate(all="ignore"):
        return is_near(finding, np.zeros_like(finding.got) + added * np.float32(finding.node.attrs.get("beta", 1)))


def overflows_on_the_way(finding):
    with np.errstate(all="ignore"):
        most = np.prod(np.maximum(np.abs(contents(finding)), 1), axis=_axes(finding)).reshape(finding.got.shape)
    return ~np.isfinite(most)


def multiplies_beyond_numbers(finding):
    """A product of many, which one order of them takes beyond all numbers."""
    infinite = ~np.isfinite(finding.got) | ~np.isfinite(finding.wanted)
    return infinite & (finding.node.attrs.get("reduction") == "mul")


def hardly_varies(finding):
    """Rows that are all but constant: what is left of them is rounding, which a small epsilon enlarges."""
    node, x = finding.node, contents(finding).astype(np.float64)
    if finding.output:
        return False
    axis = node.attrs.get("axis", -1)
    if node.op == "SkipLayerNormalization":
        axis, added = -1, [contents(finding, i) for i in (1, 4) if i < len(node.inputs) and node.inputs[i]]
        x = x + sum(array.astype(np.float64) for array in added)
    axes = tuple(range(axis % x.ndim, x.ndim))
    deviation = np.sqrt(x.var(axis=axes, keepdims=True) + max(node.attrs.get("epsilon", 1e-5), 1e-12))
    scale = np.abs(contents(finding, 1 if node.op == "LayerNormalization" else 2)).max(initial=0)
    return gap(finding) <= 1e-6 * np.abs(x).max(axis=axes, keepdims=True, initial=0) / deviation * max(1, scale)


def _left_by_squares(x, axes, epsilon):
    """How much larger than a variance the square of its mean is: a difference of squares loses as much."""
    return x.mean(axis=axes, keepdims=True) ** 2 / (x.var(axis=axes, keepdims=True) + epsilon)


def has_lost_a_mean(finding):
    """As far off as a variance is that is what squares leave of a mean far from zero, of groups."""
    node, x = finding.node, contents(finding).astype(np.float64)
    if x.size == 0:
        return False
    groups = x.reshape(x.shape[0], node.attrs["num_groups"], -1)
    lost = _left_by_squares(groups, -1, node.attrs.get("epsilon", 1e-5))
    scale = np.abs(contents(finding, 1).astype(np.float64)).max(initial=0)
    return gap(finding) <= 1e-6 * np.broadcast_to(lost, groups.shape).reshape(x.shape) * max(1, scale)


def _deviates_by(finding, least):
    """Of MeanVarianceNormalization: numbers that are no further from their means."""
    x = contents(finding).astype(np.float64)
    return np.broadcast_to(
        x.std(axis=tuple(finding.node.attrs.get("axes", (0, 2, 3))), keepdims=True) <= least, x.shape
    )


def squares_a_far_mean(finding):
    """Of MeanVarianceNormalization: as far off as a variance is that is what squares leave of a mean far from zero."""
    x = contents(finding).astype(np.float64)
    lost = _left_by_squares(x, tuple(finding.node.attrs.get("axes", (0, 2, 3))), 1e-9)
    return gap(finding) <= 1e-6 * np.broadcast_to(lost, x.shape)


def hardly_deviates(finding):
    """Halves, no further from their means than the 1e-9 that is added to that shows."""
    return finding.node.inputs[0].type == "float16" and _deviates_by(finding, 1e-6)


def is_flat(finding):
    """Alike but for the last digits of a float."""
    x = np.abs(contents(finding).astype(np.float64))
    return _deviates_by(finding, 1e-6 * x.max(initial=0, where=np.isfinite(x)))


def is_drawn(finding):
    """Something was left to chance, as a hostile node does."""
    attrs = finding.node.attrs
    if finding.node.op == "Multinomial":
        return says("beside the first session's")(finding) or np.isfinite(contents(finding)).sum(-1).max(initial=0) != 1
    if "Normal" in finding.node.op:
        return attrs.get("scale", 1.0) != 1e-30 or abs(attrs.get("mean", 0.0)) < 1
    return attrs.get("low", 0.0) != attrs.get("high", 1.0)


def almost_singular(finding):
    """A matrix of which an inverse in the type has few digits."""
    matrices = contents(finding).astype(np.float64)
    finite = np.isfinite(matrices).all(axis=(-2, -1), keepdims=True)
    few = np.linalg.cond(np.where(finite, matrices, 0))[..., None, None] > 100
    return ~finite | few


def writes_twice(finding):
    """Without a reduction, to one place, where one of the updates stays."""
    if finding.node.attrs.get("reduction", "none") != "none":
        return False
    return (_writes(finding) > 1) & np.isin(finding.got, contents(finding, 2))


def _writes(finding):
    """How many updates come to each place."""
    data, indices = contents(finding), contents(finding, 1).astype(np.int64)
    counts = np.zeros(data.shape, int)
    if finding.node.op == "ScatterND":
        np.add.at(counts, tuple(np.moveaxis(indices, -1, 0)), 1)
    else:
        places = list(np.indices(indices.shape))
        places[finding.node.attrs.get("axis", 0)] = indices
        np.add.at(counts, tuple(places), 1)
    return counts


def adds_in_any_order(finding):
    """Floats that are added or multiplied, apart by a rounding for each that comes to one place."""
    if finding.got.dtype.kind != "f" or finding.node.attrs.get("reduction") not in ("add", "mul"):
        return False
    least = {"float": 2.0**-23, "double": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    terms = [np.abs(contents(finding, i).astype(np.float64)) for i in (0, 2)]
    most = max(np.abs(finding.wanted.astype(np.float64)).max(), *(term.max(initial=0) for term in terms))
    return gap(finding) <= (_writes(finding) + 1) * most * least[finding.node.inputs[0].type]


def as_of_floats(finding):
    """Doubles as good as floats, beside the largest."""
    return finding.got.dtype == np.float64 and beside_largest(1e-5)(finding)


def squares_as_floats(finding):
    """Where the result is that of the same numbers as floats."""
    made = made_of(finding, {0: contents(finding).astype(np.float32)}, kind="float")
    return made is not None and is_near(finding, made[finding.output])


def has_vast_attribute(finding):
    """An attribute by which numbers are more than there are, or all but the first digits are lost."""
    numbers = [value for value in finding.node.attrs.values() if isinstance(value, float)]
    if not any(not abs(number) < 1e9 for number in numbers):
        return False
    infinite = ~np.isfinite(finding.got) | ~np.isfinite(finding.wanted)
    return infinite | beside_largest(1e-3)(finding)


def has_members_below_zero(finding):
    """Of a TreeEnsemble with such sets: the scores of features, thresholds and members that are as much larger."""
    attrs, larger = finding.node.attrs, {}
    if "membership_values" not in attrs:
        return False
    least = min(np.nanmin(numpy_helper.to_array(attrs["membership_values"])), 0)
    for name in ("nodes_splits", "membership_values"):
        numbers = numpy_helper.to_array(attrs[name])
        larger[name] = numpy_helper.from_array(numbers - numbers.dtype.type(least), "values")
    features = contents(finding)
    return least < 0 and as_of(finding, {0: features - features.dtype.type(least)}, **larger)


def has_no_range(finding):
    """What is quantized lies so near to zero that 255 steps have no width."""
    x = contents(finding)
    none = x.size > 0 and np.float32(max(x.max(), 0) - min(x.min(), 0)) / np.float32(255) == 0
    return np.full(finding.got.shape, none)


def has_no_scale(finding):
    """A scale that is no positive number, or a value that is none."""
    node, x = finding.node, contents(finding).astype(np.float64)
    with np.errstate(all="ignore"):
        scale = np.asarray(contents(finding, 1)).astype(np.float64)
    axis = node.attrs.get("axis", 1)
    if scale.ndim == x.ndim and scale.ndim > 1 or node.attrs.get("block_size"):
        scale = scale.repeat(-(-x.shape[axis] // scale.shape[axis]), axis).take(range(x.shape[axis]), axis)
    elif scale.size > 1:
        scale = scale.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])
    else:
        scale = scale.reshape([])
    return ~((scale > 0) & np.isfinite(scale)) | ~np.isfinite(x)


def overflows_by_its_scale(finding):
    """Of QLinearSoftmax, by whose scale each probability is infinite: where it is the type's largest value, or the
    least, as no number is where a power vanishes in floats."""
    with np.errstate(all="ignore"):
        if 1 / np.asarray(contents(finding, 3)).reshape(-1)[0] != np.inf:
            return False
    attrs, x = finding.node.attrs, contents(finding).astype(np.float64)
    axis = attrs.get("axis", -1 if attrs["opset"] >= 13 else 1) % x.ndim
    rows = axis if attrs["opset"] >= 13 else tuple(range(axis, x.ndim))
    powers = (x.max(axis=rows, keepdims=True) - x) * np.abs(contents(finding, 1))
    info = np.iinfo(finding.got.dtype)
    return (powers < 104) & (finding.got == info.max) | (powers > 87) & (finding.got == info.min)


def indices_between_integers(finding):
    """Of OneHot."""
    indices = contents(finding)
    return indices.dtype.kind == "f" and np.expand_dims(indices % 1 != 0, finding.node.attrs.get("axis", -1))


def quantizes_nothing(finding):
    """Of an empty input: what stands for zero, or, with a bias, one number a channel."""
    if not is_empty(finding):
        return False
    if len(finding.node.inputs) < 9:
        return finding.got == contents(finding, 7)
    first = tuple(slice(None) if d == 1 else slice(1) for d in range(finding.got.ndim))
    return finding.got == finding.got[first]


# Alpha and beta of an activation whose node does not say.
FACTORS = {
    "Affine": (1.0, 0.0),
    "Elu": (1.0,),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01,),
    "ScaledTanh": (1.0, 1.0),
    "ThresholdedRelu": (1.0,),
}


def lacks_factors(finding):
    """Of a recurrent node: where the result is that of ONNX's factors."""
    attrs, told = finding.node.attrs, {}
    for i, name in enumerate(("activation_alpha", "activation_beta")):
        factors = [FACTORS[n][i] for n in attrs.get("activations", []) if len(FACTORS.get(n, ())) > i]
        if factors and not attrs.get(name):
            told[name] = factors
    return bool(told) and as_of(finding, **told)


def turns_an_odd_number(finding):
    """Of RotaryEmbedding, the last of those in each head."""
    turned = finding.node.attrs.get("rotary_embedding_dim", 0)
    heads = finding.node.attrs.get("num_heads", 1) if finding.got.ndim == 3 else 1
    place = np.arange(finding.got.shape[-1]) % (finding.got.shape[-1] // heads)
    return (place == turned - 1) & (turned % 2 == 1)


def slopes_vastly(finding):
    """Of an activation behind a convolution: below zero, or nearly, and as far apart as the slope makes it."""
    slopes = [abs(number) for number in finding.node.attrs.get("activation_params", [])]
    if not any(slope > 1e9 for slope in slopes):
        return False
    x, weight = contents(finding).astype(np.float64), contents(finding, 1).astype(np.float64)
    most = np.abs(x).max(initial=0) * np.abs(weight).reshape(len(weight), -1).sum(1).max(initial=0)
    return ~(gap(finding) > 1e-5 * max(slopes) * most) & ~np.isnan(finding.got)
