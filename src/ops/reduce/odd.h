// Elements that are looked for, as no model wants them.
#pragma once
#include <cstdint>

#include "device/transform.h"

namespace encore::ops {

struct Odd {
  bool nan = false, positive = true, negative = true;  // the latter two: infinities

  template <class C>
  DEVICE_FN bool is(C value) const {
    const bool is_infinite = value - value != 0 && value == value;
    return value != value ? nan : is_infinite && (value > 0 ? positive : negative);
  }
};

// Where they are looked for.
template <class T>
struct SearchedPacks {
  static constexpr int kPack = device::pack_size<T>(), kAtOnce = 8;

  const T* x;
  int64_t count, packs;
  bool aligned;
  Odd odd;

  SearchedPacks(const T* x, int64_t count, const Odd& odd)
      : x(x), count(count), packs((count + kPack - 1) / kPack), aligned(device::is_pack_aligned<kPack>(x)), odd(odd) {}

  DEVICE_FN bool has_any(int64_t pack) const {
    bool found = false;
    const auto values = load(pack);
    UNROLL for (int i = 0; i < kPack; ++i) found |= odd.is(device::Compute<T>(values.at[i]));
    return found;
  }
  // In each of these packs, of which several are on their way at once.
  DEVICE_FN bool has_any(int64_t first, int64_t step) const {
    bool found = false;
    NO_UNROLL for (int64_t pack = first; pack < packs; pack += kAtOnce * step) {
      device::Pack<T, kPack> some[kAtOnce] = {};
      UNROLL for (int i = 0; i < kAtOnce; ++i) {
        if (pack + i * step < packs) some[i] = load(pack + i * step);
      }
      UNROLL for (int i = 0; i < kAtOnce; ++i) {
        UNROLL for (const T value : some[i].at) found |= odd.is(device::Compute<T>(value));
      }
    }
    return found;
  }

 private:
  DEVICE_FN device::Pack<T, kPack> load(int64_t pack) const {
    const int64_t left = count - pack * kPack;
    return device::load_pack<kPack>(x + pack * kPack, aligned, left < kPack ? int(left) : kPack);
  }
};

}  // namespace encore::ops
