// Numbers as unsigned keys of the same size: the smaller the key, the earlier the number comes.
#pragma once
#include <cstdint>

#include "device/annotate.h"
#include "device/type.h"

namespace encore::ops {

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
  DEVICE_FN Key number(Key key) const {
    constexpr Key kSign = Key(Key(1) << (8 * sizeof(Key) - 1));
    if (descending) key = Key(~key);
    if (kind == Kind::is_signed) return Key(key ^ kSign);
    if (kind == Kind::floating) return Key(key & kSign ? key ^ kSign : ~key);
    return key;
  }
};

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

}  // namespace encore::ops
