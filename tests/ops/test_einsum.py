"""Einsum against NumPy, whose equations ONNX's are; and the CPU EP where it does the same."""

import numpy as np
import pytest
from encore_session import NEWEST_OPSET, ORT_VERSION, only_if
from harness import Case, check, floats, integers
from refusal import declined, fails
from tolerance import tolerance


def reference(equation):
    def of(*inputs):
        wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs]
        return [np.asarray(np.einsum(equation, *wide)).astype(inputs[0].dtype)]

    return of


def einsum(equation, *shapes, dtype="float32", opset=12, **more):
    if dtype.startswith(("float", "bfloat")):
        inputs = [np.asarray(floats(*shape)).reshape(shape) for shape in shapes]
    else:
        inputs = [np.asarray(integers(dtype, *shape, low=0, high=9)).reshape(shape) for shape in shapes]
    more.setdefault("reference", reference(equation))
    check(Case("Einsum", inputs, {"equation": equation}, dtype=dtype, family="matmul", opset=opset,
               name=equation, **more))  # fmt: skip


ONE = [
    ("ij->ji", (3, 5)),
    ("ij", (3, 5)),
    ("ba", (3, 5)),  # the output is ab
    ("bA", (3, 5)),  # capitals come first
    ("ij->", (3, 5)),
    ("ij->i", (33, 65)),
    ("ij->j", (33, 65)),
    ("ijk->ik", (3, 40, 5)),
    ("ijk->ki", (3, 40, 5)),
    ("ii", (4, 4)),
    ("ii->i", (4, 4)),
    ("ii->", (40, 40)),
    ("iji->j", (3, 5, 3)),
    ("iij->ji", (3, 3, 5)),
    ("iiii->i", (3, 3, 3, 3)),
    ("ijij->", (3, 4, 3, 4)),
    ("...->...", (2, 3)),
    ("...ij->...ji", (2, 3, 4, 5)),
    ("i...->...", (3, 4, 5)),
    ("i...->...i", (3, 4, 5)),
    ("...ii->...i", (2, 3, 4, 4)),
    ("b...h", (2, 3, 4)),
    ("", ()),
    ("->", ()),
    ("i->", (0,)),
    ("ij->i", (3, 0)),
    ("ij->j", (3, 0)),
    ("ii->i", (1, 1)),
    (" i j -> j i ", (3, 5)),
    ("abcdefghijkl->lkjihgfedcba", (2, 1, 2, 3, 1, 2, 2, 1, 2, 2, 1, 2)),
]
TWO = [
    ("ij,jk->ik", (3, 5), (5, 4)),
    ("ij,jk", (3, 5), (5, 4)),
    ("ij,kj->ik", (33, 65), (31, 65)),
    ("ji,jk->ik", (65, 33), (65, 31)),
    ("ji,kj->ki", (65, 33), (31, 65)),
    ("ij,jk->ki", (3, 5), (5, 4)),
    ("bij,bjk->bik", (4, 3, 5), (4, 5, 6)),
    ("bij,bjk->ibk", (4, 3, 5), (4, 5, 6)),
    ("bij,bjk->kib", (4, 3, 5), (4, 5, 6)),
    ("bqhd,bkhd->bhqk", (2, 7, 3, 8), (2, 9, 3, 8)),
    ("bhqk,bkhd->bqhd", (2, 3, 7, 9), (2, 9, 3, 8)),
    ("bhqk,bkhd->bqhd", (9, 3, 7, 9), (9, 9, 3, 8)),
    ("abqd,bakd->qabk", (5, 7, 3, 4), (7, 5, 6, 4)),
    ("abcqd,cabkd->bcaqk", (3, 3, 3, 2, 4), (3, 3, 3, 2, 4)),
    ("bqd,dhe->bqhe", (2, 7, 8), (8, 3, 4)),
    ("bqhe,dhe->bqd", (2, 7, 3, 4), (8, 3, 4)),
    ("ijk,kjl->il", (3, 4, 5), (5, 4, 6)),
    ("ijk,jkl->il", (3, 4, 5), (4, 5, 6)),
    ("bij,bj->bi", (4, 3, 5), (4, 5)),
    ("bi,bij->bj", (4, 3), (4, 3, 5)),
    ("bi,bi->b", (40, 65), (40, 65)),
    ("bi,ib->b", (40, 65), (65, 40)),
    ("i,i->", (1000,), (1000,)),
    ("i,i", (5000,), (5000,)),
    ("ij,ij->", (30, 70), (30, 70)),
    ("ij,ji->", (30, 70), (70, 30)),
    ("i,j->ij", (5,), (7,)),
    ("i,j->ji", (5,), (7,)),
    ("ij,ij->ij", (5, 7), (5, 7)),
    ("ij,j->ij", (5, 7), (7,)),
    ("ij,i->ji", (5, 7), (5,)),
    (",ij->ij", (), (5, 7)),
    ("ij,->j", (5, 7), ()),
    (",", (), ()),
    ("ij,kl->jl", (3, 5), (4, 6)),
    ("ijm,jkn->ik", (3, 5, 4), (5, 6, 3)),
    ("ii,ij->j", (5, 5), (5, 6)),
    ("iij,jk->ik", (3, 3, 5), (5, 6)),
    ("iki,kj->ij", (3, 5, 3), (5, 6)),
    ("...ij,...jk->...ik", (2, 3, 4, 5), (2, 3, 5, 6)),
    ("...ij,...jk->...ik", (2, 1, 4, 5), (1, 3, 5, 6)),
    ("...ij,jk->...ik", (2, 3, 4, 5), (5, 6)),
    ("i...j,j...k->...ik", (4, 2, 5), (5, 2, 6)),
    ("...i,...i", (2, 3, 4), (1, 3, 4)),
    ("ij,jk->ik", (3, 1), (5, 4)),  # a dimension of one broadcasts, as NumPy's does
    ("ij,jk->ik", (1, 1), (1, 1)),
    ("ij,jk->ik", (3, 0), (0, 4)),
    ("ij,jk->ik", (0, 5), (5, 4)),
    ("ij,j->i", (130, 257), (257,)),
    ("j,ij->i", (257,), (130, 257)),
]
MORE = [
    ("ij,jk,kl->il", (3, 4), (4, 5), (5, 6)),
    ("ij,jk,kl", (3, 4), (4, 5), (5, 6)),
    ("i,j,k->kji", (3,), (4,), (5,)),
    ("i,j,ij->", (30,), (40,), (30, 40)),
    ("bi,bij,bj->b", (4, 30), (4, 30, 20), (4, 20)),
    ("...i,...j,ijk->...k", (2, 3), (2, 4), (3, 4, 5)),
    ("ab,bc,cd,de,ef->af", (3, 4), (4, 5), (5, 6), (6, 5), (5, 2)),
    ("a,b,c,d,e,f,g,h,i,j,k,l,m->", *[(2,)] * 13),
    ("ij,ij,ij->ij", (5, 7), (5, 7), (5, 7)),
    ("ii,jj,ij->", (3, 3), (4, 4), (3, 4)),
]


