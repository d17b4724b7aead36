// Where the lowest bit of a word that is not zero stands.
#pragma once
#include <bit>
#include <cstdint>

#include "device/annotate.h"

namespace encore::device {

DEVICE_FN int lowest_bit(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __ffs(int(word)) - 1;
#else
  return std::countr_zero(word);
#endif
}

}  // namespace encore::device
