"""Concatenations that elementwise programs read from their pieces: to the bit what they are node by node."""

import encore_session as es
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi

pytestmark = pytest.mark.newest  # what programs compute depends on no onnxruntime

KINDS = [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL]
OPTIONS = [{"auto_graph": 0}, {"auto_graph": 1}, {"auto_graph": 1, "compile_elementwise": "now"}]


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    monkeypatch.setenv("ENCORE_VIRTUAL_COMPILER", "g++")


def joined(make_model, shapes, axis, kind, names=None, row=None):
    """Pieces side by side, through two operators. numpy has no bfloat16: it is cast to and from."""
    fed, boolean = TensorProto.FLOAT if kind == TensorProto.BFLOAT16 else kind, kind == TensorProto.BOOL
    forms = {f"p{i}": (names or shape, fed) for i, shape in enumerate(shapes)}
    reads = ["joined", "joined" if row is None else "row"]
    cast = "_cast" if fed != kind else ""
    nodes = [helper.make_node("Cast", [name], [name + cast], f"of_{name}", to=kind) for name in forms if cast]
    nodes += [
        helper.make_node("Concat", [name + cast for name in forms], ["joined"], "concat", axis=axis),
        helper.make_node("Xor" if boolean else "Mul", reads, ["a"], "first"),
        helper.make_node("Not" if boolean else "Sigmoid", ["a"], ["y" + cast], "second"),
    ]
    if cast:
        nodes.append(helper.make_node("Cast", ["y" + cast], ["y"], "of_y", to=fed))
    values = [] if row is None else np.linspace(-2, 2, int(np.prod(row))).reshape(row)
    constant = helper.make_tensor("row", kind, np.shape(values), np.ravel(values).tolist())
    return make_model(nodes, forms, {"y": ([None] * len(shapes[0]), fed)}, [constant])


def drawn(shapes, kind, seed):
    random = np.random.default_rng(seed)
    dtype = {TensorProto.FLOAT16: np.float16, TensorProto.BOOL: bool}.get(kind, np.float32)
    return {f"p{i}": (random.standard_normal(shape) * 2).round().astype(dtype) for i, shape in enumerate(shapes)}


def check(model, feeds, **options):
    apart = es.make_session(model, regions=0, auto_graph=0)
    session = es.make_session(model, regions=1, **options)
    for fed in feeds:
        for got, wanted in zip(session.run(None, fed), apart.run(None, fed), strict=True):
            np.testing.assert_array_equal(got, wanted)