def named(cases):
    return pytest.mark.parametrize("equation,shapes", [(c[0], c[1:]) for c in cases], ids=str)


@named(ONE + TWO + MORE)
def test_float(equation, shapes):
    einsum(equation, *shapes)


@named(TWO[:20] + ONE[4:9])
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64"])
def test_types(equation, shapes, dtype):
    einsum(equation, *shapes, dtype=dtype)


@only_if(NEWEST_OPSET >= 28)
@named(TWO[:20] + ONE[4:9] + MORE[:1])
def test_bfloat16(equation, shapes):
    on_the_way = {"tolerance": (3e-2, 0.2)} if len(shapes) > 2 else {}  # sums of some tens, which are rounded
    einsum(equation, *shapes, dtype="bfloat16", opset=28, **on_the_way)


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_unsigned(dtype):
    """Which the CPU EP has no kernel for. They wrap around, as all integers do."""
    large = [np.array([[2**30, 2**31, 7]], dtype), np.array([[4, 2, 2**31]], dtype)]
    check(Case("Einsum", large, {"equation": "ij,kj->ik"}, dtype=dtype, opset=12, reference=reference("ij,kj->ik")))
    einsum("ijk,kl->l", (3, 4, 5), (5, 6), dtype=dtype)


@named([TWO[0], TWO[6], TWO[9], ONE[6], MORE[0], ("...ij,...jk->...ik", (2, 1, 4, 5), (1, 3, 5, 6))])
def test_as_the_cpu_does(equation, shapes):
    einsum(equation, *shapes, reference=None)


