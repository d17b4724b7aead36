"""Weights and tables quantized in blocks, as models of language have them."""

from proposals import MICROSOFT, proposes


def _bytes(s, *shape):
    return s.fixed(s.draw.numpy.integers(0, 256, shape), "uint8", constant=0.8)


def _scales(s, name, *shape, bits=2):
    most = 1 / 2**bits  # so that weights stay below one
    return s.new(s.draw.numpy.uniform(-most, most, shape), name, constant=0.8, fixed=True)


# Weights are rounded to halves before they are multiplied by what may be some tens.
HALVES = {"float16": (4e-3, 4e-2), "bfloat16": (3e-2, 3e-1)}


@proposes("MatMulNBits", domain=MICROSOFT, family="matmul", tolerance=HALVES, sums=True, mild=True)
def matmul_nbits(s):
    a = s.data(low=1, high=4, mild=True)
    depth, rows, bits = a.array.shape[-1], s.draw.pick([1, 7, 16, 17, 40]), s.draw.pick([2, 4, 4, 8])
    if depth == 0:
        a = s.data([a.type], shape=[3, 64], mild=True)
        depth = 64
    block = s.draw.pick([16, 32, 64, 128])
    blocks = -(-depth // block)
    zeros = s.maybe(0.5, lambda: _bytes(s, rows, -(-blocks * bits // 8)))
    bias = s.maybe(0.4, lambda: s.new(s.draw.numpy.uniform(-1, 1, rows), a.type, constant=0.8, fixed=True))
    inputs = [
        a,
        _bytes(s, rows, blocks, block * bits // 8),
        _scales(s, a.type, rows, blocks, bits=bits),
        zeros,
        None,
        bias,
    ]
    return s.node(*inputs, N=rows, K=depth, bits=bits, block_size=block)


@proposes("MatMulBnb4", domain=MICROSOFT, family="matmul", tolerance=HALVES, sums=True, mild=True)
def matmul_bnb4(s):
    a = s.data(low=1, high=4, mild=True)
    depth, rows = a.array.shape[-1], s.draw.pick([1, 7, 16, 17, 40])
    if depth == 0:
        a = s.data([a.type], shape=[3, 64], mild=True)
        depth = 64
    block = s.draw.pick([16, 32, 64, 128])
    count = rows * depth
    inputs = [a, _bytes(s, -(-count // 2)), _scales(s, a.type, -(-count // block))]
    return s.node(*inputs, N=rows, K=depth, block_size=block, quant_type=s.draw.pick([0, 1]))


@proposes("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(s):
    kind, bits, block = s.draw.pick(["float", "float16"]), s.draw.pick([4, 8]), s.draw.pick([16, 32])
    rows, width = s.draw.number(1, 20), s.draw.pick([2, 8, 16, 32, 40, 66])
    blocks, in_byte = -(-width // block), 8 // bits
    indices = s.draw.numpy.integers(-rows, rows, s.draw.shape(0, 3))
    zeros = s.maybe(0.5, lambda: _bytes(s, rows, -(-blocks // in_byte)))
    inputs = [_bytes(s, rows, width // in_byte), s.fixed(indices, s.draw.pick(["int32", "int64"]), constant=0.2)]
    return s.node(*inputs, _scales(s, kind, rows, blocks), zeros, types=[kind], bits=bits, block_size=block)


def _depth(s, even):
    a = s.data(low=1, high=4, mild=True)
    depth = a.array.shape[-1]
    return a if depth and depth % 2 <= 1 - even else s.data([a.type], shape=[3, 64], mild=True)


@proposes("MatMulBlockQuantizedFp8Weight", domain=MICROSOFT, family="matmul", sums=True, mild=True)
def matmul_block_fp8(s):
    a = _depth(s, even=False)
    depth, rows, block = a.array.shape[-1], s.draw.pick([1, 7, 16]), s.draw.pick([16, 128])
    b = s.new(s.draw.numpy.uniform(-3, 3, (rows, depth)), "float8e4m3fn", constant=0.8, fixed=True)
    return s.node(a, b, _scales(s, "float", rows, -(-depth // block)), block_size=block)


@proposes("MatMulBlockQuantizedFp4Weight", domain=MICROSOFT, family="matmul", sums=True, mild=True)
def matmul_block_fp4(s):
    a = _depth(s, even=True)
    depth, rows, block = a.array.shape[-1], s.draw.pick([1, 7, 16]), s.draw.pick([16, 32])
    scales = s.fixed(s.draw.numpy.integers(0, 60, (rows, -(-depth // block))), "uint8", constant=0.8)
    return s.node(a, _bytes(s, rows, depth // 2), scales, s.fixed(0.1, "float"), block_size=block)


@proposes("GemmFloat8", domain=MICROSOFT, family="matmul", sums=True, mild=True)
def gemm_float8(s):
    narrow = ["float8e4m3fn", "float8e5m2"]
    m, n, k = (s.draw.pick([1, 5, 16, 33]), s.draw.pick([7, 16, 48]), s.draw.pick([3, 16, 64]))
    trans_a, trans_b = s.draw.chance(0.2), s.draw.chance(0.8)
    draw = lambda *shape: s.draw.numpy.uniform(-2, 2, shape)
    types = [s.draw.pick([*narrow, *narrow, "float16", "bfloat16", "float"]) for _ in "ab"]
    a = s.new(draw(*((k, m) if trans_a else (m, k))), types[0], constant=0.2, fixed=True)
    b = s.new(draw(*((n, k) if trans_b else (k, n))), types[1], constant=0.8, fixed=True)
    inputs = [a, b, None, None, None, None]
    if adds := s.draw.chance(0.4):
        inputs[2] = s.new(draw(s.draw.pick([1, m]), s.draw.pick([1, n])), "float", constant=0.5, fixed=True)
    for i in (3, 4, 5):
        if s.draw.chance(0.4):
            inputs[i] = s.fixed([s.draw.pick([0.5, 1.0, 2.0])], "float")
    return s.node(
        *inputs,
        types=["float"],
        transA=1 if trans_a else None,
        transB=1 if trans_b else None,
        alpha=s.maybe(0.3, lambda: 0.5),
        beta=1.0 if adds else None,
        activation=s.maybe(0.4, lambda: s.draw.pick(["NONE", "RELU", "GELU"])),
    )
