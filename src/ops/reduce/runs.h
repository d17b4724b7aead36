// Reductions whose innermost run is reduced.
#pragma once
#include <algorithm>
#include <bit>

#include "device/unaligned_pack.h"
#include "ops/reduce/results.h"
#include "ops/reduce/team.h"

namespace encore::ops {

// Packs of a run that is short.
inline constexpr int64_t kMostShort = 128;

// A team for each output and split. A long run that is not made of whole packs begins and ends with a few values that
// lanes take one by one. kAll: there is one run, and one output.
template <class F, int kLanes, bool kAll>
struct ReduceRuns {
  using In = typename F::In;
  using Acc = typename F::Acc;
  using Together = Team<kLanes>;
  static constexpr int kPack = device::pack_size<In>(), kBatch = F::kBatch == 1 ? 1 : kPack > 8 ? 2 : 8;
  static constexpr int kMaxThreads = 1024;  // what registers are to leave room for: several blocks
  // Of runs by themselves: a block has none that is short, a warp none that is huge.
  static constexpr Runs kRuns = runs_of<F>();
  static constexpr bool kHasShort = kLanes != 0 && kRuns != Runs::huge;
  static constexpr bool kHasLong = kRuns == Runs::all || (kLanes == 0 && kRuns == Runs::huge);

  const In* x;
  Results<F> results;
  int64_t run, stride;   // from one output's values to the next one's, where there is nothing else to know
  int64_t packs, chunk;  // of an output, and of a split
  bool aligned;
  F f;
  device::Divider by_splits, packs_in_run;
  Dims kept, reduced;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    auto acc = Together::reduce(
        b, f.zero(), [&](int t) { return collect(b, t); }, [&](const Acc& a, const Acc& c) { return f.merge(a, c); });
    b.threads([&](int t, NoShared&) {
      int64_t split;
      const int64_t output = by_splits(Together::index(b, t), split);
      if (Together::lane(t) == 0 && output < results.outputs) results.put(f, output, split, acc[t]);
    });
  }

 private:
  DEVICE_FN Acc collect(const Block<NoShared>& b, int t) const {
    int64_t split;
    const int64_t output = by_splits(Together::index(b, t), split);
    if (output >= results.outputs) return f.zero();
    const In* from = x + (kept.rank <= 1 ? output * stride : kept.offset(output));
    const int lane = Together::lane(t), lanes = Together::size(b);
    if constexpr (!kAll)
      if (reduced.rank != 0) return of_runs(from, split, lane, lanes);
    if constexpr (kHasLong && kHasShort)
      return aligned || packs > kMostShort ? of_one_run(from, split, lane, lanes) : of_short_run(from, lane, lanes);
    else if constexpr (kHasLong)
      return of_one_run(from, split, lane, lanes);
    else if constexpr (kHasShort)
      return of_short_run(from, lane, lanes);
    else
      return f.zero();  // of a run of no values
  }

  DEVICE_FN Acc of_one_run(const In* from, int64_t split, int lane, int lanes) const {
    const int before = before_run(from);  // packs lie at aligned addresses, the first may begin before the run
    const int64_t first = split * chunk, whole = (run + before) / kPack - first;
    const int end = int(whole < chunk ? whole : chunk);
    // Values of packs that are not whole, a few for each lane: asked for before all others.
    constexpr int kEdge = (2 * kPack - 2 + (kLanes ? kLanes : 32) - 1) / (kLanes ? kLanes : 32);
    int head = 0, edges = 0;
    int64_t tail_at = 0;
    In edge[kEdge ? kEdge : 1] = {};
    if (!aligned) {
      head = before == 0 ? 0 : int(run < kPack - before ? run : kPack - before);
      const int64_t behind = (run + before) / kPack * kPack - before;
      tail_at = behind > head ? behind : head;
      if (split != 0) head = 0;
      edges = head + (split == results.splits - 1 ? int(run - tail_at) : 0);
      UNROLL for (int k = 0; k < kEdge; ++k) {
        const int e = lane + k * lanes;
        if (e < edges) edge[k] = from[e < head ? e : tail_at + (e - head)];
      }
    }
    Acc acc = f.zero();
    int p = lane + (split == 0 && before != 0);
    const int64_t begin = first * kPack - before;  // of the split's packs in the run
    const In* at = from + (begin + int64_t(p) * kPack);
    for (; p < end; p += kBatch * lanes, at += kBatch * lanes * kPack) {
      Pack<In, kPack> batch[kBatch];
      UNROLL for (int u = 0; u < kBatch; ++u) {
        if (p + u * lanes < end) batch[u] = device::load_pack<kPack>(at + u * lanes * kPack, true);
      }
      UNROLL for (int u = 0; u < kBatch; ++u) {
        if (p + u * lanes >= end) continue;
        UNROLL for (int j = 0; j < kPack; ++j) {
          f.take(acc, batch[u].at[j], begin + int64_t(p + u * lanes) * kPack + j);
        }
      }
    }
    if (aligned) return acc;
    Acc others = f.zero();  // `take` wants indices that ascend
    UNROLL for (int k = 0; k < kEdge; ++k) {
      const int e = lane + k * lanes;
      if (e < edges) f.take(others, edge[k], e < head ? e : tail_at + (e - head));
    }
    return f.merge(acc, others);
  }