@named([("ij,jk->ik", (300, 130), (130, 257)), ("bqhd,bkhd->bhqk", (2, 65, 4, 32), (2, 66, 4, 32)),
        ("ij->", (1000, 1037)), ("ij,ij->i", (70, 5000), (70, 5000)), ("ij,ij->j", (700, 50), (700, 50))])  # fmt: skip
@pytest.mark.parametrize("dtype,opset", [("float32", 12), ("float16", 12), *[("bfloat16", 28)] * (NEWEST_OPSET >= 28)])
def test_large(equation, shapes, dtype, opset):
    scale = {"ij->": 30, "ij,ij->i": 10, "ij,ij->j": 4}.get(equation, 2)  # sums near zero of many terms
    rtol, atol = tolerance("matmul", dtype)
    einsum(equation, *shapes, dtype=dtype, opset=opset, tolerance=(rtol, atol * scale))


@named([TWO[0], TWO[9], TWO[20], TWO[26], ONE[5]])
def test_misaligned(equation, shapes):
    einsum(equation, *shapes, misaligned=True)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_long_dot_of_integers(dtype):
    einsum("i,i->", (100003,), (100003,), dtype=dtype)
    einsum("ij,kj->ik", (30, 3000), (20, 3000), dtype=dtype)


def test_nan_and_infinity():
    x = np.array([[np.inf, 1, 2], [np.nan, 1, 0], [3, 4, 5]], np.float32)
    for equation in ("ij,jk->ik", "ij,ij->i", "ij,ij->ij"):
        check(Case("Einsum", [x, x[::-1].copy()], {"equation": equation}, opset=12, reference=reference(equation)))


def test_many_labels():
    """More dimensions than a kernel walks at once."""
    labels, shape = "abcdefghijklmnopqrst", (2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1)
    einsum(f"{labels},{labels}->{labels[::-1]}", shape, shape)
    einsum(f"{labels},{labels[::-1]}->a", shape, shape[::-1])
    einsum(f"{labels},{labels[::-1]}->a", shape, shape[::-1], dtype="int32")
    einsum(f"{labels},{labels[2:]}->{labels[::-4]}", shape, shape[2:])


# onnxruntime 1.32.0 itself infers shapes of these for ever.
NO_TERMS = [("i.j->i", 1), ("i....->i", 1), ("...i...->i", 1), ("i\x00j->i", 1)] if ORT_VERSION < (1, 32) else []


@pytest.mark.parametrize(
    "equation,inputs",
    [
        ("ij,jk->ik", 1), ("ij->ji", 2), ("ij->jj", 1), ("ij->k", 1), ("i->i,j", 1), *NO_TERMS,
        ("i1->i", 1), ("ij>i", 1), ("ij-i", 1), ("->i", 1), ("...i->i", 1), ("i->i->i", 1),
        ("é->é", 1),
    ],
)  # fmt: skip
def test_equations_that_are_none(equation, inputs):
    declined("Einsum", [floats(3, 3) for _ in range(inputs)], {"equation": equation})


@pytest.mark.parametrize(
    "equation,shapes,words",
    [
        ("ij,jk->ik", [(3, 4), (5, 6)], "a label stands for dimensions of 4 and 5"),
        ("ii->i", [(3, 4)], r"a diagonal of dimensions 3 and 4, of shape \[3,4\]"),
        ("ii->i", [(1, 4)], "a diagonal of dimensions 1 and 4"),
        ("ijk->i", [(3, 4)], "input 0 has 2 dimensions; its term names 3"),
        ("i...jk->i", [(3, 4)], None),
        ("...ij,...jk->...ik", [(2, 3, 4), (3, 4, 5)], "a label stands for dimensions of 2 and 3"),
    ],
)
def test_shapes_that_do_not_fit(equation, shapes, words):
    inputs = [floats(*shape) for shape in shapes]
    if words is None:
        declined("Einsum", inputs, {"equation": equation})
    else:
        fails("Einsum", inputs, {"equation": equation}, words, ranks=False)
