// Bits of a word: how many are set, and where the lowest of them stands.
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

}  // namespace encore::device
