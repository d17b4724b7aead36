import numpy as np
import pytest
from harness import FLOATS, Case, check, floats, integers


def product(op, inputs, attrs=None, **rest):
    return Case(op, inputs, attrs or {}, family="matmul", **rest)


def unit(*shape):
    """Values whose products do not grow with the length."""
    return floats(*shape, low=-0.5, high=0.5)


SHAPES = [
    ((4, 5), (5, 3)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((5,), (5,)),
    ((2, 3, 4, 5), (5, 6)),
    ((2, 3, 4, 5), (2, 3, 5, 6)),
    ((2, 1, 4, 5), (3, 5, 6)),
    ((3, 4, 5), (2, 1, 5, 6)),
    ((1, 1, 5), (7, 5, 2)),
    ((0, 5), (5, 3)),
    ((4, 0), (0, 3)),
    ((127, 129), (129, 65)),
]
MATMULS = [
    product("MatMul", [unit(*a), unit(*b)], dtype=t, capture=0 not in (*a[:-1], *b[1:]))
    for a, b in SHAPES
    for t in FLOATS
]
MATMULS += [product("MatMul", [unit(130, 64), unit(64, 96)], dtype=t, misaligned=True) for t in ("float32", "float16")]
FUSED = [
    product(
        "FusedMatMul",
        [unit(3, 5, 4), unit(3, 6, 5)],
        {"transA": 1, "transB": 1, "alpha": 0.25},
        domain="com.microsoft",
        dtype=t,
    )
    for t in ("float32", "float16")
] + [product("FusedMatMul", [unit(4, 5), unit(2, 6, 5)], {"transB": 1}, domain="com.microsoft")]
FUSED += [
    product(
        "TransposeMatMul",
        [unit(3, 5, 4), unit(3, 6, 5)],
        {"transA": 1, "transB": 1, "alpha": 0.25},
        domain="com.microsoft",
        dtype=t,
        reference=lambda a, b: [
            a.transpose(0, 2, 1) @ b.transpose(0, 2, 1) * a.dtype.type(0.25)
        ],  # no kernel for double
    )
    for t in FLOATS
]
# transBatchA and transBatchB: [rows, batch.., columns]
TURNED = {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1, "alpha": 2.0}
FUSED += [
    product("FusedMatMul", [unit(4, 2, 3, 5), unit(2, 3, 5, 6)], {"transBatchA": 1}, domain="com.microsoft"),
    product("FusedMatMul", [unit(5, 3, 4), unit(6, 3, 5)], TURNED, domain="com.microsoft", dtype="float16"),
    product(  # the CPU EP refuses it
        "FusedMatMul",
        [unit(5, 3, 4), unit(4, 6)],
        {"transBatchA": 1},
        domain="com.microsoft",
        reference=lambda a, b: [a.transpose(1, 0, 2) @ b],
    ),
]
GEMMS = [
    *[product("Gemm", [unit(4, 5), unit(5, 3), unit(3)], dtype=t) for t in FLOATS],
    *[
        product(
            "Gemm", [unit(5, 4), unit(3, 5), unit(4, 3)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}, dtype=t
        )
        for t in FLOATS
    ],
    product("Gemm", [unit(4, 5), unit(5, 3)], name="no-c"),
    product("Gemm", [unit(4, 5), unit(5, 3), unit(4, 1)], name="column"),
    product("Gemm", [unit(4, 5), unit(5, 3), unit(1)], name="one"),
    product("Gemm", [unit(4, 5), unit(5, 3), np.float32(0.5)], name="scalar-c"),
    product("Gemm", [unit(4, 5), unit(5, 3), unit(3)], {"beta": 0.0}, name="ignored-c"),
    product("Gemm", [unit(4, 5), unit(5, 1), unit(1)], name="one-column"),
    product("Gemm", [unit(64, 2048), unit(1000, 2048), unit(1000)], {"transB": 1}, name="classifier"),
    product("Gemm", [unit(4, 5), unit(5, 3), unit(3)], opset=7),
]


@pytest.mark.parametrize("case", MATMULS + FUSED + GEMMS, ids=str)
def test_matmul(case):
    check(case)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("shapes", [*SHAPES, ((3, 70000), (70000, 2)), ((1, 5000), (5000, 300))], ids=str)
def test_matmul_of_integers(shapes, dtype):
    """Which wrap around."""
    a, b = (integers("int32", *shape, low=-(2**31), high=2**31 - 1).astype(dtype) for shape in shapes)
    check(Case("MatMul", [a, b], dtype=dtype, family="exact", reference=lambda a, b: [np.asarray(np.matmul(a, b))]))


def test_matmul_of_integers_as_the_cpu_does():
    check(Case("MatMul", [integers("int32", 2, 3, 4), integers("int32", 4, 5)], dtype="int32", family="exact"))
