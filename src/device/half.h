// Half, BFloat16, Float8E4M3 and Float8E5M2: storage types that convert to and from float, alike on both devices.
// Kernels compute in float: `float v = x[i]; y[i] = T(v)`.
#pragma once
#include <bit>
#include <cstdint>

#include "device/annotate.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace encore::device {

namespace detail {

// Rounds a float to `kMantissa` bits of mantissa and `kExponent` bits of exponent, to nearest even.
template <int kExponent, int kMantissa>
BOTH_FN uint32_t narrow(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 31 << (kExponent + kMantissa);
  const uint32_t magnitude = bits & 0x7fffffffu;
  constexpr uint32_t kInfinity = ((1u << kExponent) - 1) << kMantissa;
  constexpr int kBias = (1 << (kExponent - 1)) - 1, kDrop = 23 - kMantissa;
  if (magnitude > 0x7f800000u) return sign | kInfinity | (1u << (kMantissa - 1));
  if (magnitude == 0x7f800000u) return sign | kInfinity;
  const int exponent = int(magnitude >> 23) - 127 + kBias;
  if (exponent >= (1 << kExponent) - 1) return sign | kInfinity;
  if (exponent > 0) {
    const uint32_t kept = (uint32_t(exponent) << kMantissa) | ((magnitude & 0x7fffffu) >> kDrop);
    const uint32_t rest = magnitude & ((1u << kDrop) - 1), half = 1u << (kDrop - 1);
    return sign | (kept + (rest > half || (rest == half && (kept & 1))));  // a carry moves into the exponent, rightly
  }
  const int shift = kDrop + 1 - exponent;
  if (shift > 31) return sign;
  const uint32_t full = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t kept = shift > 24 ? 0 : full >> shift;
  const uint32_t rest = full & ((1u << shift) - 1), half = 1u << (shift - 1);
  return sign | (kept + (rest > half || (rest == half && (kept & 1))));
}
template <int kExponent, int kMantissa>
BOTH_FN float widen(uint32_t bits) {
  const uint32_t sign = bits >> (kExponent + kMantissa) << 31;
  const uint32_t exponent = (bits >> kMantissa) & ((1u << kExponent) - 1), mantissa = bits & ((1u << kMantissa) - 1);
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  if (exponent == (1u << kExponent) - 1)
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << (23 - kMantissa)));
  if (exponent) return std::bit_cast<float>(sign | ((exponent + 127 - kBias) << 23) | (mantissa << (23 - kMantissa)));
  // Subnormal: mantissa * 2^(1 - bias - kMantissa), exact in float.
  const float scale = std::bit_cast<float>(uint32_t(127 + 1 - kBias - kMantissa) << 23);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(float(mantissa) * scale) | sign);
}

}  // namespace detail

struct alignas(2) Half {
  uint16_t bits;
  Half() = default;
  BOTH_FN explicit Half(float value) {
#ifdef __CUDA_ARCH__
    bits = __half_as_ushort(__float2half_rn(value));
#else
    bits = uint16_t(detail::narrow<5, 10>(value));
#endif
  }
  BOTH_FN operator float() const {
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(bits));
#else
    return detail::widen<5, 10>(bits);
#endif
  }
};

struct alignas(2) BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  BOTH_FN explicit BFloat16(float value) {
#ifdef __CUDA_ARCH__
    bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    const uint32_t raw = std::bit_cast<uint32_t>(value);
    bits = (raw & 0x7fffffffu) > 0x7f800000u ? uint16_t((raw >> 16) | 0x40u)
                                             : uint16_t((raw + 0x7fffu + ((raw >> 16) & 1)) >> 16);
#endif
  }
  BOTH_FN operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

// Float8 follows ONNX Cast with saturate=1: finite values beyond the range become the largest finite one.
struct Float8E5M2 {
  uint8_t bits;
  Float8E5M2() = default;
  BOTH_FN explicit Float8E5M2(float value, bool saturate = true) {
    bits = uint8_t(detail::narrow<5, 2>(value));
    if (saturate && (bits & 0x7f) == 0x7c) bits -= 1;
  }
  BOTH_FN operator float() const { return detail::widen<5, 2>(bits); }
};
// E4M3FN has no infinity: its largest finite value is 448 and 0x7f is NaN.
struct Float8E4M3 {
  uint8_t bits;
  Float8E4M3() = default;
  BOTH_FN explicit Float8E4M3(float value, bool saturate = true) {
    const uint32_t raw = std::bit_cast<uint32_t>(value), magnitude = raw & 0x7fffffffu;
    const uint8_t sign = uint8_t(raw >> 31 << 7);
    if (magnitude > 0x7f800000u)
      bits = sign | 0x7f;
    else if (std::bit_cast<float>(magnitude) > 464.0f)
      bits = sign | (saturate ? 0x7e : 0x7f);
    else if (std::bit_cast<float>(magnitude) >= 256.0f) {  // the exponent that IEEE would give to infinity
      const uint32_t steps = uint32_t(int(std::bit_cast<float>(magnitude) / 32.0f));
      const float rest = std::bit_cast<float>(magnitude) / 32.0f - float(steps);
      const uint32_t kept = steps + (rest > 0.5f || (rest == 0.5f && (steps & 1)));
      bits = uint8_t(sign | (0x78 + (kept > 14 ? 14 : kept) - 8));
    } else
      bits = uint8_t(detail::narrow<4, 3>(value));
  }
  BOTH_FN operator float() const {
    const uint32_t exponent = (bits >> 3) & 15;
    if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(uint32_t(bits & 0x80) << 24 | 0x7fc00000u);
    if (exponent == 15)
      return std::bit_cast<float>(uint32_t(bits & 0x80) << 24 | (127u + 8u) << 23 | uint32_t(bits & 7) << 20);
    return detail::widen<4, 3>(bits);
  }
};

// What a kernel computes in for a storage type.
template <class T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<Half> {
  using type = float;
};
template <>
struct ComputeOf<BFloat16> {
  using type = float;
};
template <>
struct ComputeOf<Float8E4M3> {
  using type = float;
};
template <>
struct ComputeOf<Float8E5M2> {
  using type = float;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

}  // namespace encore::device
