// The larger of two numbers, of each of two neighbouring halves at once, and of each in packs. `or_nan`: where there is
// a NaN, a positive one. `number`: a NaN loses to a number. Of a positive and a negative zero it is either.
#pragma once
#include <bit>
#include <limits>
#include <type_traits>

#include "device/half.h"
#include "device/transform.h"

namespace encore::device {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <class T>
DEVICE_FN T larger_or_nan(T a, T b) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(b));
    return a;
  }
#endif
  if constexpr (std::is_floating_point_v<T>)
    if (a != a || b != b) return std::numeric_limits<T>::quiet_NaN();
  return a > b ? a : b;
}

template <class T>
requires kIsHalf<T> DEVICE_FN Pack<T, 2> larger_or_nan(const Pack<T, 2>& a, const Pack<T, 2>& b) {
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
  for (int i = 0; i < 2; ++i) most.at[i] = T(larger_or_nan(float(a.at[i]), float(b.at[i])));
  return most;
#endif
}

// The smaller of each two halves.
template <class T>
requires kIsHalf<T> DEVICE_FN Pack<T, 2> smaller_number(const Pack<T, 2>& a, const Pack<T, 2>& b) {
#ifdef __CUDA_ARCH__
  uint32_t least;
  const uint32_t one = std::bit_cast<uint32_t>(a), other = std::bit_cast<uint32_t>(b);
  if constexpr (std::is_same_v<T, Half>)
    asm("min.f16x2 %0, %1, %2;" : "=r"(least) : "r"(one), "r"(other));
  else
    asm("min.bf16x2 %0, %1, %2;" : "=r"(least) : "r"(one), "r"(other));
  return std::bit_cast<Pack<T, 2>>(least);
#else
  Pack<T, 2> least;
  for (int i = 0; i < 2; ++i) least.at[i] = float(a.at[i]) <= float(b.at[i]) || b.at[i] != b.at[i] ? a.at[i] : b.at[i];
  return least;
#endif
}

// Whether two pairs are compared by one instruction: of bfloat16 there is one since 9.0.
template <class T>
inline constexpr bool kComparesPairs =
#ifdef __CUDA_ARCH__
    std::is_same_v<T, Half> || __CUDA_ARCH__ >= 900;
#else
    false;
#endif

// All bits of each half for which `holds` is true of both numbers.
template <class T, class Holds>
DEVICE_FN uint32_t bits_where(const Pack<T, 2>& a, const Pack<T, 2>& b, Holds holds) {
  uint32_t bits = 0;
  UNROLL for (int i = 0; i < 2; ++i) bits |= holds(float(a.at[i]), float(b.at[i])) ? uint32_t(0xffff) << (16 * i) : 0;
  return bits;
}

// All bits of each half which is not smaller, and of each where one of both is a NaN.
template <class T>
DEVICE_FN uint32_t not_smaller(const Pack<T, 2>& a, const Pack<T, 2>& b) {
  if constexpr (kComparesPairs<T>) {
    uint32_t bits = 0;
    const uint32_t one = std::bit_cast<uint32_t>(a), other = std::bit_cast<uint32_t>(b);
    if constexpr (std::is_same_v<T, Half>)
      asm("set.geu.u32.f16x2 %0, %1, %2;" : "=r"(bits) : "r"(one), "r"(other));
    else
      asm("set.geu.u32.bf16x2 %0, %1, %2;" : "=r"(bits) : "r"(one), "r"(other));
    return bits;
  } else {
    return bits_where(a, b, [](float x, float y) { return !(x < y); });
  }
}

// All bits of each half which is not smaller; none where there is a NaN.
template <class T>
DEVICE_FN uint32_t at_least(const Pack<T, 2>& a, const Pack<T, 2>& b) {
  if constexpr (kComparesPairs<T>) {
    uint32_t bits = 0;
    const uint32_t one = std::bit_cast<uint32_t>(a), other = std::bit_cast<uint32_t>(b);
    if constexpr (std::is_same_v<T, Half>)
      asm("set.ge.u32.f16x2 %0, %1, %2;" : "=r"(bits) : "r"(one), "r"(other));
    else
      asm("set.ge.u32.bf16x2 %0, %1, %2;" : "=r"(bits) : "r"(one), "r"(other));
    return bits;
  } else {
    return bits_where(a, b, [](float x, float y) { return x >= y; });
  }
}

// A signed integer that compares as the number does: zeros are equal, and a positive NaN is above all.
template <class T>
using OrderOf = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
template <class T>
DEVICE_FN OrderOf<T> order_of(T x) {
  using Order = OrderOf<T>;
  if constexpr (std::is_integral_v<T>) {
    return Order(x);
  } else {
    Order bits;
    if constexpr (kIsHalf<T>)
      bits = int32_t(uint32_t(x.bits) << 16);
    else
      bits = std::bit_cast<Order>(x);
    const Order sign = bits >> (8 * sizeof(Order) - 1);
    return Order(((bits & std::numeric_limits<Order>::max()) ^ sign) - sign);
  }
}

// Changes numbers bit by bit, by bits for each or for a word of several. With the sign's bit of floats, or all bits of
// integers, the smallest becomes the largest.
template <class T, int kCount, class Bits>
DEVICE_FN Pack<T, kCount> flipped(const Pack<T, kCount>& pack, Bits flip) {
  if constexpr (kIsHalf<T> && sizeof(Bits) == sizeof(T)) {
    return flipped(pack, uint32_t(flip) << 16 | flip);
  } else {
    constexpr int kParts = int(sizeof pack / sizeof flip);
    auto parts = std::bit_cast<Pack<Bits, kParts>>(pack);
    UNROLL for (int i = 0; i < kParts; ++i) parts.at[i] ^= flip;
    return std::bit_cast<Pack<T, kCount>>(parts);
  }
}

template <class T, int kCount>
DEVICE_FN Pack<T, kCount> larger_or_nan(Pack<T, kCount> pack, const Pack<T, kCount>& other) {
  if constexpr (kIsHalf<T>) {
    using Pairs = Pack<Pack<T, 2>, kCount / 2>;
    auto pairs = std::bit_cast<Pairs>(pack);
    const auto others = std::bit_cast<Pairs>(other);
    UNROLL for (int i = 0; i < kCount / 2; ++i) pairs.at[i] = larger_or_nan(pairs.at[i], others.at[i]);
    return std::bit_cast<Pack<T, kCount>>(pairs);
  } else {
    UNROLL for (int i = 0; i < kCount; ++i) pack.at[i] = larger_or_nan(pack.at[i], other.at[i]);
    return pack;
  }
}

template <class T, int kCount>
DEVICE_FN T largest_or_nan(Pack<T, kCount> pack) {
  if constexpr (kIsHalf<T>) {
    auto words = std::bit_cast<Pack<Pack<T, 2>, kCount / 2>>(pack);
    UNROLL for (int half = kCount / 4; half > 0; half /= 2) {
      UNROLL for (int i = 0; i < half; ++i) words.at[i] = larger_or_nan(words.at[i], words.at[i + half]);
    }
    return larger_or_nan(words.at[0], {words.at[0].at[1], words.at[0].at[0]}).at[0];
  } else {
    UNROLL for (int half = kCount / 2; half > 0; half /= 2) {
      UNROLL for (int i = 0; i < half; ++i) pack.at[i] = larger_or_nan(pack.at[i], pack.at[i + half]);
    }
    return pack.at[0];
  }
}

}  // namespace encore::device
