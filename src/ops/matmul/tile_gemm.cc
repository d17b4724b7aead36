#include "ops/matmul/tile_gemm.h"

#include <algorithm>
#include <cstdint>

namespace encore::ops {
namespace {

using device::Gemm;

struct TileShape {
  int rows, columns;
};
// Smaller ones first, as far as rows go.
constexpr TileShape kShapes[] = {{32, 64}, {64, 32}, {64, 64}, {128, 64}};
constexpr int kMostParts = 8, kStep = 64;  // of the depth, that a block takes at once

// What a library's kernels take as long for as to begin. Where there is more to do, they do it faster.
constexpr int64_t kFewestRows = 9, kMostRows = 800;  // fewer are GEMV
constexpr double kMostTilesOfEach = 3;   // of 64 x 64, for each multiprocessor
constexpr double kMostWorkOfEach = 6e6;  // products, for each multiprocessor

// So many blocks for each multiprocessor are enough: more of them would have smaller tiles, or shorter parts.
constexpr double kEnoughBlocksOfEach = 0.7;
constexpr int kLeastSteps = 2;  // of a part

int64_t tiles_of(const Gemm& g, const TileShape& shape) {
  return ((g.m + shape.rows - 1) / shape.rows) * ((g.n + shape.columns - 1) / shape.columns);
}

bool fits(const Gemm& g, const ProductData& data) {
  const bool is_half = g.type == Type::f16 || g.type == Type::bf16;
  if (!is_half || g.type != g.output || g.batch != 1 || g.transpose_a || g.epilogue != device::Epilogue::none)
    return false;
  if (g.m < 1 || g.n < 8 || g.k < 8 || std::max({g.m, g.n, g.k}) > INT32_MAX / 2 || g.m * g.n > INT32_MAX) return false;
  for (const int64_t size : {g.n, g.k, g.lda, g.ldb, g.ldc})
    if (size % 8 != 0) return false;
  for (const void* address : {data.a, data.b, data.bias, static_cast<const void*>(data.c), data.addend})
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  return true;
}

}  // namespace

std::vector<TileGemmWay> tile_gemm_ways(const Gemm& g, const ProductData& data) {
  if (!fits(g, data)) return {};
  std::vector<TileGemmWay> ways;
  for (const TileShape& shape : kShapes)
    for (int parts = 1; parts <= kMostParts && (shape.rows <= 64 || parts == 1); parts *= 2)
      ways.push_back({shape.rows, shape.columns, parts});
  return ways;
}

TileGemmWay tile_gemm_way(const Gemm& g, const ProductData& data, int multiprocessors) {
  const double each = multiprocessors;
  if (!fits(g, data) || g.m < kFewestRows || g.m > kMostRows ||
      double(tiles_of(g, {64, 64})) > kMostTilesOfEach * each ||
      double(g.m) * double(g.n) * double(g.k) > kMostWorkOfEach * each)
    return {};
  const double enough = kEnoughBlocksOfEach * each;
  TileShape shape = g.m <= 32 ? TileShape{32, 64} : g.n <= 32 ? TileShape{64, 32} : TileShape{64, 64};
  if (double(tiles_of(g, {128, 64})) >= enough && g.m > 64) shape = {128, 64};
  int parts = 1;
  const int64_t steps = (g.k + kStep - 1) / kStep;
  if (shape.rows <= 64)
    while (parts < kMostParts && double(tiles_of(g, shape) * parts) < enough && steps >= 2 * parts * kLeastSteps)
      parts *= 2;
  return {shape.rows, shape.columns, parts};
}

}  // namespace encore::ops
