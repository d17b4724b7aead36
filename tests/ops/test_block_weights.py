"""Products with weights quantized in blocks, and rows gathered from such: MatMulNBits against the CPU EP where it takes
the node, and all of them against NumPy, written down from what the operators' documentation says."""

import numpy as np
import pytest
from harness import Case, Const, check, floats, integers
from refusal import declined, fails

MICROSOFT = "com.microsoft"
TYPES = ["float32", "float16", "bfloat16"]


def unpacked(packed, bits):
    """The codes in a tensor's bytes, the first in the lowest bits; the last dimension grows."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = packed[..., None] >> shifts & (2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def weights_of(codes, scales, zeros, bits, rows, depth, block, groups=None):
    """In float64: [rows, depth]."""
    blocks = -(-depth // block)
    codes = unpacked(codes.reshape(rows, -1), bits)[:, :depth].astype(np.float64)
    scales = scales.reshape(rows, blocks).astype(np.float64)
    if zeros is None:
        zeros = np.full((rows, blocks), 2.0 ** (bits - 1))
    elif zeros.dtype == np.uint8:
        zeros = unpacked(zeros.reshape(rows, -1), bits)[:, :blocks].astype(np.float64)
    else:
        zeros = zeros.reshape(rows, blocks).astype(np.float64)
    group = np.arange(depth) // block if groups is None else groups[:depth]
    return (codes - zeros[:, group]) * scales[:, group]


def nbits(m, depth, rows, block=32, bits=4, dtype="float16", zeros=None, groups=None, bias=False, **more):
    """A case, also of a whole shape `m`."""
    blocks = -(-depth // block)
    shape = (*m, depth) if isinstance(m, tuple) else (m, depth)
    inputs = [
        floats(*shape, low=-1, high=1),
        integers("uint8", rows, blocks, block * bits // 8, low=0, high=255),
        floats(rows, blocks, low=-1, high=1) / np.float32(2.0 ** (bits - 1) * max(depth, 1) ** 0.5),
    ]
    if zeros == "packed":
        inputs.append(integers("uint8", rows, -(-blocks * bits // 8), low=0, high=255))
    elif zeros == "typed":
        inputs.append(floats(rows, blocks, low=0, high=2.0**bits - 1))
    else:
        inputs.append(None)
    inputs.append(None if groups is None else integers("int32", groups, low=0, high=blocks - 1))
    inputs.append(floats(rows) if bias else None)
    while inputs[-1] is None:
        inputs.pop()
    constant = more.pop("constant", False)
    if constant:
        inputs[1:] = [None if given is None else Const(given) for given in inputs[1:]]

    def reference(a, b, scales, zero_points=None, g_idx=None, addend=None):
        made = a.astype(np.float64) @ weights_of(b, scales, zero_points, bits, rows, depth, block, g_idx).T
        return [(made if addend is None else made + addend).astype(np.float32)]

    attrs = {"N": rows, "K": depth, "block_size": block, "bits": bits}
    name = "-".join(filter(None, [f"{bits}bits", f"by{block}", zeros, "bias" * bias, "constant" * constant]))
    more = {"reference": reference, "family": "matmul", **more}
    return Case("MatMulNBits", inputs, attrs, dtype=dtype, domain=MICROSOFT, name=name, options=EXACT, **more)


EXACT = {"use_tf32": 0}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "bits,block", [(4, 16), (4, 32), (4, 128), (8, 16), (8, 32), (8, 256), (2, 16), (2, 32), (2, 64)]
)
@pytest.mark.parametrize("zeros", [None, "packed", "typed"])
def test_types(dtype, bits, block, zeros):
    check(nbits(3, 256, 48, block, bits, dtype, zeros))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("m", [1, 7, 8, 9, 16, 31, 33, 65])
def test_rows(dtype, bits, m, constant):
    check(nbits(m, 384, 40, 64, bits, dtype, "packed", bias=True, constant=constant))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    "depth,rows,block",
    [
        (2048, 64, 32),
        (100, 33, 32),
        (1, 1, 16),
        (72, 5, 64),
        (2880, 17, 32),
        (96, 16, 128),
        (4104, 19, 128),
        (33, 40, 16),
    ],
)
def test_sizes(dtype, bits, depth, rows, block):
    check(nbits(2, depth, rows, block, bits, dtype, "packed"))
    check(nbits(20, depth, rows, block, bits, dtype, "typed", bias=True))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [None, "packed", "typed"])
def test_groups(dtype, bits, zeros):
    check(nbits(3, 100, 24, 32, bits, dtype, zeros, groups=100))
    check(nbits(9, 100, 24, 32, bits, dtype, zeros, groups=128, bias=True))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m", [(), (0,), (2, 3), (3, 1, 5), (2, 0, 3)], ids=str)
def test_shapes(dtype, m):
    check(nbits(m, 64, 24, 32, 4, dtype, bias=True))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("m", [1, 20])
def test_misaligned(dtype, bits, m):
    check(nbits(m, 256, 40, 64, bits, dtype, "packed", bias=True, misaligned=True))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("bits,block", [(4, 32), (4, 16), (8, 32), (2, 64)])
@pytest.mark.parametrize("zeros", [None, "packed"])
@pytest.mark.parametrize("depth", [256, 200])
def test_against_the_cpu(dtype, bits, block, zeros, depth):
    case = nbits(5, depth, 32, block, bits, dtype, zeros, bias=True, reference=None)
    case.attrs["accuracy_level"] = 0
    check(case)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m", [1, 70])
def test_not_finite(dtype, m):
    """Of a row of A only that row of the result; of a scale only its column."""
    case = nbits(m, 128, 40, 32, 4, dtype)
    case.inputs[0][0, 5] = np.inf
    case.inputs[0][-1, 7] = np.nan
    case.inputs[2][3, 1] = np.nan
    case.inputs[2][4, 3] = np.inf
    case.capture = False  # what comes in another order is another case
    check(case)


def test_hostile():
    def refused(words, attrs, codes=(8, 2, 16), scales=(8, 2), more=()):
        given = {"N": 8, "K": 64, "block_size": 32, "bits": 4, **attrs}
        inputs = [floats(2, 64), np.zeros(codes, np.uint8), np.ones(scales, np.float32), *more]
        fails("MatMulNBits", inputs, given, words, domain=MICROSOFT)

    refused("last dimension must be K", {"K": 63})
    refused("B has shape", {}, codes=(8, 2, 15))
    refused("scales has shape", {}, scales=(8, 1))
    refused("zero_points has shape", {}, more=[np.zeros((8, 2), np.uint8)])
    refused("g_idx has shape", {}, more=[None, np.zeros(65, np.int32)])
    refused("outside", {}, more=[None, np.full(64, 2, np.int32)])
    refused("outside|-1", {}, more=[None, np.full(64, -1, np.int32)])


@pytest.mark.parametrize(
    "attrs",
    [
        {"bits": 3},
        {"block_size": 48},
        {"block_size": 8},
        {"block_size": -32},
        {"K": 0},
        {"N": -1},
        {"N": 2**62},
        {"block_size": 2**62},
        {"weight_prepacked": 1},
    ],
    ids=str,
)
def test_declined(attrs):
    inputs = [floats(2, 64), np.zeros((8, 2, 16), np.uint8), np.ones((8, 2), np.float32)]
    declined("MatMulNBits", inputs, {"N": 8, "K": 64, "block_size": 32, "bits": 4, **attrs}, domain=MICROSOFT)
