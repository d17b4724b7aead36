#include "ops/reduce/column_spread.h"

#include <algorithm>

#include "ops/op.h"

namespace encore::ops {
namespace {

constexpr int kThreads = 256;      // of most blocks
constexpr int64_t kAtOnce = 1024;  // threads of a multiprocessor

int64_t ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Groups of equal width that each have at most `side` threads, then up to `rows` threads for each column, then up to
// `here` runs.
ColumnSpread laid(const ColumnProblem& p, int64_t side, int64_t rows, int64_t here, int64_t threads) {
  ColumnSpread s = {};
  side = std::min(side, threads / p.alike);
  s.groups_in_run = ceil(p.packs, p.shifted ? std::max<int64_t>(side - 1, 1) : side);
  s.of_group = int(ceil(p.packs, s.groups_in_run)) + p.shifted;
  rows = std::min(rows, threads / s.of_group);
  s.rows = int(std::max<int64_t>(rows / p.alike * p.alike, p.alike));
  here = s.groups_in_run == 1 ? std::min({here, threads / (s.rows * s.of_group), p.outer}) : 1;
  s.groups_here = int(std::max<int64_t>(here, 1));
  s.lanes = s.of_group * s.groups_here;
  s.threads = (s.rows * s.lanes + 31) / 32 * 32;
  s.tiles = checked_product(ceil(p.outer, s.groups_here), s.groups_in_run);
  s.in_cluster = 1;
  s.splits = 1;
  return s;
}

// What lies in the cache waits for its loads rather than for memory: threads for all of it at once, each with a few
// packs, and blocks of few columns, down to 32 bytes side by side.
ColumnSpread spread_small(const ColumnProblem& p, int64_t packs) {
  const int64_t room = kAtOnce * p.multiprocessors, many = 4 * int64_t(p.multiprocessors);
  const int64_t share = std::max(std::min(room / packs, p.axis / 4), int64_t(1));  // threads of a column
  int64_t side = std::max(kThreads / share, ceil(packs, many));
  side = std::max<int64_t>(std::min(side, ceil(packs, p.multiprocessors)), 2);
  if (share > 1 && side < p.packs && p.packs <= 2 * side) side = p.packs;  // rows are neighbours, too
  side = std::min(side, packs) + p.shifted;
  const auto with = [&](int64_t threads) { return laid(p, side, share, side / (p.packs + p.shifted), threads); };
  ColumnSpread s = with(kThreads);
  if (share >= 2 * s.rows) s = with(p.most_threads);
  while (2 * s.in_cluster <= p.most_in_cluster && share >= 2 * s.in_cluster * s.rows) s.in_cluster *= 2;
  // A second launch costs two microseconds, in which half a million packs are read, unless multiprocessors are idle.
  const int64_t blocks = s.tiles * s.in_cluster, idle = p.multiprocessors - blocks;
  if (p.splits && idle > 0 && share >= 2 * s.rows * s.in_cluster && packs * p.axis / blocks * idle > 500000) {
    s = laid(p, 32, kThreads, kThreads, kThreads);
    s.splits = std::clamp<int64_t>(p.axis / (s.rows * 8), 1, std::max<int64_t>(many / s.tiles, 1));
  }
  return s;
}

// What comes from memory wants all multiprocessors to ask for it all the time, with 512 bytes side by side. Blocks of a
// cluster begin and end together, and where others are to follow their place stays empty meanwhile: so there are as few
// in each as make one launch that fills the GPU. Where eight don't, larger blocks do it with narrower strips, as long
// as a second launch would take longer than these lose; else there is one, and as many blocks as there is room for at
// once.
ColumnSpread spread_large(const ColumnProblem& p, int64_t packs) {
  constexpr int64_t kSide = 32, kMostOfThread = 8, kManyPacks = int64_t(1) << 21;
  const int64_t room = kAtOnce * p.multiprocessors;
  const int64_t rows = ceil(p.axis, std::clamp<int64_t>(packs * p.axis / room, 4, kMostOfThread));
  const auto with = [&](int64_t side, int64_t threads) {
    threads = std::min<int64_t>(threads, p.most_threads);
    return laid(p, std::max(side, threads / rows), rows, threads, threads);
  };
  const auto at_once = [&](const ColumnSpread& s) { return p.multiprocessors * (kAtOnce / s.threads); };
  // Whether blocks are as many as this share of those that find room.
  const auto fills = [&](const ColumnSpread& s, double share) {
    return double(s.tiles * s.in_cluster) >= share * double(at_once(s));
  };
  const auto in_clusters = [&](int64_t side, int64_t threads, double share) {
    ColumnSpread s = with(side, threads);
    while (!fills(s, share) && 2 * s.in_cluster <= p.most_in_cluster && s.in_cluster * s.rows < rows) s.in_cluster *= 2;
    return s;
  };
  for (int64_t side = kSide; side >= kSide / 2; side /= 2) {
    const ColumnSpread s = in_clusters(side, kThreads, 0.9);
    if (fills(s, 0.9)) return s;
  }
  if (!p.splits || packs * p.axis < kManyPacks) {
    for (int64_t side = kSide; side >= kSide / 4; side /= 2) {
      const ColumnSpread s = in_clusters(side, 2 * kThreads, 0.45);
      if (fills(s, 0.45) || (!p.splits && side == kSide / 4)) return s;
    }
  }
  ColumnSpread s = with(2 * kSide, 2 * kThreads);
  s.splits = std::clamp<int64_t>(at_once(s) / s.tiles, 1, std::max<int64_t>(p.axis / (s.rows * 8), 1));
  return s;
}

}  // namespace

ColumnSpread spread_columns(const ColumnProblem& p) {
  const int64_t packs = checked_product(p.outer, p.packs);
  return packs * p.axis <= int64_t(1) << 18 ? spread_small(p, packs) : spread_large(p, packs);
}

}  // namespace encore::ops
