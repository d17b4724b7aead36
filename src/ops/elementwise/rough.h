// Functions with as many digits as half types keep, in few instructions: at most 1e-5 of the result off.
#pragma once
#include <type_traits>

#include "device/fast_math.h"
#include "device/half.h"

namespace encore::ops {

using device::Compute;

template <class T>
inline constexpr bool kIsHalf = sizeof(T) == 2 && !std::is_same_v<Compute<T>, T>;

DEVICE_FN float rough_exp(float x) { return device::fast_exp2(x * 1.4426950408889634f); }

DEVICE_FN float rough_sigmoid(float x) { return device::fast_sigmoid(x); }

DEVICE_FN float rough_silu(float x, float alpha = 1.f) { return x * rough_sigmoid(alpha * x); }

DEVICE_FN float rough_tanh(float x) {
  // Near zero the difference has no digits left.
  if (x * x < 1e-3f) return x - x * x * x * 0.33333333f;
  return 1.f - 2.f * device::fast_reciprocal(1.f + rough_exp(2.f * x));
}

// The probability that a normally distributed number is more than x, twice: erfc(x / sqrt(2)), of x >= 0. It is
// e^(-x^2 / 2) times a polynomial of 1 / (1 + 0.31 x), which was fitted to the least relative error up to x = 13.
DEVICE_FN float rough_tails(float x) {
  const float t = device::fast_reciprocal(1.f + 0.31f * x);
  const float power = device::fast_exp2(x * x * -0.72134752f);
  return power * t *
         (0.24772214f +
          t * (0.24087413f + t * (0.26689495f + t * (0.03142040f + t * (0.36096381f + t * -0.14788013f)))));
}

DEVICE_FN float rough_erf(float x) {
  const float square = x * x;
  if (square < 1e-2f) return x * 1.1283792f * (1.f + square * (-0.33333333f + square * 0.1f));
  const float rest = 1.f - rough_tails((x < 0.f ? -x : x) * 1.4142136f);
  return x < 0.f ? -rest : rest;
}

// x * P(a normally distributed number is less than x): what is left of a negative x keeps its digits. The logarithm of
// the probability that it is more than x >= 0 is a polynomial, which was fitted to an error of 1.5e-5 of the
// probability up to x = 5.6, and of 1.4e-3 from there to 13, where nothing is left that a half could tell. It takes one
// of the functions of which a multiprocessor computes few at a time.
DEVICE_FN float rough_gelu(float x) {
  const float a = fminf(fabsf(x), 16.f);  // the polynomial is small enough there, and grows again far behind
  const float high = -9.3639537e-4f + a * (6.7572662e-5f + a * (-2.7951596e-6f + a * 4.978082e-8f));
  const float all =
      -1.0000196f + a * (-1.1510032f + a * (-0.45894605f + a * (-5.3628355e-2f + a * (8.4278258e-3f + a * high))));
  const float tail = device::fast_exp2(all);
  return x * (x < 0.f ? tail : 1.f - tail);
}

}  // namespace encore::ops
