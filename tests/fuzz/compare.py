"""How results are compared: shape, type, and values as near as tolerance.py allows."""

import numpy as np
from element_types import carrier, rounded
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


def node_differs(reference, arrays):
    """What is wrong with a node's outputs, given what it read: (kind, text, got, wanted), or None."""
    node = reference.node
    try:
        made = reference(arrays)
    except (Refused, Unknown):  # of these contents
        return None
    proposal = PROPOSALS[node.domain, node.op]
    for value, unrounded in zip(node.makes(), made, strict=True):
        got, wanted = arrays[value.name], rounded(unrounded, value.type)
        if text := form_differs(got, wanted.shape, carrier(value.type)):
            return "shape", text, got, wanted
        if same(got, wanted):
            continue
        wrong = _beyond(got, wanted, *_allowed(proposal, value.type))
        if wrong.any() and proposal.sums:
            wrong &= _beyond_magnitude(reference, node.makes().index(value), arrays, value.type, got, wanted)
        if wrong.any() and not (proposal.mild and any(_is_wild(arrays[v.name]) for v in node.reads())):
            return "values", first_difference(got, wanted, wrong), got, wanted
    return None


def _allowed(proposal, name):
    return proposal.tolerance.get(name) or tolerance(proposal.family, HARNESS_NAMES.get(name, name))


def _beyond(got, wanted, relative, absolute):
    if got.dtype.kind != "f":
        return np.asarray(got != wanted)
    return ~np.isclose(got.astype(np.float64), wanted.astype(np.float64), relative, absolute, equal_nan=True)


def _beyond_magnitude(reference, i, arrays, name, got, wanted):
    """Where the difference is too large for what was added up. Sums that may overflow on the way may be anything."""
    if got.dtype.kind != "f":
        return True
    relative, _ = _allowed(PROPOSALS[reference.node.domain, reference.node.op], name)
    with np.errstate(all="ignore"):
        try:
            scale = rounded(reference.of_magnitudes(arrays)[i], name).astype(np.float64)
        except (Refused, Unknown):
            return True
        near = abs(got.astype(np.float64) - wanted) <= 2 * relative * scale
    return ~(near | np.isinf(scale))


def _is_wild(array):
    if array.dtype.kind != "f" or not array.size:
        return False
    with np.errstate(all="ignore"):
        return not np.abs(array).max() < LARGE


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
    if name not in LOOSE or not all(p.steady for p in proposals) or _is_wild(wanted):
        return None
    loose = LOOSE[name] * (1 + np.abs(wanted).max(initial=0))
    wrong = _beyond(got, wanted, LOOSE[name], loose)
    return ("values", first_difference(got, wanted, wrong)) if wrong.any() else None
