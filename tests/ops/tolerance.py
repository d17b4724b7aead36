"""How far Encore's result may be from the reference, per element type and family. Written once, here.

elementwise  float: a few ulps, since exp, tanh, erf and pow differ between math libraries. Half types: one rounding of
             a result computed in float, so one ulp of the type.
reduce       the order of summation differs: the error grows with the square root of the length; 2^12 long at most here.
matmul       as reduce; on CUDA float products run in TF32 by default (10 bits of mantissa), so the tests turn that off.
recurrent    as matmul, and what a step rounds the next one starts from; the CPU EP has sigmoid and tanh as polynomials.
fourier      errors grow with the root of the length's logarithm, but all of a row's numbers share in the largest one.
in bytes     as recurrent, and where a last bit of a state differs, it may be quantized to the next of 255 steps, which
             are at most 0.008 wide; a weight of at most 0.6 and the slope of a sigmoid make less of it.
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
