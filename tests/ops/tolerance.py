"""How far Encore's result may be from the reference, per element type and family. Written once, here.

elementwise  float: a few ulps, since exp, tanh, erf and pow differ between math libraries. Half types: one rounding of
             a result computed in float, so one ulp of the type.
reduce       the order of summation differs: the error grows with the square root of the length; 2^12 long at most here.
matmul       as reduce; on CUDA float products run in TF32 by default (10 bits of mantissa), so the tests turn that off.
recurrent    as matmul, and what a step rounds the next one starts from; the CPU EP has sigmoid and tanh as polynomials.
fourier      errors grow with the root of the length's logarithm, but all of a row's numbers share in the largest one.
in bytes     as recurrent, and where a last bit of a state differs, it may be quantized to the next of 255 steps, which
             are at most 0.008 wide; a weight of at most 0.6 and the slope of a sigmoid make less of it.
experts      as matmul; halves round what an expert's first layer makes, what its second makes, and quantized weights.
attention    a half's result is rounded once; the references keep their powers in float, as Encore does.
in TF32      as attention, of queries, keys, values and probabilities that have 10 bits of mantissa.
heads        as attention, and what has a bias or a mask added is rounded before.
masked heads as heads; where all that a query sees is masked, 10000 less leaves a score three digits after the point.
projected    as heads, after a product that is rounded.
turned       as projected, and turned by an angle of hundreds in float.
cached       as attention; queries and keys are rounded once more where they are turned, and keys where they are kept,
             which the references don't do.
indexer      entries are rounded once.
rotary       products that cancel: an error of the inputs' magnitude, at most 3.
softmax      as elementwise, but the CPU EP has exp as a polynomial.
log softmax  as softmax; logarithms of sums near one cancel.
gelu         as elementwise, but far below zero 1 + erf and 1 + tanh have few digits left.
biased       sums that may be near zero, and behind them exp, which the CPU EP has as a polynomial.
complex      differences of products may be small.
inverse      errors grow with the condition, of some hundreds in shuffled matrices.
engram       the gate is a root, which near zero makes much of small differences.
probit       of probabilities near a half, and near none, a small difference of large numbers; its constants have six
             digits.
exact        integers, booleans, movement, comparisons: not a bit may differ.
"""

