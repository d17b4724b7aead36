"""Elementwise programs that are compiled at run time: what they make is what the interpreter makes, to the bit."""

import time

import encore_session as es
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.newest  # what programs compute depends on no onnxruntime

HALF, FLOAT = np.float16, np.float32


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    """The virtual GPU compiles where it is told by what."""
    monkeypatch.setenv("ENCORE_VIRTUAL_COMPILER", "g++")


def program(make_model, kind, shape, row, number):
    """(x * row + number) through sigmoid and tanh, compared and selected; `number` makes each a program of its own."""
    onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    constants = [
        numpy_helper.from_array(np.linspace(-2, 2, int(np.prod(row)), dtype=kind).reshape(row), "row"),
        numpy_helper.from_array(np.array(number, kind), "number"),
    ]
    nodes = [
        helper.make_node("Mul", ["x", "row"], ["a"], "mul"),
        helper.make_node("Add", ["a", "number"], ["b"], "add"),
        helper.make_node("Sigmoid", ["b"], ["c"], "sigmoid"),
        helper.make_node("Greater", ["c", "x"], ["d"], "greater"),
        helper.make_node("Where", ["d", "b", "c"], ["e"], "where"),
        helper.make_node("Tanh", ["e"], ["y"], "tanh"),
    ]
    return make_model(nodes, {"x": (shape, onnx_type)}, {"y": (shape, onnx_type)}, constants)


def fed(kind, shape, seed):
    x = np.random.default_rng(seed).standard_normal(shape).astype(kind)
    x.flat[:3] = np.nan, np.inf, -np.inf
    return {"x": x}


SHAPES = [
    ([64], [64]),
    ([3, 5, 8], [5, 1]),
    ([3, 5, 8], [3, 1, 8]),
    ([7, 9], [9]),
    ([7, 9], [7, 1]),
    ([2, 3, 4, 5], [3, 1, 5]),
]


@pytest.mark.parametrize("kind", [HALF, FLOAT])
@pytest.mark.parametrize("shape, row", SHAPES)
def test_bits(make_model, kind, shape, row):
    model = program(make_model, kind, shape, row, 0.25)
    compiled = es.make_session(model, auto_graph=1, compile_elementwise="now")
    interpreted = es.make_session(model, auto_graph=1, compile_elementwise=0)
    for seed in range(4):
        feeds = fed(kind, shape, seed)
        np.testing.assert_array_equal(compiled.run(None, feeds)[0], interpreted.run(None, feeds)[0])


@pytest.mark.parametrize("kind", [HALF, FLOAT])
def test_bits_of_many(make_model, kind):
    """So many that a thread makes 16 bytes of halves."""
    model = program(make_model, kind, [1200, 512], [512], 0.125)
    compiled = es.make_session(model, auto_graph=1, compile_elementwise="now")
    interpreted = es.make_session(model, auto_graph=1, compile_elementwise=0)
    for seed in range(3):
        feeds = fed(kind, [1200, 512], seed)
        np.testing.assert_array_equal(compiled.run(None, feeds)[0], interpreted.run(None, feeds)[0])


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_bits_of_many_integers(make_model, kind):
    """Enough for a thread to make four, where there are halves."""
    of = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    constants = [
        numpy_helper.from_array(np.array(-1000, kind), "border"),
        numpy_helper.from_array(np.array(-65504, HALF), "low"),
        numpy_helper.from_array(np.arange(512, dtype=kind), "row"),
    ]
    nodes = [
        helper.make_node("Sub", ["x", "row"], ["a"]),
        helper.make_node("Less", ["a", "border"], ["b"]),
        helper.make_node("And", ["b", "is"], ["c"]),
        helper.make_node("Cast", ["a"], ["d"], to=TensorProto.FLOAT16),
        helper.make_node("Where", ["c", "low", "d"], ["y"]),
    ]
    shape = [1200, 512]
    forms = {"x": (shape, of), "is": (shape, TensorProto.BOOL)}
    model = make_model(nodes, forms, {"y": (shape, TensorProto.FLOAT16)}, constants)
    compiled = es.make_session(model, auto_graph=1, compile_elementwise="now")
    apart = es.make_session(model, regions=0, auto_graph=0)
    for seed in range(3):
        random = np.random.default_rng(seed)
        ends = np.iinfo(kind)
        feeds = {"x": random.integers(ends.min, ends.max, shape, kind), "is": random.random(shape) < 0.5}
        feeds["x"][::2] >>= ends.bits - 12
        np.testing.assert_array_equal(compiled.run(None, feeds)[0], apart.run(None, feeds)[0])


@pytest.mark.parametrize("options", [{"auto_graph": 1}, {"enable_cuda_graph": 1}], ids=str)
def test_graphs_take_over_what_is_compiled_meanwhile(make_model, options):
    """Nothing tells but time and a profile; results are the same before and after."""
    if options.get("enable_cuda_graph") and not es.HAS_GRAPHS:
        options = {"auto_graph": 1}
    shape, number = [33, 16], 0.5 + len(options) / 8 + ("auto_graph" in options) / 16
    model = program(make_model, FLOAT, shape, [16], number)
    session = es.make_session(model, **options)
    wanted = es.make_session(model, regions=0, auto_graph=0)
    binding, x = session.io_binding(), es.on_device(fed(FLOAT, shape, 0)["x"])
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", es.on_device(np.zeros(shape, np.float32)))
    until, seed = time.monotonic() + 5, 0
    while time.monotonic() < until:
        seed += 1
        feeds = fed(FLOAT, shape, seed)
        x.update_inplace(feeds["x"])
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], wanted.run(None, feeds)[0])
        time.sleep(0.02)


def test_the_next_process_finds_what_was_compiled(make_model, tmp_path):
    model, file = tmp_path / "model.onnx", tmp_path / "tuning"
    model.write_bytes(program(make_model, FLOAT, [17, 4], [4], 0.75).SerializeToString())
    code = f"""
import encore_session as es, numpy as np
session = es.make_session({str(model)!r}, tuning_cache={str(file)!r}, auto_graph=1, compile_elementwise="now")
for _ in range(3):
    session.run(None, {{"x": np.ones((17, 4), np.float32)}})
"""
    sizes = []
    for _ in range(2):
        es.in_new_process(code)
        sizes.append(file.stat().st_size)
    assert sizes[0] == sizes[1] > 1000
