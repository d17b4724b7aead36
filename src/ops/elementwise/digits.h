// Functions with as many digits as a type keeps: of halves by few instructions.
#pragma once
#include <cmath>

#include "device/fast_math.h"
#include "ops/elementwise/curves.h"
#include "ops/elementwise/rough.h"

namespace encore::ops {

template <class T>
DEVICE_FN float sigmoid_for(float x) {
  if constexpr (kIsHalf<T>)
    return rough_sigmoid(x);
  else
    return sigmoid(x);
}

// 1 / sqrt(x)
template <class T, class C>
DEVICE_FN C inverse_root_for(C x) {
  if constexpr (kIsHalf<T>)
    return device::fast_inverse_root(x);
  else
    return C(1) / std::sqrt(x);
}

}  // namespace encore::ops
