"""Views and movement: not a bit may change."""

import numpy as np
import pytest
from harness import FLOATS, INTEGERS, SPECIAL, Case, Const, bools, check, floats, integers
from refusal import fails


def ints(*values):
    return Const(np.array(values, np.int64))


def exact(op, inputs, attrs=None, **rest):
    return Case(op, inputs, attrs or {}, family="exact", **rest)


def in_types(op, make, attrs=None, name_of="", **rest):
    """The case in each float type, in integers of each size and in booleans."""
    cases = [exact(op, make(floats), attrs, dtype=t, name=name_of, **rest) for t in FLOATS]
    cases += [
        exact(op, make(lambda *shape, t=t: integers(t, *shape)), attrs, name=name_of + t, **rest) for t in INTEGERS
    ]
    return cases + [exact(op, make(bools), attrs, name=name_of + "bool", **rest)]


VIEWS = [
    *in_types("Identity", lambda x: [x(2, 3)]),
    exact("OptionalGetElement", [floats(2, 3)]),
    exact("OptionalGetElement", [integers("int8", 0, 3)]),
    *in_types("Reshape", lambda x: [x(2, 3, 4), ints(4, -1)]),
    exact("Reshape", [floats(2, 3, 4), ints(0, 12)]),
    exact("Reshape", [floats(0, 3), ints(3, 0)], {"allowzero": 1}, capture=False),
    exact("Reshape", [floats(1), ints()], name="to-scalar"),
    exact("Reshape", [floats(4, 6), ints(2, 12)], opset=5),
    exact("Flatten", [floats(2, 3, 4)], {"axis": 2}),
    exact("Flatten", [floats(2, 3, 4)], {"axis": -1}),
    exact("Flatten", [floats(2, 3, 4)], {"axis": 0}),
    exact("Squeeze", [floats(1, 3, 1, 2), ints(0, -2)]),
    exact("Squeeze", [floats(1, 3, 1, 2)], name="all"),
    exact("Squeeze", [floats(1, 3, 1, 2)], {"axes": [2]}, opset=11),
    exact("Unsqueeze", [floats(3, 2), ints(0, -1)]),
    exact("Unsqueeze", [floats(3, 2)], {"axes": [1]}, opset=11),
    exact("Unsqueeze", [np.float32(2.5), ints(0)]),
    exact("Unsqueeze", [floats(3), Const(np.array(0))], name="one-axis"),
]

