"""Operators that look at images where other inputs say, and what turns windows into images."""

from dataclasses import replace

import numpy as np
import pytest
from encore_session import assert_all_on_encore
from harness import FLOATS, Case, Const, check, floats, session
from onnx import AttributeProto, TensorProto, helper
from refusal import declined, fails

# ---- GridSample


def sample(*shape, out=(4, 6), opset=20, reach=1.3, name="", **attrs):
    grid = floats(shape[0], *out, len(shape) - 2, low=-reach, high=reach)
    name = "_".join([name, *(str(v) for v in attrs.values())]).strip("_")
    return Case("GridSample", [floats(*shape), grid], attrs, opset=opset, family="reduce", name=name)


NAMES = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}
SAMPLES = [
    sample(2, 3, 5, 7, mode=mode, padding_mode=padding, align_corners=corners)
    for mode in NAMES
    for padding in ("zeros", "border", "reflection")
    for corners in (0, 1)
] + [
    sample(2, 3, 4, 5, 3, out=(3, 2, 4), mode=mode, padding_mode=padding, align_corners=corners)
    for mode in ("nearest", "linear")
    for padding in ("zeros", "border", "reflection")
    for corners in (0, 1)
]
# Half types are rounded: a grid that is rounded with them sees other pixels' shares, so such grids stay float.
WIDE = ["float32", "float64"]


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("it", SAMPLES, ids=str)
def test_samples(it, dtype):
    check(replace(it, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("it", [SAMPLES[6], SAMPLES[9], SAMPLES[12], SAMPLES[24]], ids=str)
def test_samples_of_halves(it, dtype):
    check(replace(it, dtype=dtype, opset=22))


@pytest.mark.parametrize("it", [SAMPLES[0], SAMPLES[7], SAMPLES[14], SAMPLES[26]], ids=str)
def test_samples_of_channels_last(it):
    check(replace(it, channels_last=True))


@pytest.mark.parametrize("mode", NAMES)
@pytest.mark.parametrize("last", [False, True])
def test_sample_versions(mode, last):
    check(replace(sample(1, 2, 4, 4, opset=16, mode=NAMES[mode]), channels_last=last))
    check(replace(sample(1, 2, 4, 4, opset=22, mode=mode), channels_last=last))
    check(replace(sample(1, 2, 4, 4, opset=22), channels_last=last))


@pytest.mark.parametrize("last", [False, True])
def test_many_places(last):
    """So many that a thread takes several channels."""
    check(replace(sample(1, 70, 9, 9, out=(140, 131)), channels_last=last))


def test_sample_far_away_and_nowhere():
    it = sample(1, 2, 4, 5, out=(1, 8), padding_mode="zeros")
    it.inputs[1][0, 0, :4] = [[1e9, 0], [0, -1e30], [np.nan, 0], [np.inf, -np.inf]]
    check(replace(it, reference=lambda x, grid: [np.float32(_bilinear(x, grid))]))  # the CPU EP sees something there
    it = sample(1, 2, 4, 5, out=(1, 8), padding_mode="border", mode="nearest")
    it.inputs[1][0, 0, :2] = [[1e9, 0], [0, -1e30]]
    check(it)


def test_sample_of_one_pixel():
    for padding in ("zeros", "border"):
        check(sample(1, 2, 1, 1, padding_mode=padding, align_corners=1))
    one = sample(1, 2, 1, 1, padding_mode="reflection", align_corners=1)
    check(replace(one, reference=lambda x, grid: [np.broadcast_to(x, (1, 2, 4, 6))]))  # the CPU EP divides by nothing


def test_sample_nothing():
    check(sample(1, 2, 4, 5, out=(0, 3)))
    check(sample(0, 2, 4, 5))
    fails("GridSample", [floats(1, 2, 0, 5), floats(1, 3, 3, 2)], {}, "nothing to sample", opset=20)


def test_grids_of_another_type():
    it = sample(1, 2, 4, 5)
    wide = lambda x, grid: [np.float16(_bilinear(x.astype(np.float32), grid.astype(np.float32)))]
    check(replace(it, dtype="float16", inputs=[it.inputs[0], it.inputs[1].astype(np.float64)], reference=wide))


def _bilinear(x, grid):
    height, width = x.shape[2:]
    places = np.nan_to_num(((grid + 1) * [width, height] - 1) / 2, nan=-100.0).clip(-100, 100)
    low = np.floor(places).astype(int)
    out = np.zeros((*x.shape[:2], *grid.shape[1:3]), np.float64)
    for dv in (0, 1):
        for du in (0, 1):
            u, v = low[..., 0] + du, low[..., 1] + dv
            weight = (1 - abs(places[..., 0] - u)) * (1 - abs(places[..., 1] - v))
            inside = (u >= 0) & (u < width) & (v >= 0) & (v < height)
            for n in range(len(x)):
                picked = x[n][:, v[n].clip(0, height - 1), u[n].clip(0, width - 1)]
                out[n] += picked * np.where(inside[n], weight[n], 0)
    return out


def test_samples_that_do_not_fit():
    x, grid = floats(1, 2, 4, 5), floats(1, 3, 3, 2)
    declined("GridSample", [x, grid], {"mode": "quartic"}, opset=20)
    declined("GridSample", [x, grid], {"padding_mode": "wrap"}, opset=20)
    fails("GridSample", [x, floats(2, 3, 3, 2)], {}, "grid has shape", opset=20)
    fails("GridSample", [x, floats(1, 3, 3, 3)], {}, "grid has shape", opset=20)


# ---- AffineGrid


def affine(*size, corners=0):
    dims = len(size) - 2
    theta = floats(size[0], dims, dims + 1)
    attrs = {"align_corners": corners}
    return Case("AffineGrid", [theta, Const(np.array(size))], attrs, opset=20, family="reduce", name=str(corners))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 3, 1), (2, 1, 3, 4, 5), (0, 1, 2, 2), (1, 1, 200, 301)], ids=str)
