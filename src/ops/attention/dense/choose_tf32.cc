// Whether attention in TF32 is taken, and which way of it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "device/device.h"
#include "ops/attention/dense/attend_tf32.h"
#include "ops/attention/dense/attend_view.h"
#include "ops/attention/dense/tf32_ways.h"

namespace encore::ops {
namespace {

// Microseconds on an H200, as bench/attend.cc measures them: of all; of the blocks that run at once, as many for each
// multiprocessor as it has room for; and of each of their tiles of keys, more if a mask is read beside it.
struct WayCost {
  double launched, begin, tile, masked;
};
constexpr WayCost kCosts[] = {{0, 3.5, 2.7, 1.0}, {0, 5.1, 1.9, 0.7}, {0, 9.4, 2.2, 3.5}};
constexpr WayCost kCostsOfLarge[] = {{1.8, 4.4, 1.6, 0.7}, {2.4, 3.8, 2.5, 0.8}, {0, 7.8, 3.7, 0.9}};  // heads
constexpr double kOfSmall = 0.6;

// Of a block's rows, on average.
double seen_keys(const Attend& p, int64_t rows) {
  double seen = double(p.keys);
  const int64_t queries = rows / std::max<int64_t>(p.heads / p.kv_heads, 1);
  const auto& [before, after, offset] = std::tuple(p.visible.before, p.visible.after, p.visible.offset);
  if (after >= 0) seen = std::min(seen, double(std::max<int64_t>(offset, 0) + p.queries / 2 + after + queries / 2));
  if (before >= 0) seen = std::min(seen, double(before + std::max<int64_t>(after, 0) + 1 + queries));
  return std::max(seen, 1.0);
}

template <class Warps>
double us_of(Tf32Way way, const Attend& p, int device) {
  const bool large = Warps::kHead > 64;
  const WayCost& cost = (large ? kCostsOfLarge : kCosts)[int(way)];
  const int64_t rows = p.queries * (p.heads / p.kv_heads);
  const int at_once = device::multiprocessors(device) * (large && way != Tf32Way::many ? 1 : 2);
  const double rounds = double(p.batch * p.kv_heads * ((rows + Warps::kRows - 1) / Warps::kRows)) / at_once;
  const double tiles = std::ceil(seen_keys(p, Warps::kRows) / Warps::kKeys) * (Warps::kHead > 32 ? 1 : kOfSmall);
  const double tile = cost.tile + (p.mask.data ? cost.masked : 0);
  constexpr double kFew = 3;  // rounds, of which the last is seen to be one
  return cost.launched + (rounds < kFew ? std::ceil(rounds) : rounds + 0.3) * (cost.begin + tiles * tile);
}

// Of both products and the softmax between them. Scores of which rows lie unaligned take longer.
double us_of_products(const Attend& p) {
  const auto matrices = double(p.batch * p.heads), scores = matrices * double(p.queries) * double(p.keys) * 1e-6;
  const bool aligned = p.keys % 8 == 0;
  const double of_score = (aligned ? 3.6 : 4.8) + double(p.head_size + p.value_size) / 128;
  return 10.3 + (aligned ? 0.11 : 0.3) * matrices + of_score * scores;
}

template <class Warps>
bool has_room(const Attend& p, int device) {
  const int64_t fixed = Warps::kRowBytes + device::kLanesBytes;
  return fixed + Warps::dynamic_bytes(p.keys) <= device::shared_bytes(device);
}

}  // namespace

bool fits_tf32(const Attend& p) {
  constexpr int64_t kMostSize = 128, kMostRows = int64_t(1) << 30;
  if (p.type != Type::f32 || p.scores.data || p.k_codes || p.queries == 0 || p.keys == 0 || p.head_size == 0 ||
      p.value_size == 0 || larger_size(p) > kMostSize || std::max({p.queries, p.keys, p.heads}) >= kSizeCap ||
      p.queries * (p.heads / p.kv_heads) >= kSizeCap || p.batch * p.heads > kMostRows / p.queries)
    return false;
  for (const auto& [rows, count] : {std::pair{p.q, p.head_size}, {p.k, p.head_size}, {p.v, p.value_size}})
    if (!packs_fit<kInGranule, float>(rows, count)) return false;
  return true;
}

bool has_room_for_tf32(const Context& context, const Attend& p, Tf32Way way) {
  bool room = false;
  for_way(way, larger_size(p), [&]<class Warps> { room = has_room<Warps>(p, context.stream().device()); });
  return room;
}

Tf32Estimate estimate_tf32(const Context& context, const Attend& p) {
  const int device = context.stream().device();
  Tf32Estimate best{Tf32Way::many, std::numeric_limits<double>::infinity()};
  for (const Tf32Way way : {Tf32Way::few, Tf32Way::some, Tf32Way::many})
    for_way(way, larger_size(p), [&]<class Warps> {
      if (const double us = us_of<Warps>(way, p, device); us < best.us && has_room<Warps>(p, device)) best = {way, us};
    });
  return best;
}

bool suits_tf32(const Attend& p) { return p.tf32 && fits_tf32(p); }

bool beats_products(const Context& context, const Attend& p) {
  return suits_tf32(p) && estimate_tf32(context, p).us < us_of_products(p);
}

void attend_tf32(Context& context, const Attend& problem, Blind blind) {
  attend_tf32(context, problem, estimate_tf32(context, problem).way, blind);
}

}  // namespace encore::ops
