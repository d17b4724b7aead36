#include "ops/matmul/tile_gemm.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "device/tensor_map.h"

namespace encore::ops {
namespace {

using device::Gemm;

// Microseconds on an H200, as bench/tile_gemm.cc measures them. A step takes as long as its reads are on their way, and
// longer the more blocks read beside it; warpgroups' first ones have half of theirs before the block begins.
struct ShapeCost {
  int most_of_each;                  // blocks that a multiprocessor has room for
  double fixed, join;                // of all; each time that parts double
  double step, step_of_each, slide;  // a step's alone, for each block, and if windows slide
  double late_step_of_each = 0;      // of those behind the first ones, in addition
  double curve = 0;                  // an activation's that would be another kernel
};
constexpr ShapeCost kCosts[kTileShapes] = {
    {3, 2.50, 0.29, 0.19, 0.19, 0.10},          {3, 1.90, 0.37, 0.16, 0.13, 0.06},
    {2, 1.86, 0.41, 0.27, 0.18, 0.10},          {3, 1.67, 0.40, 0.21, 0.20, 0.10},
    {1, 2.25, 0.55, 0.105, 0.05, 0, 0.07, 0.5}, {1, 2.95, 0.70, 0.18, 0.03, 0, 0.08, 0.7}};
constexpr ShapeCost kCostsOfFloats[] = {kCosts[0], kCosts[1], kCosts[2], {3, 1.86, 0.34, 0.23, 0.13, 0.075}};
constexpr int kFirstSteps = 8;
constexpr double kLargeClusters = 0.85;  // what these find room for of all multiprocessors

// cuBLASLt's best, of constant weights. Of floats it splits great depths.
double us_by_library(const Gemm& g) {
  const double passed = double(g.m) * double(g.n) * (g.beta != 0 ? 2 : 1);
  if (g.type == Type::f32) return 3.2 + 2.6e-3 * std::min(double(g.k), 1400.0) + 1.6e-6 * passed;
  return 2.43 + 1.5e-3 * double(g.k) + 1.04e-6 * passed + 0.25e-6 * double(g.k) * double(g.n);
}

constexpr int64_t kFewestRows = 9;  // fewer are GEMV

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool fits(const Gemm& g, const ProductData& data) {
  if (!has_tiles(g.type, g.tf32) || (g.type == Type::f32 && !g.transpose_b) || g.type != g.output || g.batch != 1 ||
      g.transpose_a || g.epilogue != device::Epilogue::none)
    return false;
  if (g.m < 1 || g.n < 8 || g.k < 8 || std::max({g.m, g.n, g.k}) > INT32_MAX / 2 || g.m * g.n > INT32_MAX) return false;
  for (const int64_t size : {g.n, g.k, g.lda, g.ldb, g.ldc})
    if (size % 8 != 0) return false;
  for (const void* address : {data.a, data.b, data.bias, static_cast<const void*>(data.c), data.addend})
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  return true;
}

bool is_apart(const Activation& activation) {
  return activation.kind != Activation::Kind::none && activation.kind != Activation::Kind::relu;
}
// What a library needs in addition: an activation is another kernel.
double us_apart(const Activation& activation, int64_t values) {
  return is_apart(activation) ? 1.45 + 0.75e-6 * double(values) : 0;
}

// Tiles were measured where weights are read ahead, and depths shared; elsewhere only an activation's kernel is surely
// saved.
bool may_pay(const Gemm& g, const ProductData& data, const Activation& activation) {
  return fits(g, data) && g.m >= kFewestRows && (is_apart(activation) || g.constant_b);
}

}  // namespace

bool is_tile_gemm(const Gemm& g, const ProductData& data, TileGemmWay way) {
  return fits(g, data) && way.parts <= kMostTileParts && std::has_single_bit(unsigned(way.parts)) &&
         int(way.shape) < tile_shapes(g.type, true);
}

std::vector<TileGemmWay> tile_gemm_ways(const Gemm& g, const ProductData& data, int device) {
  std::vector<TileGemmWay> ways;
  if (!fits(g, data)) return ways;
  for (int shape = 0; shape < tile_shapes(g.type, device::has_warpgroups(device)); ++shape)
    for (int parts = 1; parts <= kMostTileParts; parts *= 2) ways.push_back({parts, TileShape(shape)});
  return ways;
}

TileGemmWay tile_gemm_way(const Gemm& g, const ProductData& data, const Activation& activation, int device) {
  return may_pay(g, data, activation) ? tile_gemm_way(g, data, activation, tile_room(device)) : TileGemmWay{};
}
TileGemmWay tile_gemm_way(const Gemm& g, const ProductData& data, const Activation& activation, const TileRoom& room) {
  if (!may_pay(g, data, activation)) return {};
  return tiles_faster_than(us_by_library(g), {g.type, g.m, g.n, g.k}, activation, room);
}

TileGemmWay tiles_faster_than(double library_us, const TileProblem& p, const Activation& activation,
                              const TileRoom& room) {
  const bool apart = is_apart(activation);
  const int64_t depth_bytes = p.depth * int64_t(device::size_bytes(p.type));
  if (!apart && room.most_parts <= 1) return {};
  TileGemmWay fastest;
  double least = library_us + us_apart(activation, p.rows * p.columns);
  const int shapes = tile_shapes(p.type, room.warpgroups && !p.slides);
  for (int shape = 0; shape < shapes; ++shape) {
    const TileSize& size = kTileSizes[shape];
    const ShapeCost& cost = (p.type == Type::f32 ? kCostsOfFloats : kCosts)[shape];
    const int64_t tiles = divide_up(p.rows, size.rows) * divide_up(p.columns, size.columns);
    for (int parts = 1, doubled = 0; parts <= room.most_parts; parts *= 2, ++doubled) {
      const double of_each = double(tiles * parts) / room.multiprocessors;
      if (of_each > cost.most_of_each * (parts == kMostTileParts ? kLargeClusters : 1)) break;
      const auto steps = double(divide_up(divide_up(depth_bytes, size.depth_bytes), parts));
      const double step = cost.step + (p.slides ? cost.slide : 0) + cost.step_of_each * of_each;
      const double late = std::max(steps - kFirstSteps, 0.) * cost.late_step_of_each * of_each;
      const double us = cost.fixed + cost.join * doubled + steps * step + late + (apart ? cost.curve / parts : 0);
      if (us < least) least = us, fastest = {parts, TileShape(shape)};
    }
  }
  return fastest;
}

}  // namespace encore::ops
