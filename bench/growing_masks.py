#!/usr/bin/env python3
"""Times the tokens of a language model whose mask is one longer at each step, as onnxruntime-genai makes it.

    bench/growing_masks.py [--model llama_1b_f16] [--prompt 64] [--tokens 600] [--capacity 1024]

Caches are bound in place at their full length. Prints the median of a token by way, in microseconds, whether all logits
are those of eager runs to the bit, and what region_report says:
  eager  auto_graph=0
  long   pad=off: each length is a set of shapes
  grown  as the options have it
  fixed  the same, with a mask as long as the cache
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import encore_session as es  # noqa: E402
import language_zoo  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime_ep_encore as encore  # noqa: E402
from language import file_of  # noqa: E402


def generate(session, shapes, args, fixed):
    """Microseconds of each token behind the prompt, and its logits."""
    logits_info = session.get_outputs()[0]
    dtype = np.float16 if "float16" in logits_info.type else np.float32
    caches = {name: es.on_device(np.zeros(shape, np.float16)) for name, shape in shapes.items()}

    def bound(count):
        binding = session.io_binding()
        ids = es.on_device(np.zeros((1, count), np.int64))
        logits = es.empty_on_device((1, count, logits_info.shape[-1]), dtype)
        binding.bind_ortvalue_input("input_ids", ids)
        binding.bind_ortvalue_output("logits", logits)
        for name, cache in caches.items():
            binding.bind_ortvalue_input(name, cache)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)
        return binding, ids, logits

    tokens = np.random.default_rng(0).integers(0, logits_info.shape[-1], args.prompt + args.tokens)
    masks = []
    binding, ids, logits = bound(args.prompt)
    ids.update_inplace(tokens[None, : args.prompt].astype(np.int64))
    binding.bind_ortvalue_input("attention_mask", es.on_device(np.ones((1, args.prompt), np.int64)))
    session.run_with_iobinding(binding)
    binding, ids, logits = bound(1)
    times, made = [], []
    for end in range(args.prompt + 1, args.prompt + args.tokens + 1):
        ids.update_inplace(tokens[None, end - 1 : end].astype(np.int64))
        mask = (np.arange(args.capacity) < end)[None] if fixed else np.ones((1, end))
        masks = [*masks[-1:], es.on_device(mask.astype(np.int64))]
        binding.bind_ortvalue_input("attention_mask", masks[-1])
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append((time.perf_counter() - start) * 1e6)
        made.append(logits.numpy())
    return times, made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama_1b_f16")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--capacity", type=int, default=1024)
    args = parser.parse_args()
    name, kind = args.model.rsplit("_", 1)
    file = str(file_of(name, kind))
    shapes = language_zoo.cache_shapes(language_zoo.graph(name, kind), 1, args.capacity)
    ways = {
        "eager": {"auto_graph": 0},
        "long": {"pad": "off"},
        "grown": {},
        "fixed": {},
    }
    wanted = None
    for way, options in ways.items():
        session = es.make_session(file, regions=1, use_tf32=1, **options)
        times, made = generate(session, shapes, args, way == "fixed")
        wanted = wanted or made
        same = all(a.tobytes() == b.tobytes() for a, b in zip(made, wanted, strict=True))
        (told,) = encore.region_report(session)
        keys = ["captures", "replays", "first_runs", "grown", "lengths", "changing"]
        print(f"{way:6} {statistics.median(times):8.1f} µs  equal to the bit: {same}")
        print("      ", {key: told[key] for key in keys if key in told}, flush=True)
        del session


if __name__ == "__main__":
    main()