  // Lanes take values by their place in the run, wherever it lies: runs that are alike have the same sum.
  DEVICE_FN Acc of_short_run(const In* from, int lane, int lanes) const {
    constexpr int kAtOnce = F::kBatch == 1 ? 1 : 4;
    Acc acc = f.zero();
    NO_UNROLL for (int first = lane * kPack; first < run; first += kAtOnce * lanes * kPack) {
      device::UnalignedPack<In> batch[kAtOnce];
      UNROLL for (int u = 0; u < kAtOnce; ++u) {
        const int at = first + u * lanes * kPack, left = int(run) - at;
        batch[u] = device::UnalignedPack<In>(from + at, left < 0 ? 0 : left < kPack ? left : kPack);
      }
      UNROLL for (int u = 0; u < kAtOnce; ++u) {
        const int at = first + u * lanes * kPack;
        const auto values = batch[u].pack();
        UNROLL for (int j = 0; j < kPack; ++j) {
          if (at + j < run) f.take(acc, values.at[j], at + j);
        }
      }
    }
    return acc;
  }
  DEVICE_FN Acc of_runs(const In* from, int64_t split, int lane, int lanes) const {
    Acc acc = f.zero();
    const int64_t end = (split + 1) * chunk < packs ? (split + 1) * chunk : packs;
    NO_UNROLL for (int64_t p = split * chunk + lane; p < end; p += lanes) {
      int64_t in_run;
      const In* start = from + reduced.offset(packs_in_run(p, in_run));
      const int64_t first = in_run * kPack;
      const int count = int(run - first < kPack ? run - first : kPack);
      const auto values =
          aligned ? device::load_pack<kPack>(start + first, true) : device::load_unaligned_pack(start + first, count);
      UNROLL for (int j = 0; j < kPack; ++j) {
        if (j < count) f.take(acc, values.at[j], first + j);
      }
    }
    return acc;
  }
  // How far a run begins behind an aligned address.
  DEVICE_FN int before_run(const In* start) const {
    return aligned ? 0 : int(reinterpret_cast<uintptr_t>(start) / sizeof(In) % kPack);
  }
};

// Short runs that are neighbours: a block reads many of them as one, in whole packs, and reduces them where it has put
// them. kLanes threads take a run, in packs if kWhole. Else they take values by their place in the run, wherever it
// lies: runs that are alike have the same sum.
template <class F, int kLanes, bool kWhole>
struct ReduceShortRuns {
  using In = typename F::In;
  using Acc = typename F::Acc;
  static constexpr int kPack = device::pack_size<In>(), kThreads = kLanes == 1 ? 128 : 256, kMaxThreads = kThreads;
  static constexpr int kTeams = kThreads / kLanes, kBatch = 1024 / kThreads, kRoom = kThreads * kBatch * kPack;
  struct Shared {
    alignas(16) In at[kRoom];
  };

