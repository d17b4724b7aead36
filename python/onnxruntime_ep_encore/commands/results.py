"""How far results are from those of another provider."""

import numpy as np


def distance(got, wanted):
    """Of lists of arrays, the largest difference as a part of the largest number of its array; inf if none is that."""
    return max((_distance(g, w) for g, w in zip(got, wanted, strict=True)), default=0.0)


def _distance(got, wanted):
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
