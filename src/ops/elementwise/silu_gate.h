// x * sigmoid(alpha * x) * y, of halves in float and roughly.
#pragma once
#include <cmath>

#include "ops/elementwise/rough.h"

namespace encore::ops {

struct SiluGate {
  float alpha = 1.f;
  template <class T>
  DEVICE_FN auto operator()(T x, T y) const {
    if constexpr (kIsHalf<T>)
      return rough(float(x), float(y));
    else
      return x / (T(1) + std::exp(-T(alpha) * x)) * y;
  }
  DEVICE_FN float rough(float x, float y) const { return x * rough_sigmoid(alpha * x) * y; }
};

}  // namespace encore::ops
