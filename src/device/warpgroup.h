// Products by warpgroups, which GPUs of compute capability 9.0 have: four warps multiply what lies in shared memory
// (wgmma), where the copy engine (TMA) brings boxes of matrices of 16-bit values.
//
// A block of Tile::kThreads threads, whose Shared has `Tile::Arrivals arrivals`, makes a tile of a product:
//   begin<Tile>(b, factors, also)      asks for the first steps along the depth, and says b.wait(): what is constant is
//                                      on its way before. Every thread calls also(thread, shared) then.
//   multiply<Tile>(b, factors, sums)   the thread's sums, the first of row_of(thread), column_of(thread)
#pragma once
#include <cstdint>

#include "device/launch.h"
#include "device/tensor_map.h"

namespace encore::device {

// kTransposed: rows of the right factor are the tile's columns.
template <class T_, int kColumns_, int kStages_, bool kTransposed_>
struct WarpgroupTile {
  using T = T_;
  static constexpr int kRows = 64, kColumns = kColumns_, kDepth = kBoxColumns, kStages = kStages_;
  static constexpr bool kTransposed = kTransposed_;
  static constexpr int kGroupColumns = 64, kGroups = kColumns / kGroupColumns;
  static constexpr int kMultiplying = 128 * kGroups, kThreads = kMultiplying + 32;  // the last warp asks for copies
  static constexpr int kRowBytes = kDepth * int(sizeof(T)), kBytesOfA = kRows * kRowBytes;
  static constexpr int kStageBytes = kBytesOfA + kColumns * kRowBytes, kAlignment = 1024;
  static constexpr int64_t kDynamicBytes = int64_t(kStages) * kStageBytes + kAlignment;
  static constexpr int kRowsOfBoxOfB = kTransposed ? kColumns : kDepth;
  static_assert(sizeof(T) == 2 && kColumns % kGroupColumns == 0 && kRowsOfBoxOfB <= 256);

  // How many bytes a stage waits for, and who has read it.
  struct Arrivals {
    uint64_t full[kStages], empty[kStages];
  };
  static constexpr int kSums = kRows * kGroupColumns / 128;
  struct Sums {
    float at[kSums];
  };
  // A thread's first sum is here. The i-th is i / 2 % 2 * kApart rows and i / 4 * kApart + i % 2 columns further.
  static constexpr int kApart = 8;
  static BOTH_FN int row_of(int t) { return t / 32 % 4 * 16 + t % 32 / 4; }
  static BOTH_FN int column_of(int t) { return t / 128 * kGroupColumns + t % 4 * 2; }
};

// The tile begins at a row of a and a column of b, the part along the depth at a value. It has so many steps.
struct TileFactors {
  const TensorMap *a, *b;
  int row, column, first, steps;
  bool constant_b;
};

}  // namespace encore::device

#ifdef __CUDACC__
#include "device/cuda/warpgroup.h"
#else
#include "device/virtual/warpgroup.h"
#endif
