// The most extreme of neighbouring values. Each pack's is found first, and only that one is taken: so few are compared
// that waiting for memory is all the time takes.
#pragma once
#include <algorithm>
#include <limits>

#include "device/larger.h"
#include "device/ranked.h"
#include "ops/dispatch.h"
#include "ops/reduce/reduce.h"

namespace encore::ops {

// F is the functor of a reduction. `max` tells which extreme; `Acc of(In most, int32_t pack)` is of a pack whose
// greatest value, all being device::flipped() for the least, is `most`. Where F has kPlaces, an Acc is Ranked: first by
// packs, of which coded(pack) is the place, and in the end by coded(index).
template <class F, int kLanes>
struct ExtremeRows {
  using In = typename F::In;
  using Acc = typename F::Acc;
  using Together = Team<kLanes>;
  using Values = Pack<In, device::pack_size<In>()>;
  static constexpr int kPack = device::pack_size<In>(), kBatch = kPack > 8 ? 2 : 4;
  static constexpr int kMaxThreads = kLanes ? 256 : 512;
  // Values of the packs that are not whole, for each lane.
  static constexpr int kLeastLanes = kLanes ? kLanes : 32, kEdge = (2 * kPack - 2 + kLeastLanes - 1) / kLeastLanes;
  static constexpr int kSeekers = std::min(kLeastLanes, kPack);
  using Flip = std::conditional_t<sizeof(In) == 8, uint64_t, uint32_t>;

  // Of values, or of as many as a word has, so that the least becomes the greatest.
  static constexpr Flip kFlip = std::is_integral_v<In> ? ~Flip(0)
                                : sizeof(In) == 2      ? Flip(0x80008000u)
                                                       : Flip(1) << (8 * sizeof(Flip) - 1);

  const In* x;  // [rows, width]
  Results<F> results;
  int64_t rows, width, chunk;  // packs of a split
  bool aligned;
  Flip flip;
  F f;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    const auto collected = [&](int t) { return collect(b, t); };
    if constexpr (F::kPlaces) {
      auto best = Together::reduce(b, f.zero(), collected, device::HigherRank{});
      PerThread<int32_t, kMaxThreads> place;
      b.template reduce_groups<kSeekers>(
          place, [&](int t) { return seek(b, t, best[t]); },
          [](int32_t one, int32_t other) { return one > other ? one : other; });
      b.threads([&](int t, NoShared&) { put(b, t, {best[t].rank, place[t]}); });
    } else {
      auto best = Together::reduce(b, f.zero(), collected,
                                   [&](const Acc& one, const Acc& other) { return f.merge(one, other); });
      b.threads([&](int t, NoShared&) { put(b, t, best[t]); });
    }
  }

