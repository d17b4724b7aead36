// The most extreme of neighbouring values. Each pack's is found first, and only that one is taken: so few are compared
// that waiting for memory is all the time takes.
#pragma once
#include <algorithm>
#include <limits>

#include "device/larger.h"
#include "ops/dispatch.h"
#include "ops/reduce/reduce.h"

namespace encore::ops {

// F is the functor of a reduction, with `max`, and takes a pack's extreme as one value at the pack's first place. Where
// Acc has an index, refine(Acc&, pack, first, end) finds the value's own.
template <class F, int kLanes>
struct ExtremeRows {
  using In = typename F::In;
  using Acc = typename F::Acc;
  using Together = Team<kLanes>;
  using Values = Pack<In, device::pack_size<In>()>;
  static constexpr int kPack = device::pack_size<In>(), kBatch = 4, kMaxThreads = kLanes ? 256 : 512;
  using Bits = std::conditional_t<
      sizeof(In) == 1, uint8_t,
      std::conditional_t<sizeof(In) == 2, uint16_t, std::conditional_t<sizeof(In) == 4, uint32_t, uint64_t>>>;

  const In* x;  // [rows, width]
  Results<F> results;
  int64_t rows, width, packs, chunk;  // packs of a row, and of a split
  bool aligned;
  F f;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    auto acc = Together::reduce(
        b, f.zero(), [&](int t) { return collect(b, t); }, [&](const Acc& a, const Acc& c) { return f.merge(a, c); });
    b.threads([&](int t, NoShared&) {
      int64_t row, split;
      if (Together::lane(t) != 0 || !locate(b, t, row, split)) return;
      Acc found = acc[t];
      if constexpr (requires { found.index; }) {
        const Row of{x + row * width, width, before_row(x + row * width)};
        if (found.index >= 0) f.refine(found, of.load(found.index), found.index - of.before, width);
      }
      results.put(f, row, split, found);
    });
  }

 private:
  // Packs lie at aligned addresses; the first one begins `before` values before the row.
  struct Row {
    const In* from;
    int64_t width;
    int before;
    // Where the row has no values the pack repeats the nearest.
    DEVICE_FN Values load(int64_t place) const {
      const int64_t first = place - before;
      if (first >= 0 && first + kPack <= width) return device::load_pack<kPack>(from + first, true);
      Values values;
      UNROLL for (int j = 0; j < kPack; ++j) {
        const int64_t i = first + j < width ? first + j : width - 1;
        values.at[j] = from[i < 0 ? 0 : i];
      }
      return values;
    }
  };
  DEVICE_FN int before_row(const In* start) const {
    return aligned ? 0 : int(reinterpret_cast<uintptr_t>(start) / sizeof(In) % kPack);
  }
  DEVICE_FN bool locate(const Block<NoShared>& b, int t, int64_t& row, int64_t& split) const {
    const int64_t i = Together::index(b, t);
    row = results.splits == 1 ? i : i / results.splits;
    split = i - row * results.splits;
    return row < rows;
  }
  DEVICE_FN void take(Acc& acc, const Values& values, int64_t pack) const {
    constexpr Bits kSign = Bits(Bits(1) << (8 * sizeof(In) - 1));
    const Bits flip = f.max ? Bits(0) : std::is_integral_v<In> ? Bits(~Bits(0)) : kSign;
    const In most = device::largest(device::flipped(values, flip));
    f.take(acc, std::bit_cast<In>(Bits(std::bit_cast<Bits>(most) ^ flip)), pack * kPack);
  }
  DEVICE_FN Acc collect(const Block<NoShared>& b, int t) const {
    Acc acc = f.zero();
    int64_t row, split;
    if (!locate(b, t, row, split)) return acc;
    const Row of{x + row * width, width, before_row(x + row * width)};
    const int64_t all = (width + of.before + kPack - 1) / kPack, wanted = (split + 1) * chunk;
    const int64_t end = wanted < all ? wanted : all;
    const int lanes = Together::size(b);
    int64_t p = split * chunk + Together::lane(t);
    if (p == 0 && of.before != 0) {
      take(acc, of.load(0), 0);
      p = lanes;
    }
    const int64_t whole = (width + of.before) / kPack, full = end < whole ? end : whole;
    for (; p + (kBatch - 1) * lanes < full; p += kBatch * lanes) {
      Values batch[kBatch];
      UNROLL for (int u = 0; u < kBatch; ++u) batch[u] =
          device::load_pack<kPack>(of.from + ((p + u * lanes) * kPack - of.before), true);
      UNROLL for (int u = 0; u < kBatch; ++u) take(acc, batch[u], p + u * lanes);
    }
    NO_UNROLL for (; p < end; p += lanes) take(acc, of.load(p * kPack), p);
    return acc;
  }
};

// As reduce() does for a plan which is_rows().
template <class F>
void reduce_rows(Context& context, const ReducePlan& plan, const typename F::In* x, typename F::Out* y, const F& f) {
  constexpr int64_t kLeast = 4;  // packs that each thread has if rows are split
  constexpr int kPack = device::pack_size<typename F::In>();
  const StreamRef stream = context.stream();
  const int64_t rows = plan.outputs(), enough = int64_t(device::multiprocessors(stream.device())) * 4;
  const bool aligned = device::is_pack_aligned<kPack>(x) && (rows == 1 || plan.run % kPack == 0);
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
    device::block_kernel<NoShared>(stream, {(rows * results.splits + teams - 1) / teams, threads},
                                   ExtremeRows<F, kLanes>{x, results, rows, plan.run, packs, chunk, aligned, f});
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
