// x * sigmoid(x) * y, of halves in float and roughly.
#pragma once
#include "ops/elementwise/curves.h"
#include "ops/elementwise/rough.h"

namespace encore::ops {

struct SiluGate {
  template <class T>
  DEVICE_FN auto operator()(T x, T y) const {
    if constexpr (kIsHalf<T>)
      return rough(float(x), float(y));
    else
      return silu(x) * y;
  }
  DEVICE_FN float rough(float x, float y) const { return x * rough_sigmoid(x) * y; }
};

}  // namespace encore::ops
