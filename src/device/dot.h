// Four products of signed bytes at once.
#pragma once
#include <cstdint>

#include "device/annotate.h"

namespace encore::device {

// sum + the products of the bytes of a and b, which wraps.
DEVICE_FN int32_t dot4(uint32_t a, uint32_t b, int32_t sum) {
#ifdef __CUDA_ARCH__
  return __dp4a(int(a), int(b), sum);
#else
  uint32_t total = uint32_t(sum);
  for (int i = 0; i < 4; ++i) total += uint32_t(int(int8_t(a >> 8 * i)) * int(int8_t(b >> 8 * i)));
  return int32_t(total);
#endif
}

}  // namespace encore::device