CASES = [
    ([[2, 3, 8], [2, 3, 16]], 2),
    ([[2, 3, 3], [2, 3, 5]], 2),  # packs that lie in two pieces
    ([[2, 3, 3], [2, 3, 4]], 2),  # no packs
    ([[2, 3, 8], [2, 1, 8], [2, 4, 8]], 1),
    ([[1, 5], [4, 5], [2, 5]], 0),
    ([[6, 4], [6, 0], [6, 8]], 1),
    ([[6, 0], [6, 4], [6, 0]], 1),
    ([[6, 0], [6, 0]], 1),
    ([[5, 12]], 1),
    ([[3, 2, 4 + 4 * (i % 3)] for i in range(40)], -1),
    ([[3, 1 + i % 3] for i in range(40)], -1),
    ([[2, 3, 2, 2, 4], [2, 3, 5, 2, 4]], 2),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shapes, axis", CASES)
def test_bits(make_model, shapes, axis, kind, options):
    check(joined(make_model, shapes, axis, kind), [drawn(shapes, kind, seed) for seed in range(3)], **options)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("row", [[24], [3, 1], [2, 1, 24], [2, 1, 1]])
def test_with_what_is_broadcast(make_model, kind, row):
    shapes = [[2, 3, 8], [2, 3, 4], [2, 3, 12]]
    for options in OPTIONS[1:]:
        check(joined(make_model, shapes, 2, kind, row=row), [drawn(shapes, kind, seed) for seed in range(3)], **options)


@pytest.mark.parametrize("widths", [[64, 448], [68, 444]])
def test_many_elements(make_model, widths):
    """Wider packs, unless they lie in two pieces."""
    shapes = [[1200, width] for width in widths]
    model = joined(make_model, shapes, 1, TensorProto.FLOAT16, row=[512])
    check(model, [drawn(shapes, TensorProto.FLOAT16, seed) for seed in range(3)], **OPTIONS[2])


def test_one_kernel_is_all(make_model, tmp_path):
    es.make_session(joined(make_model, [[2, 8], [2, 16]], 1, TensorProto.FLOAT), regions=1, dump_regions=tmp_path)
    plan = es.last_plan(tmp_path)
    assert "join x0 to x1 along -1" in plan and "Concat" not in plan, plan


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_dimensions_that_change(make_model, options):
    """Pieces are even and odd, and empty, in turn."""
    model = joined(make_model, [["n", 8]] * 3, 0, TensorProto.FLOAT16, names=[None, "c"])
    feeds = []
    for seed, rows in enumerate([(1, 2, 3), (1, 2, 3), (1, 2, 3), (0, 5, 1), (7, 0, 0), (0, 0, 0), (1, 2, 3)]):
        for columns in (8, 3):
            feeds.append(drawn([[n, columns] for n in rows], TensorProto.FLOAT16, seed))
    check(model, feeds, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_pieces_that_go_out_and_are_read_twice(make_model, options):
    kind, shape = TensorProto.FLOAT, ["n", 8]
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], "piece"),
        helper.make_node("Concat", ["a", "x", "a"], ["joined"], "concat", axis=1),
        helper.make_node("Exp", ["joined"], ["e"], "exp"),
        helper.make_node("Add", ["e", "z"], ["y"], "add"),
        helper.make_node("Concat", ["z", "joined"], ["again"], "on_top", axis=0),
        helper.make_node("Tanh", ["again"], ["t"], "tanh"),
    ]
    model = make_model(nodes, {"x": (shape, kind), "z": (["n", 24], kind)}, {n: ([None, None], kind) for n in "ayt"})
    random = np.random.default_rng(0)
    make = lambda *shape: random.standard_normal(shape).astype(np.float32)
    check(model, [{"x": make(5, 8), "z": make(5, 24)} for _ in range(3)], **options)


def test_pieces_that_do_not_fit_name_the_nodes(make_model):
    model = joined(make_model, [["n", 8], ["n", 8]], 1, TensorProto.FLOAT, names=[None, None])
    session = es.make_session(model, regions=1)
    with pytest.raises(Exception, match="first.*cannot be joined"):
        session.run(None, {"p0": np.zeros((2, 8), np.float32), "p1": np.zeros((3, 8), np.float32)})


@pytest.mark.parametrize("at", ["apart", "misaligned", "over a piece"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_where_pieces_lie(make_model, options, at):
    """All are read before an output that lies over one is written."""
    shapes, columns = [[4, 8], [4, 16]], 24
    model = joined(make_model, shapes, 1, TensorProto.FLOAT)
    session, apart = es.make_session(model, regions=1, **options), es.make_session(model, regions=0, auto_graph=0)
    memory = es.on_device(np.zeros(512, np.float32))
    places = {"p0": 0, "p1": 64 + (at == "misaligned"), "y": 16 if at == "over a piece" else 256}
    binding, device = session.io_binding(), capi.OrtDevice(1, 0, es.NVIDIA, 0)

    def bind(by, name, shape):
        by(name, device, np.dtype(np.float32), list(shape), memory.data_ptr() + 4 * places[name])

    for seed in range(4):
        fed = drawn(shapes, TensorProto.FLOAT, seed)
        whole = np.zeros(512, np.float32)
        for name, value in fed.items():
            whole[places[name] :][: value.size] = value.reshape(-1)
            bind(binding._iobinding.bind_input, name, value.shape)
        memory.update_inplace(whole)
        bind(binding._iobinding.bind_output, "y", [4, columns])
        session.run_with_iobinding(binding)
        made = memory.numpy()[places["y"] :][: 4 * columns].reshape(4, columns)
        np.testing.assert_array_equal(made, apart.run(None, fed)[0])
