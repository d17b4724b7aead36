#!/usr/bin/env python3
"""Reads lines of text from pictures, with a model of the package rapidocr (Apache 2.0): picture in, text out.

pip install pillow && pip install --no-deps rapidocr
python examples/vision.py [line.png ...]        # each a picture of one line; without any, it draws some

Lines are as wide as their text is long. Padded to multiples of 160 pixels they come in few shapes, each of which has a
CUDA graph from its second run on.
"""

import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime_ep_encore as encore
from PIL import Image, ImageDraw, ImageFont

HEIGHT, STEP = 48, 160  # pixels, as the model wants them
TEXTS = ["Captured once,", "replayed often.", "A longer line has a shape of its own"]


def find_model():
    package = importlib.util.find_spec("rapidocr")
    if package is None:
        sys.exit("vision.py needs the model of rapidocr: pip install --no-deps rapidocr==3.10.0")
    return Path(package.submodule_search_locations[0]) / "models" / "PP-OCRv6_rec_small.onnx"


def draw(text):
    font = ImageFont.load_default(32)
    left, top, right, bottom = map(int, font.getbbox(text))
    image = Image.new("RGB", (right + 16, bottom + 16), "white")
    ImageDraw.Draw(image).text((8, 8), text, fill="black", font=font)
    return image


def tensor_of(image):
    """[1, 3, height, width]: blue, green and red from -1 to 1, with zeros to the right."""
    width = round(image.width * HEIGHT / image.height)
    pixels = np.asarray(image.convert("RGB").resize((width, HEIGHT)), np.float32)[:, :, ::-1]
    x = np.zeros((1, 3, HEIGHT, -(-width // STEP) * STEP), np.float32)
    x[0, :, :, :width] = (pixels / 127.5 - 1).transpose(2, 0, 1)
    return x


def text_of(scores, letters):
    """The likeliest letter at each step; repeats are one, and the first letter is a blank between two."""
    best = scores.argmax(axis=1)
    changes = np.insert(best[1:] != best[:-1], 0, True)
    return "".join(letters[i] for i in best[changes & (best != 0)])


def main():
    session = encore.session(str(find_model()))
    letters = ["", *session.get_modelmeta().custom_metadata_map["character"].split("\n"), " "]
    name = session.get_inputs()[0].name
    lines = [Image.open(file) for file in sys.argv[1:]] or [draw(text) for text in TEXTS]
    for order in ("first", "second", "third"):  # eager, captured and replayed
        start = time.perf_counter()
        texts = [text_of(session.run(None, {name: tensor_of(line)})[0][0], letters) for line in lines]
        print(f"{order:6} time: {(time.perf_counter() - start) * 1000 / len(lines):6.1f} ms a line")
    print(*texts, sep="\n")


if __name__ == "__main__":
    main()
