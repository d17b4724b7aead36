#!/usr/bin/env python3
"""Times layers of LSTM, GRU and RNN replayed from a captured graph, beside torch's where it is installed.

    PYTHONPATH=python bench/recurrent.py [--seconds 1] [--dtype float32] [--peer torch] [--options enable_cudnn=0]

Inputs and outputs stay in device memory; figures are medians, the wait included.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
from attention import replay_us  # noqa: E402
from models import provider_options, torch_replay_us  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# operator, layers, hidden size, steps, batch, directions
PROBLEMS = [
    ("LSTM", 2, 512, 128, 1, 1),
    ("LSTM", 2, 512, 128, 16, 1),
    ("LSTM", 1, 256, 64, 1, 2),
    ("GRU", 2, 512, 128, 1, 1),
    ("RNN", 2, 512, 128, 1, 1),
]


def model(dtype, op, layers, size, steps, batch, directions):
    rng = np.random.default_rng(0)
    nodes, constants, width, x = [], [], size, "x"
    rows = GATES[op] * size

    def constant(name, array):
        constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(name, *dims):
        return constant(name, (rng.uniform(-1, 1, (directions, *dims)) / np.sqrt(size)).astype(dtype))

    shape = constant("shape", np.array([steps, batch, directions * size], np.int64))
    for layer in range(layers):
        attrs = {"hidden_size": size, "direction": "bidirectional" if directions == 2 else "forward"}
        if op == "GRU":
            attrs["linear_before_reset"] = 1
        names = [x, weights(f"w{layer}", rows, width), weights(f"r{layer}", rows, size), weights(f"b{layer}", 2 * rows)]
        nodes.append(helper.make_node(op, names, [f"y{layer}"], name=f"layer{layer}", **attrs))
        turned, width, x = f"t{layer}", directions * size, f"x{layer}"
        nodes.append(helper.make_node("Transpose", [f"y{layer}"], [turned], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [turned, shape], [x]))
    value = lambda name, last: helper.make_tensor_value_info(name, TYPES[dtype], [steps, batch, last])
    graph = helper.make_graph(nodes, op, [value("x", size)], [value(x, directions * size)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def torch_us(dtype, seconds, op, layers, size, steps, batch, directions):
    import torch

    kind = getattr(torch.nn, op)
    net = kind(size, size, layers, bidirectional=directions == 2).cuda().to(getattr(torch, dtype)).eval()
    x = torch.randn(steps, batch, size, device="cuda", dtype=getattr(torch, dtype))
    return torch_replay_us(lambda: net(x), seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--dtype", choices=TYPES, default="float32")
    parser.add_argument("--peer", choices=["torch"])
    parser.add_argument("--options", default="", help="of the provider: key=value,...")
    args = parser.parse_args()
    options = provider_options(args)
    ort.set_default_logger_severity(3)
    print("| layers | hidden | steps | batch | directions | replay µs | torch µs |\n|" + "---|" * 7)
    for problem in PROBLEMS:
        op, layers, size, steps, batch, directions = problem
        # torch first: it insists on the cuDNN that it brings along.
        peer = f"{torch_us(args.dtype, args.seconds, *problem):.0f}" if args.peer else ""
        x = np.random.default_rng(1).standard_normal((steps, batch, size)).astype(args.dtype)
        us = replay_us(model(args.dtype, *problem), {"x": x}, args.seconds, options)
        print(f"| {layers} × {op} | {size} | {steps} | {batch} | {directions} | {us:.0f} | {peer} |", flush=True)


if __name__ == "__main__":
    main()
