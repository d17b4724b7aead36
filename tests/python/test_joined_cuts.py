"""Parts of wider tensors, put side by side or read by programs: to the bit what they are node by node."""

import encore_session as es
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_joined_pieces import OPTIONS, check, drawn

pytestmark = pytest.mark.newest  # what is computed depends on no onnxruntime

KINDS = [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64]
# Of x: what it is cut into along the axis, and which of these are joined, with z (-1) among them.
CASES = [
    ([2, 3, 24], -1, [8, 16], [1, -1]),
    ([2, 3, 24], 2, [8, 4, 12], [0, -1, 2, 0]),
    ([2, 3, 23], 2, [3, 7, 13], [1, -1, 0]),
    ([2, 6, 8], 1, [1, 3, 2], [1, -1]),
    ([5, 8], 0, [2, 3], [-1, 1]),
    ([5, 40], 1, [8, 16, 16], [2]),
    ([1, 40], 1, [5, 19, 16], [-1, 1]),
]
DTYPES = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.INT64: np.int64}


def constant(name, *numbers):
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def cut(make_model, case, kind, how, more=(), dims=None):
    """The pieces side by side, as a program reads them or not, or cut apart again."""
    shape, axis, sizes, order = case
    made = {"x": (dims or shape, kind), "z": (dims or shape, kind)}
    parts = [f"p{i}" for i in range(len(sizes))]
    nodes = [
        helper.make_node("Split", ["x", "sizes"], parts, "split", axis=axis),
        helper.make_node("Concat", [parts[i] if i >= 0 else "z" for i in order], ["joined"], "concat", axis=axis),
    ]
    outputs = {"y": ([None] * len(shape), kind)}
    constants = [constant("sizes", *sizes)]
    if how == "program":
        nodes += [
            helper.make_node("Add", ["joined", "joined"], ["a"], "add"),
            helper.make_node("Neg", ["a"], ["y"], "neg"),
        ]
    elif how == "cut again":  # a piece, and all but one: along with x again
        size, whole = shape[axis], sum(sizes[i] if i >= 0 else shape[axis] for i in order)
        first = sizes[order[0]] if order[0] >= 0 else size
        constants += [constant("one", first, whole - first)]
        nodes += [
            helper.make_node("Split", ["joined", "one"], ["first", "others"], "again", axis=axis),
            helper.make_node("Concat", ["others", "x", "others"], ["y"], "twice", axis=axis),
            helper.make_node("Neg", ["first"], ["w"], "neg"),
        ]
        outputs["w"] = ([None] * len(shape), kind)
    else:
        nodes[1].output[0] = "y"
    outputs |= {name: ([None] * len(shape), kind) for name in more}
    return make_model(nodes, made, outputs, constants)


def fed(shape, kind, seed):
    x, z = drawn([shape, shape], TensorProto.FLOAT, seed).values()
    return {"x": x.astype(DTYPES[kind]), "z": z.astype(DTYPES[kind])}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["program", "copy", "cut again"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits(make_model, monkeypatch, case, how, kind, options):
    monkeypatch.setenv("ENCORE_VIRTUAL_COMPILER", "g++")
    if how == "cut again" and len(case[3]) == 1:
        return
    check(cut(make_model, case, kind, how), [fed(case[0], kind, seed) for seed in range(3)], **options)


@pytest.mark.parametrize("how", ["program", "copy"])
def test_what_others_read_too(make_model, how):
    """Parts that are outputs as well, or the whole."""
    shape, kind = CASES[1][0], TensorProto.FLOAT
    for more in (["p2"], ["p0", "p2"], ["joined"] if how == "program" else ["p1"]):
        model = cut(make_model, CASES[1], kind, how, more=more)
        check(model, [fed(shape, kind, seed) for seed in range(3)], auto_graph=1)


def test_dimensions_that_change(make_model):
    kind, shape = TensorProto.FLOAT16, ["n", "m", 24]
    for how in ("program", "copy", "cut again"):
        model = cut(make_model, CASES[1], kind, how, dims=shape)
        feeds = [fed([n, m, 24], kind, n) for n, m in [(1, 2), (1, 2), (3, 5), (0, 2), (1, 2)]]
        check(model, feeds, auto_graph=1)


def test_nothing_is_cut_out(make_model, tmp_path):
    for how in ("program", "copy"):
        (folder := tmp_path / how).mkdir()
        es.make_session(cut(make_model, CASES[1], TensorProto.FLOAT, how), regions=1, dump_regions=folder)
        plan = es.last_plan(folder)
        assert "Split(" not in plan and "Slice(" not in plan and " Concat(" not in plan, plan
        assert ("encore.JoinedCuts(" in plan) != (how == "program"), plan
