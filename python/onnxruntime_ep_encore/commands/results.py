"""How far results are from those of another provider."""

import numpy as np


def agreement(got, wanted):
    """As JSON has it, which lacks infinity; wanted is None where that provider cannot run the model."""
    far = None if wanted is None else distance(got, wanted)
    return {"distance_from_cpu": None if far == np.inf else far, "unlike_cpu": far == np.inf}


def distance(got, wanted):
    """Of what a model makes, the largest difference as a part of the largest number of its array; inf if there is no
    such."""
    return _distance(list(got), list(wanted))


def _distance(got, wanted):
    if isinstance(wanted, dict):
        return _distance(list(got.values()), list(wanted.values())) if got.keys() == wanted.keys() else np.inf
    if isinstance(wanted, list):
        same = isinstance(got, list) and len(got) == len(wanted)
        return max((_distance(g, w) for g, w in zip(got, wanted)), default=0.0) if same else np.inf
    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return np.inf
    if got.dtype.kind not in "fiu":
        return 0.0 if np.array_equal(got, wanted) else np.inf
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    odd = ~np.isfinite(wanted)
    if not np.array_equal(got[odd], wanted[odd], equal_nan=True) or not np.isfinite(got[~odd]).all():
        return np.inf
    if not (~odd).any():
        return 0.0
    largest = np.abs(wanted[~odd]).max()
    return float(np.abs(got[~odd] - wanted[~odd]).max() / largest) if largest else float(np.abs(got[~odd]).max())
