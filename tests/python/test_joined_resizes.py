"""What is resized and put side by side in the channels, which are last: to the bit what it is node by node."""

import encore_session as es
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi

KINDS = [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16]
LINEAR, CUBIC, NEAREST = {"mode": "linear"}, {"mode": "cubic"}, {"mode": "nearest"}


def joined(make_model, shapes, sizes, kind, attributes, opset=19):
    """Pieces side by side, each resized if there are sizes for it. numpy has no bfloat16: it is cast to and from."""
    fed = TensorProto.FLOAT if kind == TensorProto.BFLOAT16 else kind
    forms = {f"x{i}": ([None] * (len(shape) - 1) + [shape[-1]], fed) for i, shape in enumerate(shapes)}
    nodes, constants, pieces = [], [], []
    for i, wanted in enumerate(sizes):
        piece = f"x{i}"
        if fed != kind:
            nodes.append(helper.make_node("Cast", [piece], [f"cast{i}"], to=kind))
            piece = f"cast{i}"
        if wanted:
            of_sizes = any(isinstance(size, np.integer) for size in wanted)
            constants.append(numpy_helper.from_array(np.array(wanted, np.int64 if of_sizes else np.float32), f"s{i}"))
            absent = 0 if opset < 11 else 2 if of_sizes else 1
            inputs = [piece, *[""] * absent, f"s{i}"]
            op = "Upsample" if opset < 10 else "Resize"
            nodes.append(helper.make_node(op, inputs, [f"p{i}"], f"resize{i}", **attributes))
            piece = f"p{i}"
        pieces.append(piece)
    nodes.append(helper.make_node("Concat", pieces, ["joined" if fed != kind else "y"], "concat", axis=-1))
    if fed != kind:
        nodes.append(helper.make_node("Transpose", ["joined"], ["turned"], "turn"))
        nodes.append(helper.make_node("Cast", ["turned"], ["y"], "end", to=fed))
    return make_model(nodes, forms, {"y": ([None] * len(shapes[0]), fed)}, constants, opset=opset)


def drawn(shapes, kind, seed):
    random = np.random.default_rng(seed)
    fed = TensorProto.FLOAT if kind == TensorProto.BFLOAT16 else kind
    dtype = helper.tensor_dtype_to_np_dtype(fed)
    return {f"x{i}": (random.standard_normal(shape) * 20).astype(dtype) for i, shape in enumerate(shapes)}


def check(model, feeds, folder):
    apart = es.make_session(model, regions=0, auto_graph=0)
    wanted = [apart.run(None, fed)[0] for fed in feeds]
    for auto_graph in (0, 1):
        session = es.make_session(model, regions=1, auto_graph=auto_graph, dump_regions=folder / str(auto_graph))
        assert "encore.JoinedResizes" in es.last_plan(folder / str(auto_graph))
        for fed, one in list(zip(feeds, wanted, strict=True)) * 3:
            np.testing.assert_array_equal(session.run(None, fed)[0], one)


def times(*scales):
    return [float(scale) for scale in scales]


def to(*sizes):
    return [np.int64(size) for size in sizes]


PICTURES = [
    # SegFormer's end, PSPNet's, a U-Net's
    ([[2, 2, 3, 16], [2, 4, 6, 16], [2, 8, 12, 16]], [times(1, 4, 4, 1), times(1, 2, 2, 1), None]),
    ([[1, 6, 6, 32], [1, 1, 1, 8], [1, 2, 2, 8], [1, 3, 3, 8]], [None] + [to(1, 6, 6, 8)] * 3),
    ([[2, 8, 6, 8], [2, 4, 3, 24]], [None, times(1, 2, 2, 1)]),
    # pieces apart, in more than one copy
    ([[2, 4, 4, 8], [2, 2, 2, 16], [2, 4, 4, 8], [2, 4, 4, 8]], [None, times(1, 2, 2, 1), None, None]),
    ([[1, 2 + 2 * (i % 2), 4, 8] for i in range(40)], [None if i % 2 else times(1, 2, 1, 1) for i in range(40)]),
    ([[2, 6, 6, 8], [2, 4, 4, 8]], [times(1, 0.5, 0.7, 1), to(2, 3, 4, 8)]),
    # no packs
    ([[2, 2, 3, 3], [2, 4, 6, 5]], [times(1, 2, 2, 1), None]),
    ([[2, 2, 3, 16], [2, 4, 6, 5]], [times(1, 2, 2, 1), None]),
    # rows that are not resized, pictures, and channels that are
    ([[2, 2, 6, 16], [2, 4, 6, 16]], [times(1, 2, 1, 1), None]),
    ([[1, 4, 6, 16], [2, 4, 6, 16]], [times(2, 1, 1, 1), None]),
    ([[2, 4, 6, 8], [2, 4, 6, 16]], [times(1, 1, 1, 2), None]),
    ([[2, 4, 6, 8], [2, 8, 6, 16]], [times(1, 2, 1, 2), None]),
    # as they are
    ([[2, 4, 6, 16], [2, 4, 6, 16]], [to(2, 4, 6, 16), None]),
    # of other ranks
    ([[2, 8], [4, 16]], [times(2, 1), None]),
    ([[3, 2, 8], [3, 4, 16]], [times(1, 2, 1), None]),
    ([[1, 2, 2, 2, 8], [1, 4, 4, 4, 8]], [times(1, 2, 2, 2, 1), None]),
    ([[2, 0, 3, 16], [2, 0, 6, 16]], [times(1, 2, 2, 1), None]),
]