 private:
  DEVICE_FN bool locate(const Block<NoShared>& b, int t, int64_t& row, int64_t& split) const {
    row = Together::index(b, t);
    split = 0;
    if (kLanes == 0 && results.splits != 1) {
      const int64_t i = row;
      row = i / results.splits;
      split = i - row * results.splits;
    }
    return row < rows;
  }
  // Packs lie at aligned addresses; the first one begins so many values before the row.
  DEVICE_FN int before_row(const In* start) const {
    return aligned ? 0 : int(reinterpret_cast<uintptr_t>(start) / sizeof(In) % kPack);
  }
  DEVICE_FN Acc of(const Values& values, int32_t pack) const {
    return f.of(device::largest_or_nan(device::flipped(values, flip)), pack);
  }
  DEVICE_FN Acc of(In value, int32_t pack) const {
    Values values;
    UNROLL for (int j = 0; j < kPack; ++j) values.at[j] = value;
    return of(values, pack);
  }
  DEVICE_FN Acc collect(const Block<NoShared>& b, int t) const {
    Acc acc = f.zero();
    int64_t row, split;
    if (!locate(b, t, row, split)) return acc;
    const int lane = Together::lane(t), lanes = Together::size(b);
    const In* const from = x + row * width;
    const int before = before_row(from);
    const int64_t first = split * chunk, behind = (width + before) / kPack, whole = behind - first;
    const int end = int(whole < chunk ? whole : chunk);
    // Those of packs that are not whole are asked for before all others.
    int head = 0, edges = 0;
    In edge[kEdge] = {};
    if (!aligned) {
      head = before == 0 || split != 0 ? 0 : int(width < kPack - before ? width : kPack - before);
      const int64_t tail_at = behind * kPack - before, tail = width - (tail_at < 0 ? width : tail_at);
      edges = head + (kLanes == 0 && split != results.splits - 1 ? 0 : int(tail));
      UNROLL for (int k = 0; k < kEdge; ++k) {
        const int e = lane + k * lanes;
        if (e < edges) edge[k] = from[e < head ? e : tail_at + (e - head)];
      }
    }
    int p = lane + (split == 0 && before != 0);
    const In* at = from + ((first + p) * kPack - before);
    const auto take = [&]<int kCount>(auto is_there) {
      Values batch[kCount];
      UNROLL for (int u = 0; u < kCount; ++u) {
        if (is_there(u)) batch[u] = device::load_pack<kPack>(at + u * lanes * kPack, true);
      }
      UNROLL for (int u = 0; u < kCount; ++u) {
        if (is_there(u)) acc = f.merge(acc, of(batch[u], int32_t(first) + p + u * lanes));
      }
    };
    // A block asks only with guards: without them the compiler saves registers by waiting for one pack after the other.
    if constexpr (kLanes != 0) {
      for (; p + (kBatch - 1) * lanes < end; p += kBatch * lanes, at += kBatch * lanes * kPack) {
        take.template operator()<kBatch>([](int) { return true; });
      }
    }
    NO_UNROLL for (; p < end; p += kBatch * lanes, at += kBatch * lanes * kPack) {
      take.template operator()<kLanes ? kBatch - 1 : kBatch>([&](int u) { return p + u * lanes < end; });
    }
    if (aligned) return acc;
    UNROLL for (int k = 0; k < kEdge; ++k) {
      const int e = lane + k * lanes;
      if (e < edges) acc = f.merge(acc, of(edge[k], e < head ? 0 : int32_t(behind)));
    }
    return acc;
  }
  // The place of the best value within its pack, where some of the team's threads each look at few.
  DEVICE_FN int32_t seek(const Block<NoShared>& b, int t, const Acc& best) const {
    constexpr int32_t kNowhere = std::numeric_limits<int32_t>::min();
    int64_t row, split;
    const int lane = Together::lane(t);
    if (lane >= kSeekers || !locate(b, t, row, split)) return kNowhere;
    const In* const from = x + row * width;
    const int64_t first =
        int64_t(f.decoded(best.place)) * kPack - before_row(from);  // beyond the row: no pack was there
    int32_t found = kNowhere;
    UNROLL for (int j = 0; j < kPack; j += kSeekers) {
      const int64_t i = first + lane + j;
      if (i < 0 || i >= width || of(from[i], 0).rank != best.rank) continue;
      const int32_t place = f.coded(int32_t(i));
      found = place > found ? place : found;
    }
    return found;
  }
  DEVICE_FN void put(const Block<NoShared>& b, int t, const Acc& best) const {
    int64_t row, split;
    if (Together::lane(t) == 0 && locate(b, t, row, split)) results.put(f, row, split, best);
  }
};

// As reduce() does for a plan which is_rows().
template <class F>
void reduce_rows(Context& context, const ReducePlan& plan, const typename F::In* x, typename F::Out* y, const F& f) {
  constexpr int64_t kLeast = 4;  // packs that each thread has if rows are split
  constexpr int kPack = device::pack_size<typename F::In>();
  const StreamRef stream = context.stream();
  const int64_t rows = plan.outputs(), enough = int64_t(device::multiprocessors(stream.device())) * 4;
  const bool aligned = device::is_pack_aligned<kPack>(x) && plan.run % kPack == 0;
  const int64_t packs = (plan.run + (aligned ? 1 : 2) * (kPack - 1)) / kPack;
  Results<F> results{y, nullptr, rows, 1};
  const auto launch = [&]<int kLanes>(int threads) {
    const int teams = kLanes ? threads / kLanes : 1;
    int64_t chunk = packs;
    if (kLanes == 0) {
      const int64_t splits = std::clamp<int64_t>(std::min(enough / rows, packs / (threads * kLeast)), 1, 1024);
      chunk = (packs + splits - 1) / splits;
      results.splits = (packs + chunk - 1) / chunk;
      if (results.splits > 1)
        results.parts = static_cast<typename F::Acc*>(
            context.scratch(size_t(checked_product(rows, results.splits)) * sizeof(typename F::Acc)));
    }
    using Kernel = ExtremeRows<F, kLanes>;
    device::block_kernel<NoShared>(stream, {(rows * results.splits + teams - 1) / teams, threads},
                                   Kernel{x, results, rows, plan.run, chunk, aligned, f.max ? 0 : Kernel::kFlip, f});
  };
  if (packs <= 16)
    launch.template operator()<4>(rows < 8192 ? 64 : 256);
  else if (packs <= 128 || (packs <= 256 && rows >= 2 * enough))
    launch.template operator()<32>(rows < 1024 ? 64 : 256);
  else
    launch.template operator()<0>(packs <= 2048 ? 128 : 512);
  merge_parts(context, results, f);
}

// Whether what is reduced are rows of neighbours, one after the other.
inline bool is_rows(const ReducePlan& plan) {
  return plan.reduces_run && plan.reduced.rank == 0 && plan.kept.rank <= 1 && plan.run > 0 && plan.outputs() > 0;
}

}  // namespace encore::ops