MOVES = [
    *in_types("Transpose", lambda x: [x(3, 5, 7)], {"perm": [2, 0, 1]}),
    *[exact("Transpose", [floats(64, 100)], dtype=t) for t in FLOATS],
    exact("Transpose", [floats(2, 33, 5, 47)], {"perm": [0, 3, 1, 2]}),
    exact("Transpose", [floats(2, 33, 5, 48)], {"perm": [0, 2, 1, 3]}, dtype="float16"),
    exact("Transpose", [floats(3, 2, 2, 5, 4)], {"perm": [2, 0, 3, 1, 4]}),
    exact("Transpose", [floats(5)]),
    exact("Transpose", [np.float32(1.5)]),
    exact("Transpose", [floats(0, 3)]),
    exact("Transpose", [floats(1025, 1023)], name="large"),
    exact("Transpose", [floats(65, 130)], dtype="float16", misaligned=True),
    # So large that narrow elements are taken several at a time, where sizes and addresses allow it.
    exact("Transpose", [floats(1090, 1030)], dtype="float16", name="large"),
    exact("Transpose", [floats(1090, 1030)], dtype="float16", misaligned=True, name="large"),
    exact("Transpose", [floats(1089, 1030)], dtype="float16", name="large"),
    exact("Transpose", [floats(7, 66, 90, 30)], {"perm": [0, 3, 1, 2]}, dtype="float16", name="large"),
    exact("Transpose", [integers("uint8", 2180, 2052)], name="large"),
    exact("Transpose", [integers("uint8", 3, 1156, 1028)], {"perm": [0, 2, 1]}, name="large"),
    # Lines of tiles that begin and end anywhere; few long lines, many short ones.
    *[
        exact("Transpose", [integers(t, *shape)], {"perm": [0, 2, 1]}, name=t)
        for t in ("uint8", "int16", "int32", "int64")
        for shape in [(1, 65, 129), (2, 8, 300), (2, 300, 8), (2, 20, 260), (1, 260, 24), (3, 128, 68), (1, 66, 257)]
    ],
    *[
        exact("Transpose", [integers(t, 2, 100, 71)], {"perm": [0, 2, 1]}, name=t, misaligned=True)
        for t in ("uint8", "int16", "int32", "int64")
    ],
    # Pictures of a few planes, channels last.
    *[
        exact("Transpose", [integers(t, 2, planes, 6, width)], {"perm": [0, 2, 3, 1]}, name=t, misaligned=misaligned)
        for t in ("uint8", "int16", "int32", "int64")
        for planes in (2, 3, 4)
        for width, misaligned in ((8, False), (8, True), (7, False))
    ],
    exact("Transpose", [floats(1, 3, 224, 224)], {"perm": [0, 2, 3, 1]}, dtype="float16", name="picture"),
    exact("Transpose", [floats(2, 3, 4, 5, 16)], {"perm": [0, 2, 3, 4, 1]}),
    # Neighbours that are moved as one element of up to 16 bytes.
    *[
        exact("Transpose", [integers(t, 37, 70, width)], {"perm": [1, 0, 2]}, name=t)
        for t, width in [("uint8", 2), ("uint8", 16), ("int16", 2), ("int16", 8), ("int32", 4), ("int64", 2)]
    ],
    exact("Transpose", [floats(9, 10, 11, 12)], {"perm": [3, 2, 1, 0]}, dtype="float16"),
    exact("Transpose", [floats(2, 9, 3, 10, 12)], {"perm": [4, 2, 0, 3, 1]}, dtype="float16"),
    exact("Transpose", [floats(2, 9, 3, 2, 10, 12)], {"perm": [5, 1, 3, 0, 4, 2]}, dtype="float16"),
    exact("Transpose", [floats(2, 9, 3, 2, 9, 12)], {"perm": [3, 5, 0, 2, 1, 4]}, dtype="float16"),
    *in_types("Slice", lambda x: [x(6, 8), ints(1, 2), ints(5, 8), ints(0, 1), ints(2, 3)]),
    exact("Slice", [floats(6, 8), ints(-1), ints(-100), ints(0), ints(-2)]),
    exact("Slice", [floats(6, 8), ints(7), ints(-(2**63)), ints(1), ints(-3)]),
    exact("Slice", [floats(6, 8), ints(2), ints(2**63 - 1), ints(-1)]),
    exact("Slice", [floats(6, 8), ints(5), ints(2), ints(0)], name="empty", capture=False),
    exact("Slice", [floats(6, 8)], {"starts": [1, -3], "ends": [4, 2**31], "axes": [0, 1]}, opset=9),
    exact("Slice", [floats(64, 129, 33), ints(1, 0), ints(63, 32), ints(1, 2)], name="large", dtype="float16"),
    *in_types("Slice", lambda x: [x(7, 301), ints(1), ints(300), ints(1)], name_of="runs"),
    exact("Slice", [floats(7, 301), ints(3), ints(2**62), ints(1)], dtype="float16", misaligned=True, name="runs"),
    # Steps that are taken in wide reads and others, of rows that end within a pack.
    *[
        exact("Slice", [integers(t, 9, 203), ints(start), ints(end), ints(1), ints(step)], name=t)
        for t in ("uint8", "int16", "int32", "int64")
        for start, end, step in [(0, 203, 2), (1, 202, 2), (202, -(2**62), -1), (150, 3, -1), (3, 200, 3), (200, 1, -2)]
    ],
    # So large that narrow runs, too, are moved in packs, and two of them by a thread.
    *[
        exact("Slice", [floats(1300, 1701), *map(ints, cut)], dtype="float16", name="large", misaligned=misaligned)
        for cut in [(1, 1701, 1), (0, 1700, 1), (0, 1701, 1, 2), (1700, -(2**62), 1, -1)]
        for misaligned in (False, True)
    ],
    exact("Slice", [floats(1100, 700, 3), ints(0), ints(2), ints(2)], dtype="float16", name="large"),
    exact("Slice", [floats(1100, 700, 3), ints(1), ints(3), ints(2)], dtype="float16", name="large", misaligned=True),
    exact("Slice", [integers("uint8", 2300, 2001), ints(1), ints(1999), ints(1)], name="large"),
    *in_types("Expand", lambda x: [x(5, 1), ints(3, 5, 301)], name_of="runs"),
    exact("Expand", [floats(1500, 1), ints(1500, 1501)], dtype="float16", name="large"),
    exact("Tile", [floats(700, 5), ints(3, 211)], dtype="float16", name="large"),
    *in_types("Expand", lambda x: [x(3, 1), ints(2, 1, 4)]),
    exact("Expand", [np.float32(3), ints(2, 3)]),
    exact("Expand", [floats(1, 0), ints(3, 0)], capture=False),
    *in_types("Tile", lambda x: [x(2, 3), ints(2, 3)]),
    exact("Tile", [floats(2, 1, 3), ints(1, 4, 2)]),
    exact("Tile", [floats(2, 3), ints(0, 2)], capture=False),
]

