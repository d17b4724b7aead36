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

// x * P(a normally distributed number is less than x): what is left of a negative x keeps its digits.
DEVICE_FN float rough_gelu(float x) {
  const float tail = 0.5f * rough_tails(x < 0.f ? -x : x);
  return x * (x < 0.f ? tail : 1.f - tail);
}

}  // namespace encore::ops
