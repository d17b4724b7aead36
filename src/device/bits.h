// Bits of a word: how many are set, where the lowest and the highest of them stand, and the lowest so many.
#pragma once
#include <bit>
#include <cstdint>

#include "device/annotate.h"

namespace encore::device {

DEVICE_FN int set_bits(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __popc(word);
#else
  return std::popcount(word);
#endif
}

// Of a word that is not zero.
DEVICE_FN int lowest_bit(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __ffs(int(word)) - 1;
#else
  return std::countr_zero(word);
#endif
}

// Of a word that is not zero.
DEVICE_FN int highest_bit(uint32_t word) {
#ifdef __CUDA_ARCH__
  return 31 - __clz(int(word));
#else
  return 31 - std::countl_zero(word);
#endif
}

// A word of which so many are set, from the lowest on; all if that is more than it has.
DEVICE_FN uint32_t low_bits(int count) {
#ifdef __CUDA_ARCH__
  uint32_t bits;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(bits) : "r"(count));
  return bits;
#else
  return count < 32 ? (uint32_t(1) << count) - 1 : ~uint32_t(0);
#endif
}

}  // namespace encore::device