TOLERANCE = {  # (family, type) -> (relative, absolute)
    ("elementwise", "float32"): (2e-6, 2e-7),
    ("elementwise", "float64"): (1e-12, 1e-13),
    ("elementwise", "float16"): (1.0e-3, 1e-6),
    ("elementwise", "bfloat16"): (8e-3, 1e-6),
    ("reduce", "float32"): (2e-5, 2e-5),
    ("reduce", "float64"): (1e-11, 1e-11),
    ("reduce", "float16"): (2e-3, 2e-3),
    ("reduce", "bfloat16"): (1.6e-2, 1.6e-2),
    ("matmul", "float32"): (3e-5, 3e-5),
    ("matmul", "float64"): (1e-11, 1e-11),
    ("matmul", "float16"): (4e-3, 4e-3),
    ("matmul", "bfloat16"): (3e-2, 3e-2),
    ("fourier", "float32"): (1e-5, 1e-4),
    ("fourier", "float64"): (1e-12, 1e-12),
    ("fourier", "float16"): (1e-3, 2e-3),
    ("fourier", "bfloat16"): (8e-3, 1e-2),
    ("recurrent", "float32"): (1e-5, 1e-5),
    ("recurrent", "float64"): (1e-12, 1e-12),
    ("recurrent", "float16"): (4e-3, 4e-3),
    ("recurrent", "bfloat16"): (3e-2, 3e-2),
    ("in bytes", "float32"): (2e-3, 2e-3),
    ("experts", "float32"): (2e-5, 2e-5),
    ("experts", "float16"): (4e-3, 4e-3),
    ("experts", "bfloat16"): (3e-2, 3e-2),
    ("attention", "float32"): (2e-5, 2e-6),
    ("attention", "float64"): (1e-11, 1e-12),
    ("attention", "float16"): (2e-3, 1e-3),
    ("attention", "bfloat16"): (1.6e-2, 8e-3),
    ("in TF32", "float32"): (4e-3, 4e-3),
    ("heads", "float32"): (3e-5, 5e-6),
    ("heads", "float16"): (4e-3, 3e-3),
    ("heads", "bfloat16"): (3e-2, 2.4e-2),
    ("masked heads", "float32"): (2e-3, 2e-3),
    ("masked heads", "float16"): (4e-3, 3e-3),
    ("masked heads", "bfloat16"): (3e-2, 2.4e-2),
    ("projected", "float32"): (1e-4, 2e-5),
    ("projected", "float16"): (8e-3, 6e-3),
    ("projected", "bfloat16"): (6e-2, 5e-2),
    ("turned", "float32"): (5e-4, 2e-4),
    ("turned", "float16"): (8e-3, 6e-3),
    ("turned", "bfloat16"): (6e-2, 5e-2),
    ("cached", "float32"): (3e-5, 3e-6),
    ("cached", "float16"): (4e-3, 3e-3),
    ("cached", "bfloat16"): (3e-2, 2e-2),
    ("indexer", "float32"): (1e-4, 1e-5),
    ("indexer", "float16"): (2e-3, 1e-3),
    ("indexer", "bfloat16"): (2e-2, 1e-2),
    ("rotary", "float32"): (2e-6, 1e-6),
    ("rotary", "float16"): (1e-3, 2e-3),
    ("rotary", "bfloat16"): (8e-3, 1.6e-2),
    ("softmax", "float32"): (1e-5, 1e-6),
    ("softmax", "float64"): (1e-11, 1e-12),
    ("softmax", "float16"): (1e-3, 1e-6),
    ("softmax", "bfloat16"): (8e-3, 1e-6),
    ("log softmax", "float32"): (1e-5, 1e-6),
    ("log softmax", "float64"): (1e-11, 1e-12),
    ("log softmax", "float16"): (2e-3, 2e-3),
    ("log softmax", "bfloat16"): (1.6e-2, 1.6e-2),
    ("gelu", "float32"): (3e-6, 1e-6),
    ("gelu", "float64"): (1e-11, 1e-12),
    ("gelu", "float16"): (1e-3, 1e-5),
    ("gelu", "bfloat16"): (8e-3, 1e-5),
    ("biased", "float32"): (1e-5, 1e-6),
    ("biased", "float64"): (1e-11, 1e-12),
    ("biased", "float16"): (2e-3, 2e-4),
    ("biased", "bfloat16"): (1.6e-2, 2e-3),
    ("complex", "float32"): (1e-6, 3e-6),
    ("complex", "float64"): (1e-12, 1e-13),
    ("complex", "float16"): (1e-3, 1e-6),
    ("inverse", "float32"): (1e-3, 1e-3),
    ("inverse", "float64"): (1e-9, 1e-9),
    ("inverse", "float16"): (2e-2, 2e-2),
    ("engram", "float32"): (1e-4, 2e-4),
    ("engram", "float16"): (4e-3, 4e-3),
    ("engram", "bfloat16"): (2e-2, 2e-2),
    ("probit", "float32"): (1e-2, 2e-3),
}

# How many steps of 8 bits, where what is rounded to them may lie between two.
ONE_STEP = {
    "QLinearAdd": 1,  # the CPU EP fuses sums and products in an order that depends on the processor and on the shapes
    "QLinearSigmoid": 1,  # which the CPU EP has as a polynomial
    "QLinearSoftmax": 1,  # the order of summation differs
    "QLinearAveragePool": 1,  # so does that of the CPU EP, where channels are last
}


def tolerance(family, dtype):
    if family == "exact":
        return 0.0, 0.0
    return TOLERANCE.get((family, str(dtype)), (0.0, 0.0))
