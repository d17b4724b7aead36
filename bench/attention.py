#!/usr/bin/env python3
"""Times ai.onnx's Attention replayed from a captured graph, beside torch's scaled_dot_product_attention where it is
installed.

    PYTHONPATH=python bench/attention.py [--seconds 1] [--dtype float16] [--peer torch] [--options sdpa_kernel=16]

Inputs and outputs stay in device memory. A run is one node; figures are medians, the wait included, less that of a
replay of almost nothing. A causal product counts as half of the work.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import encore_session as es  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
from models import bind, median_us, provider_options, torch_replay_us  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

TYPES = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}
# batch, heads, heads of keys and values, queries, keys, size, causal
PROBLEMS = [
    (1, 32, 32, 2048, 2048, 128, False),
    (1, 32, 32, 2048, 2048, 128, True),
    (8, 16, 16, 2048, 2048, 128, False),
    (8, 16, 16, 2048, 2048, 128, True),
    (1, 16, 16, 8192, 8192, 128, False),
    (1, 16, 16, 8192, 8192, 128, True),
    (1, 32, 8, 8192, 8192, 128, True),
    (8, 16, 16, 512, 512, 64, False),
    (8, 32, 8, 1, 4096, 128, False),
    (1, 32, 8, 1, 32768, 128, False),
    (1, 32, 32, 1, 8192, 128, False),
    (4, 32, 8, 8, 8192, 128, False),
    (4, 64, 8, 1, 8192, 64, False),
    (4, 16, 8, 1, 8192, 256, False),
]


def model(dtype, batch, heads, kv_heads, queries, keys, size, causal):
    def value(name, *shape):
        return helper.make_tensor_value_info(name, TYPES[dtype], shape)

    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="attention", is_causal=int(causal))
    inputs = [value("q", batch, heads, queries, size)] + [value(n, batch, kv_heads, keys, size) for n in "kv"]
    graph = helper.make_graph([node], "attention", inputs, [value("y", batch, heads, queries, size)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def replay_us(proto, feeds, seconds, options):
    session = es.make_session(proto, **{"enable_cuda_graph": 1, **options})
    es.assert_all_on_encore(session)
    binding, keep = bind(session, feeds)
    waits = es.run_options(0)
    for _ in range(4):  # warm-ups and the capture
        session.run_with_iobinding(binding, waits)
    return median_us(lambda: session.run_with_iobinding(binding, waits), seconds)


def torch_us(feeds, causal, seconds):
    import torch

    q, k, v = (torch.from_numpy(feeds[n]).cuda() for n in "qkv")
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}

    def attend():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped)

    return torch_replay_us(attend, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--dtype", choices=TYPES, default="float16")
    parser.add_argument("--peer", choices=["torch"])
    parser.add_argument("--options", default="", help="of the provider: key=value,...")
    args = parser.parse_args()
    options = provider_options(args)
    ort.set_default_logger_severity(3)
    rng = np.random.default_rng(0)

    def made(*problem):
        batch, heads, kv_heads, queries, keys, size, _ = problem
        shapes = {
            "q": (batch, heads, queries, size),
            "k": (batch, kv_heads, keys, size),
            "v": (batch, kv_heads, keys, size),
        }
        return {name: rng.standard_normal(shape, np.float32).astype(args.dtype) for name, shape in shapes.items()}

    nothing = (1, 1, 1, 1, 1, 8, False)
    idle = replay_us(model(args.dtype, *nothing), made(*nothing), args.seconds, options)
    print(f"A replay of almost nothing takes {idle:.1f} µs.\n")
    print("| batch | heads | queries | keys | size | causal | µs | TFLOP/s | GB/s | torch µs |\n|" + "---|" * 10)
    for problem in PROBLEMS:
        batch, heads, kv_heads, queries, keys, size, causal = problem
        feeds = made(*problem)
        us = replay_us(model(args.dtype, *problem), feeds, args.seconds, options) - idle
        work = 4 * batch * heads * queries * keys * size / (2 if causal else 1)
        moved = sum(x.nbytes for x in feeds.values()) + feeds["q"].nbytes
        peer = f"{torch_us(feeds, causal, args.seconds) - idle:.1f}" if args.peer else ""
        print(
            f"| {batch} | {heads}/{kv_heads} | {queries} | {keys} | {size} | {int(causal)} | {us:.1f} "
            f"| {work / us / 1e6:.1f} | {moved / us / 1e3:.0f} | {peer} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
