"""Elementwise nodes as one kernel."""

import encore_session as es
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper


def chain(make_model, form):
    constants = [numpy_helper.from_array(np.linspace(0.5, 2, 8, dtype=np.float32), "row")]
    nodes = [
        helper.make_node("Mul", ["x", "row"], ["a"], "first"),
        helper.make_node("Sigmoid", ["a"], ["b"], "second"),
        helper.make_node("Sub", ["b", "y"], ["z"], "third"),
    ]
    return make_model(nodes, {"x": form, "y": form}, {"z": ["m", 8]}, constants)


def test_it_is_one_kernel(make_model, tmp_path):
    model = chain(make_model, ["n", 8])
    es.make_session(model, regions=1, dump_regions=tmp_path)
    plan = es.last_plan(tmp_path)
    assert plan.count("encore.Elementwise(") == 1
    es.make_session(model, regions=1, fuse_elementwise=0, dump_regions=tmp_path / "apart")
    plan = es.last_plan(tmp_path / "apart")
    assert "encore.Elementwise(" not in plan


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_what_is_light_is_made_where_it_is_broadcast(make_model, tmp_path, kind):
    """Rows, a column and a number, made of one another; the model's names say too much of one of them."""
    of = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    constants = [numpy_helper.from_array(np.array(1, kind), "one")]
    nodes = [
        helper.make_node("Add", ["number", "one"], ["a"], "of_the_number"),
        helper.make_node("Div", ["row", "a"], ["b"], "of_the_row"),
        helper.make_node("Neg", ["column"], ["c"], "of_the_column"),
        helper.make_node("Mul", ["x", "b"], ["d"], "scale"),
        helper.make_node("Sub", ["d", "c"], ["y"], "shift"),
    ]
    forms = {"x": ["n", 6, 8], "row": ["m", 1, 8], "column": [6, 1], "number": [1]}
    model = make_model(nodes, {name: (form, of) for name, form in forms.items()}, {"y": (["n", 6, 8], of)}, constants)
    joined = es.make_session(model, regions=1, auto_graph=1, dump_regions=tmp_path)
    apart = es.make_session(model, regions=0, auto_graph=0)
    plan = es.last_plan(tmp_path)
    assert plan.count(" = encore.Elementwise(") == 1 and not any(f" = {op}(" in plan for op in ("Add", "Div", "Neg")), (
        plan
    )
    random = np.random.default_rng(0)
    for n, m in ((3, 1), (3, 3), (1, 3), (0, 1), (3, 1)):
        shapes = {"x": (n, 6, 8), "row": (m, 1, 8), "column": (6, 1), "number": (1,)}
        fed = {name: random.standard_normal(shape).astype(kind) for name, shape in shapes.items()}
        np.testing.assert_array_equal(joined.run(None, fed)[0], apart.run(None, fed)[0])


@pytest.mark.parametrize("auto_graph", [0, 1])
def test_dimensions_that_are_not_what_they_are_called(make_model, auto_graph):
    """onnxruntime lets a tensor of one row pass where the model says n rows."""
    nodes = [
        helper.make_node("Neg", ["y"], ["w"], "of_y"),
        helper.make_node("Add", ["x", "w"], ["z"], "of_both"),
    ]
    model = make_model(nodes, {"x": ["n", 8], "y": ["n", 8]}, {"z": ["n", 8], "w": ["n", 8]})
    session = es.make_session(model, regions=1, auto_graph=auto_graph)
    for rows in (1, 4, 1, 1):
        fed = {"x": np.full((4, 8), 3, np.float32), "y": np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)}
        z, w = session.run(None, fed)
        np.testing.assert_array_equal(w, -fed["y"])
        np.testing.assert_array_equal(z, fed["x"] - fed["y"])


def test_what_does_not_fit_names_the_nodes(make_model):
    session = es.make_session(chain(make_model, [None, None]), regions=1)
    with pytest.raises(Exception, match="first"):
        session.run(None, {"x": np.zeros((2, 5), np.float32), "y": np.zeros((2, 8), np.float32)})
    fed = {"x": np.ones((2, 8), np.float32), "y": np.zeros((2, 8), np.float32)}
    assert session.run(None, fed)[0].shape == (2, 8)


