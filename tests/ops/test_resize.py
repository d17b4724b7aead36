"""Resize and Upsample."""

from dataclasses import replace

import numpy as np
import pytest
from both import Both
from encore_session import on_cpu
from harness import Case, Const, _Model, check, floats, integers
from refusal import declined, fails

COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def resize(x, scales=None, sizes=None, roi=None, opset=19, **attrs):
    inputs = [x if isinstance(x, np.ndarray) else floats(*x), None, None, None]
    if roi:
        inputs[1] = Const(np.array(roi, np.float32), fixed=True)
    if scales:
        inputs[2] = Const(np.array(scales, np.float32), fixed=True)
    if sizes:
        inputs[3] = Const(np.array(sizes, np.int64))
    if opset < 13:  # not optional yet, but may be empty
        for i in (1, 2):
            inputs[i] = inputs[i] or Const(np.zeros(0, np.float32), fixed=True)
    while inputs[-1] is None:
        inputs.pop()
    name = "_".join(str(v).replace(" ", "") for v in (*(scales or sizes), *attrs.values()))
    family = "exact" if attrs.get("mode", "nearest") == "nearest" else "reduce"
    return Case("Resize", inputs, attrs, opset=opset, family=family, name=name)


def test_positions_that_floats_round_up():
    """The last of more than 2^24, which no float is."""
    x = np.zeros((1, 1, 2**24 + 4, 1), np.float32)
    x[:, :, -4:] = 3
    case = resize(x, sizes=(1, 1, 2, 1), mode="linear", coordinate_transformation_mode="align_corners")
    check(replace(case, dtype="float16"))


SCALES = [(1, 1, 2, 2), (1, 1, 0.55, 0.7), (1, 1, 1.7, 2.3), (1, 1, 1, 3), (1, 1, 2, 0.5)]


@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("nearest", NEAREST)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest(coordinates, nearest, scales):
    check(resize((2, 3, 5, 7), scales, coordinate_transformation_mode=coordinates, nearest_mode=nearest))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_interpolation(coordinates, scales, mode):
    check(resize((2, 3, 5, 7), scales, mode=mode, coordinate_transformation_mode=coordinates))


