// Two neighbouring values of 16 bits in a word, the first in the low bits: arithmetic on both at once, and codes of a
// few bits that become such values.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/half.h"

namespace encore::device {

// bits & mask | more, which compilers make two instructions of if both are constants.
template <uint32_t kMask>
DEVICE_FN uint32_t masked_with(uint32_t bits, uint32_t more) {
#ifdef __CUDA_ARCH__
  uint32_t both;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(both) : "r"(bits), "n"(kMask), "r"(more));
  return both;
#else
  return (bits & kMask) | more;
#endif
}

// All bits of each half of which the highest is set.
DEVICE_FN uint32_t signs_of_pair(uint32_t pair) {
#ifdef __CUDA_ARCH__
  uint32_t signs;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(signs) : "r"(pair));
  return signs;
#else
  return (pair >> 15 & 0x10001u) * 0xffffu;
#endif
}

// The lesser of each two halves, which are unsigned.
DEVICE_FN uint32_t least_of_pairs(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return __vminu2(a, b);
#else
  const uint32_t low = (a & 0xffff) < (b & 0xffff) ? a : b, high = a >> 16 < b >> 16 ? a : b;
  return (low & 0xffff) | (high & 0xffff0000u);
#endif
}

// A word's byte, counted from the lowest, as a number in each half.
DEVICE_FN uint32_t byte_pair(uint32_t word, int byte) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, 0, 0x4040u + uint32_t(byte) * 0x101u);
#else
  return (word >> 8 * byte & 0xff) * 0x10001u;
#endif
}

// a * b + c, rounded once.
template <class T>
DEVICE_FN uint32_t multiply_add_pairs(uint32_t a, uint32_t b, uint32_t c) {
  static_assert(std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>);
#ifdef __CUDA_ARCH__
  uint32_t sums;
  if constexpr (std::is_same_v<T, Half>)
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(a), "r"(b), "r"(c));
  else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(a), "r"(b), "r"(c));
  return sums;
#else
  const auto value = [](uint32_t pair, int i) { return float(std::bit_cast<T>(uint16_t(pair >> 16 * i))); };
  uint32_t sums = 0;
  for (int i = 0; i < 2; ++i) sums |= uint32_t(T(std::fma(value(a, i), value(b, i), value(c, i))).bits) << 16 * i;
  return sums;
#endif
}

// Whole numbers of kBits, as they lie in a word from the lowest bits on, less a zero point. Or'ed into the mantissa of
// 2^kMantissa they are values already; what lies further up in the mantissa is so many times as large.
template <class T, int kBits>
struct PairedCodes {
  static constexpr int kMantissa = std::is_same_v<T, Half> ? 10 : 7, kBias = std::is_same_v<T, Half> ? 15 : 127;
  static constexpr int kPairs = 16 / kBits;          // of a word
  static constexpr int kAtOnce = kMantissa / kBits;  // of them that a mantissa has room for
  static constexpr uint32_t kPower = uint32_t(kBias + kMantissa) << kMantissa;
  static_assert(kAtOnce > 0);
  uint32_t minus_zero[kAtOnce];

  PairedCodes() = default;
  // Of the zero point in each half.
  DEVICE_FN explicit PairedCodes(uint32_t zeros) {
    UNROLL for (int i = 0; i < kAtOnce; ++i) {
      const int up = i * kBits;
      minus_zero[i] = (zeros << up) + (0x8000u | (kPower - (uint32_t(up) << kMantissa))) * 0x10001u;
    }
  }
  // The number kI of each half of the word: exact.
  template <int kI>
  DEVICE_FN uint32_t pair(uint32_t word) const {
    constexpr int kAt = kI % kAtOnce, kUp = kAt * kBits;
    constexpr uint32_t kMask = (((1u << kBits) - 1) << kUp) * 0x10001u;
    return multiply_add_pairs<T>(masked_with<kMask>(word >> (kI - kAt) * kBits, kPower * 0x10001u),
                                 (uint32_t(kBias - kUp) << kMantissa) * 0x10001u, minus_zero[kAt]);
  }
};

}  // namespace encore::device
