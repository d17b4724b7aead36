"""Attention spelled out in products and a softmax, as exporters do, made one node."""

import re
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import ANY

import encore_session as es
import ml_dtypes
import numpy as np
import onnxruntime_ep_encore
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi
from test_fusion import kernels_of, made_one, on_cpu

TYPES = {
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    "float32": (TensorProto.FLOAT, np.float32),
}
# Of the largest value: halves are computed in float and rounded once; what they are compared with starts from the same
# halves, but for the probabilities, which are rounded before the second product.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6}
HALVES = ["float16", "bfloat16"]
HEADS, SIZE = 3, 16
WIDTH = HEADS * SIZE


class Network:
    """Ends are float32, all between them is of `dtype`."""

    def __init__(self, dtype="float16"):
        self.kind, self.dtype = TYPES[dtype]
        self.nodes, self.constants, self.inputs, self.outputs = [], [], {}, {}

    def input(self, name, shape):
        self.inputs[name] = shape
        return self.node("Cast", [name], f"{name}.cast", to=self.kind)

    def output(self, value, shape):
        self.outputs[f"{value}.out"] = shape
        self.node("Cast", [value], f"{value}.out", to=TensorProto.FLOAT)

    def constant(self, array, dtype=None):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype or self.dtype), name))
        return name

    def ints(self, *numbers):
        return self.constant(numbers, np.int64)

    def node(self, op, inputs, output=None, **attrs):
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], f"{output}'s", **attrs))
        return output

    def model(self, make_model, **more):
        kinds = [
            {name: (shape, TensorProto.FLOAT) for name, shape in ends.items()} for ends in (self.inputs, self.outputs)
        ]
        return make_model(self.nodes, *kinds, self.constants, **more)


def heads_of(net, x, order=(0, 2, 1, 3)):
    """[batch, head, row, size] of rows [batch, row, width]."""
    split = net.node("Reshape", [x, net.ints(0, 0, HEADS, SIZE)])
    return net.node("Transpose", [split], perm=order)


def attend(net, q, kt, v, mask=None, mask_first=False, scale=0.25, divides=False, zeros=False, wide=False, axis=-1):
    """The products, and what is between them."""
    scores = net.node("MatMul", [q, kt])
    if scale is not None:
        factor = net.constant(1 / scale if divides else scale)
        scores = net.node("Div" if divides else "Mul", [scores, factor])
    if mask:
        scores = net.node("Add", [mask, scores] if mask_first else [scores, mask])
    if wide:
        scores = net.node("Cast", [scores], to=TensorProto.FLOAT)
    p = net.node("Softmax", [scores], "probabilities", axis=axis)
    if wide:
        p = net.node("Cast", [p], to=net.kind)
    if zeros:
        p = net.node("Where", [net.node("IsNaN", [p]), net.constant(0), p])
    return net.node("MatMul", [p, v], "attended")


def rows_of(net, y, shape=("b", "q", WIDTH)):
    """The output, a row for each query."""
    turned = net.node("Transpose", [y], perm=(0, 2, 1, 3))
    net.output(net.node("Reshape", [turned, net.ints(0, 0, WIDTH)], "y"), list(shape))
    return net


def three(net):
    return [net.input(name, ["b", rows, WIDTH]) for name, rows in (("q", "q"), ("k", "k"), ("v", "k"))]


def plain(dtype, mask_shape=None, **how):
    net = Network(dtype)
    q, k, v = three(net)
    mask = net.input("mask", mask_shape) if mask_shape else None
    return rows_of(net, attend(net, heads_of(net, q), heads_of(net, k, (0, 2, 3, 1)), heads_of(net, v), mask, **how))


def numbers(shape, seed=0, low=-1.0, high=1.0):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def feeds_of(batch=2, queries=5, keys=7, width=WIDTH):
    return {
        "q": numbers((batch, queries, width), 1),
        "k": numbers((batch, keys, width), 2, -2, 2),
        "v": numbers((batch, keys, width), 3),
    }


def rounded(feeds, dtype):
    return {name: array.astype(TYPES[dtype][1]).astype(np.float32) for name, array in feeds.items()}


def agrees(session, wide, feeds, dtype):
    """With the same model in float32."""
    (wanted,) = on_cpu(wide, rounded(feeds, dtype))
    (got,) = session.run(None, feeds)
    assert got.shape == wanted.shape
    if wanted.size:
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * np.abs(wanted).max())


