// Words of codes of eight or of four bits, two of which become a pair of neighbouring values of 16 bits: exactly.
#pragma once
#include "device/pair.h"
#include "device/transform.h"
#include "device/warp.h"

namespace encore::device {

// Bytes 2 kI and 2 kI + 1 as the low bits of halves, below `above`.
template <int kI>
DEVICE_FN uint32_t bytes_apart(uint32_t word, uint32_t above) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, above, kI == 0 ? 0x4140 : 0x4342);
#else
  return (word >> 16 * kI & 0xff) | (word >> (16 * kI + 8) & 0xff) << 16 | (above & 0xff) * 0x1000100u;
#endif
}

// Signed integers. In the mantissa of a power of two they are added to it already.
template <class T, int kI>
DEVICE_FN uint32_t pair_of_integers(uint32_t word) {
  if constexpr (std::is_same_v<T, Half>) {  // 1024, and 128 more than they are
    return multiply_add_pairs<T>(bytes_apart<kI>(word ^ 0x80808080u, 0x64), 0x3c003c00u, 0xe480e480u);
  } else {  // 128 and the lower seven bits, of which the sign takes 128 or 256
    const uint32_t codes = bytes_apart<kI>(word, 0);
    return multiply_add_pairs<T>(masked_with<0x7f007fu>(codes, 0x43004300u), 0x3f803f80u,
                                 masked_with<0x800080u>(codes, 0xc300c300u));
  }
}

// Floats with a mantissa of three bits, of which GPUs from 8.9 on have an instruction that makes float16.
template <int kI>
DEVICE_FN uint32_t halves_of_floats(uint32_t word) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(word >> 16 * kI)));
  return halves;
#else  // Moved up to where float16 has exponent and mantissa they are 1/256 of their value. A NaN has all bits set.
  const uint32_t codes = bytes_apart<kI>(word, 0), magnitudes = codes & 0x7f007fu;
  const uint32_t nans = ((magnitudes + 0x10001u) & 0x800080u) * 0xff;
  return multiply_add_pairs<Half>(magnitudes << 7, 0x5c005c00u, 0) | nans | (codes & 0x800080u) << 8;
#endif
}
template <class T, int kI>
DEVICE_FN uint32_t pair_of_floats(uint32_t word) {
  const uint32_t halves = halves_of_floats<kI>(word);
  if constexpr (std::is_same_v<T, Half>) return halves;
  return as_pair<T>(float(std::bit_cast<Half>(uint16_t(halves))), float(std::bit_cast<Half>(uint16_t(halves >> 16))));
}

// The eight values of two words.
template <class T>
DEVICE_FN Pack<uint32_t, 4> eight_integers(const Pack<uint32_t, 2>& codes) {
  return {pair_of_integers<T, 0>(codes.at[0]), pair_of_integers<T, 1>(codes.at[0]), pair_of_integers<T, 0>(codes.at[1]),
          pair_of_integers<T, 1>(codes.at[1])};
}
template <class T>
DEVICE_FN Pack<uint32_t, 4> eight_floats(const Pack<uint32_t, 2>& codes) {
  return {pair_of_floats<T, 0>(codes.at[0]), pair_of_floats<T, 1>(codes.at[0]), pair_of_floats<T, 0>(codes.at[1]),
          pair_of_floats<T, 1>(codes.at[1])};
}

// The eight of a word, whole numbers of four bits with a zero of 8, the first one in the lowest bits.
template <class T>
DEVICE_FN Pack<uint32_t, 4> eight_nibbles(const Pack<uint32_t, 1>& codes) {
  const PairedCodes<T, 4> paired(0x80008);
  const uint32_t word = codes.at[0], a = paired.template pair<0>(word), b = paired.template pair<1>(word),
                 c = paired.template pair<2>(word), d = paired.template pair<3>(word);
  return {low_halves(a, b), low_halves(c, d), high_halves(a, b), high_halves(c, d)};
}

}  // namespace encore::device