def test_affine_grids(size, corners, dtype):
    check(replace(affine(*size, corners=corners), dtype=dtype))


def test_affine_grids_that_do_not_fit():
    fails("AffineGrid", [floats(1, 2, 3), np.array([1, 1, 4])], {}, "size has 3", opset=20)
    fails("AffineGrid", [floats(2, 2, 3), np.array([1, 1, 4, 4])], {}, "theta has shape", opset=20)
    fails("AffineGrid", [floats(1, 2, 3), np.array([1, 1, -4, 4])], {}, "negative", opset=20)


# ---- RoiAlign and MaxRoiPool


def align(count, *shape, opset=16, name="", **attrs):
    corners = floats(count, 4, low=0, high=1) * np.float32(2 * shape[3])
    corners[:, 2:] += corners[:, :2]
    if not attrs.get("sampling_ratio"):  # replays permute the contents, and the CPU EP counts samples of no size
        corners = Const(corners)
    images = np.arange(count, dtype=np.int64) % shape[0]
    attrs = {"output_height": 3, "output_width": 2, **attrs}
    name = name or "_".join(str(v) for v in attrs.values())
    return Case("RoiAlign", [floats(*shape), corners, images], attrs, opset=opset, family="reduce", name=name)


ALIGNED = [
    align(5, 2, 3, 8, 9, sampling_ratio=2),
    align(5, 2, 3, 8, 9, sampling_ratio=0, spatial_scale=0.4),
    align(5, 2, 3, 8, 9, sampling_ratio=2, mode="max"),
    align(5, 2, 3, 8, 9, mode="max", spatial_scale=0.5),
    align(4, 1, 2, 6, 6, coordinate_transformation_mode="output_half_pixel"),
    align(4, 1, 2, 6, 6, coordinate_transformation_mode="output_half_pixel", mode="max", sampling_ratio=3),
    align(300, 2, 5, 20, 21, output_height=7, output_width=7),
    align(0, 1, 2, 6, 6),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("it", ALIGNED, ids=str)
def test_align(it, dtype):
    check(replace(it, dtype=dtype))


@pytest.mark.parametrize("opset, dtype", [(16, "float16"), (22, "bfloat16"), (22, "float16")])
def test_align_halves(opset, dtype):
    check(replace(align(5, 2, 3, 8, 9, sampling_ratio=2, opset=opset), dtype=dtype))


@pytest.mark.parametrize("opset", [10, 15, 16, 21, 22])
def test_align_versions(opset):
    check(align(4, 2, 3, 8, 9, opset=opset))
    check(align(4, 2, 3, 8, 9, opset=opset, sampling_ratio=1, mode="max"))


def test_align_beyond_the_image():
    it = align(3, 1, 2, 6, 6, sampling_ratio=2)
    it.inputs[1][:] = [[-20, -20, -10, -10], [4, 4, 1, 1], [0, 0, 100, 100]]
    check(it)
    wide = Const(regions([-20, -20, -10, -10], [1, 1, 4, 4], [0, 0, 100, 100]))
    inputs = [it.inputs[0], wide, it.inputs[2]]
    check(replace(it, inputs=inputs, attrs={**it.attrs, "sampling_ratio": 0}, name="adaptive"))


def test_align_what_does_not_fit():
    x, rois, images = floats(1, 2, 6, 6), floats(2, 4), np.zeros(2, np.int64)
    declined("RoiAlign", [x, rois, images], {"mode": "min"})
    declined("RoiAlign", [x, rois, images], {"sampling_ratio": -1})
    declined("RoiAlign", [x, rois, images], {"output_height": 0})
    fails("RoiAlign", [x, floats(2, 5), images], {}, "rois has shape")
    fails("RoiAlign", [x, rois, np.zeros(3, np.int64)], {}, "batch_indices has shape")
    fails("RoiAlign", [x, rois, np.array([0, 1])], {}, "1")
    fails("RoiAlign", [x, rois, np.array([0, -1])], {}, "-1")
    fails("RoiAlign", [x, np.float32([[0, 0, 1e9, 1]] * 2), images], {}, "4096")


def regions(*rows):
    return np.array(rows, np.float32)


def _pool_regions(shape, scale):
    """The CPU EP has floats only."""

    def run(x, rois):
        y = np.zeros((len(rois), x.shape[1], *shape), x.dtype)
        for r, (image, *corners) in enumerate(rois.astype(np.float64)):
            left, top, right, bottom = (int(np.floor(c * scale + 0.5)) for c in corners)
            for v, u in np.ndindex(*shape):
                height, width = max(bottom - top + 1, 1) / shape[0], max(right - left + 1, 1) / shape[1]
                rows = [int(np.floor(v * height)) + top, int(np.ceil((v + 1) * height)) + top]
                columns = [int(np.floor(u * width)) + left, int(np.ceil((u + 1) * width)) + left]
                rows, columns = np.clip(rows, 0, x.shape[2]), np.clip(columns, 0, x.shape[3])
                seen = x[int(image), :, slice(*rows), slice(*columns)]
                y[r, :, v, u] = seen.max((1, 2)) if seen.size else 0
        return [y]

    return run


ROIS = regions([0, 0, 0, 5, 5], [1, 1, 2, 4, 7], [0, 3, 3, 3, 3], [1, 6, 1, 2, 2], [0, -9, -9, -5, -5])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, scale", [((2, 3), 1.0), ((1, 1), 0.5), ((7, 7), 1.0)])
def test_max_of_regions(shape, scale, dtype):
    opset = 22 if dtype == "bfloat16" else 1
    attrs = {"pooled_shape": list(shape), "spatial_scale": scale}
    reference = None if dtype == "float32" else _pool_regions(shape, scale)
    # Replays permute the contents, and regions must name images.
    it = Case("MaxRoiPool", [floats(2, 3, 8, 9), Const(ROIS)], attrs, dtype=dtype, opset=opset, family="exact")
    check(replace(it, reference=reference, name=str(shape)))


def test_max_of_regions_that_do_not_fit():
    x = floats(1, 2, 6, 6)
    declined("MaxRoiPool", [x, ROIS], {"pooled_shape": [0, 2]})
    declined("MaxRoiPool", [x, ROIS], {"pooled_shape": [2]})
    declined("MaxRoiPool", [x, ROIS], {"pooled_shape": [2, 2], "spatial_scale": -1.0})
    fails("MaxRoiPool", [x, floats(2, 4)], {"pooled_shape": [2, 2]}, "rois has shape")
    fails("MaxRoiPool", [x, ROIS], {"pooled_shape": [2, 2]}, "1")


# ---- DeformConv


def deform(*shape, out=4, kernel=(3, 3), groups=1, offset_groups=1, mask=True, bias=True, opset=19, **attrs):
    n, channels, *spatial = shape
    pads, strides = attrs.get("pads", [0] * 4), attrs.get("strides", [1, 1])
    dilations = attrs.get("dilations", [1, 1])
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    size = [(s + pads[i] + pads[2 + i] - spans[i]) // strides[i] + 1 for i, s in enumerate(spatial)]
    taps = kernel[0] * kernel[1]
    inputs = [
        floats(*shape),
        floats(out, channels // groups, *kernel),
        floats(n, offset_groups * taps * 2, *size, low=-2, high=2),
        floats(out) if bias else None,
        floats(n, offset_groups * taps, *size, low=0, high=1) if mask else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"group": groups, "offset_group": offset_groups, **attrs}
    name = "_".join(str(v).replace(" ", "") for v in attrs.values())
    return Case("DeformConv", inputs, attrs, opset=opset, family="matmul", name=name)


DEFORMED = [
    deform(2, 4, 7, 6, pads=[1, 1, 1, 1]),
    deform(1, 4, 7, 6, groups=2, offset_groups=2, mask=False),
    deform(1, 6, 9, 8, groups=2, offset_groups=3, bias=False, strides=[2, 1], dilations=[2, 2], pads=[2, 1, 0, 3]),
    deform(2, 2, 5, 5, kernel=(1, 1), out=3),
    deform(1, 3, 6, 7, kernel=(2, 3), out=5, bias=False, mask=False),
    deform(1, 8, 40, 41, pads=[1, 1, 1, 1]),
    deform(0, 4, 7, 6),
]


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("it", DEFORMED, ids=str)
def test_deform(it, dtype):
    check(replace(it, dtype=dtype))


@pytest.mark.parametrize("opset, dtype", [(19, "float16"), (22, "bfloat16"), (22, "float32"), (26, "float32")])
def test_deform_versions(opset, dtype):
    tolerance = {"float16": (2e-2, 4e-2), "bfloat16": (1e-1, 3e-1)}.get(dtype)  # the columns are rounded, too
    check(replace(deform(2, 4, 7, 6, pads=[1, 1, 1, 1]), dtype=dtype, opset=opset, tolerance=tolerance))


def test_deform_far_away():
    it = deform(1, 2, 5, 5)
    it.inputs[2][0, :, 0, 0] = np.float32([1e9, -1e30, np.nan, np.inf] * 4 + [0, 0])
    with np.errstate(invalid="ignore"):
        check(it)


def test_deform_what_does_not_fit():
    x, w, offset, *_ = deform(1, 4, 7, 6).inputs
    declined("DeformConv", [x, w, offset], {"group": 0})
    fails("DeformConv", [x, w, offset], {"group": 2}, "X has 4 channels")
    fails("DeformConv", [x, w, offset], {"offset_group": 3}, "offset_group")
    fails("DeformConv", [x, w, offset[:, :17]], {}, "offset has shape")
    fails("DeformConv", [x, w, offset], {"kernel_shape": [2, 2]}, "kernel_shape")


# ---- Col2Im


def columns(batch, channels, image, block, **attrs):
    count, taps = 1, int(np.prod(block))
    spatial = len(image)
    pads, strides = attrs.get("pads", [0] * 2 * spatial), attrs.get("strides", [1] * spatial)
    for i in range(spatial):
        span = (block[i] - 1) * attrs.get("dilations", [1] * spatial)[i] + 1
        count *= (image[i] + pads[i] + pads[spatial + i] - span) // strides[i] + 1
    inputs = [floats(batch, channels * taps, count), Const(np.array(image)), Const(np.array(block))]
    name = "_".join(str(v).replace(" ", "") for v in (image, block, *attrs.values()))
    return Case("Col2Im", inputs, attrs, opset=18, family="reduce", name=name)


COLUMNS = [
    columns(2, 3, (5, 6), (2, 3)),
    columns(1, 2, (6, 6), (3, 2), strides=[2, 3], pads=[1, 0, 2, 1]),
    columns(1, 2, (7, 8), (2, 2), dilations=[3, 2]),
    columns(1, 2, (9,), (3,), strides=[2]),
    columns(2, 1, (4, 5, 3), (2, 1, 3), pads=[0, 1, 0, 0, 1, 1]),
    columns(1, 16, (60, 61), (3, 3), pads=[1, 1, 1, 1]),
    columns(0, 2, (4, 4), (2, 2)),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("it", COLUMNS, ids=str)
def test_columns(it, dtype):
    if dtype != "float32":  # the CPU EP's kernel is the reference for float only, and onnx's own adds up in the type
        once = check_in_float(it)
        return check(replace(it, dtype=dtype, reference=once))
    check(it)


def check_in_float(it):
    def run(x, image, block):
        y = np.zeros((x.shape[0], x.shape[1] // int(np.prod(block)), *image), np.float64)
        spatial = len(image)
        pads, strides = it.attrs.get("pads", [0] * 2 * spatial), it.attrs.get("strides", [1] * spatial)
        dilations = it.attrs.get("dilations", [1] * spatial)
        counts = [
            (image[i] + pads[i] + pads[spatial + i] - (block[i] - 1) * dilations[i] - 1) // strides[i] + 1
            for i in range(spatial)
        ]
        given = x.astype(np.float64).reshape(*y.shape[:2], *block, *counts)
        for tap in np.ndindex(*block):
            for place in np.ndindex(*counts):
                at = [p * s - pads[i] + t * d for i, (p, s, t, d) in enumerate(zip(place, strides, tap, dilations))]
                if all(0 <= a < size for a, size in zip(at, image)):
                    y[(..., *at)] += given[(..., *tap, *place)]
        return [y.astype(x.dtype)]

    return run


def test_lists_of_nothing_are_not_given():
    it = columns(1, 2, (4, 5), (2, 3))
    x, image, block = (getattr(given, "value", given) for given in it.inputs)
    node = helper.make_node("Col2Im", ["x", "image", "block"], ["y"])
    for name in ("strides", "dilations", "pads"):
        node.attribute.append(helper.make_attribute(name, [], attr_type=AttributeProto.INTS))
    feeds = {"x": x, "image": image, "block": block}
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    # Where it knows of how many dimensions the image is, onnx's inference counts the lists.
    values = [helper.make_tensor_value_info(name, kinds[name], None) for name in feeds]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "col2im", values, [result])
    sess = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    assert_all_on_encore(sess)
    np.testing.assert_allclose(sess.run(None, feeds)[0], check_in_float(it)(x, image, block)[0], 1e-5, 1e-5)


def test_columns_that_do_not_fit():
    x, image, block = floats(1, 4, 9), np.array([4, 4]), np.array([2, 2])
    declined("Col2Im", [x, image, block], {"strides": [0, 1]}, opset=18)
    fails("Col2Im", [x, image, np.array([2, 3])], {}, "rows of the input", opset=18)
    fails("Col2Im", [x, np.array([4, 5]), block], {}, "9 columns", opset=18)
    fails("Col2Im", [x, np.array([1, 4]), block], {}, "a block spans 2", opset=18)
    fails("Col2Im", [x, np.array([4, -4]), block], {}, "image_shape holds -4", opset=18)


# ---- CenterCropPad


def centre(shape, wanted, dtype="float32", **attrs):
    x = (floats(*shape) * 30).astype(dtype)
    name = "_".join([str(wanted).replace(" ", ""), *(str(v).replace(" ", "") for v in attrs.values())])
    return Case("CenterCropPad", [x, Const(np.array(wanted))], attrs, dtype=dtype, opset=18, family="exact", name=name)


CENTRED = [
    ((10, 7, 3), (4, 7, 2)),
    ((4, 5), (7, 8)),
    ((10, 8), (5, 13)),
    ((9, 4), (4, 9)),
    ((3,), (0,)),
    ((0, 3), (2, 3)),
    ((200, 301), (250, 100)),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint16", "int32", "int64", "bool"])
@pytest.mark.parametrize("shape, wanted", CENTRED, ids=str)
def test_centre(shape, wanted, dtype):
    check(centre(shape, wanted, dtype))


def test_centre_of_axes():
    check(centre((4, 9, 3), (6, 2), axes=[-1, 1]))
    check(replace(centre((4, 9, 3), (6, 2), axes=[0, 1]), dtype="bfloat16"))
    small = centre((4, 9), (2, 3))  # the CPU EP has only the function, which is wrong about int32
    inputs = [small.inputs[0], Const(np.array([2, 3], np.int32))]
    check(replace(small, inputs=inputs, reference=lambda x, shape: [x[1:3, 3:6]]))


def test_centre_of_what_does_not_fit():
    fails("CenterCropPad", [floats(3, 4), np.array([2])], {}, "shape has 1", opset=18)
    fails("CenterCropPad", [floats(3, 4), np.array([2, -2])], {}, "negative", opset=18)
    fails("CenterCropPad", [floats(3), np.array([[2]])], {}, "shape", opset=18)
    fails("CenterCropPad", [floats(3, 4), np.array([2, 2])], {"axes": [0, -2]}, "twice", opset=18)
    fails("CenterCropPad", [floats(3, 4), np.array([2, 2])], {"axes": [0, 2]}, "axes 2 is outside", opset=18)
