"""Attention operators of floats where products may be in TF32: one kernel for more than a few queries."""

from dataclasses import replace

import pytest
from encore_session import on_virtual_gpu, only_if
from group_query import gqa
from harness import check, kernels_of
from test_attention import attention, masked
from test_multi_head_attention import case as multi_head
from test_multi_head_attention import ints
from test_projected_attention import case as projected


def in_tf32(case):
    return replace(case, family="in TF32", options={"use_tf32": 1})


CASES = [
    *(
        attention((2, 3, rows, size), (2, 3, keys, size))
        for size in (4, 40, 64, 128)
        for rows, keys in ((9, 7), (70, 197))
    ),
    attention((2, 6, 33, 64), (2, 2, 33, 64), is_causal=1, past=20),
    attention((2, 6, 33, 64), (2, 2, 33, 64), lengths=[33, 19], is_causal=1),
    attention((2, 2, 40, 64), (2, 2, 90, 64), mask=masked(2, 1, 40, 90), name="mask"),
    attention((2, 2, 40, 64), (2, 2, 90, 64), mask=masked(40, 70), name="short_mask"),
    attention((2, 40, 128), (2, 90, 128), q_num_heads=2, kv_num_heads=2, softcap=2.0),
    multi_head([(2, 129, 128), (2, 129, 128), (2, 129, 128)], 2, unidirectional=1),
    multi_head([(2, 20, 3, 3, 40)], 3),
    multi_head([(2, 20, 128), (2, 33, 128), (2, 33, 128), None, ints(20, 33)], 2, name="lengths"),
    multi_head([(2, 20, 128), (2, 33, 128), (2, 33, 128), None, None, (1, 2, 20, 33)], 2, name="bias"),
    replace(projected([(2, 33, 24), (24, 3 * 128), (3 * 128,)], 2), tolerance=(1e-2, 1e-2)),  # as its product is
    gqa((128,), rows=129),
    gqa((40, 60), rows=30, local_window_size=9),
    gqa((29, 29), rows=30, sinks=True, bias=(1, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators(case):
    check(in_tf32(case))


@only_if(on_virtual_gpu())
def test_the_kernel_is_taken():
    def takes(case):
        return any("AttendTf32" in name for name in kernels_of(case))

    for case in CASES:
        assert takes(in_tf32(case)), case
        assert not takes(case), case
    assert not takes(in_tf32(attention((1, 2, 20, 5), (1, 2, 20, 5)))), "rows that are not aligned"
    assert not takes(in_tf32(attention((1, 2, 20, 160), (1, 2, 20, 160)))), "large heads"
    assert not takes(in_tf32(attention((1, 2, 1, 64), (1, 2, 20, 64)))), "a step of a decoder"
