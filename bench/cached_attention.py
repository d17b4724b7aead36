#!/usr/bin/env python3
"""Times com.microsoft's GroupQueryAttention with its rotation, replayed from a captured graph: the past and the present
are one memory. With pages of so many keys it is PagedAttention, without hints of lengths.

    PYTHONPATH=python bench/cached_attention.py [--dtype float16] [--pages 16] [--codes int8] [--windows]

Figures are of one node among others of its kind, each with a cache of its own: what a model with more of them takes
longer. Bytes are those of the keys and values that are seen. A prompt's work counts half, as it is causal. With --codes
the cache is quantized, with a scale for each channel; with --windows it holds no more than the keys that are seen, of
twice as many, and each run moves them all by a row.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import encore_session as es  # noqa: E402
import kernels  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
from models import median_us  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

TYPES = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}
CODES = {"int8": (TensorProto.INT8, np.int8, 8), "int4": (TensorProto.UINT8, np.uint8, 4)}
# batch, heads, heads of keys and values, new rows, keys with these, room for keys, size
PROBLEMS = [
    (1, 32, 8, 1, 128, 4096, 128),
    (1, 32, 8, 1, 1024, 2048, 128),
    (1, 32, 8, 1, 4096, 4096, 128),
    (1, 32, 8, 1, 4096, 32768, 128),
    (1, 32, 8, 1, 8192, 8192, 128),
    (1, 32, 8, 1, 32768, 32768, 128),
    (8, 32, 8, 1, 4096, 4096, 128),
    (8, 32, 8, 1, 8192, 8192, 128),
    (32, 14, 2, 1, 2048, 4096, 64),
    (1, 32, 8, 4, 4096, 4096, 128),
    (1, 32, 8, 512, 4096, 8192, 128),
    (1, 32, 8, 2048, 2048, 8192, 128),
    (4, 32, 8, 512, 512, 4096, 128),
]


def group_query(problem, codes, windows):
    """Of a node its name and inputs, shapes of what it is fed, constants and further attributes."""
    batch, heads, kv_heads, rows, keys, room, size = problem
    attrs = {}
    if windows:
        attrs |= {"sliding_window_cache": 1, "local_window_size": keys}
        room, keys = keys, 2 * keys
    bits = CODES[codes][2] if codes else 0
    row = size * bits // 8 if codes else size
    positions = max(room, keys)
    forms = {
        "query": (batch, rows, (heads + 2 * kv_heads) * size),
        "past_key": (batch, kv_heads, room, row),
        "past_value": (batch, kv_heads, room, row),
        "cos": (positions, size // 2),
        "sin": (positions, size // 2),
    }
    constants = {"last": np.full(batch, keys - 1, np.int32), "total": np.array(keys, np.int32)}
    inputs = ["query", "", "", "past_key", "past_value", "last", "total", "cos", "sin"]
    if codes:
        attrs |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": bits}
        inputs += ["", "", "", "scales", "scales"]
        constants["scales"] = np.full((1, kv_heads, 1, size), 2.0 ** (2 - bits), np.float32)
    return "GroupQueryAttention", inputs, forms, constants, attrs


def paged(problem, slots, codes):
    batch, heads, kv_heads, rows, keys, room, size = problem
    width, attrs = -(-room // slots), {}
    bits = CODES[codes][2] if codes else 0
    row = size * bits // 8 if codes else size
    forms = {
        "query": (batch * rows, (heads + 2 * kv_heads) * size),
        "past_key": (batch * width, slots, kv_heads, row),
        "past_value": (batch * width, slots, kv_heads, row),
        "cos": (room, size // 2),
        "sin": (room, size // 2),
    }
    pages = np.random.default_rng(1).permutation(batch * width).reshape(batch, width)
    constants = {"starts": np.arange(batch + 1) * rows, "pasts": np.full(batch, keys - rows), "table": pages}
    constants = {name: x.astype(np.int32) for name, x in constants.items()}
    inputs = ["query", "", "", "past_key", "past_value", "starts", "pasts", "table", "cos", "sin"]
    if codes:
        attrs |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
        attrs |= {"k_cache_dtype": codes, "v_cache_dtype": codes}
        inputs += ["", "", "", "", "scales", "scales"]
        constants["scales"] = np.full((kv_heads, 1, size), 2.0 ** (2 - bits), np.float32)
    return "PagedAttention", inputs, forms, constants, attrs


def session_of(count, dtype, problem, slots, codes, windows):
    """A session with so many nodes; of a node what it is fed: types and shapes."""
    _, heads, kv_heads, *_ = problem
    cache = CODES[codes][0] if codes else TYPES[dtype]
    op, inputs, forms, constants, attrs = (
        paged(problem, slots, codes) if slots else group_query(problem, codes, windows)
    )
    attrs |= {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1}
    nodes, values = [], []
    for i in range(count):
        own = [f"{name}{i}" if name in forms else name for name in inputs]
        for name, shape in forms.items():
            values.append(helper.make_tensor_value_info(f"{name}{i}", cache if is_cache(name) else TYPES[dtype], shape))
        outputs = [f"{name}{i}" for name in ("y", "present_key", "present_value")]
        nodes.append(helper.make_node(op, own, outputs, domain="com.microsoft", **attrs))
    results = [helper.make_empty_tensor_value_info(name) for node in nodes for name in node.output]
    initializers = [numpy_helper.from_array(x, n) for n, x in constants.items()]
    graph = helper.make_graph(nodes, "attention", values, results, initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = es.make_session(model, enable_cuda_graph=1)
    es.assert_all_on_encore(session)
    return session, forms


def is_cache(name):
    return name.startswith("past")


def replay_us(count, dtype, problem, seconds, slots=None, codes=None, windows=False):
    _, heads, *_, size = problem
    session, forms = session_of(count, dtype, problem, slots, codes, windows)
    rng = np.random.default_rng(0)
    arrays = {}
    for name, shape in forms.items():
        of_codes = codes and is_cache(name)
        array = rng.integers(0, 127, shape) if of_codes else rng.standard_normal(shape, np.float32)
        arrays[name] = array.astype(CODES[codes][1] if of_codes else dtype)
    binding = session.io_binding()
    for i in range(count):
        for name, array in arrays.items():
            value = es.on_device(array)
            binding.bind_ortvalue_input(f"{name}{i}", value)
            if is_cache(name):
                binding.bind_ortvalue_output(f"{name.replace('past', 'present')}{i}", value)
        binding.bind_ortvalue_output(f"y{i}", es.empty_on_device((*forms["query"][:-1], heads * size), dtype))
    waits = es.run_options(0)
    for _ in range(4):  # warm-ups and the capture
        session.run_with_iobinding(binding, waits)
    return median_us(lambda: session.run_with_iobinding(binding, waits), seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each of two models")
    parser.add_argument("--dtype", choices=TYPES, default="float16")
    parser.add_argument("--pages", type=int, metavar="KEYS")
    parser.add_argument("--codes", choices=CODES, help="of a quantized cache")
    parser.add_argument("--windows", action="store_true", help="caches hold no more than a window")
    args = parser.parse_args()
    ort.set_default_logger_severity(3)
    print("| batch | heads | new rows | keys | room | size | µs | TFLOP/s | GB/s |\n|" + "---|" * 9)
    for problem in PROBLEMS:
        batch, heads, kv_heads, rows, keys, room, size = problem
        form = args.dtype, problem, args.seconds, args.pages, args.codes, args.windows
        us = kernels.per_node(lambda count, form=form: replay_us(count, *form), 2 * batch * kv_heads * room * size)
        work = 4 * batch * heads * rows * keys * size / (2 if rows == keys else 1)
        bits = CODES[args.codes][2] if args.codes else 8 * np.dtype(args.dtype).itemsize
        moved = 2 * batch * kv_heads * keys * size * bits // 8
        print(
            f"| {batch} | {heads}/{kv_heads} | {rows} | {keys} | {room} | {size} | {us:.1f} | {work / us / 1e6:.1f} "
            f"| {moved / us / 1e3:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