JOINS = [
    *in_types("Concat", lambda x: [x(2, 3), x(2, 5)], {"axis": 1}),
    exact("Concat", [floats(2, 3, 4), floats(5, 3, 4), floats(0, 3, 4)], {"axis": 0}),
    exact("Concat", [floats(3, i % 4) for i in range(20)], {"axis": -1}, name="many"),
    exact("Concat", [floats(130, 64), floats(130, 32)], {"axis": 1}, dtype="float16", name="wide"),
    exact("Concat", [floats(130, 64), floats(130, 32)], {"axis": 1}, dtype="float16", misaligned=True),
    exact("Concat", [floats(1)], {"axis": 0}, name="one"),
    *in_types("Concat", lambda x: [x(7, 301), x(7, 150), x(7, 1)], {"axis": 1}, name_of="runs"),
    exact("Concat", [floats(7, 301), floats(7, 77)], {"axis": 1}, dtype="float16", misaligned=True, name="runs"),
    *in_types("Split", lambda x: [x(7, 452), ints(301, 1, 150)], {"axis": 1}, outputs=3, name_of="runs"),
    exact("Concat", [floats(1500, 1501), floats(1500, 1)], {"axis": 1}, dtype="float16", name="large"),
    exact("Concat", [floats(70, 33) for _ in range(20)], {"axis": 1}, dtype="float16", name="many"),
    exact("Concat", [floats(70, 333) for _ in range(20)], {"axis": 1}, dtype="float16", name="many"),
    exact("Concat", [floats(3, i) for i in range(1, 20)], {"axis": 1}, dtype="float16", misaligned=True, name="many"),
    exact("Split", [floats(1500, 1502), ints(1, 1501)], {"axis": 1}, outputs=2, dtype="float16", name="large"),
    exact("Split", [floats(300, 3003), ints(*[143] * 21)], {"axis": 1}, outputs=21, dtype="float16", name="many"),
    *in_types("Split", lambda x: [x(6, 4), ints(2, 4)], {"axis": 0}, outputs=2),
    exact("Split", [floats(6, 9)], {"axis": 1, "num_outputs": 3}, outputs=3),
    exact("Split", [floats(6, 7)], {"axis": 1, "num_outputs": 3}, outputs=3, name="uneven"),
    exact("Split", [floats(6, 9)], {"axis": -1, "split": [2, 7]}, outputs=2, opset=11),
    exact("Split", [floats(4, 20), ints(*[1] * 20)], {"axis": 1}, outputs=20, name="many"),
    exact("Split", [floats(4, 6), ints(0, 6)], {"axis": 1}, outputs=2, name="empty-part", capture=False),
]

FILLS = [
    exact("Range", [Const(np.float32(1)), Const(np.float32(10)), Const(np.float32(2.5))]),
    exact("Range", [Const(np.int64(10)), Const(np.int64(-3)), Const(np.int64(-4))]),
    exact("Range", [Const(np.int32(5)), Const(np.int32(5)), Const(np.int32(1))], name="empty", capture=False),
    # No double tells their ends apart.
    exact("Range", [Const(np.int64(2**60 + 1)), Const(np.int64(2**60 + 11)), Const(np.int64(1))], name="vast"),
    exact("Range", [Const(np.int64(2**53 + 3)), Const(np.int64(2**53 + 1)), Const(np.int64(-1))], name="vast-down"),
    exact("ConstantOfShape", [ints(2, 3)]),
]