SHAPES = [
    resize((2, 3, 5, 7), sizes=(2, 3, 9, 4), mode=mode, coordinate_transformation_mode=coordinates)
    for mode in ("nearest", "linear", "cubic")
    for coordinates in ("half_pixel", "align_corners")
] + [
    resize((2, 3, 5, 7), sizes=(2, 3, 1, 1), mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
    resize((2, 3, 5, 7), sizes=(2, 3, 1, 1), mode="linear", coordinate_transformation_mode="align_corners"),
    resize((2, 3, 5, 7), scales=(2, 1, 1, 2)),
    resize((2, 3, 5, 7), scales=(1.5, 2, 0.5, 2), coordinate_transformation_mode="asymmetric"),
    resize((2, 3, 5, 7, 2, 3), scales=(1, 2, 1, 2, 1, 2)),
    resize((2, 5, 7, 3), scales=(1, 2, 3, 1), mode="linear"),
    resize((2, 5, 7, 3), scales=(1, 2, 3, 1), mode="nearest"),
    resize((5, 7), scales=(2.5, 0.7), mode="linear"),
    resize((2, 3, 4, 5, 6), scales=(1, 1, 2, 1.5, 0.7), mode="linear"),
    resize((2, 3, 5, 7), scales=(1, 1, 1, 1), mode="linear"),
    resize((2, 3, 0, 7), scales=(1, 1, 2, 2)),
    resize((2, 3, 5, 7), scales=(1, 1, 1.3, 1.4), mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1),
    resize((2, 3, 5, 7), scales=(1, 1, 0.4, 0.6), mode="cubic", exclude_outside=1),
    resize((2, 3, 5, 7), scales=(2.0, 1.5), axes=[2, 3], mode="linear"),
    resize((2, 3, 5, 7), scales=(2.0, 1.5), axes=[-1, -2], mode="linear"),
    resize((2, 3, 5, 7), sizes=(8, 9), axes=[2, 3], keep_aspect_ratio_policy="not_larger"),
    resize((2, 3, 5, 7), sizes=(8, 9), axes=[2, 3], keep_aspect_ratio_policy="not_smaller", mode="linear"),
    resize((4, 64, 64, 65), scales=(1, 1, 2, 2), coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    resize((4, 32, 64, 65), scales=(1, 1, 2, 2), mode="linear"),
]
CROPPED = [
    resize(
        (1, 2, 5, 7),
        sizes=(1, 2, 4, 6),
        roi=(0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3),
        mode=mode,
        extrapolation_value=9.0,
        coordinate_transformation_mode="tf_crop_and_resize",
    )
    for mode in ("nearest", "linear", "cubic")
] + [
    resize(
        (1, 2, 5, 7),
        sizes=(4, 1),
        roi=(0.1, -0.2, 0.8, 1.3),
        mode="linear",
        axes=[2, 3],
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    resize(
        (1, 2, 5, 7),
        scales=(1, 1, 2, 2),
        roi=(0, 0, 0.2, 0.3, 1, 1, 0.7, 0.9),
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    resize((2, 5, 7), scales=(1, 2, 1.5), coordinate_transformation_mode="tf_crop_and_resize"),  # of the whole
]

# Packs of channels, and channels that fill none; planes that share their places, in pairs of columns and not.
LAYOUTS = [
    resize(shape, scales, mode=mode, **attrs)
    for mode in ("nearest", "linear", "cubic")
    for shape, scales, attrs in [
        ((2, 5, 7, 16), (1, 2, 3, 1), {}),
        ((2, 5, 7, 12), (1, 1.6, 2.2, 1), {"coordinate_transformation_mode": "align_corners"}),
        ((3, 67, 40, 41), (1, 1, 2, 1.5), {}),
        ((5, 83, 9, 11), (1, 1, 1.7, 1.4), {"coordinate_transformation_mode": "pytorch_half_pixel"}),
        ((301, 33), (1, 2.5), {}),
    ]
] + [
    resize((2, 9, 24), (1, 1.7, 1), mode="linear", coordinate_transformation_mode="asymmetric"),
    resize((9, 3, 32), (3, 1, 1), mode="linear"),
    resize((2, 5, 7, 12), (1, 0.6, 0.7, 1), mode="linear"),
    resize((9, 3, 32), (3, 1, 1)),
    # Threads have several packs of channels.
    resize((1, 65, 70, 64), (1, 4, 4, 1), mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
    resize((1, 400, 1, 640), (1, 9, 1, 1), mode="linear", coordinate_transformation_mode="align_corners"),
    resize((4, 6, 5, 8), (2, 1, 1.5, 1)),
    resize((4, 6, 5, 8), (2, 1, 1, 1.5)),
    resize(
        (2, 5, 7, 16),
        sizes=(2, 4, 6, 16),
        roi=(0, 0.1, -0.2, 0, 1, 0.8, 1.3, 1),
        extrapolation_value=9.0,
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("it", SHAPES + CROPPED + LAYOUTS, ids=str)
def test_shapes(it, dtype):
    check(replace(it, dtype=dtype))


# The CPU EP has no double: the reference is onnx's own, whose cubic weights add up to one only within 5e-7.
@pytest.mark.parametrize("mode, tolerance", [("nearest", None), ("linear", None), ("cubic", (2e-6, 2e-6))])
def test_double(mode, tolerance):
    check(replace(resize((1, 2, 5, 7), (1, 1, 1.5, 2), mode=mode), dtype="float64", tolerance=tolerance))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [SCALES[0], (1, 1, 4, 0.5)], ids=str)  # weights are exact, for fractions are cut off
def test_integers(scales, mode, dtype):
    check(replace(resize(integers(dtype, 2, 3, 5, 7), scales, mode=mode), dtype=dtype, family="exact"))


def test_the_largest_integers_stay_as_they_are():
    """As floats they are beyond the type."""
    x = np.full((1, 2, 5, 7), 2**31 - 1, np.int32)
    largest = lambda x, _, scales: [np.full((1, 2, 10, 14), x.max())]
    check(replace(resize(x, SCALES[0], mode="linear"), dtype="int32", family="exact", reference=largest))


def _nearest(x, _, scales):
    """For types that the CPU EP has no kernel for: half pixels, and down at ties."""
    for axis, scale in enumerate(scales):
        places = (np.arange(int(x.shape[axis] * scale)) + 0.5) / scale - 0.5
        x = x.take(np.ceil(places - 0.5).astype(int).clip(0, x.shape[axis] - 1), axis)
    return [x]


@pytest.mark.parametrize("dtype", ["bool", "int16", "int64", "uint16", "uint32", "uint64"])
def test_the_nearest_of_any_type(dtype):
    x = floats(2, 3, 5, 8) > 0 if dtype == "bool" else integers(dtype, 2, 3, 5, 8)
    for scales in [(1, 1, 2, 3), (1, 2, 3, 1)]:
        check(replace(resize(x, scales), dtype=dtype, reference=_nearest))


# ---- antialiasing

SMOOTH = [
    resize(shape, scales, sizes, mode=mode, antialias=1, **attrs)
    for mode in ("linear", "cubic")
    for shape, scales, sizes, attrs in [
        ((2, 3, 9, 11), (1, 1, 0.5, 0.4), None, {}),
        ((1, 2, 9, 11), (1, 1, 0.3, 1.7), None, {}),
        ((1, 2, 9, 11), (1, 1, 0.6, 0.6), None, {"exclude_outside": 1}),
        ((1, 2, 9, 11), None, (1, 2, 4, 3), {"coordinate_transformation_mode": "align_corners"}),
        ((1, 2, 9, 11), None, (1, 2, 1, 20), {"coordinate_transformation_mode": "pytorch_half_pixel"}),
        ((1, 2, 9, 11), (1, 1, 0.6, 1), None, {"coordinate_transformation_mode": "asymmetric"}),
        ((9, 11), (0.5, 0.5), None, {}),
        ((2, 9, 11, 3), (1, 0.5, 0.5, 1), None, {}),
        ((1, 1, 7, 7), (1, 1, 1, 1), None, {}),
        ((1, 5, 200, 301), None, (1, 5, 23, 31), {}),
        ((1, 2, 9, 11), (0.5, 0.5), None, {"axes": [2, 3]}),
    ]
] + [
    resize((1, 2, 9, 11), (1, 1, 0.6, 0.6), mode="cubic", antialias=1, cubic_coeff_a=-0.5),
    resize((1, 2, 6, 8, 10), (1, 1, 0.5, 0.6, 0.75), mode="linear", antialias=1),
    resize((0, 2, 9, 11), (1, 1, 0.5, 0.5), mode="linear", antialias=1),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("it", SMOOTH, ids=str)
def test_antialias(it, dtype):
    check(replace(it, dtype=dtype))


def test_antialias_in_double():
    it = resize((1, 2, 9, 11), (1, 1, 0.5, 0.4), mode="linear", antialias=1)
    check(replace(it, dtype="float64", tolerance=(1e-6, 1e-6)))


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scales", [(1, 1, 0.5, 0.4), (1, 1, 0.3, 1.7)], ids=str)
def test_antialias_of_integers(scales, mode, dtype):
    it = resize(integers(dtype, 2, 3, 9, 11, low=0, high=255), scales, mode=mode, antialias=1)
    check(replace(it, dtype=dtype, family="exact"))


def test_antialias_of_signed_bytes():
    """Which the CPU EP cuts off below zero: they are those of bytes that are 128 more."""
    x = integers("int8", 1, 2, 9, 11, low=-128, high=127)
    it = resize(x, (1, 1, 0.5, 0.4), mode="linear", antialias=1)
    reference = lambda x, _, scales: [(_smoothed_bytes(x.view(np.uint8) ^ 128, scales) ^ 128).view(np.int8)]
    check(replace(it, dtype="int8", reference=reference))


def _smoothed_bytes(x, scales):
    model = _Model(resize(x, tuple(float(s) for s in scales), mode="linear", antialias=1), "uint8").model
    return on_cpu(model).run(None, {"x0": x})[0]


def test_antialias_beyond_the_image():
    roi, attrs = (0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3), {"extrapolation_value": 9.0, "antialias": 1}
    for mode in ("linear", "cubic"):
        check(
            resize(
                (1, 2, 9, 11), sizes=(1, 2, 4, 6), roi=roi, mode=mode,
                coordinate_transformation_mode="tf_crop_and_resize", **attrs,
            )
        )  # fmt: skip


@pytest.mark.parametrize("opset", [18, 19, 26])
def test_antialias_versions(opset):
    check(resize((1, 2, 9, 11), (1, 1, 0.5, 0.4), mode="linear", antialias=1, opset=opset))


@pytest.mark.parametrize("opset", [11, 13, 18, 19, 26])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_versions(mode, opset):
    check(resize((2, 3, 5, 7), (1, 1, 1.7, 0.6), opset=opset, mode=mode))
    check(resize((2, 3, 5, 7), sizes=(2, 3, 8, 4), opset=opset, mode=mode))


def test_half_pixel_for_nearest_of_tensorflow():
    check(resize((2, 3, 5, 7), (1, 1, 1.7, 0.6), opset=11, coordinate_transformation_mode="tf_half_pixel_for_nn"))


@pytest.mark.parametrize("op, opset", [("Upsample", 9), ("Resize", 10), ("Upsample", 7)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [SCALES[0], (1, 1, 1.7, 2.3), (1, 1, 0.6, 0.7)], ids=str)
def test_first_versions(scales, mode, op, opset):
    if op == "Upsample" and min(scales) < 1:
        scales = (1, 1, 3, 1)
    x, attrs = [floats(2, 3, 5, 7)], {"mode": mode}
    if opset == 7:
        attrs["scales"] = [float(s) for s in scales]
    else:
        x.append(Const(np.array(scales, np.float32), fixed=True))
    check(Case(op, x, attrs, opset=opset, family="reduce" if mode == "linear" else "exact"))


@pytest.mark.parametrize("it", [SHAPES[0], SHAPES[2], SHAPES[4], *LAYOUTS], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_misaligned(it, dtype):
    check(replace(it, dtype=dtype, misaligned=True))


def test_not_a_number():
    x = floats(1, 1, 5, 5)
    x[0, 0, 2, 3], x[0, 0, 4, 0] = np.nan, np.inf
    for mode in ("nearest", "linear"):
        check(resize(x, (1, 1, 1.7, 1.7), mode=mode))


def test_declined():
    x, scales = floats(1, 2, 5, 7), Const(np.array([1, 1, 2, 2], np.float32))
    declined("Resize", [integers("uint8", 1, 2, 5, 7), None, scales], {"mode": "cubic"}, opset=19)
    declined("Resize", [integers("int64", 1, 2, 5, 7), None, scales], {"mode": "linear"}, opset=19)
    declined("Resize", [x, None, scales], {"coordinate_transformation_mode": "upside_down"}, opset=19)


@pytest.mark.parametrize(
    "scales, sizes, words",
    [
        ([1, 1, 0, 2], None, "scales holds 0"),
        ([1, 1, -1, 2], None, "scales holds -1"),
        ([1, 1, np.inf, 2], None, "scales holds inf"),
        ([1, 1, 1e30, 2], None, "output dimension"),
        ([1, 2], None, "scales has 2 values"),
        (None, [1, 2, -3, 4], "sizes: -3"),
        (None, [1, 2, 2**40, 4], "sizes: "),
        (None, [1, 2], "sizes has 2 values"),
        ([], None, "must be given"),
    ],
)
def test_hostile_inputs(scales, sizes, words):
    given = [
        None if scales is None else np.array(scales, np.float32),
        None if sizes is None else np.array(sizes, np.int64),
    ]
    fails("Resize", [floats(1, 2, 5, 7), None, *given], {}, words, opset=13, ranks=False)


def test_upsample_does_not_shrink():
    scales = Const(np.array([1, 1, 2, 0.5], np.float32), fixed=True)
    fails("Upsample", [floats(1, 2, 5, 7), scales], {}, "scales holds 0.5; of Upsample 1 is the least", opset=9)


@pytest.mark.parametrize("sizes", [(2, 3), (0, 3)])
def test_something_of_nothing(sizes):
    inputs = [floats(2, 0), None, None, np.array(sizes, np.int64)]
    fails("Resize", inputs, {}, r"the empty input \[2,0\] cannot be resized", ranks=False)


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_region_of_no_numbers(mode):
    """Such a place is the first, and nowhere in cubic interpolation; one that is too far is outside."""
    attrs = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": -7.0}
    x = floats(1, 1, 4, 5)
    both = Both("Resize", [x, floats(8), floats(4)], attrs)
    ends = [(0, NAN), (NAN, 1), (NAN, NAN), (-INF, 1), (0, INF), (INF, 0), (1e30, 2e30), (-3e38, 3e38), (-1e9, 1e9)]
    for start, end in ends:
        for roi in [
            (0, 0, start, 0, 1, 1, end, 1),
            (0, 0, 0, start, 1, 1, 1, end),
            (0, 0, start, start, 1, 1, end, 0.9),
        ]:
            both.agree(x, np.float32(roi), np.float32([1, 1, 1.5, 0.8]), rtol=2e-5, atol=2e-5)
