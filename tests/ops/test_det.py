import numpy as np
import pytest
from harness import FLOATS, Case, check, floats, seeded
from refusal import fails


def exactly(x):
    """In doubles, which the CPU EP does for doubles alone."""
    return [np.linalg.det(x.astype(np.float64))]


def near_one(*shape):
    """Matrices of a determinant of a moderate size, whatever their own."""
    n = shape[-1]
    noise = seeded(shape).uniform(-1, 1, shape).astype(np.float32)
    return np.asarray(np.eye(n) + noise / np.sqrt(n) / 2, np.float32)[..., seeded(n).permutation(n), :]


def det(x, **rest):
    return Case("Det", [x], reference=exactly, family="matmul", **rest)


CASES = [
    *[det(near_one(3, n, n), dtype=t, opset=22) for t in FLOATS for n in (1, 3, 16, 17, 40)],
    *[det(near_one(n, n)) for n in (1, 2, 5, 31, 32, 33, 63, 64, 65, 100)],
    *[det(near_one(2, n, n), dtype="float64") for n in (64, 65, 130)],
    det(near_one(2, 3, 4, 6, 6), opset=11),
    det(near_one(2, 5, 5), opset=22),
    det(near_one(1000, 4, 4)),
    det(near_one(33, 20, 20)),
    det(near_one(3, 7, 7), misaligned=True),
    det(np.ones((2, 5, 5), np.float32), name="singular"),
    det(np.zeros((2, 3, 3), np.float32), name="zero"),
    det(np.eye(6, dtype=np.float32)[::-1].copy(), name="turned"),
    det(np.zeros((0, 3, 3), np.float32), capture=False),
    det(np.zeros((2, 0, 0), np.float32), capture=False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_det(case):
    check(case)


def test_what_is_no_number_shows():
    x = near_one(2, 6, 6)
    x[0, 3, 2] = np.nan
    check(
        Case(
            "Det",
            [x],
            reference=lambda x: [np.where(np.isnan(x).any((1, 2)), np.nan, exactly(x)[0])],
            capture=False,
            family="matmul",
        )
    )


def test_matrices_that_are_not_square():
    fails("Det", [floats(3, 4)], {}, "square matrices are wanted", ranks=False)
    fails("Det", [floats(4)], {}, "square matrices are wanted", ranks=False)
