// Packs at any address: in as few and wide accesses as its alignment allows.
#pragma once
#include "device/transform.h"

namespace encore::device {

template <int kCount, class T>
DEVICE_FN Pack<T, kCount> load_neighbours(const T* from) {
  if constexpr (kCount == 1) {
    return {{*from}};
  } else {
    constexpr int kHalf = kCount / 2;
    if (is_pack_aligned<kCount>(from)) return load_pack<kCount>(from, true);
    const auto low = load_neighbours<kHalf>(from), high = load_neighbours<kHalf>(from + kHalf);
    Pack<T, kCount> pack;
    UNROLL for (int i = 0; i < kHalf; ++i) {
      pack.at[i] = low.at[i];
      pack.at[kHalf + i] = high.at[i];
    }
    return pack;
  }
}

template <int kCount, class T>
DEVICE_FN void store_neighbours(T* to, const Pack<T, kCount>& pack) {
  if constexpr (kCount == 1) {
    *to = pack.at[0];
  } else {
    constexpr int kHalf = kCount / 2;
    if (is_pack_aligned<kCount>(to)) return store_pack(to, pack, true);
    Pack<T, kHalf> low, high;
    UNROLL for (int i = 0; i < kHalf; ++i) {
      low.at[i] = pack.at[i];
      high.at[i] = pack.at[kHalf + i];
    }
    store_neighbours(to, low);
    store_neighbours(to + kHalf, high);
  }
}

}  // namespace encore::device