def rotary(make_model, kind, size, *heads):
    """x * cos + turned(x) * sin, where halves change places and one is negated."""
    places = {"zero": 0, "half": size // 2, "end": 1 << 40, "last": -1}
    constants = [numpy_helper.from_array(np.array([at]), name) for name, at in places.items()]
    nodes = [
        helper.make_node("Slice", ["x", "half", "end", "last"], ["a"], "right"),
        helper.make_node("Neg", ["a"], ["c"], "negative"),
        helper.make_node("Slice", ["x", "zero", "half", "last"], ["b"], "left"),
        helper.make_node("Concat", ["c", "b"], ["t"], "turned", axis=-1),
        helper.make_node("Mul", ["x", "cos"], ["l"], "by_cosine"),
        helper.make_node("Mul", ["t", "sin"], ["r"], "by_sine"),
        helper.make_node("Add", ["l", "r"], ["y"], "sum"),
    ]
    whole, row = (["n", *heads, "s", size], kind), (["s", size], kind)
    return make_model(nodes, {"x": whole, "cos": row, "sin": row}, {"y": whole}, constants)


def rotary_of_pairs(make_model, kind, size):
    """The same, where neighbours change places."""
    numbers = {"zero": [0], "one": [1], "end": [1 << 40], "last": [-1], "two": [2], "flat": [0, 0, size]}
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()]
    nodes = [
        helper.make_node("Slice", ["x", "one", "end", "last", "two"], ["a"], "odd"),
        helper.make_node("Neg", ["a"], ["c"], "negative"),
        helper.make_node("Unsqueeze", ["c", "last"], ["d"], "negative_column"),
        helper.make_node("Slice", ["x", "zero", "end", "last", "two"], ["b"], "even"),
        helper.make_node("Unsqueeze", ["b", "last"], ["e"], "column"),
        helper.make_node("Concat", ["d", "e"], ["p"], "stack", axis=-1),
        helper.make_node("Reshape", ["p", "flat"], ["t"], "turned"),
        helper.make_node("Mul", ["x", "cos"], ["l"], "by_cosine"),
        helper.make_node("Mul", ["t", "sin"], ["r"], "by_sine"),
        helper.make_node("Add", ["l", "r"], ["y"], "sum"),
    ]
    whole, row = (["n", "s", size], kind), (["s", size], kind)
    return make_model(nodes, {"x": whole, "cos": row, "sin": row}, {"y": whole}, constants)


@pytest.mark.parametrize("kind, size", [("float32", 64), ("float16", 64), ("float16", 6), ("float32", 2)])
@pytest.mark.parametrize("build, kernels, views", [(rotary, 1, 0), (rotary_of_pairs, 2, 2)])
def test_turned_rows_are_one_kernel_and_pairs_two(make_model, tmp_path, build, kernels, views, kind, size):
    """Without heads, to which rotations are left."""
    model = build(make_model, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), size)
    joined = es.make_session(model, regions=1, auto_graph=1, dump_regions=tmp_path)
    apart = es.make_session(model, regions=0, auto_graph=0)
    plan = es.last_plan(tmp_path)
    steps = [line for line in plan.splitlines() if " = " in line and not line.startswith("const ")]
    assert len(steps) == kernels + views and sum("encore.Elementwise(" in step for step in steps) == kernels, steps
    assert sum("roll x" in step for step in steps) == 1, steps
    for seed in range(4):
        random = np.random.default_rng(seed)
        shapes = {"x": (6, 5, size), "cos": (5, size), "sin": (5, size)}
        fed = {name: random.standard_normal(shape).astype(kind) for name, shape in shapes.items()}
        np.testing.assert_array_equal(joined.run(None, fed)[0], apart.run(None, fed)[0])


