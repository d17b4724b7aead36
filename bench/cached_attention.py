"""Times com.microsoft's GroupQueryAttention with its rotation, replayed from a captured graph: the past and the present
are one memory. With pages of so many keys it is PagedAttention, without hints of lengths.

    PYTHONPATH=python bench/cached_attention.py [--seconds 1] [--dtype float16] [--pages 16] [--codes int8] [--windows]

A run is one node; figures are medians, the wait included, less that of a replay of one small kernel. Bytes are those of
the keys and values that are seen. A prompt's work counts half, as it is causal. With --codes the cache is quantized,
with a scale for each channel; with --windows it holds no more than the keys that are seen, of twice as many, and each
run moves them all by a row.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import encore_session as es  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
from models import median_us  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

TYPES = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}
CODES = {"int8": (TensorProto.INT8, np.int8, 8), "int4": (TensorProto.UINT8, np.uint8, 4)}
# batch, heads, heads of keys and values, new rows, keys with these, room for keys, size
PROBLEMS = [
    (1, 32, 8, 1, 128, 4096, 128),
    (1, 32, 8, 1, 4096, 4096, 128),
    (1, 32, 8, 1, 4096, 32768, 128),
    (1, 32, 8, 1, 32768, 32768, 128),
    (8, 32, 8, 1, 4096, 4096, 128),
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


def replay_us(dtype, problem, seconds, slots=None, codes=None, windows=False):
    _, heads, kv_heads, *_, size = problem
    rng = np.random.default_rng(0)
    cache, kind, _ = CODES[codes] if codes else (TYPES[dtype], np.dtype(dtype), 0)
    op, inputs, forms, constants, attrs = (
        paged(problem, slots, codes) if slots else group_query(problem, codes, windows)
    )
    types = {name: cache if name.startswith("past") else TYPES[dtype] for name in forms}
    values = [helper.make_tensor_value_info(name, types[name], shape) for name, shape in forms.items()]
    node = helper.make_node(
        op,
        inputs,
        ["y", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=kv_heads,
        do_rotary=1,
        **attrs,
    )
    results = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph(
        [node], "attention", values, results, [numpy_helper.from_array(x, n) for n, x in constants.items()]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    session = es.make_session(helper.make_model(graph, opset_imports=opsets, ir_version=10), enable_cuda_graph=1)
    es.assert_all_on_encore(session)
    binding = session.io_binding()
    for name, shape in forms.items():
        of_codes = codes and name.startswith("past")
        array = rng.integers(0, 127, shape) if of_codes else rng.standard_normal(shape, np.float32)
        value = es.on_device(array.astype(kind if of_codes else dtype))
        binding.bind_ortvalue_input(name, value)
        if name.startswith("past"):
            binding.bind_ortvalue_output(name.replace("past", "present"), value)
    binding.bind_ortvalue_output("y", es.empty_on_device((*forms["query"][:-1], heads * size), dtype))
    waits = es.run_options(0)
    for _ in range(4):  # warm-ups and the capture
        session.run_with_iobinding(binding, waits)
    return median_us(lambda: session.run_with_iobinding(binding, waits), seconds)


def idle_us(seconds):
    """Of a node that is one small kernel."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])
    graph = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["y"])], "nothing", [x], [helper.make_empty_tensor_value_info("y")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = es.make_session(model, enable_cuda_graph=1)
    binding, keep = session.io_binding(), es.on_device(np.zeros(8, np.float32))
    binding.bind_ortvalue_input("x", keep)
    binding.bind_ortvalue_output("y", es.empty_on_device((8,), "float32"))
    waits = es.run_options(0)
    for _ in range(4):
        session.run_with_iobinding(binding, waits)
    return median_us(lambda: session.run_with_iobinding(binding, waits), seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--dtype", choices=TYPES, default="float16")
    parser.add_argument("--pages", type=int, metavar="KEYS")
    parser.add_argument("--codes", choices=CODES, help="of a quantized cache")
    parser.add_argument("--windows", action="store_true", help="caches hold no more than a window")
    args = parser.parse_args()
    ort.set_default_logger_severity(3)
    idle = idle_us(args.seconds)
    print(f"A replay of almost nothing takes {idle:.1f} µs.\n")
    print("| batch | heads | new rows | keys | room | size | µs | TFLOP/s | GB/s |\n|" + "---|" * 9)
    for problem in PROBLEMS:
        batch, heads, kv_heads, rows, keys, room, size = problem
        us = replay_us(args.dtype, problem, args.seconds, args.pages, args.codes, args.windows) - idle
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
