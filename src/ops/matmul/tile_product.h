// What kernels of products by tiles have in common.
#pragma once
#include <algorithm>
#include <bit>

#include "device/cluster.h"
#include "device/unaligned_pack.h"
#include "ops/matmul/tile_gemm.h"

namespace encore::ops {

using device::Block;
using device::Cluster;
using device::Pack;

struct TilePlace {
  int row, column, first, end;  // of the tile; of the part along the depth
};

// But for the left factor.
template <class T>
struct TileProduct {
  const T *b, *addend, *bias;
  T* c;
  int64_t ldb, ldc;
  int rows, columns, depth;
  float alpha, beta;
  Activation activation;
  bool constant_b;
  int row_tiles, parts_log2;

  static constexpr int kQuad = 4;  // a lane has so many neighbouring columns

  // Tiles that have the same columns of b are neighbours. A step takes so many values of the depth.
  DEVICE_FN TilePlace place_of(int64_t block, int tile_rows, int tile_columns, int step) const {
    const int tile = int(block >> parts_log2), part = int(block) & ((1 << parts_log2) - 1);
    const int steps = (depth + step - 1) / step, own = (steps + (1 << parts_log2) - 1) >> parts_log2;
    const int first = part * own * step, left = depth - first;
    return {tile % row_tiles * tile_rows, tile / row_tiles * tile_columns, first,
            left < own * step ? depth : first + own * step};
  }

  // The activation is a curve of what c's type keeps.
  DEVICE_FN void store(int row, int column, const float (&sums)[kQuad], const T* bias_there) const {
    const int64_t at = row * ldc + column;
    float values[kQuad];
    UNROLL for (int i = 0; i < kQuad; ++i) values[i] = alpha * sums[i];
    if (beta != 0) {
      const auto more = device::load_aligned<kQuad>(addend + at);
      UNROLL for (int i = 0; i < kQuad; ++i) values[i] += beta * float(more.at[i]);
    }
    if (bias) {
      const auto more = device::load_aligned<kQuad>(bias_there);
      UNROLL for (int i = 0; i < kQuad; ++i) values[i] += float(more.at[i]);
    }
    Pack<T, kQuad> out;
    activation.template choose<T>(
        [&](auto curve) { UNROLL for (int i = 0; i < kQuad; ++i) out.at[i] = T(curve(float(T(values[i])))); });
    device::store_aligned(c + at, out);
  }
};

template <class T>
TileProduct<T> tile_product(const device::Gemm& g, const ProductData& data, const Activation& activation) {
  return {static_cast<const T*>(data.b),
          static_cast<const T*>(data.addend ? data.addend : data.c),
          static_cast<const T*>(data.bias),
          static_cast<T*>(data.c),
          g.ldb,
          g.ldc,
          int(g.m),
          int(g.n),
          int(g.k),
          g.alpha,
          g.beta,
          activation,
          g.constant_b};
}

// How a kernel's launch shares the tiles out: each among so many blocks, where clusters are as large.
template <class T>
struct SharedOut {
  TileProduct<T> product;
  device::Clusters grid;
};
template <class Kernel, class T>
SharedOut<T> shared_out(TileProduct<T> p, int parts, int device) {
  parts = std::min(parts, device::most_in_cluster<typename Kernel::Shared, Kernel>(device));
  p.row_tiles = (p.rows + Kernel::kRows - 1) / Kernel::kRows;
  p.parts_log2 = std::countr_zero(unsigned(parts));
  const int64_t column_tiles = (p.columns + Kernel::kColumns - 1) / Kernel::kColumns;
  return {p, {p.row_tiles * column_tiles, parts, Kernel::kThreads}};
}

}  // namespace encore::ops
