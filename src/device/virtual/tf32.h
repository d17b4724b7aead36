// Floats as tensor cores read them: rounded to 10 bits of mantissa.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace encore::device {

inline float rounded_to_tf32(float value) {
  if (!std::isfinite(value)) return value;
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0xfff + (bits >> 13 & 1)) & ~uint32_t{0x1fff});
}

}  // namespace encore::device