def check(make_model, capfd, build, *all_feeds, dtype="float16", fused=1, moves=False):
    """That so many nodes are made, and compute the same as in float32; and that nothing else `moves` elements."""
    model, wide = build(dtype).model(make_model), build("float32").model(make_model)
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options))
    assert sizes == [ANY] * fused
    es.assert_all_on_encore(session)
    all_feeds = all_feeds or [feeds_of()]
    for feeds in all_feeds:
        agrees(session, wide, feeds, dtype)
    if fused and es.on_virtual_gpu() and not moves:
        names = " ".join(kernels_of(session, all_feeds[0]))
        assert not re.search("Transpose|Strided|Fill|Gather|Softmax", names), names


@pytest.mark.parametrize("dtype", HALVES)
def test_it_is_one_node(encore, make_model, capfd, dtype):
    feeds = [feeds_of(), feeds_of(1, 1, 1), feeds_of(3, 70, 130), feeds_of(0), feeds_of(2, 0, 3)]
    check(make_model, capfd, plain, *feeds, dtype=dtype)


def test_it_need_not(encore, make_model, capfd):
    model = plain("float16").model(make_model)
    assert made_one(capfd, lambda options: es.make_session(model, options, fuse_nodes=0))[1] == []


MASKS = [["b", 1, 1, "k"], [1, 1, "q", "k"], ["q", "k"], ["b", HEADS, "q", "k"], ["k"], [HEADS, 1, 1], ["b", 1, "q", 1]]


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("first", [False, True])
def test_a_mask_is_added(encore, make_model, capfd, shape, first):
    sizes = {"b": 2, "q": 5, "k": 8}
    mask = numbers([sizes.get(dim, dim) for dim in shape], 7, -4, 4)
    feeds = feeds_of(keys=8) | {"mask": mask}
    check(make_model, capfd, lambda dtype: plain(dtype, shape, mask_first=first), feeds)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_rows_that_see_nothing_are_zeros(encore, make_model, capfd, dtype, zeros):
    """With IsNaN and Where as the model says; without them it says that they are no numbers."""
    mask = np.zeros((2, 1, 5, 7), np.float32)
    mask[0, 0, 1] = mask[1, 0, :, 3:] = -np.inf
    feeds = feeds_of() | {"mask": mask}
    build = lambda dtype: plain(dtype, ["b", 1, "q", "k"], zeros=zeros)
    model, wide = build(dtype).model(make_model), build("float32").model(make_model)
    session, sizes = made_one(capfd, lambda options: es.make_session(model, options))
    assert sizes == [ANY]
    (wanted,) = on_cpu(wide, rounded(feeds, dtype))
    (got,) = session.run(None, feeds)
    assert np.isnan(wanted[0, 1]).all() != zeros
    assert not got[0, 1].any()
    seen = np.nan_to_num(wanted)
    np.testing.assert_allclose(got, seen, rtol=0, atol=TOLERANCE[dtype] * np.abs(seen).max())


@pytest.mark.parametrize(
    "how", [{"scale": 8.0, "divides": True}, {"scale": None}, {"wide": True}, {"axis": 3}], ids=str
)
def test_other_spellings(encore, make_model, capfd, how):
    check(make_model, capfd, lambda dtype: plain(dtype, **how), feeds_of(), feeds_of(1, 33, 9))


def test_both_sides_are_scaled(encore, make_model, capfd):
    def build(dtype):
        net = Network(dtype)
        q, k, v = three(net)
        half = net.constant(0.5)
        q = net.node("Mul", [heads_of(net, q), half])
        k = net.node("Mul", [half, heads_of(net, k, (0, 2, 3, 1))])
        return rows_of(net, attend(net, q, k, heads_of(net, v), scale=None))

    check(make_model, capfd, build)