  const In* x;
  typename F::Out* y;
  int64_t outputs;
  int run, outputs_here;
  F f;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    const int64_t output = b.index() * outputs_here, first = output * run, elements = outputs * run;
    const int here = int(outputs - output < outputs_here ? outputs - output : outputs_here);
    const int shift = kWhole ? 0 : int(reinterpret_cast<uintptr_t>(x + first) / sizeof(In) % kPack);
    b.threads([&](int t, Shared& s) {
      const int packs = (here * run + shift + kPack - 1) / kPack;
      const int64_t start = first - shift;
      // At the ends of x there may be packs of which it has a part: values are taken one by one.
      const int begin = start < 0 ? 1 : 0;
      const int end = start + int64_t(packs) * kPack > elements ? packs - 1 : packs;
      Pack<In, kPack> batch[kBatch];
      UNROLL for (int u = 0; u < kBatch; ++u) {
        const int p = t + u * kThreads;
        if (begin <= p && p < end) batch[u] = device::load_pack<kPack>(x + start + p * kPack, true);
      }
      UNROLL for (int u = 0; u < kBatch; ++u) {
        const int p = t + u * kThreads;
        if (begin <= p && p < end) device::store_pack(s.at + p * kPack, batch[u], true);
      }
      if (kWhole || t >= (packs == 1 ? kPack : 2 * kPack)) return;
      const int p = t < kPack ? 0 : packs - 1, at = p * kPack + t % kPack;
      if ((p < begin || p >= end) && uint64_t(start + at) < uint64_t(elements)) s.at[at] = x[start + at];
    });
    NO_UNROLL for (int at = 0; at < here; at += kTeams) {
      PerThread<Acc, kMaxThreads> acc;
      b.template reduce_groups<kLanes>(
          acc,
          [&](int t) {
            const int own = at + t / kLanes;
            return own < here ? collect(s.at + shift + own * run, t % kLanes) : f.zero();
          },
          [&](const Acc& a, const Acc& c) { return f.merge(a, c); });
      b.threads([&](int t, Shared&) {
        const int own = at + t / kLanes;
        if (t % kLanes == 0 && own < here) y[output + own] = f.finish(acc[t]);
      });
    }
  }

 private:
  DEVICE_FN Acc collect(const In* from, int lane) const {
    Acc acc = f.zero();
    int one_by_one = 0;
    if constexpr (kWhole || sizeof(In) == 2) {
      one_by_one = kWhole ? run : run / kPack * kPack;
      const auto each = [&](auto take) {
        for (int i = lane * kPack; i < one_by_one; i += kLanes * kPack) take(i, load(from + i));
      };
      if constexpr (requires { f.lowest_pack(); }) {
        auto most = f.lowest_pack();
        each([&](int, const Pack<In, kPack>& pack) { f.take(most, pack); });
        acc = f.of_pack(most);
      } else {
        each([&](int i, const Pack<In, kPack>& pack) {
          UNROLL for (int j = 0; j < kPack; ++j) f.take(acc, pack.at[j], i + j);
        });
      }
    }
    if constexpr (!kWhole)
      for (int i = one_by_one + lane; i < run; i += kLanes) f.take(acc, from[i], i);
    return acc;
  }
  // What isn't whole packs has values of two bytes, which are read in pairs that are aligned.
  DEVICE_FN static Pack<In, kPack> load(const In* from) {
    if constexpr (kWhole) return device::load_pack<kPack>(from, true);
    if constexpr (!kWhole) {
      using Pair = Pack<In, 2>;
      const bool between = !device::is_pack_aligned<2>(from);
      const Pair* const pairs = reinterpret_cast<const Pair*>(from - between);
      uint32_t words[kPack / 2 + 1];
      UNROLL for (int i = 0; i < kPack / 2; ++i) words[i] = std::bit_cast<uint32_t>(pairs[i]);
      words[kPack / 2] = between ? std::bit_cast<uint32_t>(pairs[kPack / 2]) : 0;
      Pack<uint32_t, kPack / 2> found;
      UNROLL for (int i = 0; i < kPack / 2; ++i) found.at[i] =
          uint32_t((uint64_t(words[i + 1]) << 32 | words[i]) >> (between ? 16 : 0));
      return std::bit_cast<Pack<In, kPack>>(found);
    }
  }
};

