// The powers of softmax.
#pragma once
#include <cmath>
#include <limits>
#include <type_traits>

#include "device/fast_math.h"
#include "device/half.h"

namespace encore::ops {

template <class C>
inline constexpr C kLowest = -std::numeric_limits<C>::infinity();

// e^x, with as many digits as T keeps.
template <class T, class C>
DEVICE_FN C power_of(C x) {
  if constexpr (sizeof(T) == 2)
    return device::fast_exp2(x * C(1.4426950408889634));
  else
    return std::exp(x);
}
// e^(x - top), or almost: all of a row are off alike. Products of a bfloat16's lowest numbers, which masks are made of,
// would be infinite, so there the difference comes first.
template <class T, class C>
DEVICE_FN C power_below(C x, C top) {
  if constexpr (std::is_same_v<T, device::Half>)
    return device::fast_exp2(x * C(1.4426950408889634) - top * C(1.4426950408889634));
  else if constexpr (sizeof(T) == 2)
    return device::fast_exp2((x - top) * C(1.4426950408889634));
  else
    return std::exp(x - top);
}

}  // namespace encore::ops
