// Four bytes of a word as four values of T, Half or BFloat16, in two words: exact.
#pragma once
#include "device/pair.h"
#include "device/warp.h"

namespace encore::device {

struct TwoPairs {
  uint32_t at[2];
};

// Integers from -128 to 127. Seven bits are or'ed into the mantissa of a power of two, and the power is taken off
// again; the sign bit makes that 128 more.
template <class T>
DEVICE_FN TwoPairs values_of_int8(uint32_t bytes) {
  constexpr uint32_t kHalf = std::is_same_v<T, Half> ? 0x6400u : 0x4300u,
                     kOneHalf = std::is_same_v<T, Half> ? 0x3c00u : 0x3f80u;
  constexpr uint32_t kPower = kHalf * 0x10001u, kOne = kOneHalf * 0x10001u;
  uint32_t apart[2];  // bytes 0 and 2, 1 and 3
  UNROLL for (int i = 0; i < 2; ++i) {
    const uint32_t word = bytes >> 8 * i;
    apart[i] = multiply_add_pairs<T>(masked_with<0x007f007fu>(word, kPower), kOne,
                                     masked_with<0x00800080u>(word, kPower | 0x80008000u));
  }
  return {{low_halves(apart[0], apart[1]), high_halves(apart[0], apart[1])}};
}

template <class T>
DEVICE_FN TwoPairs values_of_float8(uint32_t bytes) {
  TwoPairs pairs;
#ifdef __CUDA_ARCH__
  UNROLL for (int i = 0; i < 2; ++i) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pairs.at[i]) : "h"(uint16_t(bytes >> 16 * i)));
    if constexpr (!std::is_same_v<T, Half>)
      pairs.at[i] = as_pair<T>(float(std::bit_cast<Half>(uint16_t(pairs.at[i]))),
                               float(std::bit_cast<Half>(uint16_t(pairs.at[i] >> 16))));
  }
#else
  for (int i = 0; i < 2; ++i) {
    float value[2];
    for (int j = 0; j < 2; ++j) value[j] = float(std::bit_cast<Float8E4M3>(uint8_t(bytes >> (16 * i + 8 * j))));
    pairs.at[i] = as_pair<T>(value[0], value[1]);
  }
#endif
  return pairs;
}

}  // namespace encore::device
