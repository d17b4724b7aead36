// Products of signed bytes, four at once.
#pragma once
#include <cstdint>

#include "device/transform.h"

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

// The same of packs of words.
template <int kWords>
DEVICE_FN int32_t dot(const Pack<uint32_t, kWords>& a, const Pack<uint32_t, kWords>& b, int32_t sum) {
  UNROLL for (int w = 0; w < kWords; ++w) sum = dot4(a.at[w], b.at[w], sum);
  return sum;
}

}  // namespace encore::device