// Launches it for outputs that are not split.
template <class F>
void reduce_short_runs(StreamRef stream, const typename F::In* x, typename F::Out* y, int64_t outputs, int run,
                       bool aligned, const F& f) {
  using Alone = ReduceShortRuns<F, 1, false>;
  // As many as there is room for, but blocks for all multiprocessors.
  const int64_t room = (Alone::kRoom - (aligned ? 0 : Alone::kPack)) / run;
  const int64_t spread = outputs / (device::multiprocessors(stream.device()) * 2);
  const int64_t most = std::clamp<int64_t>(spread, 1, room);
  const auto launch = [&]<int kLanes, bool kWhole>() {
    using Kernel = ReduceShortRuns<F, kLanes, kWhole>;
    // A block's threads all have something to do.
    const int here = int(std::min<int64_t>(most, Kernel::kTeams * 4));
    const int even = here > Kernel::kTeams ? here / Kernel::kTeams * Kernel::kTeams : here;
    device::block_kernel<typename Kernel::Shared>(stream, {(outputs + even - 1) / even, Kernel::kThreads},
                                                  Kernel{x, y, outputs, run, even, f});
  };
  if constexpr (runs_of<F>() != Runs::ragged)
    if (aligned) return launch.template operator()<8, true>();
  if (run <= 8 || (most >= Alone::kTeams && run % Alone::kPack != 0))  // else they would lie in the same banks
    launch.template operator()<1, false>();
  else
    launch.template operator()<4, false>();
}

// Launches whichever of them suits.
template <bool kAll, class F>
Results<F> reduce_runs(Context& context, const ReducePlan& plan, const typename F::In* x, Results<F> results,
                       const F& f) {
  constexpr int kPack = device::pack_size<typename F::In>();
  const StreamRef stream = context.stream();
  const int64_t multiprocessors = device::multiprocessors(stream.device());
  const bool aligned = device::is_pack_aligned<kPack>(x) && plan.run % kPack == 0;
  const bool in_places = plan.reduced.rank != 0 || plan.run <= kMostShort * kPack;
  const int64_t in_run = (plan.run + (aligned || in_places ? 1 : 2) * (kPack - 1)) / kPack;
  const int64_t packs = plan.reduced_count() == 0 ? 0 : checked_product(plan.reduced.count, in_run);
  const bool neighbours = plan.reduced.rank == 0 && plan.kept.rank <= 1;
  if constexpr (!kAll && runs_of<F>() != Runs::huge)
    if (neighbours && 0 < packs && packs <= 32 && results.outputs > 1) {
      reduce_short_runs(stream, x, results.y, results.outputs, int(plan.run), aligned, f);
      return results;
    }
  const auto launch = [&]<int kLanes>(int threads, int64_t chunk) {
    const int teams = kLanes ? threads / kLanes : 1;
    const int64_t all = checked_product(results.outputs, results.splits);
    device::block_kernel<NoShared>(
        stream, {(all + teams - 1) / teams, threads},
        ReduceRuns<F, kLanes, kAll>{x, results, plan.run, plan.kept.rank ? plan.kept.strides[0] : 0, packs, chunk,
                                    aligned, f, device::Divider(results.splits, all + teams),
                                    device::Divider(in_run, packs), plan.kept, plan.reduced});
  };
  if (packs <= kMostShort || (packs <= 1024 && results.outputs >= multiprocessors * 16))
    launch.template operator()<32>(results.outputs < multiprocessors * 16 ? 64 : 256, packs);
  else if (results.outputs >= multiprocessors || packs <= 4096)
    launch.template operator()<0>(packs <= 1024   ? 128
                                  : packs <= 4096 ? 256
                                                  : 512,
                                  results.cut(context, results.outputs, 0, packs, 1, 1));
  else {
    const int threads = results.outputs * packs < multiprocessors * 4096 ? 256 : 512;
    const int64_t enough = multiprocessors * (1024 / threads);
    launch.template operator()<0>(threads,
                                  results.cut(context, results.outputs, enough, packs, threads * 2, threads * 2));
  }
  return results;
}

}  // namespace encore::ops
