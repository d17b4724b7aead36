// Floating-point numbers as integers.
#pragma once
#include <cstdint>
#include <limits>
#include <type_traits>

#include "device/annotate.h"

namespace encore::ops {

// A floating-point number towards zero, kept in the range of Int; NaN gives 0.
template <class Int, class Float>
DEVICE_FN Int saturated(Float x) {
  constexpr Float kEnd = Float(uint64_t(1) << (std::numeric_limits<Int>::digits - 1)) * 2;  // one above the greatest
  if (!(x < kEnd)) return x != x ? Int(0) : std::numeric_limits<Int>::max();
  if (!(x > (std::is_signed_v<Int> ? -kEnd : Float(-1)))) return std::numeric_limits<Int>::min();
  return Int(x);
}
// What ONNX leaves open, beyond the range, is as compilers have it: narrow types take the low bits of a wider integer.
template <class Int, class Float>
DEVICE_FN Int truncated(Float x) {
  if constexpr (sizeof(Int) < 4)
    return Int(saturated<int32_t>(x));
  else if constexpr (std::is_same_v<Int, uint32_t>)
    return Int(saturated<int64_t>(x));
  else if constexpr (std::is_same_v<Int, uint64_t>)
    return x < Float(0) ? Int(saturated<int64_t>(x)) : saturated<Int>(x);
  else
    return saturated<Int>(x);
}

}  // namespace encore::ops
