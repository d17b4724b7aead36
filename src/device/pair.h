// Arithmetic on two neighbouring halves in a word at once.
#pragma once
#include <bit>
#include <type_traits>

#include "device/half.h"

namespace encore::device {

// a * b + c, rounded once on CUDA.
template <class T>
DEVICE_FN uint32_t multiply_add_pairs(uint32_t a, uint32_t b, uint32_t c) {
  static_assert(std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>);
#ifdef __CUDA_ARCH__
  uint32_t y;
  if constexpr (std::is_same_v<T, Half>)
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
#else
  uint32_t y = 0;
  for (int i = 0; i < 2; ++i) {
    const auto half = [i](uint32_t pair) { return float(std::bit_cast<T>(uint16_t(pair >> 16 * i))); };
    y |= uint32_t(T(half(a) * half(b) + half(c)).bits) << 16 * i;
  }
  return y;
#endif
}

}  // namespace encore::device
