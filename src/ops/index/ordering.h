// Numbers as unsigned keys of the same size: the smaller the key, the earlier the number comes.
#pragma once
#include <cstdint>
#include <type_traits>

#include "device/annotate.h"
#include "device/larger.h"
#include "device/pair.h"
#include "device/type.h"

namespace encore::ops {

template <size_t kBytes>
using UnsignedOf =
    std::conditional_t<kBytes == 1, uint8_t,
                       std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>>;

// For all types of a size at once, so that there is one kernel for each size. Zeros are the same, and all NaN, which
// count as larger than any number.
struct Ordering {
  enum class Kind : int32_t { none, is_signed, floating };  // none: unsigned numbers, or keys already
  Kind kind = Kind::none;
  bool descending = false;
  uint64_t infinity = 0;  // of a float type, its bits

  template <class Key>
  DEVICE_FN Key operator()(Key bits) const {
    constexpr Key kSign = Key(Key(1) << (8 * sizeof(Key) - 1));
    if (kind == Kind::is_signed) {
      bits = Key(bits ^ kSign);
    } else if (kind == Kind::floating) {
      const Key magnitude = Key(bits & ~kSign);
      if (magnitude > Key(infinity))
        bits = Key(~Key(0));
      else if (magnitude == 0)
        bits = kSign;
      else
        bits = Key(bits & kSign ? ~bits : bits | kSign);
    }
    return descending ? Key(~bits) : bits;
  }
  // A number that has this key.
  template <class Key>
  BOTH_FN Key number(Key key) const {
    constexpr Key kSign = Key(Key(1) << (8 * sizeof(Key) - 1));
    if (descending) key = Key(~key);
    if (kind == Kind::is_signed) return Key(key ^ kSign);
    if (kind == Kind::floating) return Key(key & kSign ? key ^ kSign : ~key);
    return key;
  }
  // The last key of a number, which an infinity has. NaN, if it is not the first of all, comes after it.
  template <class Key>
  BOTH_FN Key last_key() const {
    constexpr Key kSign = Key(Key(1) << (8 * sizeof(Key) - 1));
    return kind == Kind::floating ? Key(Key(infinity) | kSign) : Key(~Key(0));
  }
  // What makes the best of all the largest, if numbers are flipped by it; integers are then as unsigned ones.
  template <class Key>
  Key flip() const {
    constexpr Key kSign = Key(Key(1) << (8 * sizeof(Key) - 1));
    const Key flip = descending ? Key(0) : kind == Kind::floating ? kSign : Key(~Key(0));
    return kind == Kind::is_signed ? Key(flip ^ kSign) : flip;
  }
};

// The keys of two neighbouring numbers of 16 bits. T is a float, or stands for all integers; `flip` is pair_flip().
template <class T>
DEVICE_FN uint32_t keys_of_pair(uint32_t pair, uint32_t flip) {
  if constexpr (device::kIsHalf<T>) {
    constexpr uint32_t kOne = (std::is_same_v<T, device::Half> ? 0x3c00u : 0x3f80u) * 0x10001u, kMost = 0x7fff7fffu;
    pair = device::multiply_add_pairs<T>(pair, kOne, 0);  // no zero is negative
    const auto numbers = std::bit_cast<device::Pack<T, 2>>(pair);
    const uint32_t is_number = device::at_least(numbers, numbers);
    const uint32_t keys = pair ^ (device::signs_of_pair(pair) & kMost);
    return ((keys & is_number) | (kMost & ~is_number)) ^ flip;
  } else {
    return pair ^ flip;
  }
}
inline uint32_t pair_flip(const Ordering& order) {
  const uint32_t flip = order.kind == Ordering::Kind::none ? 0 : 0x80008000u;
  return order.descending ? ~flip : flip;
}

inline Ordering ordering_of(device::Type type, bool descending) {
  using device::Type;
  using Kind = Ordering::Kind;
  switch (type) {
    case Type::f32: return {Kind::floating, descending, 0x7f800000};
    case Type::f64: return {Kind::floating, descending, 0x7ff0000000000000};
    case Type::f16: return {Kind::floating, descending, 0x7c00};
    case Type::bf16: return {Kind::floating, descending, 0x7f80};
    case Type::i8:
    case Type::i16:
    case Type::i32:
    case Type::i64: return {Kind::is_signed, descending, 0};
    default: return {Kind::none, descending, 0};
  }
}

// A key and a place below 2^16, in this order.
template <class Key>
struct Placed {
  using Word = std::conditional_t<sizeof(Key) <= 2, uint32_t, uint64_t>;
  Word word;
  DEVICE_FN static Placed of(Key key, int place) { return {Word(Word(key) << 16 | Word(place))}; }
  DEVICE_FN static Placed last() { return {Word(~Word(0))}; }
  DEVICE_FN Key key() const { return Key(word >> 16); }
  DEVICE_FN int place() const { return int(word & 0xffff); }
  DEVICE_FN bool operator<(const Placed& other) const { return word < other.word; }
  // One more, if it comes before the other. Of a sum with a bool nvcc makes three instructions.
  DEVICE_FN int counted_before(const Placed& other, int count) const {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(Word) == 4) {
      asm("{\n .reg .pred before;\n setp.lt.u32 before, %1, %2;\n @before add.s32 %0, %0, 1;\n}"
          : "+r"(count)
          : "r"(word), "r"(other.word));
      return count;
    }
#endif
    return count + (word < other.word);
  }
};
template <>
struct Placed<uint64_t> {
  uint64_t high;
  uint32_t low;
  DEVICE_FN static Placed of(uint64_t key, int place) { return {key, uint32_t(place)}; }
  DEVICE_FN static Placed last() { return {~uint64_t(0), ~uint32_t(0)}; }
  DEVICE_FN uint64_t key() const { return high; }
  DEVICE_FN int place() const { return int(low); }
  DEVICE_FN bool operator<(const Placed& other) const {
    return (high < other.high) | ((high == other.high) & (low < other.low));
  }
  DEVICE_FN int counted_before(const Placed& other, int count) const { return count + (*this < other); }
};

}  // namespace encore::ops