@pytest.mark.parametrize("heads", [(), (32,)])
def test_one_buffer_as_input_and_output(make_model, heads):
    """All of it is read before any is written, as node by node, where a step reads other elements than it writes."""
    size = 64
    model = rotary(make_model, helper.np_dtype_to_tensor_dtype(np.dtype("float32")), size, *heads)
    random = np.random.default_rng(0)
    shapes = {"x": (4, *heads, 64, size), "cos": (64, size), "sin": (64, size)}
    fed = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    apart = es.make_session(model, regions=0, auto_graph=0)
    session = es.make_session(model, regions=1, auto_graph=1)
    values = {name: es.on_device(array) for name, array in fed.items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("y", values["x"])
    wanted = fed["x"]
    for _ in range(5):
        session.run_with_iobinding(binding)
        wanted = apart.run(None, fed | {"x": wanted})[0]
        np.testing.assert_allclose(
            values["x"].numpy(), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max() if heads else 0
        )


def mask_of_heads(make_model, of):
    """What language models add to scores for a mask of padding."""
    constants = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in {"zero": np.float16(0), "low": np.float16(-65504), "axes": np.array([1, 2])}.items()
    ]
    nodes = [
        helper.make_node("Cast", ["mask"], ["seen"], "see", to=TensorProto.BOOL),
        helper.make_node("Unsqueeze", ["seen", "axes"], ["of_heads"], "of_heads"),
        helper.make_node("Where", ["of_heads", "zero", "low"], ["y"], "choose"),
    ]
    return make_model(nodes, {"mask": (["b", "s"], of)}, {"y": (["b", 1, 1, "s"], TensorProto.FLOAT16)}, constants)


def scaled_integers(make_model, of):
    constants = [numpy_helper.from_array(np.float32(0.5), "scale")]
    nodes = [
        helper.make_node("Cast", ["mask"], ["float"], "count", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "scale"], ["half"], "scale"),
        helper.make_node("Cast", ["mask"], ["small"], "narrow", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["small"], ["wide"], "widen", to=TensorProto.FLOAT),
        helper.make_node("Max", ["half", "wide"], ["y"], "larger"),
    ]
    return make_model(nodes, {"mask": (["b", "s"], of)}, {"y": ["b", "s"]}, constants)