@pytest.mark.parametrize("shared", ["scaled", "mask"])
def test_what_is_on_the_way_of_two(encore, make_model, capfd, shared):
    """Keys and values are one tensor that is scaled; and rows of queries are the mask, too."""

    def build(dtype):
        net = Network(dtype)
        q, k = (net.input(name, ["b", rows, WIDTH]) for name, rows in (("q", "q"), ("k", "k")))
        v = k if shared == "mask" else net.node("Mul", [k, net.constant([0.5])])
        k = k if shared == "mask" else v
        q = heads_of(net, q)
        mask = q if shared == "mask" else None
        q = net.node("Mul", [q, net.constant(0.5)])
        return rows_of(net, attend(net, q, heads_of(net, k, (0, 2, 3, 1)), heads_of(net, v), mask))

    feeds = feeds_of(keys=SIZE)
    del feeds["v"]
    check(make_model, capfd, build, feeds, moves=True)


def test_what_a_reshape_would_move_is_moved(encore, make_model, capfd):
    """Rows of queries whose sizes come first: no view of them has heads."""

    def build(dtype):
        net = Network(dtype)
        q = net.input("q", ["b", WIDTH, "q"])
        k, v = (net.input(name, ["b", "k", WIDTH]) for name in "kv")
        turned = net.node("Transpose", [q], perm=(0, 2, 1))
        flat = net.node("Reshape", [turned, net.ints(-1, SIZE)])
        split = net.node("Reshape", [flat, net.ints(2, 5, HEADS, SIZE)])
        q = net.node("Transpose", [split], perm=(0, 2, 1, 3))
        return rows_of(net, attend(net, q, heads_of(net, k, (0, 2, 3, 1)), heads_of(net, v)), (2, 5, WIDTH))

    feeds = feeds_of()
    check(make_model, capfd, build, feeds | {"q": np.ascontiguousarray(feeds["q"].transpose(0, 2, 1))}, moves=True)


@pytest.mark.parametrize(
    "how",
    [
        {"scale": -0.25},
        {"scale": 0.0},
        {"axis": 1},
        {"shows": "probabilities"},
        {"size": 12},
        {"size": 264},
        {"by": "tensor"},
    ],
    ids=str,
)
def test_what_stays_as_it_is(encore, make_model, capfd, how):
    """Scales that turn the order of scores around, softmax along queries, probabilities that are asked for, heads of
    sizes that fast kernels lack, and scales that are computed."""
    size = how.get("size", SIZE)

    def build(dtype):
        net = Network(dtype)
        q, k, v = (net.input(name, [2, HEADS, rows, size]) for name, rows in (("q", 5), ("k", 7), ("v", 7)))
        if how.get("by"):
            q = net.node("Mul", [q, net.input("by", [1])])
        kt = net.node("Transpose", [k], perm=(0, 1, 3, 2))
        y = attend(net, q, kt, v, scale=how.get("scale", 0.25), axis=how.get("axis", -1))
        if "shows" in how:
            net.output(how["shows"], [2, HEADS, 5, 7])
        else:
            net.output(y, [2, HEADS, 5, size])
        return net

    shape = {"q": (2, HEADS, 5, size), "k": (2, HEADS, 7, size), "v": (2, HEADS, 7, size)}
    feeds = {name: numbers(dims, i) for i, (name, dims) in enumerate(shape.items())}
    if how.get("by"):
        feeds["by"] = np.full(1, 0.5, np.float32)
    check(make_model, capfd, build, feeds, fused="by" in how, moves="by" in how)


def test_floats_stay_as_they_are_outside_of_regions(encore, make_model, capfd):
    model = plain("float32").model(make_model)
    assert made_one(capfd, lambda options: es.make_session(model, options))[1] == []


def test_what_others_read_stays_outside(encore, make_model, capfd):
    """The transposed values are an output: they are made, and attention reads them from there."""

    def build(dtype):
        net = Network(dtype)
        q, k, v = three(net)
        values = heads_of(net, v)
        y = attend(net, heads_of(net, q), heads_of(net, k, (0, 2, 3, 1)), values)
        net.output(net.node("Add", [y, net.node("ReduceMax", [values], keepdims=1)], "y"), ["b", HEADS, "q", SIZE])
        return net

    check(make_model, capfd, build, moves=True)


