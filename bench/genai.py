#!/usr/bin/env python3
"""Times generation by onnxruntime-genai's own runtime with Encore, its buffers on the device.

    bench/genai.py [--models llama_1b_f16] [--prompt 64] [--tokens 300] [--json FILE]

Wants the package onnxruntime-genai-cuda, with onnxruntime beside it and the libraries that it is linked with in
LD_LIBRARY_PATH (cuBLAS, cuFFT, cuRAND, the CUDA runtime). Microseconds a token, the median, a process for each way:
  eager  no graphs
  plain  no options: automatic graphs where the driver allows for them
  long   auto_graph=1, and pad=off: each length of the mask is a set of shapes of its own
  auto   auto_graph=1
  graph  enable_cuda_graph=1, which genai knows, too: its mask is as long as the cache then
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import language_zoo  # noqa: E402
import models  # noqa: E402
import onnxruntime_ep_encore  # noqa: E402

WAYS = {
    "eager": {"enable_cuda_graph": 0, "auto_graph": 0},
    "plain": {"enable_cuda_graph": 0},
    "long": {"enable_cuda_graph": 0, "auto_graph": 1, "pad": "off"},
    "auto": {"enable_cuda_graph": 0, "auto_graph": 1},
    "graph": {"enable_cuda_graph": 1},
}
GENERATE = """
import json, statistics, sys, time
import onnxruntime_genai as genai

work = json.loads(sys.argv[1])
genai.register_execution_provider_library("CUDAExecutionProvider", work["library"])
model = genai.Model(work["folder"])
assert model.device_type == "CUDA", model.device_type
for _ in range(2):  # the first warms up
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=work["prompt"] + work["tokens"], do_sample=False)
    generator, times = genai.Generator(model, params), []
    generator.append_tokens([7 + i % 90 for i in range(work["prompt"])])
    while not generator.is_done():
        start = time.perf_counter()
        generator.generate_next_token()
        times.append(time.perf_counter() - start)
print(statistics.median(times) * 1e6)
"""


def row(name, args):
    size, kind = name.rsplit("_", 1)
    config = json.loads((language_zoo.GRAPHS / f"{size}.json").read_text())
    out = {"model": name}
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / name
        language_zoo.save(size, kind, folder)
        for way, options in WAYS.items():
            told = {"cuda": {key: str(value) for key, value in options.items()}}
            config["model"]["decoder"]["session_options"]["provider_options"] = [told]
            (folder / "genai_config.json").write_text(json.dumps(config))
            library = onnxruntime_ep_encore.get_library_path()
            work = {"library": library, "folder": str(folder), "prompt": args.prompt, "tokens": args.tokens}
            one_device = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}  # it passes all to a session
            command = [sys.executable, "-c", GENERATE, json.dumps(work)]
            done = subprocess.run(command, env=one_device, stdout=subprocess.PIPE, text=True, check=True)
            out[way] = float(done.stdout.split()[-1])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama_1b_f16")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    models.print_table(["model", *WAYS], (row(name, args) for name in args.models.split(",")), args.json)


if __name__ == "__main__":
    main()