@pytest.mark.parametrize("compiled", [0, "now"])
@pytest.mark.parametrize("build", [mask_of_heads, scaled_integers])
@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
def test_integers_are_cast_with_what_follows(make_model, tmp_path, monkeypatch, kind, build, compiled):
    monkeypatch.setenv("ENCORE_VIRTUAL_COMPILER", "g++")
    model = build(make_model, helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    joined = es.make_session(model, regions=1, auto_graph=1, compile_elementwise=compiled, dump_regions=tmp_path)
    apart = es.make_session(model, regions=0, auto_graph=0)
    plan = es.last_plan(tmp_path)
    assert plan.count(" = encore.Elementwise(") == 1 and " = Cast(" not in plan, plan
    random = np.random.default_rng(0)
    numbers = np.array([0, 1, 2, 255, 65, 16777217, -3, 2**31 - 1, 2**40 + 1, -(2**63)]).astype(kind)
    for shape in ((3, 8), (3, 8), (3, 8), (3, 7), (3, 7), (1, 1), (0, 4)):
        fed = {"mask": random.choice(numbers, shape)}
        np.testing.assert_array_equal(joined.run(None, fed)[0], apart.run(None, fed)[0])


INTEGERS = {"int64": TensorProto.INT64, "int32": TensorProto.INT32}


def integers(random, kind, shape):
    """Of all sizes, among them those at the ends."""
    ends = np.iinfo(kind)
    of_interest = np.array([ends.min, ends.min + 1, -8, -7, -1, 0, 1, 7, 2**24 + 1, ends.max - 1, ends.max], kind)
    some = random.choice(of_interest, shape)
    return np.where(random.random(shape) < 0.5, some, random.integers(ends.min, ends.max, shape, kind, endpoint=True))


def all_of_integers(make_model, kind):
    """What operators do to integers, with floats between."""
    of, other = INTEGERS[kind], {"int64": TensorProto.INT32, "int32": TensorProto.INT64}[kind]
    numbers = {"seven": 7, "three": -3, "low": -(2**30), "last": np.iinfo(kind).max}
    constants = [numpy_helper.from_array(np.array(value, kind), name) for name, value in numbers.items()]
    constants.append(numpy_helper.from_array(np.float32(0.37), "scale"))
    nodes = [
        helper.make_node("Add", ["x", "row"], ["sum"], "first"),
        helper.make_node("Mul", ["sum", "x"], ["product"]),
        helper.make_node("Mod", ["product", "seven"], ["rest"]),
        helper.make_node("Mod", ["product", "three"], ["rest_of_c"], fmod=1),
        helper.make_node("Div", ["product", "three"], ["third"]),
        helper.make_node("Sub", ["third", "rest"], ["difference"]),
        helper.make_node("Add", ["difference", "rest_of_c"], ["mixed"]),
        helper.make_node("Less", ["mixed", "row"], ["is_below"]),
        helper.make_node("Neg", ["x"], ["negative"]),
        helper.make_node("Where", ["is_below", "mixed", "negative"], ["chosen"]),
        helper.make_node("Cast", ["chosen"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "scale"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["whole"], to=of),
        helper.make_node("Abs", ["whole"], ["size"]),
        helper.make_node("Min", ["last", "size"], ["least"]),
        helper.make_node("Max", ["least", "low"], ["greatest"]),
        helper.make_node("Sign", ["chosen"], ["sign"]),
        helper.make_node("Sub", ["greatest", "sign"], ["y"]),
        helper.make_node("Cast", ["chosen"], ["other"], to=other),
        helper.make_node("Clip", ["chosen", "low", "seven"], ["clipped"]),
        helper.make_node("Cast", ["clipped"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("GreaterOrEqual", ["clipped", "x"], ["ge"]),
        helper.make_node("LessOrEqual", ["clipped", "row"], ["le"]),
        helper.make_node("Greater", ["row", "clipped"], ["gt"]),
        helper.make_node("Equal", ["clipped", "seven"], ["eq"]),
        helper.make_node("Xor", ["ge", "le"], ["one"]),
        helper.make_node("And", ["one", "gt"], ["both"]),
        helper.make_node("Or", ["both", "eq"], ["is"]),
        helper.make_node("Cast", ["is"], ["count"], to=of),
    ]
    made = {"y": of, "other": other, "half": TensorProto.FLOAT16, "is": TensorProto.BOOL, "count": of}
    space = ["a", "b", "c"]
    outputs = {name: (space, kind) for name, kind in made.items()}
    return make_model(nodes, {"x": (space, of), "row": (["b", 1], of)}, outputs, constants)


@pytest.mark.parametrize("compiled", [0, "now"])
@pytest.mark.parametrize("kind", INTEGERS)
def test_integers(make_model, tmp_path, monkeypatch, kind, compiled):
    monkeypatch.setenv("ENCORE_VIRTUAL_COMPILER", "g++")
    model = all_of_integers(make_model, kind)
    joined = es.make_session(model, regions=1, auto_graph=1, compile_elementwise=compiled, dump_regions=tmp_path)
    apart = es.make_session(model, regions=0, auto_graph=0)
    plan = es.last_plan(tmp_path)
    steps = [line for line in plan.splitlines() if " = " in line and not line.startswith("const ")]
    assert len(steps) <= 2 and all(" = encore.Elementwise(" in step for step in steps), plan
    random = np.random.default_rng(0)
    shapes = [(2, 3, 8)] * 3 + [(5, 4, 7)] * 3 + [(1, 1, 1), (3, 1, 1), (2, 0, 4), (0, 2, 3), (40, 64, 64)]
    for shape in shapes:
        fed = {"x": integers(random, kind, shape), "row": integers(random, kind, (shape[1], 1))}
        for name, one, other in zip(
            (o.name for o in joined.get_outputs()), joined.run(None, fed), apart.run(None, fed)
        ):
            np.testing.assert_array_equal(one, other, err_msg=f"{name} of {shape}")


@pytest.mark.parametrize("compiled", [0, "now"])
@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8", "bool"])
def test_casts_to_integers(make_model, tmp_path, monkeypatch, dtype, kind, compiled):
    """Of what is no integer, or none of that size, they make what the operator does."""
    monkeypatch.setenv("ENCORE_VIRTUAL_COMPILER", "g++")
    of = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=INTEGERS[kind]),
        helper.make_node("Cast", ["a"], ["b"], to=TensorProto.BOOL),
        helper.make_node("Cast", ["b"], ["c"], to=INTEGERS[kind]),
        helper.make_node("Sub", ["a", "c"], ["y"]),
    ]
    model = make_model(nodes, {"x": (["n"], of)}, {"y": (["n"], INTEGERS[kind])})
    joined = es.make_session(model, regions=1, auto_graph=1, compile_elementwise=compiled, dump_regions=tmp_path)
    apart = es.make_session(model, regions=0, auto_graph=0)
    assert " = Cast(" not in es.last_plan(tmp_path)
    numbers = [0, 1, 2, 0.5, 255, -0.5, -1.5, 65504, 2**31 - 128, 2**31, -(2**31), -(2**31) - 256, 2**33, 2**63, 1e30]
    numbers += [-(2**63), -1e30, np.inf, -np.inf, np.nan, -0.0]
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.array(numbers[:5] if dtype in ("uint8", "bool") else numbers).astype(dtype)
    for fed in (x, x, x, np.repeat(x, 2), np.repeat(x, 2)):
        np.testing.assert_array_equal(joined.run(None, {"x": fed})[0], apart.run(None, {"x": fed})[0])


@pytest.mark.parametrize("compiled", [0, "now"])
@pytest.mark.parametrize("width, begin", [(8, 2), (8, 3), (7, 1)])
@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_are_read_in_place(make_model, tmp_path, monkeypatch, kind, width, begin, compiled):
    """Parts that begin anywhere, and pieces."""
    monkeypatch.setenv("ENCORE_VIRTUAL_COMPILER", "g++")
    of = INTEGERS[kind]
    numbers = {"begin": [begin], "end": [begin + 2 * width], "axes": [1]}
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()]
    nodes = [
        helper.make_node("Slice", ["x", "begin", "end", "axes"], ["part"]),
        helper.make_node("Concat", ["one", "other"], ["whole"], axis=1),
        helper.make_node("Add", ["part", "whole"], ["a"]),
        helper.make_node("Abs", ["a"], ["y"]),
    ]
    forms = {"x": (["n", 2 * width + 5], of), "one": (["n", width], of), "other": (["n", width], of)}
    model = make_model(nodes, forms, {"y": (["n", 2 * width], of)}, constants)
    joined = es.make_session(model, regions=1, auto_graph=1, compile_elementwise=compiled, dump_regions=tmp_path)
    apart = es.make_session(model, regions=0, auto_graph=0)
    plan = es.last_plan(tmp_path)
    assert "Slice(" not in plan and "Concat(" not in plan and plan.count(" = encore.Elementwise(") == 1, plan
    random = np.random.default_rng(0)
    for n in (3, 3, 3, 1, 0):
        fed = {name: integers(random, kind, (n, shape[1])) for name, (shape, _) in forms.items()}
        np.testing.assert_array_equal(joined.run(None, fed)[0], apart.run(None, fed)[0])


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_a_divisor_that_is_zero_is_told_of(make_model, op):
    """By the operator itself: no program has it."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], "negate"),
        helper.make_node(op, ["a", "y"], ["b"], "divide"),
        helper.make_node("Abs", ["b"], ["z"], "size"),
    ]
    forms = {"x": (["n"], TensorProto.INT64), "y": (["n"], TensorProto.INT64)}
    session = es.make_session(make_model(nodes, forms, {"z": (["n"], TensorProto.INT64)}), regions=1, auto_graph=1)
    x = np.arange(6)
    wanted = {"Div": [0] * 6, "Mod": [0] + [1] * 5}[op]
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"x": x, "y": x + 1})[0], wanted)
    with pytest.raises(Exception, match="divide.*zero"):
        session.run(None, {"x": x, "y": x})


def test_clips_and_selections_are_read_and_done_in_place(make_model, tmp_path):
    """As loops that an exporter has unrolled have them."""
    numbers = {"low": np.float16(0), "high": np.float16(6), "first": np.array(0), "last": np.array(-1)}
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    nodes = [
        helper.make_node("Gather", ["x", "first"], ["a"], "first_step", axis=1),
        helper.make_node("Gather", ["x", "last"], ["b"], "last_step", axis=1),
        helper.make_node("Mul", ["a", "b"], ["c"], "product"),
        helper.make_node("Clip", ["c", "low", "high"], ["d"], "clip"),
        helper.make_node("Sub", ["d", "a"], ["y"], "difference"),
    ]
    forms = {"x": (["b", 5, 12, 3], TensorProto.FLOAT16)}
    model = make_model(nodes, forms, {"y": (["b", 12, 3], TensorProto.FLOAT16)}, constants)
    joined = es.make_session(model, regions=1, auto_graph=1, dump_regions=tmp_path)
    apart = es.make_session(model, regions=0, auto_graph=0)
    plan = es.last_plan(tmp_path)
    assert plan.count(" = encore.Elementwise(") == 1 and "Gather(" not in plan and "Clip(" not in plan, plan
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((2, 5, 12, 3)).astype(np.float16) * 4
        x.flat[::7] = -0.0
        x.flat[3] = np.nan
        np.testing.assert_array_equal(joined.run(None, {"x": x})[0], apart.run(None, {"x": x})[0])


@pytest.mark.parametrize("bounds", [("low", "high"), ("low",), ("", "high")])
@pytest.mark.parametrize("of", [TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BFLOAT16])
def test_clips_of_infinity(make_model, tmp_path, of, bounds):
    """Without a bound it becomes the largest number."""
    constants = [helper.make_tensor("low", of, [], [-2.0]), helper.make_tensor("high", of, [], [3.0])]
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=of),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Clip", ["b", *bounds], ["c"]),
        helper.make_node("Neg", ["c"], ["d"]),
        helper.make_node("Cast", ["d"], ["y"], to=TensorProto.FLOAT),
    ]
    held = [constant for constant in constants if constant.name in bounds]
    model = make_model(nodes, {"x": ([9], TensorProto.FLOAT)}, {"y": ([9], TensorProto.FLOAT)}, held)
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 5, -5, 2, -3], np.float32)
    (y,) = es.make_session(model, regions=1, dump_regions=tmp_path).run(None, {"x": x})
    assert "Clip(" not in es.last_plan(tmp_path)
    (wanted,) = es.make_session(model, regions=0).run(None, {"x": x})
    np.testing.assert_array_equal(y.view(np.int32), wanted.view(np.int32))
    assert np.isfinite(y[1:]).all()


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_limits_that_depend_on_any_infinity(make_model, tmp_path, kind):
    """T5's: where one element is infinite, all are limited to less."""
    most = float(np.finfo(kind).max)
    of = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    constants = {"zero": np.array(0), "less": np.float32(most * 0.9), "most": np.float32(most)}
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], "widen", to=TensorProto.DOUBLE),
        helper.make_node("IsInf", ["wide"], ["infinite"], "ask"),
        helper.make_node("Cast", ["infinite"], ["ones"], "count_them", to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["ones"], ["count"], "count", keepdims=0),
        helper.make_node("Greater", ["count", "zero"], ["any"], "any"),
        helper.make_node("Where", ["any", "less", "most"], ["limit"], "choose"),
        helper.make_node("Neg", ["limit"], ["negative"], "negate"),
        helper.make_node("Cast", ["limit"], ["high"], "narrow", to=of),
        helper.make_node("Cast", ["negative"], ["low"], "narrow_too", to=of),
        helper.make_node("Clip", ["x", "low", "high"], ["y"], "clip"),
    ]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    model = make_model(nodes, {"x": (["n", 8], of)}, {"y": (["n", 8], of)}, held)
    joined = es.make_session(model, regions=1, auto_graph=1, dump_regions=tmp_path)
    apart = es.make_session(model, regions=0, auto_graph=0)
    plan = es.last_plan(tmp_path)
    assert "encore.Any(" in plan and "Reduce" not in plan and "Cast(" not in plan, plan
    for bad in (1, np.inf, -np.inf, np.nan, 1):
        x = np.random.default_rng(0).standard_normal((5, 8)).astype(kind)
        x[1, 2], x[3, 4] = most, bad
        (y,), (wanted,) = joined.run(None, {"x": x}), apart.run(None, {"x": x})
        np.testing.assert_array_equal(y, wanted)
        assert y[1, 2] == (constants["less"].astype(kind) if np.isinf(bad) else x[1, 2])
    np.testing.assert_array_equal(joined.run(None, {"x": x[:0]})[0], x[:0])
