// The two forms of Gelu, in the type to compute in.
#pragma once
#include <cmath>

#include "device/annotate.h"

namespace encore::ops {

struct GeluByErf {
  template <class C>
  DEVICE_FN C operator()(C x) const {
    return C(0.5) * x * (C(1) + std::erf(x * C(0.7071067811865476)));
  }
};
struct GeluByTanh {
  template <class C>
  DEVICE_FN C operator()(C x) const {
    return C(0.5) * x * (C(1) + std::tanh(x * (C(0.7978845608028654) + C(0.035677408136300125) * x * x)));
  }
};

}  // namespace encore::ops
