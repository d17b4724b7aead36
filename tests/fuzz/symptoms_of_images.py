"""The same as symptoms.py, of images and windows that slide over them."""

import numpy as np
from symptoms import as_by_onnx, as_of, contents, gap, is_near, made_by_onnx, made_of


def between_far_pixels(finding):
    x = contents(finding)
    pixels = max(x.shape + finding.got.shape)
    return gap(finding) <= 2.0**-23 * pixels * np.abs(x).max(initial=0)


def crops_what_keeps_its_size(finding):
    attrs, shape = finding.node.attrs, finding.got.shape
    if attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        return False
    # The evaluator counts no axes from the end, and rounds sizes that follow from scales.
    axes = [axis % len(shape) for axis in attrs.get("axes", range(len(shape)))]
    sizes = np.array([shape[axis] for axis in axes])
    by_onnx = lambda crop: as_by_onnx(
        finding, {1: crop, 2: None, 3: sizes}, 1, **({"axes": axes} if "axes" in attrs else {})
    )
    crop = contents(finding, 1)
    found, edges = by_onnx(crop), _at_the_edges(finding, axes)
    if not np.any(edges & ~found):
        return found
    # What is there is inside or not by a float's rounding: as if the crop were a little smaller, or larger.
    starts, ends = np.split(crop, 2)
    little = np.finfo(crop.dtype).eps * np.maximum(1, np.abs(ends - starts))
    nudged = [by_onnx(np.concatenate([starts + by, ends - by]).astype(crop.dtype)) for by in (little, -little)]
    return found | edges & (nudged[0] | nudged[1])


def smooths_what_it_crops(finding):
    """With antialias, of which a filter is as wide as scales say: where the result is that of two steps, of which
    onnx's own evaluator crops what keeps its size."""
    attrs, sizes, results = finding.node.attrs, contents(finding).shape, finding.got.shape
    if attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize" or not attrs.get("antialias", 0):
        return False
    axes = [axis % len(sizes) for axis in attrs.get("axes", range(len(sizes)))]
    kept = np.array([sizes[axis] == results[axis] for axis in axes] * 2)
    crop, whole = contents(finding, 1), np.repeat([0, 1], len(axes))
    told = {1: np.where(kept, crop, whole).astype(crop.dtype), 2: None, 3: np.array([sizes[axis] for axis in axes])}
    made = made_by_onnx(finding, told, **({"axes": axes} if "axes" in attrs else {}))
    return made is not None and as_of(finding, {0: made[0], 1: np.where(kept, whole, crop).astype(crop.dtype)})


def _at_the_edges(finding, axes):
    """Pixels that are, along an axis that is cropped, at an end of the image but for a float's rounding."""
    sizes, results = contents(finding).shape, finding.got.shape
    near = np.zeros(results, bool)
    for axis, ends in zip(axes, contents(finding, 1).astype(np.float64).reshape(2, -1).T):
        at = _coordinates("tf_crop_and_resize", np.arange(results[axis]), sizes[axis], results[axis], None, *ends)
        on = np.isclose(at, 0, 0, 1e-5) | np.isclose(at, sizes[axis] - 1, 1e-6, 1e-5)
        near |= on.reshape([-1 if d == axis else 1 for d in range(len(results))])
    return near


def at_a_tie(finding):
    """Places that are, along an axis, half-way between two pixels or on one but for a float's rounding."""
    attrs, inputs = finding.node.attrs, finding.node.inputs
    if attrs.get("mode", "nearest") != "nearest":
        return False
    sizes, results = contents(finding).shape, finding.got.shape
    scales = [after / before if before else 1 for after, before in zip(results, sizes)]
    given = inputs[2] if len(inputs) == 3 and finding.case.opset >= 11 else inputs[1] if len(inputs) == 2 else None
    if given is not None:
        for axis, scale in zip(attrs.get("axes", range(len(sizes))), given.array.tolist()):
            scales[axis] = scale
    mode, near = attrs.get("coordinate_transformation_mode", "half_pixel"), np.zeros(results, bool)
    ends = dict.fromkeys(range(len(sizes)), (0, 1))
    if mode == "tf_crop_and_resize":
        ends |= dict(
            zip([axis % len(sizes) for axis in attrs.get("axes", ends)], contents(finding, 1).reshape(2, -1).T)
        )
    for axis, (before, after, scale) in enumerate(zip(sizes, results, scales)):
        if before == after and tuple(ends[axis]) == (0, 1):
            continue
        at = _coordinates(mode, np.arange(after), before, after, scale, *ends[axis])
        tie = np.abs(2 * at - np.rint(2 * at)) < 1e-4 * np.maximum(1, np.abs(2 * at))
        near |= tie.reshape([-1 if d == axis else 1 for d in range(len(results))])
    return near


def _coordinates(mode, at, before, after, scale, start, end):
    if mode == "tf_crop_and_resize":
        middle = 0.5 * (start + end) * (before - 1)
        return (start + at * (end - start) / (after - 1)) * (before - 1) if after > 1 else np.full(at.shape, middle)
    if mode in ("asymmetric", "tf_half_pixel_for_nn"):
        return (at + 0.5 * (mode != "asymmetric")) / scale
    if mode == "align_corners":
        return at * (before - 1) / max(1, after - 1)
    if mode == "half_pixel_symmetric":
        return before / 2 * (1 - after / (before * scale)) + (at + 0.5) / scale - 0.5
    return (at + 0.5) / scale - 0.5


