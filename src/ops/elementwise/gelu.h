// The two forms of Gelu, in the type to compute in.
#pragma once
#include <cmath>

#include "ops/elementwise/rough.h"

namespace encore::ops {

struct GeluByErf {
  template <class C>
  DEVICE_FN C operator()(C x) const {
    return C(0.5) * x * (C(1) + std::erf(x * C(0.7071067811865476)));
  }
  DEVICE_FN float rough(float x) const { return rough_gelu(x); }
};
struct GeluByTanh {
  template <class C>
  DEVICE_FN C operator()(C x) const {
    return C(0.5) * x * (C(1) + std::tanh(x * (C(0.7978845608028654) + C(0.035677408136300125) * x * x)));
  }
  // (1 + tanh(x)) / 2 is sigmoid(2 x).
  DEVICE_FN float rough(float x) const { return x * rough_sigmoid(x * (1.5957691216f + 0.0713548162726f * x * x)); }
};

}  // namespace encore::ops
