"""Products with weights quantized in blocks, and rows gathered from such: MatMulNBits against the CPU EP where it takes
the node, and all of them against NumPy, written down from what the operators' documentation says."""

import ml_dtypes
import numpy as np
import pytest
from encore_session import on_virtual_gpu, only_if
from harness import Case, Const, check, floats, integers, kernels_of, seeded
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


MADE = "made"  # a bias that is no constant


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
    if isinstance(groups, int):
        groups = integers("int32", groups, low=0, high=blocks - 1)
    inputs.append(groups)
    inputs.append(floats(rows) if bias else None)
    while inputs[-1] is None:
        inputs.pop()
    constant = more.pop("constant", False)
    if constant:
        weights = inputs[1:5]
        inputs[1:5] = [None if given is None else Const(given) for given in weights]
        if bias is not MADE:
            inputs[5:] = map(Const, inputs[5:])

    def reference(a, b, scales, zero_points=None, g_idx=None, addend=None):
        made = a.astype(np.float64) @ weights_of(b, scales, zero_points, bits, rows, depth, block, g_idx).T
        return [(made if addend is None else made + addend).astype(np.float32)]

    attrs = {"N": rows, "K": depth, "block_size": block, "bits": bits}
    name = "-".join(filter(None, [f"{bits}bits", f"by{block}", zeros, "bias" * bool(bias), "constant" * constant]))
    more = {"reference": reference, "family": "matmul", **more}
    return Case("MatMulNBits", inputs, attrs, dtype=dtype, domain=MICROSOFT, name=name, options=EXACT, **more)


EXACT = {"use_tf32": 0}


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "bits,block", [(4, 16), (4, 32), (4, 128), (8, 16), (8, 32), (8, 256), (2, 16), (2, 32), (2, 64)]
)
@pytest.mark.parametrize("zeros", [None, "packed", "typed"])
def test_types(constant, dtype, bits, block, zeros):
    check(nbits(3, 256, 48, block, bits, dtype, zeros, constant=constant))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("m", [1, 7, 8, 9, 16, 31, 33, 65])
def test_rows(dtype, bits, m, constant):
    check(nbits(m, 384, 40, 64, bits, dtype, "packed", bias=True, constant=constant))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("m", [1, 3, 12])
def test_constant_weights_are_read_before_a_bias_is_made(m, bits):
    check(nbits(m, 384, 40, 64, bits, "bfloat16", bias=MADE, constant=True))


@pytest.mark.parametrize("constant", [False, True])
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
def test_sizes(constant, dtype, bits, depth, rows, block):
    check(nbits(2, depth, rows, block, bits, dtype, "packed", constant=constant))
    check(nbits(20, depth, rows, block, bits, dtype, "typed", bias=True, constant=constant))


@pytest.mark.parametrize("m,bits,depth,rows,zeros", [(3, 4, 768, 8500, None), (12, 8, 4168, 2120, "packed")])
def test_many_columns(m, bits, depth, rows, zeros):
    """So many that a block makes some after others, with loads under way across them."""
    check(nbits(m, depth, rows, 64, bits, "float16", zeros, bias=True, constant=True))


@pytest.mark.parametrize("m", [7, 8])
def test_long_rows(m):
    """As many as shared memory has room for, and one more."""
    check(nbits(m, 14336, 24, 128, 4, "bfloat16", constant=True))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [None, "packed", "typed"])
def test_groups(dtype, bits, zeros):
    check(nbits(3, 100, 24, 32, bits, dtype, zeros, groups=100))
    check(nbits(9, 100, 24, 32, bits, dtype, zeros, groups=128, bias=True))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [None, "packed", "typed"])
def test_constant_groups(dtype, bits, zeros):
    """As large as blocks, in any order, which weights can be brought into; and others."""
    depth, block = 136, 32
    in_order = np.arange(depth, dtype=np.int32) // block
    random = seeded("groups")
    mixed, filled = random.permutation(in_order), np.append(random.permutation(in_order), np.full(24, 4, np.int32))
    for m, groups in (
        (1, mixed),
        (70, mixed),
        (3, in_order),
        (3, filled),
        (3, integers("int32", depth, low=0, high=4)),
    ):
        check(nbits(m, depth, 24, block, bits, dtype, zeros, groups=groups, bias=True, constant=True))