PADS = [
    *in_types("Pad", lambda x: [x(3, 4), ints(1, 0, 2, 3)]),
    exact("Pad", [floats(3, 4), ints(1, 0, 2, 3), Const(np.float32(7.5))], name="value"),
    exact("Pad", [floats(3, 4), ints(2, 1, 2, 3)], {"mode": "reflect"}),
    exact("Pad", [floats(3, 4), ints(2, 1, 5, 3)], {"mode": "edge"}),
    exact("Pad", [floats(3, 4), ints(2, 1, 2, 3)], {"mode": "wrap"}),
    exact("Pad", [floats(3, 4), ints(-1, 0, 2, -2)], name="negative"),
    exact("Pad", [floats(3, 4, 5), ints(1, 2), None, ints(-1)], name="axes"),
    # Rows that are mostly copied in packs; so large that a thread has two.
    *[
        exact("Pad", [floats(2, 9, 203), ints(0, 1, pad, 1, 0, 9 - pad), value], {"mode": mode}, dtype=t, name="runs")
        for mode in ("constant", "reflect", "edge", "wrap")
        for pad in (1, 8)
        for t, value in (("float16", Const(np.float32(7.5))), ("float32", Const(np.float32(-1))))
    ],
    *in_types("Pad", lambda x: [x(3, 5, 301), ints(1, 0, 3, 0, 1, 2)], name_of="runs"),
    exact("Pad", [floats(3, 5, 301), ints(1, 0, 3, 0, 1, 2)], dtype="float16", misaligned=True, name="runs"),
    exact("Pad", [floats(1500, 1500), ints(0, 1, 1, 0)], dtype="float16", name="large"),
    exact("Pad", [floats(1500, 1500), ints(0, 1, 1, 2)], {"mode": "reflect"}, dtype="float16", name="large"),
    exact("Pad", [floats(400, 1900, 3), ints(0, 0, 1, 0, 1, 0)], dtype="float16", name="large"),
    exact("Pad", [floats(3, 4)], {"pads": [0, 1, 0, 1], "value": 2.0}, opset=10),
    exact("Pad", [SPECIAL.reshape(4, 4), ints(1, 1, 1, 1)], {"mode": "edge"}, name="special"),
]


@pytest.mark.parametrize("case", VIEWS + MOVES + JOINS + FILLS + PADS, ids=str)
def test_shape(case):
    check(case)


COLUMN = np.array([[1], [1]], np.int64)
ONE = np.float32(1)


@pytest.mark.parametrize(
    "op,inputs,words",
    [
        ("Reshape", [floats(1), COLUMN], r"shape has shape \[2,1\]; it must be a vector"),
        ("Expand", [floats(1), COLUMN], r"shape has shape \[2,1\]"),
        ("Tile", [floats(2, 3), COLUMN], r"repeats has shape \[2,1\]"),
        ("Slice", [floats(2, 3), COLUMN - 1, COLUMN], r"starts has shape \[2,1\]"),
        ("ConstantOfShape", [COLUMN], r"shape has shape \[2,1\]"),
        ("Squeeze", [floats(1, 3), COLUMN[:1] - 1], r"axes has shape \[1,1\]"),
        ("Squeeze", [floats(1, 3), np.array(0)], r"axes has shape \[\]"),
        ("Unsqueeze", [floats(3), COLUMN[:1]], r"axes has shape \[1,1\]"),
        ("Slice", [floats(2), *[COLUMN[:0, 0]] * 2, COLUMN[:0].T], r"axes has shape \[1,0\]"),
        ("Split", [floats(1), COLUMN[:1]], r"split has shape \[1,1\]"),
        ("Range", [np.array(ONE), np.full((1, 1), 3, np.float32), np.array(ONE)], r"limit has shape \[1,1\]"),
    ],
)
def test_arguments_of_another_shape(op, inputs, words):
    fails(op, inputs, {}, words, ranks=False)


def test_optional_has_element():
    """Of a tensor, which is there, and of an input that is left out."""
    for inputs, there in (([floats(2, 3)], True), ([bools()], True), ([], False), ([None], False)):
        check(exact("OptionalHasElement", inputs, reference=lambda *_, there=there: [np.array(there)], capture=False))
