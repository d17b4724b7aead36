// The larger of two numbers, and of each of two neighbouring halves at once. Where there is a NaN, a NaN; of a positive
// and a negative zero, either.
#pragma once
#include <bit>
#include <type_traits>

#include "device/half.h"
#include "device/transform.h"

namespace encore::device {

template <class T>
DEVICE_FN T larger(T a, T b) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(b));
    return a;
  }
#endif
  if constexpr (std::is_floating_point_v<T>)
    if (a != a) return a;
  return a > b ? a : b;
}

template <class T>
DEVICE_FN Pack<T, 2> larger(const Pack<T, 2>& a, const Pack<T, 2>& b) {
  static_assert(std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>);
#ifdef __CUDA_ARCH__
  uint32_t most;
  const uint32_t one = std::bit_cast<uint32_t>(a), other = std::bit_cast<uint32_t>(b);
  if constexpr (std::is_same_v<T, Half>)
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(most) : "r"(one), "r"(other));
  else
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(one), "r"(other));
  return std::bit_cast<Pack<T, 2>>(most);
#else
  Pack<T, 2> most;
  for (int i = 0; i < 2; ++i) most.at[i] = T(larger(float(a.at[i]), float(b.at[i])));
  return most;
#endif
}

// All bits of each half which is not smaller, and of each where one of both is a NaN.
template <class T>
DEVICE_FN uint32_t not_smaller(const Pack<T, 2>& a, const Pack<T, 2>& b) {
  uint32_t bits = 0;
#ifdef __CUDA_ARCH__
  const uint32_t one = std::bit_cast<uint32_t>(a), other = std::bit_cast<uint32_t>(b);
  if constexpr (std::is_same_v<T, Half>)
    asm("set.geu.u32.f16x2 %0, %1, %2;" : "=r"(bits) : "r"(one), "r"(other));
  else
    asm("set.geu.u32.bf16x2 %0, %1, %2;" : "=r"(bits) : "r"(one), "r"(other));
#else
  for (int i = 0; i < 2; ++i) bits |= float(a.at[i]) < float(b.at[i]) ? 0 : uint32_t(0xffff) << (16 * i);
#endif
  return bits;
}

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

// Changes numbers bit by bit. With the sign's bit of floats, or all bits of integers, the smallest becomes the largest.
template <class T, int kCount, class Bits>
DEVICE_FN Pack<T, kCount> flipped(Pack<T, kCount> pack, Bits flip) {
  static_assert(sizeof(Bits) == sizeof(T));
  if constexpr (kIsHalf<T>) {
    auto words = std::bit_cast<Pack<uint32_t, kCount / 2>>(pack);
    UNROLL for (int i = 0; i < kCount / 2; ++i) words.at[i] ^= flip | uint32_t(flip) << 16;
    return std::bit_cast<Pack<T, kCount>>(words);
  } else {
    UNROLL for (int i = 0; i < kCount; ++i) pack.at[i] = std::bit_cast<T>(Bits(std::bit_cast<Bits>(pack.at[i]) ^ flip));
    return pack;
  }
}

template <class T, int kCount>
DEVICE_FN T largest(Pack<T, kCount> pack) {
  if constexpr (kIsHalf<T>) {
    auto words = std::bit_cast<Pack<Pack<T, 2>, kCount / 2>>(pack);
    UNROLL for (int half = kCount / 4; half > 0; half /= 2) {
      UNROLL for (int i = 0; i < half; ++i) words.at[i] = larger(words.at[i], words.at[i + half]);
    }
    return larger(words.at[0], {words.at[0].at[1], words.at[0].at[0]}).at[0];
  } else {
    UNROLL for (int half = kCount / 2; half > 0; half /= 2) {
      UNROLL for (int i = 0; i < half; ++i) pack.at[i] = larger(pack.at[i], pack.at[i + half]);
    }
    return pack.at[0];
  }
}

}  // namespace encore::device
