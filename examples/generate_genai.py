#!/usr/bin/env python3
"""Greedy tokens of a language model by onnxruntime-genai, whose builder made it, with Encore as its provider.

pip install onnxruntime-genai                        # 0.18 and onnxruntime 1.31 or newer
python examples/generate_genai.py FOLDER 5 6 7 [--tokens 64]

FOLDER holds the builder's model.onnx and genai_config.json; the prompt is given as tokens' numbers. Whatever provider
the configuration names is replaced. This package keeps its buffers on the host, so that each step copies the caches:
examples/generate.py, with plain onnxruntime, is the fast way. docs/language-models.md says more.
"""

import argparse
from pathlib import Path

import onnxruntime_ep_encore as encore
import onnxruntime_genai as genai

PROVIDER = "CudaPluginExecutionProvider"  # "cuda" and "CUDAExecutionProvider" mean genai's own code


def load(folder):
    genai.register_execution_provider_library(PROVIDER, encore.get_library_path())
    config = genai.Config(str(folder))
    config.clear_providers()
    config.append_provider(PROVIDER)
    config.set_provider_option(PROVIDER, "enable_cuda_graph", "0")  # which buffers on the host don't allow
    return genai.Model(config)


def generate(model, prompt, tokens):
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + tokens, do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
        yield int(generator.get_next_tokens()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("prompt", type=int, nargs="+")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    for token in generate(load(args.folder), args.prompt, args.tokens):
        print(token, end=" ", flush=True)
    print()


if __name__ == "__main__":
    main()
