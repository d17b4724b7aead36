// Functions that a GPU has an instruction for: right to some 22 bits, for results that keep fewer. Numbers below the
// normal ones are taken, and given, as zero, unless a function says otherwise.
#pragma once
#include <cfloat>
#include <cmath>

#include "device/annotate.h"

namespace encore::device {

DEVICE_FN float as_normal(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.f, x) : x; }

// 2^x
DEVICE_FN float fast_exp2(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return as_normal(std::exp2(as_normal(x)));
#endif
}

// 1 / x
DEVICE_FN float fast_reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return as_normal(1.f / as_normal(x));
#endif
}

// 1 / (1 + e^-x)
DEVICE_FN float fast_sigmoid(float x) { return fast_reciprocal(1.f + fast_exp2(-x * 1.4426950408889634f)); }

// 1 / sqrt(x), also of what is below the normal numbers: an epsilon may be all that there is, and its root is normal.
DEVICE_FN float fast_inverse_root(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.f / std::sqrt(x);
#endif
}

}  // namespace encore::device
