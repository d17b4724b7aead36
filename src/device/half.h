// Half, BFloat16 and the kinds of Float8: storage types that convert to and from float, alike on both devices.
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

// A finite float's magnitude with `kMantissa` bits of mantissa below an exponent of this bias, rounded to nearest even.
// A magnitude beyond the format's range gives more bits than the format has.
template <int kMantissa>
BOTH_FN uint32_t rounded(uint32_t magnitude, int bias) {
  constexpr int kDrop = 23 - kMantissa;
  const int exponent = int(magnitude >> 23) - 127 + bias;
  if (exponent > 0) {
    const uint32_t odd = magnitude >> kDrop & 1, below_half = (1u << (kDrop - 1)) - 1;
    // A carry moves into the exponent, rightly.
    return ((magnitude + below_half + odd) >> kDrop) - (uint32_t(127 - bias) << kMantissa);
  }
  const int shift = kDrop + 1 - exponent;
  if (shift > 31) return 0;
  const uint32_t full = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t kept = shift > 24 ? 0 : full >> shift;
  const uint32_t rest = full & ((1u << shift) - 1), half = 1u << (shift - 1);
  return kept + (rest > half || (rest == half && (kept & 1)));
}
// What such bits stand for.
template <int kMantissa>
BOTH_FN float value_of(uint32_t magnitude, int bias) {
  if (magnitude >> kMantissa)
    return std::bit_cast<float>((magnitude << (23 - kMantissa)) + (uint32_t(127 - bias) << 23));
  // Subnormal: mantissa * 2^(1 - bias - kMantissa), exact in float.
  return float(magnitude) * std::bit_cast<float>(uint32_t(127 + 1 - bias - kMantissa) << 23);
}
BOTH_FN float with_sign(float magnitude, bool negative) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | uint32_t(negative) << 31);
}

// As IEEE has it: the greatest exponent is for infinity and NaN.
template <int kExponent, int kMantissa>
BOTH_FN uint32_t narrow(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 31 << (kExponent + kMantissa);
  const uint32_t magnitude = bits & 0x7fffffffu;
  constexpr uint32_t kInfinity = ((1u << kExponent) - 1) << kMantissa;
  if (magnitude > 0x7f800000u) return sign | kInfinity | (1u << (kMantissa - 1));
  if (magnitude == 0x7f800000u) return sign | kInfinity;
  const uint32_t kept = rounded<kMantissa>(magnitude, (1 << (kExponent - 1)) - 1);
  return sign | (kept < kInfinity ? kept : kInfinity);
}
template <int kExponent, int kMantissa>
BOTH_FN float widen(uint32_t bits) {
  constexpr uint32_t kSign = 1u << (kExponent + kMantissa), kInfinity = ((1u << kExponent) - 1) << kMantissa;
  const uint32_t magnitude = bits & (kSign - 1);
  if (magnitude >= kInfinity)
    return with_sign(std::bit_cast<float>(0x7f800000u | (magnitude - kInfinity) << (23 - kMantissa)), bits & kSign);
  return with_sign(value_of<kMantissa>(magnitude, (1 << (kExponent - 1)) - 1), bits & kSign);
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

// Formats whose only NaN is what would be -0: they have no infinity, and the greatest exponent is like any other.
template <int kExponent, int kMantissa>
struct Float8Fnuz {
  static constexpr int kBias = 1 << (kExponent - 1);
  uint8_t bits;
  Float8Fnuz() = default;
  BOTH_FN explicit Float8Fnuz(float value, bool saturate = true) {
    const uint32_t raw = std::bit_cast<uint32_t>(value), magnitude = raw & 0x7fffffffu, sign = raw >> 31 << 7;
    const uint32_t kept = magnitude < 0x7f800000u ? detail::rounded<kMantissa>(magnitude, kBias) : 0x80;
    if (kept < 0x80)
      bits = uint8_t(kept ? kept | sign : 0);
    else
      bits = uint8_t(saturate && magnitude <= 0x7f800000u ? 0x7f | sign : 0x80);
  }
  BOTH_FN operator float() const {
    if (bits == 0x80) return std::bit_cast<float>(0x7fc00000u);
    return detail::with_sign(detail::value_of<kMantissa>(bits & 0x7f, kBias), bits & 0x80);
  }
};
using Float8E4M3Fnuz = Float8Fnuz<4, 3>;
using Float8E5M2Fnuz = Float8Fnuz<5, 2>;

// A power of two from 2^-127 to 2^127, or NaN. What is beyond, also zero and below, becomes the end that is nearer or,
// unless saturated, NaN.
enum class PowerRounding { up, down, nearest };  // nearest: the middle goes up
struct Float8E8M0 {
  uint8_t bits;
  Float8E8M0() = default;
  BOTH_FN explicit Float8E8M0(float value, bool saturate = true, PowerRounding rounding = PowerRounding::up) {
    constexpr uint32_t kLeast = 0x400000u, kMost = 254u << 23;
    const uint32_t raw = std::bit_cast<uint32_t>(value);
    if ((raw & 0x7fffffffu) > 0x7f800000u) {
      bits = 255;
    } else if (int32_t(raw) < int32_t(kLeast) || raw > kMost) {
      bits = uint8_t(!saturate ? 255 : int32_t(raw) < int32_t(kLeast) ? 0 : 254);
    } else {
      // Half a step above a power of two: below the normal ones, steps are half as wide.
      const uint32_t exponent = raw >> 23, step = exponent ? 1u << 23 : kLeast, rest = raw & (step - 1);
      bits = uint8_t(exponent + (rounding == PowerRounding::up        ? rest > 0
                                 : rounding == PowerRounding::nearest ? rest >= step / 2
                                                                      : 0));
    }
  }
  BOTH_FN operator float() const {
    if (bits == 255) return std::bit_cast<float>(0x7fc00000u);
    return std::bit_cast<float>(bits ? uint32_t(bits) << 23 : 0x400000u);
  }
};

// Four bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. What is larger becomes 6, and NaN, as others have it, -0.
BOTH_FN uint32_t float4_bits(float value) {
  const uint32_t raw = std::bit_cast<uint32_t>(value), magnitude = raw & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 8;
  const uint32_t kept = magnitude < 0x7f800000u ? detail::rounded<1>(magnitude, 1) : 7;
  return raw >> 31 << 3 | (kept < 7 ? kept : 7);
}
BOTH_FN float float4_value(uint32_t bits) { return detail::with_sign(detail::value_of<1>(bits & 7, 1), bits & 8); }

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
template <int kExponent, int kMantissa>
struct ComputeOf<Float8Fnuz<kExponent, kMantissa>> {
  using type = float;
};
template <>
struct ComputeOf<Float8E8M0> {
  using type = float;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

}  // namespace encore::device