# Cubic interpolation is of two dimensions.
MODES = [(*picture, mode) for picture in PICTURES for mode in (NEAREST, LINEAR, CUBIC)]
MODES = [case for case in MODES if case[2] != CUBIC or len(case[0][0]) <= 4]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shapes, sizes, mode", MODES, ids=str)
def test_bits(encore, make_model, tmp_path, shapes, sizes, mode, kind):
    check(joined(make_model, shapes, sizes, kind, mode), [drawn(shapes, kind, seed) for seed in range(2)], tmp_path)


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32])
@pytest.mark.parametrize("mode", [NEAREST, LINEAR], ids=str)
@pytest.mark.parametrize("channels", [16, 6])
def test_other_types(encore, make_model, tmp_path, channels, mode, kind):
    shapes, sizes = [[2, 2, 3, channels], [2, 4, 6, 16]], [times(1, 2, 2, 1), None]
    check(joined(make_model, shapes, sizes, kind, mode), [drawn(shapes, kind, seed) for seed in range(2)], tmp_path)


@pytest.mark.parametrize("kind", [TensorProto.BOOL, TensorProto.INT64, TensorProto.UINT16])
def test_types_that_are_only_moved(encore, make_model, tmp_path, kind):
    shapes, sizes = [[2, 2, 3, 16], [2, 4, 6, 32]], [times(1, 2, 2, 1), None]
    check(joined(make_model, shapes, sizes, kind, NEAREST), [drawn(shapes, kind, seed) for seed in range(2)], tmp_path)


@pytest.mark.parametrize("opset", [9, 10, 13])
def test_older_operators(encore, make_model, tmp_path, opset):
    shapes, sizes = [[2, 2, 3, 16], [2, 4, 6, 16]], [times(1, 2, 2, 1), None]
    model = joined(make_model, shapes, sizes, TensorProto.FLOAT16, LINEAR, opset)
    check(model, [drawn(shapes, TensorProto.FLOAT16, seed) for seed in range(2)], tmp_path)


def test_shapes_that_change(encore, make_model, tmp_path):
    model = joined(make_model, [[1, 2, 3, 16], [1, 4, 6, 8]], [times(1, 2, 2, 1), None], TensorProto.FLOAT16, LINEAR)
    feeds = [
        drawn([[n, h, w, 16], [n, 2 * h, 2 * w, 8]], TensorProto.FLOAT16, n)
        for n, h, w in [(1, 2, 3), (2, 2, 3), (2, 5, 1), (0, 5, 1), (1, 7, 7)]
    ]
    check(model, feeds, tmp_path)
    session = es.make_session(model, regions=1)
    with pytest.raises(capi.InvalidArgument, match=r"input 1 of shape \[1,4,5,8\] cannot be joined to \[1,4,6,16\]"):
        session.run(None, drawn([[1, 2, 3, 16], [1, 4, 5, 8]], TensorProto.FLOAT16, 0))


@es.only_if(es.on_virtual_gpu())  # which lists its kernels
@pytest.mark.parametrize("mode, copies", [(LINEAR, 1), (NEAREST, 1), (LINEAR, 0)])
def test_nothing_is_copied_twice(encore, make_model, mode, copies):
    shapes = [[2, 2, 3, 16], [2, 4, 6, 16], [2, 8, 12, 16]][: 2 + copies]
    sizes = [times(1, 4, 4, 1), times(1, 2, 2, 1), None][: 2 + copies]
    session = es.make_session(joined(make_model, shapes, sizes, TensorProto.FLOAT16, mode), regions=1, auto_graph=0)
    feeds = drawn(shapes, TensorProto.FLOAT16, 0)
    ran = [k["name"] for k in es.trace(session, lambda: session.run(None, feeds)) if k["what"] == "kernel"]
    assert sum("InterpolatePacks" in name or "ResizeNearest" in name for name in ran) == 2, ran
    assert sum("JoinedPieces" in name for name in ran) == copies, ran


ATTRIBUTES = [
    LINEAR | {"coordinate_transformation_mode": "align_corners"},
    LINEAR | {"coordinate_transformation_mode": "pytorch_half_pixel"},
    LINEAR | {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 3.0},
    LINEAR | {"antialias": 1},
    CUBIC | {"antialias": 1, "exclude_outside": 1},
    CUBIC | {"cubic_coeff_a": -0.5, "exclude_outside": 1},
    NEAREST | {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    NEAREST | {"keep_aspect_ratio_policy": "not_larger"},
]


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_attributes(encore, make_model, tmp_path, attributes):
    shapes, sizes = [[2, 6, 4, 16], [2, 4, 4, 16]], [to(2, 4, 4, 16), None]
    if "keep_aspect_ratio_policy" in attributes:
        attributes, sizes = attributes | {"axes": [1, 2]}, [to(4, 4), None]
        shapes[1][2] = 3
    model = joined(make_model, shapes, sizes, TensorProto.FLOAT16, attributes)
    if "crop" in str(attributes):
        node = next(node for node in model.graph.node if node.op_type == "Resize")
        node.input[1] = "roi"
        roi = np.array([0, 0.2, -0.3, 0, 1, 0.7, 1.2, 1], np.float32)
        model.graph.initializer.append(numpy_helper.from_array(roi, "roi"))
    check(model, [drawn(shapes, TensorProto.FLOAT16, seed) for seed in range(2)], tmp_path)
