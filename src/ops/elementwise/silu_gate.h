// x * sigmoid(alpha * x) * y, of halves in float and roughly.
#pragma once
#include "ops/elementwise/curves.h"
#include "ops/elementwise/rough.h"

namespace encore::ops {

struct SiluGate {
  float alpha = 1.f;
  template <class T>
  DEVICE_FN auto operator()(T x, T y) const {
    if constexpr (kIsHalf<T>)
      return rough(float(x), float(y));
    else
      return silu(x, T(alpha)) * y;
  }
  DEVICE_FN float rough(float x, float y) const { return rough_silu(x, alpha) * y; }
};

}  // namespace encore::ops
