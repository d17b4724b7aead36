"""How results are compared: shape, type, and values as near as tolerance.py allows."""

import dataclasses

import numpy as np
from element_types import FLOATS, carrier, rounded
from encore_session import on_virtual_gpu
from proposals import PROPOSALS
from reference import Refused, Unknown
from tolerance import tolerance

LARGE = 1e4  # beyond it, differences of what is added up leave nothing to compare
HARNESS_NAMES = {"float": "float32", "double": "float64"}
# Of values at the end of a chain whose middle onnxruntime may have changed.
LOOSE = {"float": 1e-3, "double": 1e-6, "float16": 5e-2, "bfloat16": 3e-1}


def form_differs(got, shape, kind):
    if got.shape != tuple(shape):
        return f"shape {list(got.shape)}, not {list(shape)}"
    return f"type {got.dtype}, not {np.dtype(kind)}" if got.dtype != kind else None


def same(got, wanted):
    return got.tobytes() == wanted.tobytes() or np.array_equal(got, wanted, equal_nan=got.dtype.kind == "f")


def first_difference(got, wanted, wrong):
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} differ: at {list(place)} {got[place]!r}, not {wanted[place]!r}"


@dataclasses.dataclass
class Difference:
    """Between an output and what it should be."""

    kind: str  # shape, values
    text: str
    output: int  # which of those that the node makes
    got: np.ndarray
    wanted: np.ndarray
    wrong: np.ndarray | None = None  # which elements, of values
    stray: np.ndarray | None = None  # and which of them are a NaN that nothing in the inputs accounts for


def differences(reference, arrays):
    """What is wrong with a node's outputs, given what it read: a Difference for each that is."""
    try:
        made = reference(arrays)
    except (Refused, Unknown):  # of these contents
        return
    for i, (value, unrounded) in enumerate(zip(reference.node.makes(), made, strict=True)):
        got, wanted = arrays[value.name], rounded(unrounded, value.type)
        if text := form_differs(got, wanted.shape, carrier(value.type)):
            yield Difference("shape", text, i, got, wanted)
        elif not same(got, wanted) and (wrong := _wrong(reference, arrays, i, got, wanted)).any():
            stray = _stray(reference, arrays, i, got, wanted)
            yield Difference("values", first_difference(got, wanted, wrong), i, got, wanted, wrong, stray)


def _wrong(reference, arrays, i, got, wanted):
    node = reference.node
    proposal, kind = PROPOSALS[node.domain, node.op], node.makes()[i].type
    wrong = _beyond(got, wanted, *allowed(proposal, kind))
    if wrong.any() and proposal.sums:
        wrong &= _beyond_magnitude(reference, i, arrays, kind, got, wanted)
    if wrong.any() and proposal.mild and any(_is_wild(arrays[v.name]).any() for v in node.reads()):
        wrong &= ~reached(reference, arrays, i, _is_wild) | _stray(reference, arrays, i, got, wanted)
    return wrong


def _stray(reference, arrays, i, got, wanted):
    """Where there is a NaN that should not be, and neither NaN nor infinity, nor a number whose square is infinite,
    has a part in what should be there. A mean of nothing may be one, a product that passes infinity on its way to zero,
    and the logarithm of what should be zero."""
    stray = _wrong_nan(got, wanted)
    if not stray.any() or any(arrays[value.name].size == 0 for value in reference.node.reads()):
        return stray & False
    stray = stray & ~_overflows(reference, arrays, i) & ~_vanishes(reference, arrays, i, wanted)
    stray = stray & ~has_no_mean(reference.node, arrays)
    return stray & ~reached(reference, arrays, i, _is_extreme)


def _overflows(reference, arrays, i):
    """Where sums or products would be infinite if all were positive, and nothing near to zero."""
    node = reference.node
    if not PROPOSALS[node.domain, node.op].sums:
        return np.False_
    with np.errstate(all="ignore"):
        try:
            return np.isinf(reference.of_others(_positive(node, arrays, least=1))[i])
        except (Refused, Unknown):
            return np.False_


def _vanishes(reference, arrays, i, wanted):
    """Where a logarithm is of a sum that is rounding beside its terms, which may be below zero."""
    if reference.node.op != "ReduceLogSum":
        return np.False_
    least = 1e-13 if reference.node.makes()[i].type == "double" else 1e-6
    with np.errstate(all="ignore"):
        try:
            return wanted - reference.of_others(_positive(reference.node, arrays))[i] < np.log(least)
        except (Refused, Unknown):
            return np.False_


def has_no_mean(node, arrays):
    """Rows to be normalized, of which the sum is infinite. A scale of zero makes no number of what is none."""
    if node.op != "LayerNormalization":
        return np.False_
    x, axis = arrays[node.inputs[0].name], node.attrs.get("axis", -1)
    with np.errstate(all="ignore"):
        return np.isinf(np.abs(x).sum(tuple(range(axis % x.ndim, x.ndim)), keepdims=True))


