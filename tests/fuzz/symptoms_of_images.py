"""The same as symptoms.py, of images and windows that slide over them."""

import numpy as np
from symptoms import contents, differs, gap


def between_far_pixels(finding):
    x = contents(finding)
    pixels = max(x.shape + finding.got.shape)
    return gap(finding).max() <= 2.0**-23 * pixels * np.abs(x).max()


def crops_what_keeps_its_size(finding):
    node = finding.node
    if node.attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        return False
    rank = contents(finding).ndim
    roi = contents(finding, 1).reshape(2, -1).T.tolist()
    axes = [axis % rank for axis in node.attrs.get("axes", range(rank))]
    kept = [got == given for got, given in zip(finding.got.shape, contents(finding).shape)]
    return any(kept[axis] and ends != [0.0, 1.0] for axis, ends in zip(axes, roi))


def at_a_tie(finding):
    """Each place that differs is, along an axis, half-way between two pixels or on one but for a float's rounding."""
    attrs, inputs = finding.node.attrs, finding.node.inputs
    if attrs.get("mode", "nearest") != "nearest":
        return False
    sizes, results = contents(finding).shape, finding.got.shape
    scales = [after / before if before else 1 for after, before in zip(results, sizes)]
    given = inputs[2] if len(inputs) == 3 and finding.case.opset >= 11 else inputs[1] if len(inputs) == 2 else None
    if given is not None:
        for axis, scale in zip(attrs.get("axes", range(len(sizes))), given.array.tolist()):
            scales[axis] = scale
    near = np.zeros(results, bool)
    for axis, (before, after, scale) in enumerate(zip(sizes, results, scales)):
        at = _coordinates(
            attrs.get("coordinate_transformation_mode", "half_pixel"), np.arange(after), before, after, scale
        )
        twice = 2 * at
        tie = np.abs(twice - np.rint(twice)) < 1e-4 * np.maximum(1, np.abs(twice))
        near |= tie.reshape([-1 if d == axis else 1 for d in range(len(results))]) & (before != after)
    return not ((finding.got != finding.wanted) & ~near).any()


def _coordinates(mode, at, before, after, scale):
    if mode in ("asymmetric", "tf_half_pixel_for_nn"):
        return (at + 0.5 * (mode != "asymmetric")) / scale
    if mode == "align_corners":
        return at * (before - 1) / max(1, after - 1)
    if mode == "half_pixel_symmetric":
        return before / 2 * (1 - after / (before * scale)) + (at + 0.5) / scale - 0.5
    return (at + 0.5) / scale - 0.5


def smooths_into_one_pixel(finding):
    """Integers, along an axis of which one pixel is left."""
    attrs = finding.node.attrs
    smooths = attrs.get("antialias", 0) and attrs.get("coordinate_transformation_mode") == "pytorch_half_pixel"
    return bool(smooths and finding.got.dtype.kind in "iu" and 1 in finding.got.shape)


def steps_over(finding):
    """Windows padded to the same size, and further apart along an axis than they are long."""
    attrs = finding.node.attrs
    lengths = zip(attrs.get("strides", []), attrs.get("kernel_shape", []))
    return attrs.get("auto_pad", "").startswith("SAME") and any(stride > kernel for stride, kernel in lengths)


def pads_a_whole_window(finding):
    attrs = finding.node.attrs
    return any(pad >= size for pad, size in zip(attrs.get("pads", []), 2 * attrs.get("kernel_shape", [])))


def dilated(finding):
    attrs = finding.node.attrs
    return attrs.get("auto_pad", "").startswith("SAME") and max(attrs.get("dilations", [1])) > 1


def by_a_policy_from_the_end(finding):
    attrs = finding.node.attrs
    return attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch" and min(attrs.get("axes", [0])) < 0


def has_flat_channels(finding):
    """Each channel of an image that differs has values that are all nearly the same."""
    x = contents(finding).astype(np.float64)
    rows = x.reshape(x.shape[0] * x.shape[1], -1)
    flat = np.ptp(rows, axis=1) <= 1e-3 * np.abs(rows).max(axis=1)
    return not (differs(finding).reshape(len(rows), -1).any(axis=1) & ~flat).any()


def skips_by_a_policy(finding):
    """Some step is longer than its window, and padding follows from a policy."""
    attrs = finding.node.attrs
    kernel = attrs["kernel_shape"]
    skips = any(step > size for step, size in zip(attrs.get("strides") or [1] * len(kernel), kernel))
    return skips and attrs.get("auto_pad", "").startswith("SAME")
