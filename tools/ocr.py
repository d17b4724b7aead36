"""Reads text from pictures with the pretrained models of PyPI's rapidocr: find lines, turn them upright, read them.

What surrounds the three models is our own and simple: text is found in upright rectangles, not in slanted ones.
"""

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

STAGES = ("detection", "direction", "recognition")
_FILES = ("PP-OCRv6_det_small.onnx", "ch_ppocr_mobile_v2.0_cls_mobile.onnx", "PP-OCRv6_rec_small.onnx")
_TEXT_PROBABILITY = 0.3  # of a pixel
_BOX_PROBABILITY = 0.5  # of a box's pixels, on average
_UNCLIP = 1.6  # the model finds the core of a line; its box is larger by this share of area / perimeter
_SMALLEST_SIDE = 3
_UPSIDE_DOWN_PROBABILITY = 0.9
_LINE_HEIGHT = 48
_DIRECTION_WIDTH = 192
_WIDTH_STEP = 160  # lines are padded to multiples of it, so that few shapes come up, and few graphs


@dataclass
class Line:
    text: str
    box: tuple  # left, top, right, bottom
    probability: float
    upside_down: bool


def models():
    """The files of the three models by stage."""
    spec = importlib.util.find_spec("rapidocr")
    if spec is None:
        raise FileNotFoundError("the package rapidocr, which ships the models, is missing: run `./encore setup`")
    folder = Path(spec.submodule_search_locations[0]) / "models"
    missing = [name for name in _FILES if not (folder / name).exists()]
    if missing:
        raise FileNotFoundError(f"{folder} holds no {', '.join(missing)}: run `./encore setup` for the pinned rapidocr")
    return {stage: folder / name for stage, name in zip(STAGES, _FILES, strict=True)}


def alphabet(session):
    """What the recognition model's classes stand for; it carries its characters itself."""
    characters = session.get_modelmeta().custom_metadata_map["character"].split("\n")
    return ["", *characters, " "]  # first the blank that parts two equal letters


def read(image, run, letters):
    """The lines of text in a picture, from top to bottom. `run(stage, array)` is one run of a model."""
    image = _padded(image)
    (probability,) = run("detection", _planes(image)[None])[0]
    lines = []
    for box in _boxes(probability):
        crop = image.crop(box)
        direction = run("direction", _line(crop, _DIRECTION_WIDTH))[0]
        upside_down = bool(direction[1] > _UPSIDE_DOWN_PROBABILITY)
        if upside_down:
            crop = crop.transpose(Image.Transpose.ROTATE_180)
        text, sure = _decode(run("recognition", _line(crop))[0], letters)
        lines.append(Line(text, box, sure, upside_down))
    return lines


def _padded(image):
    """Sides become multiples of 32, as detection wants them."""
    padded = Image.new("RGB", [math.ceil(side / 32) * 32 for side in image.size], "white")
    padded.paste(image)
    return padded


def _planes(image):
    """Blue, green and red between -1 and 1."""
    pixels = np.asarray(image.convert("RGB"), np.float32)[:, :, ::-1]
    return np.ascontiguousarray((pixels / 127.5 - 1).transpose(2, 0, 1))


def _line(crop, width=None):
    """A line at the height that the models were trained with, padded to the right."""
    scaled = max(1, math.ceil(_LINE_HEIGHT * crop.width / crop.height))
    width = width or math.ceil(scaled / _WIDTH_STEP) * _WIDTH_STEP
    scaled = min(scaled, width)
    padded = np.zeros((1, 3, _LINE_HEIGHT, width), np.float32)
    padded[0, :, :, :scaled] = _planes(crop.resize((scaled, _LINE_HEIGHT), Image.Resampling.BILINEAR))
    return padded


def _boxes(probability):
    """Rectangles of text in a map of probabilities, from top to bottom."""
    height, width = probability.shape
    boxes = []
    for left, top, right, bottom in _components(probability > _TEXT_PROBABILITY):
        across, down = right - left, bottom - top
        if min(across, down) < _SMALLEST_SIDE or probability[top:bottom, left:right].mean() < _BOX_PROBABILITY:
            continue
        more = round(across * down * _UNCLIP / (2 * (across + down)))
        boxes.append((max(0, left - more), max(0, top - more), min(width, right + more), min(height, bottom + more)))
    return sorted(boxes, key=lambda box: (box[1], box[0]))


def _components(mask):
    """Bounding rectangles (left, top, right, bottom) of the connected parts of a mask."""
    parents, rectangles, above = [], [], []

    def root(i):
        while parents[i] != i:
            parents[i] = i = parents[parents[i]]
        return i

    for y, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
        runs = []
        for left, right in edges.tolist():
            label = len(parents)
            parents.append(label)
            rectangles.append((left, y, right, y + 1))
            for other_left, other_right, other in above:
                if other_left < right and left < other_right:
                    parents[root(label)] = root(other)
            runs.append((left, right, label))
        above = runs
    joined = {}
    for label, (left, top, right, bottom) in enumerate(rectangles):
        old = joined.get(root(label), (left, top, right, bottom))
        joined[root(label)] = (min(old[0], left), min(old[1], top), max(old[2], right), max(old[3], bottom))
    return list(joined.values())


def _decode(scores, letters):
    """The likeliest letter at every step, with repeats and blanks taken out."""
    if scores.shape[1] != len(letters):
        raise ValueError(f"the recognition model has {scores.shape[1]} classes and names {len(letters)} of them")
    best = scores.argmax(axis=1)
    kept = (best != 0) & np.insert(best[1:] != best[:-1], 0, True)
    text = "".join(letters[i] for i in best[kept])
    return text, float(scores.max(axis=1)[kept].mean()) if kept.any() else 0.0