def test_one_after_the_other(encore, make_model, capfd):
    """The transposition between them is the first one's, and the second one reads what that makes."""

    def build(dtype):
        net = Network(dtype)
        q, k, v = (net.input(name, [2, HEADS, 7, SIZE]) for name in "qkv")
        kt = net.node("Transpose", [k], perm=(0, 1, 3, 2))
        turned = net.node("Transpose", [attend(net, q, kt, v)], perm=(0, 2, 1, 3))
        scores = net.node("MatMul", [turned, net.input("kt", [2, 7, SIZE, 4])])
        y = net.node("MatMul", [net.node("Softmax", [scores], axis=-1), net.input("v2", [2, 7, 4, SIZE])], "y")
        net.output(y, [2, 7, HEADS, SIZE])
        return net

    shapes = {name: (2, HEADS, 7, SIZE) for name in "qkv"} | {"kt": (2, 7, SIZE, 4), "v2": (2, 7, 4, SIZE)}
    check(
        make_model,
        capfd,
        build,
        {name: numbers(shape, i) for i, (name, shape) in enumerate(shapes.items())},
        fused=2,
        moves=True,
    )


@pytest.mark.parametrize("what", ["mask", "v"])
def test_constants_among_what_it_reads(encore, make_model, capfd, what):
    """A causal mask often is one."""

    def build(dtype):
        net = Network(dtype)
        q, k = (net.input(name, [2, 7, WIDTH]) for name in "qk")
        v = numbers((2, HEADS, 7, SIZE), 3)
        v = net.constant(v) if what == "v" else heads_of(net, net.input("v", [2, 7, WIDTH]))
        mask = net.constant(np.triu(np.full((7, 7), -np.inf), 1)[None, None]) if what == "mask" else None
        return rows_of(net, attend(net, heads_of(net, q), heads_of(net, k, (0, 2, 3, 1)), v, mask), (2, 7, WIDTH))

    feeds = feeds_of(queries=7)
    check(make_model, capfd, build, {name: feeds[name] for name in feeds if name != what})


