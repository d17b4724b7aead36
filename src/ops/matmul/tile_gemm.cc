#include "ops/matmul/tile_gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>

#include "device/tensor_map.h"
#include "ops/matmul/warpgroup_gemm.h"

namespace encore::ops {
namespace {

using device::Gemm;

// Microseconds on an H200, as bench/tile_gemm.cc measures them. A step takes as long as its reads are on their way, and
// longer the more blocks read beside it.
struct ShapeCost {
  int most_of_each;                  // blocks that a multiprocessor has room for
  double fixed, join;                // of all; each time that parts double
  double step, step_of_each, slide;  // a step's alone, for each block, and if windows slide
};
constexpr ShapeCost kCosts[] = {{3, 2.50, 0.29, 0.19, 0.19, 0.10}, {3, 1.90, 0.37, 0.16, 0.13, 0.06},
                                {2, 1.86, 0.41, 0.27, 0.18, 0.10}, {3, 1.67, 0.40, 0.21, 0.20, 0.10},
                                {1, 1.80, 1.05, 0.18, 0.06},       {1, 2.60, 1.10, 0.21, 0.05}};
constexpr ShapeCost kCostsOfFloats[] = {kCosts[0], kCosts[1], kCosts[2], {3, 1.86, 0.34, 0.23, 0.13, 0.075}};
static_assert(std::size(kCosts) == kTileShapes && std::size(kCostsOfFloats) == int(kFirstOfWarpgroups));

// Of warpgroups, whose weights of the first steps are there before a block begins. Later steps take at least as long as
// what all blocks read.
struct WarpgroupCost {
  double late_step, late_step_of_each, curve;  // the curve of a tile, whoever shares it
};
constexpr WarpgroupCost kWarpgroupCosts[] = {{0.175, 0.30, 0.65}, {0.27, 0.42, 0.60}};
constexpr int kFirstSteps = 8;

double us_by_tiles(const ShapeCost& cost, const WarpgroupCost* warpgroup, double steps, double of_each, bool slides,
                   double curves) {
  const double first = warpgroup ? std::min<double>(steps, kFirstSteps) : steps;
  double us = cost.fixed + first * (cost.step + (slides ? cost.slide : 0) + cost.step_of_each * of_each);
  if (warpgroup) {
    us += (steps - first) * std::max(warpgroup->late_step, warpgroup->late_step_of_each * of_each);
    us += curves * warpgroup->curve;
  }
  return us;
}

constexpr double kLargeClusters = 0.85;  // what these find room for of all multiprocessors
// Of warpgroups' blocks, of which a multiprocessor has one.
constexpr double kLargeWarpgroupClusters = 0.8;
constexpr int kLargeWarpgroupCluster = 4;

// cuBLASLt's best, of constant weights. Of floats it splits great depths.
double us_by_library(const Gemm& g) {
  const double passed = double(g.m) * double(g.n) * (g.beta != 0 ? 2 : 1);
  if (g.type == Type::f32) return 3.2 + 2.6e-3 * std::min(double(g.k), 1400.0) + 1.6e-6 * passed;
  constexpr double kDeep = 768;  // what is deeper it shares out
  const double depth = 2.1e-3 * std::min(double(g.k), kDeep) + 1.3e-3 * std::max(double(g.k) - kDeep, 0.0);
  return 2.3 + depth + 1.04e-6 * passed + 0.25e-6 * double(g.k) * double(g.n);
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

using Kind = Activation::Kind;

// Whether a library needs another kernel behind its own, and what that takes.
bool is_apart(const Activation& activation) { return activation.kind != Kind::none && activation.kind != Kind::relu; }
double us_apart(int64_t values) { return 1.45 + 0.75e-6 * double(values); }

// Tiles were measured where weights are read ahead, and depths shared; elsewhere only an activation's kernel is surely
// saved.
bool may_pay(const Gemm& g, const ProductData& data, const Activation& activation) {
  return fits(g, data) && g.m >= kFewestRows && (is_apart(activation) || g.constant_b);
}

// What a way is chosen by.
struct Estimate {
  double library_us = 0;
  TileProblem problem{};
  TileRoom room{};
  bool is_apart = false, is_near_for_warpgroups = false;  // the activation
  bool operator==(const Estimate&) const = default;
};

TileGemmWay fastest_way(const Estimate& of) {
  const auto& [library_us, p, room, is_apart, is_near] = of;
  const int64_t depth_bytes = p.depth * int64_t(device::size_bytes(p.type));
  if (!is_apart && room.most_parts <= 1) return {};
  TileGemmWay fastest;
  double least = library_us + (is_apart ? us_apart(p.rows * p.columns) : 0);
  const int shapes = tile_shapes(p.type, room.warpgroups && !p.slides && is_near);
  for (int shape = 0; shape < shapes; ++shape) {
    const TileSize& size = kTileSizes[shape];
    const ShapeCost& cost = p.type == Type::f32 ? kCostsOfFloats[shape] : kCosts[shape];
    const int warpgroups = shape - int(kFirstOfWarpgroups);
    const WarpgroupCost* const warpgroup = warpgroups >= 0 ? &kWarpgroupCosts[warpgroups] : nullptr;
    const int64_t tiles = divide_up(p.rows, size.rows) * divide_up(p.columns, size.columns);
    for (int parts = 1, doubled = 0; parts <= room.most_parts; parts *= 2, ++doubled) {
      const double of_each = double(tiles * parts) / room.multiprocessors;
      const double there = warpgroup ? (parts >= kLargeWarpgroupCluster ? kLargeWarpgroupClusters : 1)
                                     : (parts == kMostTileParts ? kLargeClusters : 1);
      if (of_each > cost.most_of_each * there) break;
      const auto steps = double(divide_up(divide_up(depth_bytes, size.depth_bytes), parts));
      const double curves = is_apart ? 1.0 / parts : 0;  // those who share a tile share its end
      const double us = us_by_tiles(cost, warpgroup, steps, of_each, p.slides, curves) + cost.join * doubled;
      if (us < least) least = us, fastest = {parts, TileShape(shape)};
    }
  }
  return fastest;
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
  // An eager run asks the same for each of its products, again and again.
  struct Known {
    Estimate of;
    TileGemmWay way;
  };
  thread_local std::array<Known, 64> all{};
  const Estimate asked{library_us, p, room, is_apart(activation), is_near_for_warpgroups(activation)};
  Known& known = all[size_t(p.rows * 7 + p.columns * 5 + p.depth * 3) / 8 % all.size()];
  if (!(known.of == asked)) known = {asked, fastest_way(asked)};
  return known.way;
}

}  // namespace encore::ops