@only_if(on_virtual_gpu())  # which lists its kernels
def test_kernels_of_groups():
    def kernels(groups, **more):
        return kernels_of(nbits(1, 128, 24, 32, groups=np.int32(groups), constant=True, **more))

    blocks = np.arange(128) // 32
    assert kernels(blocks) == ["NBitsGemv"]
    assert kernels(blocks[::-1]) == ["OrderColumns", "NBitsGemv"]
    assert kernels(blocks // 2) == kernels(blocks, zeros="typed") == ["BlockGemv"]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m", [(), (0,), (2, 3), (3, 1, 5), (2, 0, 3)], ids=str)
def test_shapes(constant, dtype, m):
    check(nbits(m, 64, 24, 32, 4, dtype, bias=True, constant=constant))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("m", [1, 20])
def test_misaligned(constant, dtype, bits, m):
    check(nbits(m, 256, 40, 64, bits, dtype, "packed", bias=True, misaligned=True, constant=constant))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("bits,block", [(4, 32), (4, 16), (8, 32), (2, 64)])
@pytest.mark.parametrize("zeros", [None, "packed"])
@pytest.mark.parametrize("depth", [256, 200])
def test_against_the_cpu(dtype, bits, block, zeros, depth):
    case = nbits(5, depth, 32, block, bits, dtype, zeros, bias=True, reference=None)
    case.attrs["accuracy_level"] = 0
    check(case)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m", [1, 70])
def test_not_finite(constant, dtype, m):
    """Of a row of A only that row of the result; of a scale only its column."""
    case = nbits(m, 128, 40, 32, 4, dtype, constant=constant)
    case.inputs[0][0, 5] = np.inf
    case.inputs[0][-1, 7] = np.nan
    scales = case.inputs[2].value if constant else case.inputs[2]
    scales[3, 1] = np.nan
    scales[4, 3] = np.inf
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


STEPS = [0, 5.208333333e-03, 2 / 3, 1, 1 / 3, 0.5, 1 / 6, 0.25]
BNB = [
    [*STEPS, *(-step for step in STEPS)],
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
]


def bnb4(m, depth, rows, block=64, kind=1, dtype="float16", transposed=True, **more):
    count = depth * rows
    inputs = [
        floats(m, depth if transposed else rows, low=-1, high=1),
        integers("uint8", -(-count // 2), low=0, high=255),
        floats(-(-count // block), low=0, high=1) / np.float32(max(depth, 1) ** 0.5),
    ]

    def reference(a, b, scales):
        codes = np.stack([b >> 4, b & 15], -1).reshape(-1)[:count]
        weights = np.array(BNB[kind])[codes] * np.repeat(scales.astype(np.float64), block)[:count]
        weights = weights.reshape(rows, depth)
        return [(a.astype(np.float64) @ (weights.T if transposed else weights)).astype(np.float32)]

    attrs = {"N": rows, "K": depth, "block_size": block, "quant_type": kind, "transB": int(transposed)}
    more = {"reference": reference, "family": "matmul", **more}
    name = f"{kind}-by{block}{'' if transposed else '-columns'}"
    return Case("MatMulBnb4", inputs, attrs, dtype=dtype, domain=MICROSOFT, name=name, options=EXACT, **more)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("m", [0, 1, 5, 9])
@pytest.mark.parametrize(
    "depth,rows,block", [(64, 24, 64), (100, 33, 16), (7, 5, 32), (1, 1, 16), (256, 40, 4096), (33, 2, 16)]
)
def test_bnb4(dtype, kind, m, depth, rows, block):
    check(bnb4(m, depth, rows, block, kind, dtype))
    check(bnb4(m, depth, rows, block, kind, dtype, transposed=False))


@pytest.mark.parametrize("kind", [0, 1])
def test_bnb4_against_the_cpu(kind):
    check(bnb4(3, 128, 24, 64, kind, "float32", reference=None))
    check(bnb4(3, 128, 24, 64, kind, "float32", misaligned=True))


def test_hostile_bnb4():
    given = {"N": 8, "K": 64, "block_size": 32, "quant_type": 1}
    inputs = [floats(2, 64), np.zeros(256, np.uint8), np.ones(16, np.float32)]
    fails("MatMulBnb4", inputs, {**given, "K": 63}, "last dimension must be K", domain=MICROSOFT)
    fails("MatMulBnb4", inputs, {**given, "N": 9}, "B has shape", domain=MICROSOFT)
    fails("MatMulBnb4", inputs, {**given, "block_size": 16}, "absmax has shape", domain=MICROSOFT)
    for attrs in [{"quant_type": 2}, {"block_size": 17}, {"K": 0}, {"N": 2**62}]:
        declined("MatMulBnb4", inputs, {**given, **attrs}, domain=MICROSOFT)


def gathered(kind, table, indices, block=16, axes=(0, -1), bits=4, dtype="float16", zeros=False, scales=None, **more):
    """`table`: the shape of its elements."""
    gather, quantize = axes[0] % len(table), axes[1] % len(table)
    size = block or table[quantize]
    shape = [-(-n // size) if i == quantize else n for i, n in enumerate(table)]
    in_byte = 8 // bits if kind == "uint8" else 1
    if kind == "uint8":
        stored = [*table[:-1], table[-1] // in_byte]
        data = integers("uint8", *stored, low=0, high=255)
        zero = integers("uint8", *shape[:-1], -(-shape[-1] // in_byte), low=0, high=255)
    else:
        low, high = {"int4": (-8, 7), "uint4": (0, 15)}.get(kind, (-3, 3))
        data, zero = (integers("int8", *s, low=low, high=high).astype(kind_of(kind)) for s in (table, shape))
    inputs = [Const(data), indices, floats(*(scales or shape)), Const(zero) if zeros else None][: 3 + zeros]

    def reference(data, indices, scales, zero=None):
        wide = (unpacked(data, bits) if kind == "uint8" else data).astype(np.float64)
        repeated = np.repeat(np.broadcast_to(scales.astype(np.float64), shape), size, quantize)
        if zero is not None:
            less = unpacked(zero, bits)[..., : shape[-1]] if kind == "uint8" else zero
            less = np.repeat(less.astype(np.float64), size, quantize)
        else:
            less = np.full(repeated.shape, 2.0 ** (bits - 1) if kind == "uint8" else 0.0)
        cut = tuple(slice(0, n) for n in table)
        wide = (wide - less[cut]) * repeated[cut]
        size_there = table[gather]
        there = (indices >= -size_there) & (indices < size_there)
        made = np.take(wide, np.where(there, indices, 0), gather)
        where = there.reshape([1] * gather + list(there.shape) + [1] * (len(table) - gather - 1))
        return [np.where(where, made, 0).astype(np.float32)]

    attrs = {"gather_axis": axes[0], "quantize_axis": axes[1], "block_size": block, "bits": bits}
    more = {"reference": reference, **more}
    name = "-".join(filter(None, [kind, f"{bits}bits", f"by{block}", "zeros" * zeros, str(axes)]))
    return Case("GatherBlockQuantized", inputs, attrs, dtype=dtype, domain=MICROSOFT, name=name, **more)


def kind_of(kind):
    return getattr(
        ml_dtypes,
        {"float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2", "float4e2m1": "float4_e2m1fn"}.get(kind, kind),
    )


WHERE = np.array([[0, 3, -1], [2, 2, -4]], np.int64)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind,bits", [("uint8", 2), ("uint8", 4), ("uint8", 8), ("int4", 4), ("uint4", 4)])
@pytest.mark.parametrize("width", [32, 48, 72, 20, 8])
def test_gather(dtype, zeros, kind, bits, width):
    check(gathered(kind, (5, width), WHERE, bits=bits, dtype=dtype, zeros=zeros))
    check(gathered(kind, (5, 3, width), WHERE.astype(np.int32), bits=bits, dtype=dtype, zeros=zeros, block=32))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (1, 1), (-1, 0), (1, -1), (2, 1)], ids=str)
def test_gather_along_axes(dtype, zeros, kind, axes):
    check(gathered(kind, (20, 37, 24), WHERE, axes=axes, dtype=dtype, zeros=zeros))


@pytest.mark.parametrize(
    "indices", [np.zeros((0,), np.int64), np.array(2), np.array([5, -6, 2**40, -(2**63), 4])], ids=str
)
def test_gather_anywhere(indices):
    check(gathered("uint8", (5, 32), indices, zeros=True))
    check(gathered("int4", (5, 32), indices, zeros=True, misaligned=indices.size > 1))


def test_gather_against_the_cpu():
    check(gathered("uint8", (5, 64), WHERE, zeros=True, dtype="float32", reference=None))
    check(gathered("int4", (9, 37, 24), WHERE, axes=(1, 0), zeros=True, dtype="float32", reference=None))


@pytest.mark.parametrize("kind", ["float8e4m3fn", "float8e5m2", "float4e2m1"])
@pytest.mark.parametrize("scales", [None, (1, 1, 2), (6, 1, 2), (1, 37, 2)], ids=str)
def test_gather_floats(kind, scales):
    check(gathered(kind, (6, 37, 24), WHERE, axes=(0, 2), scales=scales))
    if scales is None:
        check(gathered(kind, (6, 37, 24), WHERE, axes=(1, 0), block=0))


def test_hostile_gather():
    def refused(words, attrs, data=(5, 16), scales=(5, 2), zeros=None):
        given = {"quantize_axis": 1, "block_size": 16, "bits": 4, **attrs}
        inputs = [np.zeros(data, np.uint8), WHERE, np.ones(scales, np.float32)]
        more = [] if zeros is None else [np.zeros(zeros, np.uint8)]
        fails("GatherBlockQuantized", inputs + more, given, words, domain=MICROSOFT, ranks=False)

    refused("gather_axis", {"gather_axis": 2})
    refused("first axis", {"gather_axis": 1})
    refused("first axis", {"quantize_axis": 0})
    refused("scales have shape", {}, scales=(5, 3))
    refused("zero_points have shape", {}, zeros=(5, 2))
    for attrs in [{"bits": 3}, {"block_size": 24}, {"block_size": 0}, {"block_size": 2**63 - 1}]:
        inputs = [np.zeros((5, 16), np.uint8), WHERE, np.ones((5, 2), np.float32)]
        declined("GatherBlockQuantized", inputs, {"block_size": 16, **attrs}, domain=MICROSOFT)


HALVES = ["float16", "bfloat16"]


def one(value):
    return Const(np.array(value, np.float32), fixed=True)


def fp8(m, depth, rows, block=128, dtype="float16", a_scale=None, bias=False):
    blocks = -(-depth // block)
    scales = np.abs(floats(rows, blocks)) / np.float32(3 * max(depth, 1) ** 0.5)
    inputs = [
        floats(m, depth, low=-1, high=1),
        Const(floats(rows, depth).astype(ml_dtypes.float8_e4m3fn)),
        Const(scales, fixed=True),
        None if a_scale is None else one(a_scale),
        floats(rows) if bias else None,
    ]
    while inputs[-1] is None:
        inputs.pop()

    def reference(a, b, scales, a_scale=None, bias=None):
        if a_scale is not None:
            a = (a / a_scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * a_scale
        weights = b.astype(np.float64) * np.repeat(scales, block, 1)[:, :depth]
        made = a.astype(np.float64) @ weights.T
        return [(made if bias is None else made + bias).astype(np.float32)]

    more = {"domain": MICROSOFT, "reference": reference, "family": "matmul", "name": f"by{block}-{a_scale}-{bias}"}
    return Case("MatMulBlockQuantizedFp8Weight", inputs, {"block_size": block}, dtype=dtype, **more)


def fp4(m, depth, rows, block=16, dtype="float16", bias=False):
    blocks = -(-depth // block)
    scales = np.abs(floats(rows, blocks)).astype(ml_dtypes.float8_e4m3fn)
    inputs = [
        floats(m, depth, low=-1, high=1),
        integers("uint8", rows, depth // 2, low=0, high=255),
        scales.view(np.uint8),
        one(0.4 / max(depth, 1) ** 0.5),
        one(1.5),
        floats(rows) if bias else None,
    ][: 5 + bias]

    def reference(a, b, scales, scale, _, bias=None):
        values = unpacked(b, 4).astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        few = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        weights = values * np.repeat(few, block, 1)[:, :depth] * scale
        made = a.astype(np.float64) @ weights.T
        return [(made if bias is None else made + bias).astype(np.float32)]

    more = {"domain": MICROSOFT, "reference": reference, "family": "matmul", "name": f"by{block}-{bias}"}
    return Case("MatMulBlockQuantizedFp4Weight", inputs, {"block_size": block}, dtype=dtype, **more)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("m", [0, 1, 5, 20])
@pytest.mark.parametrize("depth,rows,block", [(256, 40, 128), (100, 33, 32), (30, 5, 12), (2, 1, 128), (0, 3, 16)])
def test_floats(dtype, m, depth, rows, block):
    check(fp8(m, depth, rows, block, dtype))
    check(fp8(m, depth, rows, block, dtype, a_scale=0.0625, bias=True))
    check(fp4(m, depth, rows, block, dtype))
    check(fp4(m, depth, rows, block, dtype, bias=True))
