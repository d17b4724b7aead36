// The shapes that a block of attention in TF32 has, by the way that is taken.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/attention/dense/attend_tf32.h"

namespace encore::ops {

inline constexpr int kInGranule = 4;  // floats

// Heads of up to kHead values. Warps have 16 kRowTiles rows and kWarpKeys of a tile's keys. With kSpare blocks leave
// registers for a second one.
template <int kHead_, int kRowTiles_, int kRowWarps_, int kKeyWarps_, int kWarpKeys_, int kStages_, bool kSpare>
struct Tf32Warps {
  static constexpr int kHead = kHead_, kRowTiles = kRowTiles_, kRowWarps = kRowWarps_, kKeyWarps = kKeyWarps_;
  static constexpr int kWarpKeys = kWarpKeys_, kStages = kStages_;
  static constexpr int kThreads = 32 * kRowWarps * kKeyWarps, kMaxThreads = kSpare ? 2 * kThreads : kThreads;
  static constexpr int kWarpRows = 16 * kRowTiles, kRows = kWarpRows * kRowWarps, kKeys = kWarpKeys * kKeyWarps;

  // Of shared memory: what is of rows; a stage, which is a tile of keys and their values; accumulators, in the stages'
  // place at the end.
  static constexpr int kAccRow = kHead + 4;  // floats from one row's accumulators to the next
  static constexpr int64_t kRowBytes = 2 * kKeyWarps * kRows * int64_t(sizeof(float));
  static constexpr int64_t kStageBytes = 2 * kKeys * kHead * int64_t(sizeof(float));
  static constexpr int64_t kAccBytes = kKeyWarps * kRows * kAccRow * int64_t(sizeof(float));
  static int64_t dynamic_bytes(int64_t keys) {
    const int64_t tiles = (keys + kKeys - 1) / kKeys;
    return std::max(std::min<int64_t>(tiles, kStages) * kStageBytes, kAccBytes);
  }
};

// Calls f.template operator()<Warps>(), for heads of that size.
template <class F>
void for_way(Tf32Way way, int64_t size, F f) {
  const bool large = size > 64, small = size <= 32;
  switch (way) {
    case Tf32Way::few:
      return large   ? f.template operator()<Tf32Warps<128, 1, 1, 4, 16, 2, false>>()
             : small ? f.template operator()<Tf32Warps<32, 1, 1, 8, 16, 2, true>>()
                     : f.template operator()<Tf32Warps<64, 1, 1, 8, 16, 2, true>>();
    case Tf32Way::some:
      return large   ? f.template operator()<Tf32Warps<128, 1, 2, 4, 16, 2, false>>()
             : small ? f.template operator()<Tf32Warps<32, 1, 2, 4, 16, 3, true>>()
                     : f.template operator()<Tf32Warps<64, 1, 2, 4, 16, 3, true>>();
    case Tf32Way::many:
      return large   ? f.template operator()<Tf32Warps<128, 1, 4, 1, 32, 3, false>>()
             : small ? f.template operator()<Tf32Warps<32, 2, 4, 1, 32, 3, false>>()
                     : f.template operator()<Tf32Warps<64, 2, 4, 1, 32, 3, false>>();
  }
}

inline int64_t larger_size(const Attend& p) { return std::max(p.head_size, p.value_size); }

}  // namespace encore::ops
