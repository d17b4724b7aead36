// The names of scalar functions.
#pragma once
#include <cstdint>

namespace encore::ops {

// The functions of ops/elementwise/scalar_functions.h that expressions call. Floats of a half type are computed in
// float; bools are 0 and 1. Some are of integers, too, or of these alone (integer_call.h).
enum class ScalarFunction : uint8_t {
  // of two
  add,
  sub,
  mul,
  quotient,
  least,
  greatest,
  power,
  same,
  below,
  below_or_same,
  above,
  above_or_same,
  both,
  either,
  one_only,
  // of three
  select,
  // of one
  cast,
  abs,
  neg,
  sign,
  exp,
  log,
  sqrt,
  reciprocal,
  erf,
  ceil,
  floor,
  round,
  inverted,
  relu,
  leaky_relu,
  elu,
  selu,
  sigmoid,
  hard_sigmoid,
  hard_swish,
  softplus,
  softsign,
  tanh,
  celu,
  mish,
  swish,
  gelu,
  tanh_gelu,
  to_uint8,  // quantizes
  to_int8,
  from_linear,  // dequantizes
  // of two integers
  remainder,
  remainder_of_c,
};

}  // namespace encore::ops