WINDOWS = {
    "causal": (40, 40, lambda apart: apart <= 0, "after = 0"),
    "causal, behind a past": (5, 40, lambda apart: apart <= 0, "after = 0"),
    "sliding": (70, 70, lambda apart: (apart <= 0) & (apart > -9), "after = 0, before = 8"),
    "both ways": (40, 40, lambda apart: abs(apart) < 4, "after = 3, before = 3"),
    "all": (7, 7, lambda apart: apart < 99, ""),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("unseen", [-np.inf, "lowest"])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_constant_mask_is_a_window(encore, make_model, tmp_path, window, unseen, dtype):
    """By position, for which kernels need no mask: eager, captured, and replayed with other rows."""
    queries, keys, sees, told = WINDOWS[window]
    apart = np.arange(keys) - np.arange(keys - queries, keys)[:, None]

    def build(dtype):
        net = Network(dtype)
        low = float(ml_dtypes.finfo(net.dtype).min) if unseen == "lowest" else unseen
        q, k, v = (net.input(name, ["b", rows, WIDTH]) for name, rows in (("q", queries), ("k", keys), ("v", keys)))
        mask = net.constant(np.where(sees(apart), 0, low)[None, None])
        made = attend(net, heads_of(net, q), heads_of(net, k, (0, 2, 3, 1)), heads_of(net, v), mask)
        return rows_of(net, made, ("b", queries, WIDTH))

    model, wide = (build(one).model(make_model) for one in (dtype, "float32"))
    session = es.make_session(model, auto_graph=1, dump_regions=tmp_path)
    steps = [line for line in es.last_plan(tmp_path).splitlines() if "encore.Attention(" in line]
    assert len(steps) == 1 and f"_) {{{told}" in steps[0], steps
    for seed, batch in enumerate((2, 2, 2, 1, 2)):
        feeds = feeds_of(batch, queries, keys)
        agrees(session, wide, {name: np.roll(array, seed, 1) for name, array in feeds.items()}, dtype)


def layers(dtype):
    """Two by the same mask."""
    net = Network(dtype)
    x, mask = net.input("x", ["b", "n", WIDTH]), net.input("mask", ["b", 1, "n", "n"])
    for _ in range(2):
        q, k, v = (heads_of(net, x, order) for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
        p = net.node("Softmax", [net.node("Add", [net.node("MatMul", [q, k]), mask])], axis=-1)
        p = net.node("Where", [net.node("IsNaN", [p]), net.constant(0), p])
        turned = net.node("Transpose", [net.node("MatMul", [p, v])], perm=(0, 2, 1, 3))
        x = net.node("Reshape", [turned, net.ints(0, 0, WIDTH)])
    net.output(x, ["b", "n", WIDTH])
    return net


@pytest.mark.parametrize("dtype", HALVES)
def test_layers_share_a_mask(encore, make_model, tmp_path, dtype):
    """One that may leave a row nothing to see, as sizes change, eager and by graphs."""
    model, wide = (layers(one).model(make_model) for one in (dtype, "float32"))
    session = es.make_session(model, regions=1, auto_graph=1, dump_regions=tmp_path)
    plan = es.last_plan(tmp_path)
    assert plan.count('"mask.cast as a bias"') == 2
    for batch, rows, seed in ((2, 40, 1), (2, 40, 2), (2, 40, 3), (1, 40, 4), (2, 40, 5), (1, 3, 6), (0, 3, 7)):
        mask = np.where(numbers((batch, 1, rows, rows), seed) > 0.4, -np.inf, 0).astype(np.float32)
        mask[:, :, 1] = -np.inf
        agrees(session, wide, {"x": numbers((batch, rows, WIDTH), seed), "mask": mask}, dtype)


@pytest.mark.parametrize("moves", [False, True])
def test_the_same_shapes_again(encore, make_model, moves):
    """Where heads are is known from the run before; what no view is gets moved each time."""

    def build(dtype):
        net = Network(dtype)
        x = net.input("x", ["b", "s", 3 * WIDTH])
        q, k, v = (net.node("Slice", [x, *map(net.ints, (i * WIDTH, (i + 1) * WIDTH, 2))]) for i in range(3))
        if moves:
            turned = net.node("Transpose", [q], perm=(0, 2, 1))
            q = net.node("Reshape", [turned, net.ints(0, -1, WIDTH)])
        return rows_of(net, attend(net, heads_of(net, q), heads_of(net, k, (0, 2, 3, 1)), heads_of(net, v)))

    session = es.make_session(build("float16").model(make_model), auto_graph=0)
    es.assert_all_on_encore(session)
    wide = build("float32").model(make_model)

    def run(*shapes):
        for seed, (batch, rows) in enumerate(shapes):
            agrees(session, wide, {"x": numbers((batch, rows, 3 * WIDTH), seed)}, "float16")

    run((1, 6), (1, 6), (2, 5), (1, 6), (2, 5), (2, 5))
    with ThreadPoolExecutor(2) as threads:  # which know each other's shapes
        for done in [threads.submit(run, *[shape] * 8) for shape in [(1, 6), (2, 5)]]:
            done.result()


@es.needs_graphs
def test_it_is_captured_and_replayed(encore, make_model):
    model, wide = (plain(dtype, ["b", 1, 1, "k"]).model(make_model) for dtype in ("float16", "float32"))
    session = es.make_session(model, enable_cuda_graph=1)
    mask = np.zeros((2, 1, 1, 8), np.float32)
    bound = es.Bound(session, feeds_of(keys=8) | {"mask": mask}, {"y.out": ([2, 5, WIDTH], np.float32)})
    for seed in range(5):
        mask = np.where(np.arange(8) < 8 - seed, 0, -np.inf).astype(np.float32)[None, None, None].repeat(2, 0)
        feeds = feeds_of(keys=8) | {"q": numbers((2, 5, WIDTH), seed), "mask": mask}
        (wanted,) = on_cpu(wide, rounded(feeds, "float16"))
        got = bound.run(feeds)["y.out"]
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE["float16"] * np.abs(wanted).max())
    (report,) = onnxruntime_ep_encore.graph_report(session)
    assert report["state"] == "ready"


@pytest.mark.parametrize(
    "shapes, says",
    [
        ({"v": (2, 6, WIDTH)}, "there are 7 keys and 6 values"),
        ({"mask": (2, 1, 1, 6)}, "have 7 and 6 keys"),
        ({"mask": (3, 1, 1, 7)}, "have 2 and 3 batches"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_said(encore, make_model, shapes, says):
    session = es.make_session(plain("float16", ["m", 1, 1, "n"]).model(make_model))
    good = feeds_of() | {"mask": np.zeros((2, 1, 1, 7), np.float32)}
    with pytest.raises((capi.InvalidArgument, capi.Fail), match=f"attended.*{says}|y's.*{says}|{says}"):
        session.run(None, good | {name: numbers(shape) for name, shape in shapes.items()})
    assert np.isfinite(session.run(None, good)[0]).all()
