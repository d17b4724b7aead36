#!/usr/bin/env python3
"""Times single kernels as captured graphs replay them, and says which share of a device copy's bandwidth they reach.

    PYTHONPATH=python bench/kernels.py [--only REGEX] [--sizes 64,1] [--seconds 0.15]

A model has the operator several times, over inputs that together exceed the cache where the size allows it. A model
that has it more often takes longer, and that is what is told: launching and waiting for the graph is in both. The copy
is the driver's, replayed in the same way. Bytes are those that must be read and written at least.
"""

import argparse
import ctypes
import math
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "models"), str(ROOT / "bench")]

os.environ.setdefault("ENCORE_EP_NAME", "CUDAExecutionProvider")

import encore_session as es  # noqa: E402
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from models import median_us  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

INPUTS = 4  # different ones that take turns
OPSET = 20


@dataclass
class Kernel:
    """One operator. `shape` makes the shape of its first input from the number of elements that there are to be."""

    op: str
    shape: object
    what: str = ""
    dtype: type = np.float16
    attrs: dict = field(default_factory=dict)
    others: object = lambda shape: []  # the shapes of further inputs that are data, from the first one's
    constants: list = field(default_factory=list)  # inputs after these, which all nodes share
    moves: bool = False  # reads as much as it writes, whatever the size of its input
    outputs: int = 1
    domain: str = ""  # where there is one, the output has the shape of the first input

    def name(self, shape):
        return f"{self.op}{' ' + self.what if self.what else ''} {np.dtype(self.dtype).name} {list(shape)}"


