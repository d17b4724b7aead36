#!/usr/bin/env python3
"""Times products as captured graphs replay them: of halves, and with quantized weights beside halves of the same size.

    PYTHONPATH=python bench/products.py [--only REGEX] [--seconds 0.15]
                              [--options tunable_op_enable=1,tunable_op_tuning_enable=1]

For few rows reading the weights is what counts, so the share of a device copy's bandwidth is told. Weights are
constants of the model; there are so many that they exceed the cache. A model that has the product more often
takes longer, and that is what is told.
"""

import argparse
import re
from dataclasses import dataclass

import kernels
import numpy as np
import onnxruntime as ort
from kernels import es
from onnx import TensorProto, helper, numpy_helper

BEYOND_CACHE = 256 << 20
HALF = TensorProto.FLOAT16


@dataclass
class Product:
    rows: int
    depth: int
    columns: int
    bits: int = 4
    block: int = 32
    zeros: bool = False
    groups: bool = False  # of any places along the depth, as GPTQ has them by the size of activations

    def name(self):
        more = ", zero points" * self.zeros + ", groups" * self.groups
        weights = f"int{self.bits} by {self.block}{more}"
        return f"{weights}: {self.rows} x {self.depth} x {self.columns}"

    def bytes(self):
        """That must be read and written at least."""
        blocks = self.columns * self.depth // self.block
        weights = self.columns * self.depth * self.bits // 8 + blocks * 2 + self.zeros * blocks * self.bits // 8
        return weights + 2 * self.rows * (self.depth + self.columns)

    def weights(self, random):
        blocks = self.depth // self.block
        made = [
            random.integers(0, 256, (self.columns, blocks, self.block * self.bits // 8), np.uint8),
            random.uniform(-0.01, 0.01, (self.columns, blocks)).astype(np.float16),
        ]
        if self.zeros:
            made.append(random.integers(0, 256, (self.columns, blocks * self.bits // 8), np.uint8))
        if self.groups:
            made.append(random.permutation(np.arange(self.depth, dtype=np.int32) // self.block))
        return made

    def node(self, x, weights, y):
        attrs = {"K": self.depth, "N": self.columns, "bits": self.bits, "block_size": self.block}
        if self.groups and not self.zeros:
            weights = [*weights[:2], "", weights[2]]
        return helper.make_node("MatMulNBits", [x, *weights], [y], domain="com.microsoft", **attrs)


@dataclass
class Halves:
    rows: int
    depth: int
    columns: int
    transposed: bool = False  # as Gemm has its weights

    def name(self):
        return f"halves{', transposed' if self.transposed else ''}: {self.rows} x {self.depth} x {self.columns}"

    def bytes(self):
        return 2 * (self.depth * self.columns + self.rows * (self.depth + self.columns))

    def weights(self, random):
        shape = (self.columns, self.depth) if self.transposed else (self.depth, self.columns)
        return [(random.random(shape, np.float32) * 0.02 - 0.01).astype(np.float16)]

    def node(self, x, weights, y):
        if self.transposed:
            return helper.make_node("Gemm", [x, *weights], [y], transB=1)
        return helper.make_node("MatMul", [x, *weights], [y])


# Of llama_1b (attention, its parts, the layers after it, the vocabulary) and GPT-2's vocabulary, whose rows are odd.
DECODED = [(2048, 3072), (2048, 2048), (2048, 512), (2048, 8192), (8192, 2048), (2048, 128256), (768, 50257)]
SIZES = [(4096, 4096), (4096, 14336), (2048, 8192)]
PRODUCTS = [
    Halves(rows, depth, columns, transposed)
    for transposed in (False, True)
    for depth, columns in DECODED
    for rows in (1, 4, 8)
] + [
    Product(rows, depth, columns, *form)
    for depth, columns in SIZES
    for form in [(4, 32), (4, 128), (4, 32, True), (4, 128, True, True), (8, 32)]
    for rows in (1, 4, 16, 64, 512)
]
PRODUCTS += [Product(rows, *size) for size in [*DECODED[:2], (2048, 16384), DECODED[4]] for rows in (1, 4)]
PRODUCTS += [Halves(rows, 2048, 16384) for rows in (1, 4)]


def model_of(product, count):
    random = np.random.default_rng(0)
    sets = min(count, -(-BEYOND_CACHE // product.bytes()))
    constants, nodes, outputs = [], [], []
    weights = product.weights(random)
    for i in range(sets):
        for j, array in enumerate(weights):
            constants.append(numpy_helper.from_array(array, f"w{i}_{j}"))
    of_set = len(constants) // sets
    for i in range(count):
        names = [f"w{i % sets}_{j}" for j in range(of_set)]
        nodes.append(product.node("x", names, f"y{i}"))
        outputs.append(helper.make_tensor_value_info(f"y{i}", HALF, (product.rows, product.columns)))
    x = helper.make_tensor_value_info("x", HALF, (product.rows, product.depth))
    graph = helper.make_graph(nodes, "products", [x], outputs, constants)
    opsets = [helper.make_opsetid("", kernels.OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


def us_of(product, seconds, options):
    few, many = (4, 24) if product.rows > 64 else (8, 72)
    times = [kernels.replay_us(model_of(product, count), seconds, **options) for count in (few, many)]
    return max((times[1] - times[0]) / (many - few), 1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression for names of rows")
    parser.add_argument("--seconds", type=float, default=0.15, help="for each of two models")
    parser.add_argument("--options", default="", help="of the provider: key=value,...")
    args = parser.parse_args()
    options = dict(pair.split("=", 1) for pair in args.options.split(",") if pair)
    ort.set_default_logger_severity(4)
    copy = None
    if not es.on_virtual_gpu():
        size = 64 << 20
        driver = kernels.DeviceCopies()
        us = kernels.per_node(lambda count: driver.replay_us(size, count, args.seconds), size)
        copy = 2 * size / us / 1e3
        print(f"a copy of 64 MiB: {copy:.0f} GB/s\n")
    print("| product | µs | GB/s | of a copy | µs of halves | times |\n|---|---|---|---|---|---|", flush=True)
    halves = {}
    for product in PRODUCTS:
        if not re.search(args.only, product.name()):
            continue
        try:
            us = us_of(product, args.seconds, options)
            rate = product.bytes() / us / 1e3
            share = f"{100 * rate / copy:.0f} %" if copy else ""
            cells = [f"{us:.1f}", f"{rate:.0f}", share]
            if isinstance(product, Product):
                size = (product.rows, product.depth, product.columns)
                if size not in halves:
                    halves[size] = us_of(Halves(*size), args.seconds, options)
                cells += [f"{halves[size]:.1f}", f"{halves[size] / us:.2f}"]
            else:
                cells += ["", ""]
        except Exception as error:  # noqa: BLE001 - the others still have their say
            cells = [str(error).splitlines()[0]]
        print("| " + " | ".join([product.name(), *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
