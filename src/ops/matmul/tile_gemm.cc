#include "ops/matmul/tile_gemm.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace encore::ops {
namespace {

using device::Gemm;

constexpr int kRows = 32, kColumns = 64, kStep = 64;  // of a tile, and of the depth that a block takes at once

// A step takes half a microsecond. With few of them tiles are done before the library's kernel and the one behind it;
// without an activation there is none, and only the library's split along the depth is slower.
constexpr int64_t kFewestRows = 9, kFewRows = 16;  // fewer are GEMV
constexpr int64_t kGoodSteps = 3, kMostSteps = 6;  // of a part
constexpr double kMostBlocksOfEach = 2.6;          // for each multiprocessor, which has room for as many

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

bool is_tile_gemm(const Gemm& g, const ProductData& data, TileGemmWay way) {
  return fits(g, data) && way.parts <= kMostTileParts && std::has_single_bit(unsigned(way.parts));
}

std::vector<TileGemmWay> tile_gemm_ways(const Gemm& g, const ProductData& data) {
  std::vector<TileGemmWay> ways;
  if (fits(g, data))
    for (int parts = 1; parts <= kMostTileParts; parts *= 2) ways.push_back({parts});
  return ways;
}

TileGemmWay tile_gemm_way(const Gemm& g, const ProductData& data, const Activation& activation, int multiprocessors) {
  using Kind = Activation::Kind;
  const bool is_apart = activation.kind != Kind::none && activation.kind != Kind::relu;
  if (!fits(g, data) || g.m < kFewestRows || !(is_apart || g.m <= kFewRows)) return {};
  return tile_gemm_way(g.m, g.n, g.k, kMostSteps, multiprocessors);
}

TileGemmWay tile_gemm_way(int64_t rows, int64_t columns, int64_t depth, int64_t most_steps, int multiprocessors) {
  const double most_blocks = kMostBlocksOfEach * multiprocessors;
  const int64_t tiles = ((rows + kRows - 1) / kRows) * ((columns + kColumns - 1) / kColumns);
  const int64_t steps = (depth + kStep - 1) / kStep;
  int parts = 1;
  while (parts < kMostTileParts && steps > parts * kGoodSteps && double(tiles * parts * 2) <= most_blocks) parts *= 2;
  return double(tiles * parts) <= most_blocks && steps <= parts * most_steps ? TileGemmWay{parts} : TileGemmWay{};
}

}  // namespace encore::ops