def rows(width):
    """[rows, width]"""
    return lambda elements: (max(elements // width, 1), width)


def fixed(*shape):
    """Whatever the number of elements is."""
    return lambda elements: shape


def pictures(channels, side, last=False):
    def shape(elements):
        count = max(elements // (channels * side * side), 1)
        return (count, side, side, channels) if last else (count, channels, side, side)

    return shape


def square(elements):
    return (math.isqrt(elements), math.isqrt(elements))


def heads(elements):
    """[batch, words, heads, values of a head]"""
    return (max(elements // (128 * 12 * 64), 1), 128, 12, 64)


def blocks(middle, inner):
    return lambda elements: (max(elements // (middle * inner), 1), middle, inner)


def same(shape):
    return [shape]


def of_columns(shape):
    return [shape[-1:]]


def of_rows(shape):
    return [(*shape[:-1], 1)]


def two_of_width(shape):
    return [shape[-1:], shape[-1:]]


def four_of_channels(shape):
    return [shape[1:2]] * 4


def ints(*values):
    return np.array(values, np.int64)


def indices(elements, of):
    return np.random.default_rng(0).integers(0, of, elements)


F32 = np.float32


def depthwise_last(channels, side, taps, dilation=1):
    """A depthwise convolution, channels last, with constant weights and a result as large as the picture."""
    numbers = np.random.default_rng(0).standard_normal((channels, taps, taps, 1)).astype(np.float16)
    return Kernel(
        "NhwcConv",
        pictures(channels, side, True),
        f"depthwise {taps}x{taps}{' dilated' * (dilation > 1)}, last",
        attrs={
            "group": channels,
            "kernel_shape": [taps] * 2,
            "pads": [taps // 2 * dilation] * 4,
            "dilations": [dilation] * 2,
        },
        constants=[numbers, numbers[:, 0, 0, 0]],
        domain="com.microsoft",
    )


def group_norm(*shape, groups=32):
    """A norm of groups and a Silu, channels last, as diffusion models have it."""
    numbers = np.random.default_rng(0).standard_normal((2, shape[-1])).astype(np.float16)
    attrs = {"groups": groups, "activation": 1}
    return Kernel("GroupNorm", fixed(*shape), attrs=attrs, constants=list(numbers), domain="com.microsoft")


KERNELS = [
    Kernel("Relu", rows(1024)),
    Kernel("Relu", rows(1024), dtype=F32),
    Kernel("Gelu", rows(1024)),
    Kernel("Cast", rows(1024), "to float", attrs={"to": onnx.TensorProto.FLOAT}),
    Kernel("Cast", rows(1024), "to half", F32, {"to": onnx.TensorProto.FLOAT16}),
    Kernel("Add", rows(1024), others=same),
    Kernel("Add", rows(1024), dtype=F32, others=same),
    *[Kernel("Add", rows(width), "a row", others=of_columns) for width in (1024, 1500, 1501)],
    *[Kernel("Mul", rows(width), "a column", others=of_rows) for width in (1024, 1500, 1501)],
    Kernel("Mul", pictures(120, 28), "a number a channel", others=lambda shape: [(shape[0], shape[1], 1, 1)]),
    Kernel("Mul", pictures(960, 7), "a number a channel", others=lambda shape: [(shape[0], shape[1], 1, 1)]),
    Kernel(
        "Mul", pictures(960, 7, True), "a number a channel, last", others=lambda shape: [(shape[0], 1, 1, shape[3])]
    ),
    Kernel("Transpose", square, attrs={"perm": [1, 0]}),
    Kernel("Transpose", square, dtype=F32, attrs={"perm": [1, 0]}),
    Kernel("Transpose", heads, "heads", attrs={"perm": [0, 2, 1, 3]}),
    Kernel("Transpose", pictures(64, 56), "to channels last", attrs={"perm": [0, 2, 3, 1]}),
    Kernel("Transpose", pictures(64, 56, True), "to channels first", attrs={"perm": [0, 3, 1, 2]}),
    Kernel("Transpose", blocks(1500, 64), attrs={"perm": [0, 2, 1]}),
    *[Kernel("ReduceSum", rows(width), "rows", constants=[ints(1)]) for width in (64, 1024, 1500, 1501)],
    Kernel("ReduceSum", rows(1024), "rows", F32, constants=[ints(1)]),
    Kernel("ReduceSum", rows(1024), "columns", constants=[ints(0)]),
    Kernel("ReduceSum", rows(1501), "columns", constants=[ints(0)]),
    Kernel("ReduceSum", blocks(128, 1024), "the middle", constants=[ints(1)]),
    Kernel("ReduceSum", rows(1024), "all", constants=[ints(0, 1)]),
    Kernel("ReduceMax", rows(1024), "rows", constants=[ints(1)]),
    Kernel("ArgMax", rows(1024), "rows", attrs={"axis": 1}),
    Kernel("ArgMax", rows(1501), "rows", attrs={"axis": 1}),
    Kernel("ArgMax", rows(1024), "rows", F32, {"axis": 1}),
    Kernel("ArgMax", fixed(1, 128256), "rows", attrs={"axis": 1}),
    *[Kernel("Softmax", rows(width)) for width in (49, 64, 197, 1024, 1500, 1501, 32000)],
    *[Kernel("Softmax", rows(width), dtype=F32) for width in (1024, 1501)],
    Kernel("Softmax", blocks(128, 1024), "the middle", attrs={"axis": 1}),
    Kernel("Softmax", blocks(4096, 64), "a long middle", attrs={"axis": 1}),
    Kernel("LogSoftmax", pictures(21, 128), "channels", attrs={"axis": 1}),
    Kernel("Hardmax", blocks(128, 1024), "the middle", attrs={"axis": 1}),
    *[Kernel("LayerNormalization", rows(width), others=two_of_width) for width in (768, 1024, 1500, 1501)],
    Kernel("LayerNormalization", rows(1024), dtype=F32, others=two_of_width),
    Kernel("BatchNormalization", pictures(64, 56), others=four_of_channels),
    Kernel("BatchNormalization", pictures(960, 7), others=four_of_channels),
    Kernel("InstanceNormalization", pictures(64, 56), others=lambda shape: [shape[1:2]] * 2),
    *[group_norm(*shape) for shape in [(1, 64, 64, 320), (2, 32, 32, 640), (2, 8, 8, 1280)]],
    group_norm(1, 32, 32, 64, groups=16),
    Kernel("GlobalAveragePool", pictures(64, 56)),
    Kernel("GlobalAveragePool", pictures(960, 7)),
    Kernel("GlobalMaxPool", pictures(960, 7)),
    Kernel("ReduceMean", pictures(960, 7, True), "channels last", constants=[ints(1, 2)]),
    Kernel("ReduceMean", pictures(120, 28, True), "channels last", constants=[ints(1, 2)]),
    Kernel(
        "Conv",
        pictures(120, 28),
        "depthwise",
        attrs={"group": 120, "pads": [1, 1, 1, 1]},
        others=lambda shape: [(shape[1], 1, 3, 3), shape[1:2]],
    ),
    depthwise_last(120, 28, 3),
    depthwise_last(58, 28, 3),
    depthwise_last(34, 28, 5),
    depthwise_last(960, 32, 5, dilation=2),
    depthwise_last(304, 8, 9),
    depthwise_last(192, 14, 1),
    Kernel(
        "Conv",
        pictures(3, 224),
        "patches",
        attrs={"strides": [16, 16]},
        others=lambda shape: [(768, 3, 16, 16), (768,)],
    ),
    Kernel("Conv", pictures(80, 14), "1x1", others=lambda shape: [(480, 80, 1, 1), (480,)]),
    Kernel("Gather", rows(768), "rows", constants=["rows"], moves=True),
    Kernel("Gather", rows(1024), "columns", constants=["columns"], attrs={"axis": 1}, moves=True),
    Kernel("Concat", rows(512), "along rows", attrs={"axis": 1}, others=same),
    Kernel("Concat", rows(1500), "along rows", attrs={"axis": 1}, others=of_rows),
    Kernel("Split", rows(1500), attrs={"axis": 1}, constants=[ints(1, 1499)], outputs=2),
    Kernel("Slice", rows(1024), "rows", constants=[ints(1), ints(2**62), ints(0)], moves=True),
    Kernel("Slice", rows(1024), "columns", constants=[ints(512), ints(1024), ints(1)], moves=True),
    Kernel("Slice", rows(1501), "columns", constants=[ints(1), ints(1501), ints(1)], moves=True),
    # Memory comes in 32 bytes at least, so all of it is read.
    Kernel("Slice", rows(1024), "each second", constants=[ints(0), ints(1024), ints(1), ints(2)]),
    Kernel("Pad", rows(1500), constants=[ints(0, 1, 0, 0)]),
    Kernel("Where", rows(1501), others=lambda shape: [shape, shape], dtype=bool),
    Kernel("CumSum", rows(1024), dtype=F32, constants=[np.int32(1)]),
    Kernel("CumSum", rows(1501), dtype=F32, constants=[np.int32(1)]),
    Kernel("CumSum", rows(1024), constants=[np.int32(1)]),
    Kernel("CumSum", fixed(1, 128256), dtype=F32, constants=[np.int32(1)]),
    *[Kernel("TopK", rows(1024), str(k), constants=[ints(k)], outputs=2) for k in (1, 8, 50, 500)],
    *[Kernel("TopK", rows(width), "8", constants=[ints(8)], outputs=2) for width in (128, 1501, 8192)],
    Kernel("TopK", rows(1024), "8", F32, constants=[ints(8)], outputs=2),
    *[
        Kernel("TopK", fixed(*shape), str(k), F32, constants=[ints(k)], outputs=2)
        for shape, k in [((8, 1000), 5), ((1, 8400), 300), ((1, 32000), 50), ((1, 128256), 50), ((1, 128256), 1000)]
    ],
]


def model_of(kernel, shape, count):
    """The operator `count` times; what it reads of each of INPUTS sets of inputs, and its outputs."""
    dtype = np.dtype(kernel.dtype)
    element = helper.np_dtype_to_tensor_dtype(dtype)
    others = kernel.others(shape)
    # Where's other inputs are what it chooses from.
    other_element = onnx.TensorProto.FLOAT16 if kernel.op == "Where" else element
    constants = []
    for i, value in enumerate(kernel.constants):
        if isinstance(value, str):
            value = indices(*((shape[0], shape[0]) if value == "rows" else (shape[1], shape[1])))
        constants.append(numpy_helper.from_array(np.asarray(value), f"constant{i}"))
    inputs, nodes, outputs = [], [], []
    for i in range(min(INPUTS, count)):
        for j, form in enumerate([shape, *others]):
            inputs.append(helper.make_tensor_value_info(f"x{i}_{j}", other_element if j else element, form))
    for i in range(count):
        names = [f"x{i % INPUTS}_{j}" for j in range(1 + len(others))] + [c.name for c in constants]
        made = [f"y{i}_{j}" for j in range(kernel.outputs)]
        nodes.append(helper.make_node(kernel.op, names, made, domain=kernel.domain, **kernel.attrs))
        outputs += [helper.ValueInfoProto(name=name) for name in made]
    graph = helper.make_graph(nodes, "kernels", inputs, [], constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    known = {info.name: info for info in inferred.value_info}
    if kernel.domain:
        known = {output.name: helper.make_tensor_value_info(output.name, element, shape) for output in outputs}
    model.graph.output.extend(known[output.name] for output in outputs)
    return model


def form_of(info):
    tensor = info.type.tensor_type
    shape = [dim.dim_value for dim in tensor.shape.dim]
    return shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type)


def byte_count(info):
    shape, dtype = form_of(info)
    return math.prod(shape) * np.dtype(dtype).itemsize


POOL = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)


def values(shape, dtype):
    return np.resize(POOL > 0 if np.dtype(dtype).kind == "b" else POOL.astype(dtype), shape)


def bound(model, **provider):
    """A session of its nodes as they are, its binding with all in device memory, and what keeps that there."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = es.make_session(model, options, **provider)
    binding, keep = session.io_binding(), []
    for info in model.graph.input:
        keep.append(es.on_device(values(*form_of(info))))
        binding.bind_ortvalue_input(info.name, keep[-1])
    for info in model.graph.output:
        keep.append(es.empty_on_device(*form_of(info)))
        binding.bind_ortvalue_output(info.name, keep[-1])
    return session, binding, keep


def replay_us(model, seconds, **provider):
    session, binding, _keep = bound(model, enable_cuda_graph=1, **provider)
    replay = es.run_options(0)
    return median_us(lambda: session.run_with_iobinding(binding, replay), seconds)


def traffic(kernel, model):
    """Bytes of one node."""
    written = sum(map(byte_count, model.graph.output[: kernel.outputs]))
    if kernel.moves:
        return 2 * written
    return written + sum(byte_count(info) for info in model.graph.input if info.name.startswith("x0_"))


class DeviceCopies:
    """The driver's copies of so many bytes, as a graph replays them."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.stream = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)  # waits for no other

    def call(self, name, *arguments):
        result = getattr(self.driver, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} returned {result}")

    def replay_us(self, size, count, seconds):
        pointer = ctypes.c_uint64
        blocks = [pointer() for _ in range(min(INPUTS, count) + count)]
        for block in blocks:
            self.call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(size))
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.stream, 1)  # of this thread alone
        for i in range(count):
            source, target = blocks[count + i % INPUTS], blocks[i]
            self.call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(size), self.stream)
        self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))

        def replay():
            self.call("cuGraphLaunch", ready, self.stream)
            self.call("cuStreamSynchronize", self.stream)

        us = median_us(replay, seconds)
        self.call("cuGraphExecDestroy", ready)
        self.call("cuGraphDestroy", graph)
        for block in blocks:
            self.call("cuMemFree_v2", block)
        return us


def counts(size):
    """How often the two models have the operator: more often where it takes little."""
    return (2, 10) if size >= 1 << 24 else (4, 44)


def per_node(us_of, size):
    """Microseconds of one, from two models."""
    few, many = counts(size)
    return max((us_of(many) - us_of(few)) / (many - few), 1e-3)


def row_of(kernel, sizes, copies, seconds):
    cells = []
    for size in sizes:
        shape = kernel.shape(size // np.dtype(kernel.dtype).itemsize)
        if not cells:
            cells.append(kernel.name(shape))
        us = per_node(lambda count, shape=shape: replay_us(model_of(kernel, shape, count), seconds), size)
        rate = traffic(kernel, model_of(kernel, shape, 1)) / us / 1e3
        share = f"{100 * rate / copies[size]:.0f} %" if size in copies else ""
        cells += [f"{us:.1f}", f"{rate:.0f}", share]
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression for names of rows")
    parser.add_argument("--sizes", default="64,1", help="of the first input, in MiB")
    parser.add_argument("--seconds", type=float, default=0.15, help="for each of two models")
    args = parser.parse_args()
    sizes = [int(float(size) * (1 << 20)) for size in args.sizes.split(",")]
    ort.set_default_logger_severity(4)
    copies = {}  # GB/s by size
    header = ["kernel"]
    for size in sizes:
        header += [f"{size / (1 << 20):g} MiB: µs", "GB/s", "of a copy"]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header), flush=True)
    if not es.on_virtual_gpu():
        driver, cells = DeviceCopies(), ["copy"]
        for size in sizes:
            us = per_node(lambda count, size=size: driver.replay_us(size, count, args.seconds), size)
            copies[size] = 2 * size / us / 1e3
            cells += [f"{us:.1f}", f"{copies[size]:.0f}", ""]
        print("| " + " | ".join(cells) + " |", flush=True)
    for kernel in KERNELS:
        if not re.search(args.only, kernel.name(kernel.shape(sizes[0] // np.dtype(kernel.dtype).itemsize))):
            continue
        try:
            cells = row_of(kernel, sizes, copies, args.seconds)
        except Exception as error:  # noqa: BLE001 - the others still have their say
            elsewhere = "have not been partitioned" in str(error)  # so it can't be captured
            cells = [f"{kernel.op} {kernel.what}", "not on Encore" if elsewhere else str(error).splitlines()[0]]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