def smooths_as_floats(finding):
    """Integers, with antialias: where the result is that of floats."""
    if not finding.node.attrs.get("antialias", 0) or finding.got.dtype.kind not in "iu":
        return False
    made = made_of(finding, {0: contents(finding).astype(np.float32)}, "float")
    return made is not None and np.abs(made[0] - finding.got) <= 1


def pads_the_same(finding):
    """Windows padded to the same size: where the result is that of pads as ONNX has them, with dilations and never
    less than none."""
    attrs, x = dict(finding.node.attrs), contents(finding)
    if not attrs.get("auto_pad", "").startswith("SAME"):
        return False
    kernel = attrs.get("kernel_shape") or list(contents(finding, 1).shape[2:])
    pads = [[], []]
    for size, window, stride, dilation in zip(
        x.shape[2:], kernel, attrs.get("strides", [1] * len(kernel)), attrs.get("dilations", [1] * len(kernel))
    ):
        whole = max(0, ((size - 1) // stride) * stride + (window - 1) * dilation + 1 - size)
        first = whole // 2 if attrs["auto_pad"] == "SAME_UPPER" else whole - whole // 2
        pads[0].append(first)
        pads[1].append(whole - first)
    return as_of(finding, auto_pad=None, pads=pads[0] + pads[1])


def pads_a_whole_window(finding):
    attrs = finding.node.attrs
    return any(pad >= size for pad, size in zip(attrs.get("pads", []), 2 * attrs.get("kernel_shape", [])))


def dilated(finding):
    attrs = finding.node.attrs
    return attrs.get("auto_pad", "").startswith("SAME") and max(attrs.get("dilations", [1])) > 1


def by_a_policy_from_the_end(finding):
    attrs = finding.node.attrs
    return attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch" and min(attrs.get("axes", [0])) < 0


def has_negative_size(finding):
    """Of a Resize that has a policy."""
    policy = finding.node.attrs.get("keep_aspect_ratio_policy", "stretch")
    return policy != "stretch" and "sizes: -" in finding.text


def has_fifth_dimension(finding):
    return contents(finding).ndim > 4 and "batch, channels, height and width" in finding.text


def has_flat_channels(finding):
    """Channels of which all values are nearly the same, or vary so little that a difference of squares has few digits:
    no further apart than that makes it."""
    x, scale = contents(finding).astype(np.float64), np.abs(contents(finding, 1)).max(initial=0)
    axes = tuple(range(2, x.ndim))
    most = np.abs(x).max(axis=axes, keepdims=True)
    variance = x.var(axis=axes, keepdims=True) + finding.node.attrs.get("epsilon", 1e-5)
    return (np.ptp(x, axis=axes, keepdims=True) <= 3e-3 * most) | (gap(finding) * variance <= 2e-7 * scale * most**2)


def as_normalized_in_doubles(finding):
    """Where LRN's result is that of doubles, with the squares of each window added up anew."""
    attrs, x = finding.node.attrs, contents(finding).astype(np.float64)
    size, squares = attrs["size"], np.zeros_like(x)
    for channel in range(x.shape[1]):
        first = max(0, channel - (size - 1) // 2)
        squares[:, channel] = (x[:, first : channel + size // 2 + 1] ** 2).sum(axis=1)
    with np.errstate(all="ignore"):
        root = (attrs.get("bias", 1.0) + attrs.get("alpha", 1e-4) / size * squares) ** attrs.get("beta", 0.75)
        return is_near(finding, x / root)


def on_the_edge(finding):
    """Of a DeformConv: places of which a tap is on the edge where the image ends, but for a float's rounding."""
    attrs, x, weight = finding.node.attrs, contents(finding), contents(finding, 1)
    offset = contents(finding, 2).astype(np.float64)
    kernel, size = weight.shape[2:], offset.shape[2:]
    strides, dilations = attrs.get("strides", [1, 1]), attrs.get("dilations", [1, 1])
    offset = offset.reshape(len(x), -1, *kernel, 2, *size)
    on = np.full(offset[:, :, :, :, 0].shape, False)
    for d in range(2):
        steps = np.arange(size[d]) * strides[d] - attrs.get("pads", [0] * 4)[d]
        taps = np.arange(kernel[d]) * dilations[d]
        at = (
            offset[:, :, :, :, d]
            + steps.reshape([-1, 1] if d == 0 else [1, -1])
            + taps.reshape([-1 if d == 0 else 1, -1 if d == 1 else 1, 1, 1])
        )
        on |= np.isclose(at, -1, 0, 1e-4) | np.isclose(at, x.shape[2 + d], 0, 1e-4)
    return on.any(axis=(1, 2, 3))[:, None]


def skips_by_a_policy(finding):
    """All, where some step is longer than its window, and padding follows from a policy."""
    attrs = finding.node.attrs
    kernel = attrs["kernel_shape"]
    skips = any(step > size for step, size in zip(attrs.get("strides") or [1] * len(kernel), kernel))
    return np.full(finding.got.shape, skips and attrs.get("auto_pad", "").startswith("SAME"))
