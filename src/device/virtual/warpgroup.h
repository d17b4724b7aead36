// Products by warpgroups on the virtual GPU: what the copy engine is asked for is there at once.
#pragma once
#include <algorithm>
#include <array>

#include "device/warpgroup.h"

namespace encore::device {

namespace virtual_gpu {

// One row of a stage is a row of the left factor or a column of the right one, of which it has a step's depth.
template <class Tile>
struct Stage {
  using T = typename Tile::T;

  template <class Shared>
  Stage(Block<Shared>& block, Shared& s, int stage)
      : a(block.template dynamic<T>(s, stage * int64_t(Tile::kStageBytes))), b(a + Tile::kRows * Tile::kDepth) {}

  void load_a(const TileFactors& f, int step) const {
    for (int row = 0; row < Tile::kRows; ++row)
      for (int k = 0; k < Tile::kDepth; ++k)
        a[row * Tile::kDepth + k] = f.a->template value<T>(f.row + row, f.first + step * Tile::kDepth + k);
  }
  void load_b(const TileFactors& f, int step) const {
    for (int i = 0; i < Tile::kColumns; ++i)
      for (int k = 0; k < Tile::kDepth; ++k) {
        const int column = f.column + i, depth = f.first + step * Tile::kDepth + k;
        b[i * Tile::kDepth + k] =
            Tile::kTransposed ? f.b->template value<T>(column, depth) : f.b->template value<T>(depth, column);
      }
  }

  T *a, *b;
};

}  // namespace virtual_gpu

template <class Tile, class Shared, class F>
void begin(Block<Shared>& block, const TileFactors& f, F also) {
  block.threads([&](int t, Shared& s) {
    const int first = t == Tile::kMultiplying ? std::min(f.steps, Tile::kStages) : 0;
    for (int i = 0; i < first && f.constant_b; ++i) virtual_gpu::Stage<Tile>(block, s, i).load_b(f, i);
    block.wait();
    for (int i = 0; i < first; ++i) {
      if (!f.constant_b) virtual_gpu::Stage<Tile>(block, s, i).load_b(f, i);
      virtual_gpu::Stage<Tile>(block, s, i).load_a(f, i);
    }
    also(t, s);
  });
}

template <class Tile, class Shared>
void multiply(Block<Shared>& block, const TileFactors& f, PerThread<typename Tile::Sums, Tile::kThreads>& sums) {
  constexpr int kRows = Tile::kRows, kColumns = Tile::kColumns, kDepth = Tile::kDepth;
  std::array<float, kRows * kColumns> all{};
  std::array<float, kDepth * kColumns> b;
  for (int step = 0; step < f.steps; ++step) {
    block.threads([&](int t, Shared& s) {
      if (t != Tile::kMultiplying) return;
      const virtual_gpu::Stage<Tile> stage(block, s, step % Tile::kStages);
      for (int k = 0; k < kDepth; ++k)
        for (int column = 0; column < kColumns; ++column)
          b[size_t(k * kColumns + column)] = float(stage.b[column * kDepth + k]);
      for (int row = 0; row < kRows; ++row)
        for (int k = 0; k < kDepth; ++k) {
          const float a = float(stage.a[row * kDepth + k]);
          const float* const from = b.data() + k * kColumns;
          float* const to = all.data() + row * kColumns;
          for (int column = 0; column < kColumns; ++column) to[column] += a * from[column];
        }
      if (const int next = step + Tile::kStages; next < f.steps) stage.load_b(f, next), stage.load_a(f, next);
    });
  }
  block.threads([&](int t, Shared&) {
    if (t >= Tile::kMultiplying) return;
    for (int i = 0; i < Tile::kSums; ++i) {
      const int row = Tile::row_of(t) + i / 2 % 2 * Tile::kApart;
      const int column = Tile::column_of(t) + i / 4 * Tile::kApart + i % 2;
      sums[t].at[i] = all[size_t(row * kColumns + column)];
    }
  });
}

}  // namespace encore::device
