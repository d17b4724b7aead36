#include "ops/matmul/tile_gemm.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace encore::ops {
namespace {

using device::Gemm;

// Microseconds on an H200, as bench/tile_gemm.cc measures them. A step takes as long as its reads are on their way, and
// longer the more blocks read beside it.
struct ShapeCost {
  int rows, columns, depth;
  int most_of_each;                  // blocks that a multiprocessor has room for
  double fixed, join;                // of all; each time that parts double
  double step, step_of_each, slide;  // a step's alone, for each block, and if windows slide
};
constexpr ShapeCost kCosts[kTileShapes] = {{32, 64, 64, 3, 2.50, 0.29, 0.19, 0.19, 0.10},
                                           {16, 64, 64, 3, 1.90, 0.37, 0.16, 0.13, 0.06},
                                           {16, 64, 128, 2, 1.86, 0.41, 0.27, 0.18, 0.10},
                                           {16, 32, 128, 3, 1.67, 0.40, 0.21, 0.20, 0.10}};
constexpr double kLargeClusters = 0.85;  // what these find room for of all multiprocessors

// cuBLASLt's best, of constant weights.
double us_by_library(const Gemm& g) {
  return 2.43 + 1.66e-3 * double(g.k) + 1.04e-6 * double(g.m) * double(g.n) * (g.beta != 0 ? 2 : 1);
}

constexpr int64_t kFewestRows = 9;  // fewer are GEMV

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
  return fits(g, data) && way.parts <= kMostTileParts && std::has_single_bit(unsigned(way.parts)) &&
         int(way.shape) < kTileShapes;
}

std::vector<TileGemmWay> tile_gemm_ways(const Gemm& g, const ProductData& data) {
  std::vector<TileGemmWay> ways;
  if (!fits(g, data)) return ways;
  for (int shape = 0; shape < kTileShapes; ++shape)
    for (int parts = 1; parts <= kMostTileParts; parts *= 2) ways.push_back({parts, TileShape(shape)});
  return ways;
}

TileGemmWay tile_gemm_way(const Gemm& g, const ProductData& data, const Activation& activation, const TileRoom& room) {
  if (!fits(g, data) || g.m < kFewestRows) return {};
  // Measured where weights are read ahead, and depths shared; elsewhere only an activation's kernel is surely saved.
  const double apart = us_apart(activation);
  if (apart == 0 && !(g.constant_b && room.most_parts > 1)) return {};
  const TileEstimate tiles = fastest_tiles(g.m, g.n, g.k, false, room);
  return tiles.us < us_by_library(g) + apart ? tiles.way : TileGemmWay{};
}

TileEstimate fastest_tiles(int64_t rows, int64_t columns, int64_t depth, bool slides, const TileRoom& room) {
  TileEstimate fastest;
  for (int shape = 0; shape < kTileShapes; ++shape) {
    const ShapeCost& cost = kCosts[shape];
    const int64_t tiles = divide_up(rows, cost.rows) * divide_up(columns, cost.columns);
    for (int parts = 1, doubled = 0; parts <= room.most_parts; parts *= 2, ++doubled) {
      const double of_each = double(tiles * parts) / room.multiprocessors;
      if (of_each > cost.most_of_each * (parts == kMostTileParts ? kLargeClusters : 1)) break;
      const auto steps = double(divide_up(divide_up(depth, cost.depth), parts));
      const double step = cost.step + (slides ? cost.slide : 0) + cost.step_of_each * of_each;
      const double us = cost.fixed + cost.join * doubled + steps * step;
      if (us < fastest.us) fastest = {{parts, TileShape(shape)}, us};
    }
  }
  return fastest;
}

double us_apart(const Activation& activation) {
  using Kind = Activation::Kind;
  return activation.kind == Kind::none || activation.kind == Kind::relu ? 0 : 1.4;
}

}  // namespace encore::ops