def _wrong_nan(got, wanted):
    return (got != got) & (wanted == wanted)


def _is_extreme(array):
    with np.errstate(all="ignore"):
        return ~(np.abs(array) < np.sqrt(np.finfo(array.dtype).max))


def _is_wild(array):
    if array.dtype.kind != "f":
        return np.zeros(array.shape, bool)
    with np.errstate(all="ignore"):
        return ~(np.abs(array) < LARGE)


def reached(reference, arrays, i, odd):
    """The elements of an output that change with the elements of the inputs that are odd: odd(array) says which. All
    of them, if an attribute is odd, or what stays as it is in every run, or what has a weight that may be zero."""
    node, shape = reference.node, np.shape(arrays[reference.node.makes()[i].name])
    floats = [value for value in node.reads() if value.type in FLOATS]
    places = {value.name: odd(arrays[value.name]) for value in floats if not value.fixed}
    told = np.array([number for value in node.attrs.values() for number in _numbers(value)], np.float32)
    blended = PROPOSALS[node.domain, node.op].blends
    if odd(told).any() or any(odd(arrays[value.name]).any() for value in floats if value.fixed or blended):
        return np.full(shape, True)
    others = [np.abs(arrays[name][~where & np.isfinite(arrays[name])]) for name, where in places.items()]
    most = max([float(array.max(initial=1)) for array in others], default=1)
    # What is drawn is more than all others, which leave it room.
    room = min([float(np.finfo(arrays[name].dtype).max) / 8 for name in places], default=1)
    shrunk = min(1, room / most)
    random, results = np.random.default_rng(0), []
    for low, high in [(-4, -3), (3, 4), *[(-4, 4)] * 12]:
        others = dict(arrays)
        for name, where in places.items():
            drawn = random.uniform(low, high, where.shape) * (most * shrunk)
            others[name] = np.where(where, drawn, arrays[name] * shrunk).astype(arrays[name].dtype)
        try:
            results.append(np.asarray(reference.of_others(others)[i]))
        except (Refused, Unknown):
            return np.full(shape, True)
    if any(result.shape != shape for result in results):
        return np.full(shape, True)
    return np.any([result != results[0] for result in [*results, np.asarray(reference(arrays)[i])]], axis=0)


def _numbers(value):
    return [number for number in (value if isinstance(value, list) else [value]) if isinstance(number, float)]


def allowed(proposal, name):
    return proposal.tolerance.get(name) or tolerance(proposal.family, HARNESS_NAMES.get(name, name))


def _beyond(got, wanted, relative, absolute):
    if got.dtype.kind != "f":
        return np.asarray(got != wanted)
    return ~np.isclose(got.astype(np.float64), wanted.astype(np.float64), relative, absolute, equal_nan=True)


def _beyond_magnitude(reference, i, arrays, name, got, wanted):
    """Where the difference is too large for what was added up. Sums that may overflow on the way may be anything."""
    if got.dtype.kind != "f":
        return True
    relative, _ = allowed(PROPOSALS[reference.node.domain, reference.node.op], name)
    with np.errstate(all="ignore"):
        try:
            scale = np.abs(rounded(reference.of_others(_positive(reference.node, arrays))[i], name).astype(np.float64))
        except (Refused, Unknown):
            return True
        near = abs(got.astype(np.float64) - wanted) <= 2 * relative * scale
    return ~(near | np.isinf(scale))


def _positive(node, arrays, least=0):
    """As what is added up if nothing cancels."""
    sums = PROPOSALS[node.domain, node.op].sums
    names = [v.name for i, v in enumerate(node.inputs) if v is not None and (sums is True or i in sums)]
    return {
        **arrays,
        **{name: np.maximum(np.abs(arrays[name]), least) for name in names if arrays[name].dtype.kind == "f"},
    }


def run_differs(case, name, got, wanted, level_changed):
    """How the second session's value differs from the first's."""
    if text := form_differs(got, wanted.shape, wanted.dtype):
        return "shape", text
    if same(got, wanted):
        return None
    proposals = [PROPOSALS[node.domain, node.op] for node in case.nodes]
    repeats = on_virtual_gpu() or all(p.ordered for p in proposals)
    if not level_changed and repeats and not any(p.family == "matmul" for p in proposals):
        return "values", first_difference(got, wanted, ~((got == wanted) | ((got != got) & (wanted != wanted))))
    if name not in LOOSE:
        return None
    if not all(p.steady for p in proposals) or _is_wild(wanted).any():
        # Only where all is finite a NaN comes from nowhere.
        stray = _wrong_nan(got, wanted) & np.isfinite(wanted).all()
        return ("values", first_difference(got, wanted, stray)) if stray.any() else None
    loose = LOOSE[name] * (1 + np.abs(wanted).max(initial=0))
    wrong = _beyond(got, wanted, LOOSE[name], loose)
    return ("values", first_difference(got, wanted, wrong)) if wrong.any() else None
