"""Greedy tokens of a language model that onnxruntime-genai's builder made for CUDA, with plain onnxruntime on Encore.

    python examples/generate.py FOLDER 5 6 7 [--tokens 64] [--capacity 256]

FOLDER holds the builder's model.onnx and genai_config.json; the prompt is given as tokens' numbers. The caches have
room for `capacity` positions and stay where they are: a layer's past and present are one buffer. One graph, captured
before anything is in them, makes every token after the first.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_encore as encore

NVIDIA = 0x10DE
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def on_device(array):
    return ort.OrtValue.ortvalue_from_numpy(array, "gpu", 0, NVIDIA)


def empty(shape, dtype):
    return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype, "gpu", 0, NVIDIA)


def caches_of(session, config, capacity):
    """A buffer for the keys and one for the values of each layer, under the names of the model's inputs."""
    decoder = config["model"]["decoder"]
    windows = decoder.get("sliding_window", {})
    caches = {}
    for layer in range(decoder["num_hidden_layers"]):
        positions = windows["window_size"] if layer in windows.get("layers", []) else capacity
        shape = (1, decoder["num_key_value_heads"], positions, decoder["head_size"])
        for part in ("key", "value"):
            caches[decoder["inputs"][f"past_{part}_names"] % layer] = shape
    types = {item.name: TYPES[item.type] for item in session.get_inputs() if item.name in caches}
    return {name: on_device(np.zeros(shape, types[name])) for name, shape in caches.items()}


class Run:
    """A run that reads `tokens` tokens, with a mask of `positions` positions; its buffers stay where they are."""

    def __init__(self, session, caches, tokens, positions):
        self.session = session
        logits = session.get_outputs()[0]
        self.ids = on_device(np.zeros((1, tokens), np.int64))
        self.mask = on_device(np.ones((1, positions), np.int64))
        self.logits = empty((1, tokens, logits.shape[-1]), TYPES[logits.type])
        self.binding = session.io_binding()
        self.binding.bind_ortvalue_input("input_ids", self.ids)
        self.binding.bind_ortvalue_input("attention_mask", self.mask)
        self.binding.bind_ortvalue_output("logits", self.logits)
        for past, cache in caches.items():
            self.binding.bind_ortvalue_input(past, cache)
            self.binding.bind_ortvalue_output(past.replace("past_key_values", "present"), cache)

    def run(self, graph):
        """Of graph 0, or without a graph: -1."""
        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(graph))
        self.session.run_with_iobinding(self.binding, options)

    def next_token(self, ids, length, graph):
        """The best token after these, which are the last ones of `length`."""
        self.ids.update_inplace(np.array([ids], np.int64))
        self.mask.update_inplace((np.arange(self.mask.shape()[1]) < length)[None].astype(np.int64))
        self.run(graph)
        return int(self.logits.numpy()[0, -1].argmax())


def generate(folder, prompt, tokens, capacity):
    config = json.loads((folder / "genai_config.json").read_text())
    session = encore.session(str(folder / "model.onnx"), enable_cuda_graph=True)
    caches = caches_of(session, config, capacity)
    step = Run(session, caches, 1, capacity)
    step.run(graph=0)  # warms up and captures: what it leaves in the caches, the prompt overwrites
    chosen = [Run(session, caches, len(prompt), len(prompt)).next_token(prompt, len(prompt), graph=-1)]
    while len(chosen) < tokens:
        chosen.append(step.next_token(chosen[-1:], len(prompt) + len(chosen), graph=0))
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("prompt", type=int, nargs="+")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--capacity", type=int, default=256)
    args = parser.parse_args()
    if len(args.prompt) + args.tokens > args.capacity:
        parser.error(f"{len(args.prompt)} and {args.tokens} tokens don't fit in caches of {args.capacity}")
    print(*generate(args.folder, args.prompt, args.tokens, args.capacity))


if __name__ == "__main__":
    main()
