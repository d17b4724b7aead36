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

// The largest of a pack. Numbers are first changed by `flip`, bit by bit, and so is the largest: with the sign's bit of
// a float, or all bits of an integer, it is the smallest.
template <class T, int kCount, class Bits>
DEVICE_FN T largest(Pack<T, kCount> pack, Bits flip) {
  static_assert(sizeof(Bits) == sizeof(T));
  if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>) {
    auto words = std::bit_cast<Pack<Pack<T, 2>, kCount / 2>>(pack);
    const uint32_t both = flip | uint32_t(flip) << 16;
    UNROLL for (int i = 0; i < kCount / 2; ++i) words.at[i] =
        std::bit_cast<Pack<T, 2>>(std::bit_cast<uint32_t>(words.at[i]) ^ both);
    UNROLL for (int half = kCount / 4; half > 0; half /= 2) {
      UNROLL for (int i = 0; i < half; ++i) words.at[i] = larger(words.at[i], words.at[i + half]);
    }
    const Pack<T, 2> last = larger(words.at[0], {words.at[0].at[1], words.at[0].at[0]});
    return std::bit_cast<T>(Bits(std::bit_cast<Bits>(last.at[0]) ^ flip));
  } else {
    UNROLL for (int i = 0; i < kCount; ++i) pack.at[i] = std::bit_cast<T>(Bits(std::bit_cast<Bits>(pack.at[i]) ^ flip));
    UNROLL for (int half = kCount / 2; half > 0; half /= 2) {
      UNROLL for (int i = 0; i < half; ++i) pack.at[i] = larger(pack.at[i], pack.at[i + half]);
    }
    return std::bit_cast<T>(Bits(std::bit_cast<Bits>(pack.at[0]) ^ flip));
  }
}

}  // namespace encore::device
