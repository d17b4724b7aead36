"""total_sequence_length of attention over a cache is a bound where there is room: a longer one changes no bit.

So automatic graphs may have one for many lengths (src/fuse/growing.cc). It matters where all rows are new, to what has
its length (a present without room, a bias, scores that are shown), and to tables of angles.
"""

import dataclasses

import numpy as np
import pytest
from group_query import TYPES, gqa
from harness import _Model, session
from test_group_query_codes import coded
from test_sparse_attention import sparse

TOTAL = {"GroupQueryAttention": 6, "SparseAttention": 7}


def outputs_of(case, most):
    """The outputs with the case's length, and with longer ones up to `most`."""
    at = TOTAL[case.op]
    length = int(case.inputs[at].value.reshape(()))
    inputs = [np.full(1, length, np.int32) if i == at else given for i, given in enumerate(case.inputs)]
    model = _Model(dataclasses.replace(case, inputs=inputs), case.dtype)
    one = session(model.model)
    for total in (length, length + 1, (length + most) // 2, most):
        yield one.run(model.outputs, model.feeds | {f"x{at}": np.full(1, total, np.int32)})


def changes_nothing(case, most):
    wanted, *longer = outputs_of(case, most)
    for outputs in longer:
        for got, want in zip(outputs, wanted, strict=True):
            assert got.tobytes() == want.tobytes()


HOW = [
    {},
    {"rotary": 32, "packed": True},
    {"local_window_size": 4},
    {"softcap": 0.7},
    {"smooth_softmax": 1},
    {"sinks": True, "local_window_size": 3},
    {"rotary": 16, "ids": True},
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize(
    "last, rows, room", [((6,), 1, 20), ((19, 5), 1, 40), ((0,), 1, 12), ((30,), 11, 40), ((29, 12), 4, 700)]
)
def test_grouped(last, rows, room, how, dtype):
    longest = max(last) + 6 if "rotary" in how and "ids" not in how else room
    changes_nothing(gqa(last, rows, room=room, dtype=dtype, **how), min(longest, room))


@pytest.mark.newest
def test_of_keys_behind():
    changes_nothing(gqa((30,), 11, room=40, causal=0), 40)


@pytest.mark.parametrize("heads, kv_heads, size", [(32, 8, 128), (8, 8, 64), (8, 1, 256)])
def test_of_many_keys(heads, kv_heads, size):
    case = gqa((700, 130), room=3000, heads=heads, kv_heads=kv_heads, size=size, dtype="float16", packed=True)
    changes_nothing(case, 3000)


@pytest.mark.parametrize("dtype", TYPES)
def test_of_a_past_that_layers_share(dtype):
    for last, rows, room in (((6,), 1, 20), ((30,), 11, 40)):
        changes_nothing(gqa(last, rows, room=room, dtype=dtype, filled=True, local_window_size=4), room)


@pytest.mark.newest
@pytest.mark.parametrize("rows", [1, 3])
def test_of_a_window(rows):
    case = gqa((30,), rows, room=8, rotary=32, local_window_size=5, sliding_window_cache=1, dtype="float16")
    changes_nothing(case, 36)


@pytest.mark.newest
@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_of_codes(kind, dtype):
    for last, rows in (((40,), 1), ((40,), 3)):
        changes_nothing(coded(last, rows, kind, room=90, dtype=dtype), 90)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("lengths, rows", [((100,), 1), ((50, 33), 7), ((3,), 1)])
def test_block_sparse(lengths, rows, dtype):
    changes_nothing(sparse(lengths, rows, dtype=dtype, room=160), 160)
