// Arithmetic whose every step is rounded, where a last bit, or an infinity between, decides.
#pragma once
#include "device/annotate.h"

namespace encore::device {

// A product that is not fused with the sum that follows, as compilers for GPUs would have it.
DEVICE_FN float rounded_product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
DEVICE_FN double rounded_product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

}  // namespace encore::device
