#include "ops/attention/dense/split_k.h"

#include "device/device.h"
#include "device/divide.h"
#include "device/transform.h"
#include "device/warp.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;
using device::NoShared;
using device::Pack;
using device::PerThread;
using device::Warp;

// A block is one warp. It takes kAcross packs of neighbouring values of a row from all shares: lanes that are the same
// modulo kAcross take the same values of different shares, up to kEach a lane, and the shares' maxima and sums with
// them. So all is asked for at once, and what lanes exchange stays in the warp.
template <class T, int kPack, int kAcross, int kEach>
struct CombineSplits {
  static constexpr int kMaxThreads = 32, kSlots = 32 / kAcross, kShares = kSlots * kEach;
  struct Taken {
    Pack<float, kPack> acc[kEach];
    float row_max[kEach], row_sum[kEach];
  };
  struct Combined {
    float acc[kPack], row_max, row_sum;
  };

  SplitPartials partial;
  SinkView<T> sinks;
  HeadView<T> y;
  Divider by_parts, by_queries, by_heads;
  int value_size;
  bool aligned;  // y

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    device::for_each_warp(b, [&](const Warp& warp, NoShared&) {
      int64_t part, query, head;
      const int64_t row = by_parts(b.index(), part);
      PerThread<Taken, 32> taken;
      PerThread<Combined, 32> combined;
      warp.lanes([&](int lane) { take(taken[lane], row, lane / kAcross, column_of(part, lane)); });
      const int64_t batch = by_heads(by_queries(row, query), head);
      const float sink = sinks.at(head);
      warp.lanes([&](int lane) {
        combined[lane].row_max = sink;
        UNROLL for (int i = 0; i < kEach; ++i) combined[lane].row_max =
            max_score(combined[lane].row_max, taken[lane].row_max[i]);
      });
      warp.template reduce_columns<kAcross>([&](int lane) -> float& { return combined[lane].row_max; },
                                            [](float a, float c) { return max_score(a, c); });
      warp.lanes([&](int lane) { combine(taken[lane], combined[lane]); });
      const auto add_up = [&](auto value_of) {
        warp.template reduce_columns<kAcross>(value_of, [](float a, float c) { return a + c; });
      };
      add_up([&](int lane) -> float& { return combined[lane].row_sum; });
      UNROLL for (int i = 0; i < kPack; ++i) add_up([&](int lane) -> float& { return combined[lane].acc[i]; });
      warp.lanes([&](int lane) {
        const int column = column_of(part, lane);
        if (lane >= kAcross || column >= value_size) return;
        const Combined& all = combined[lane];
        const float factor = normalised(1, all.row_sum + exponential(sink - finite_max(all.row_max)));
        Pack<T, kPack> out;
        UNROLL for (int i = 0; i < kPack; ++i) out.at[i] = T(all.acc[i] * factor);
        device::store_pack(y.at(batch, head, query) + column, out, aligned);
      });
    });
  }

 private:
  DEVICE_FN static int column_of(int64_t part, int lane) { return (int(part) * kAcross + lane % kAcross) * kPack; }
  DEVICE_FN void take(Taken& to, int64_t row, int slot, int column) const {
    const int64_t first = row * partial.shares + slot;
    const float* const tile_max = partial.row_max + first;
    const float* const row_sums = partial.row_sum + first;
    const float* const acc = partial.acc + first * value_size + column;
    UNROLL for (int i = 0; i < kEach; ++i) {
      const bool there = slot + i * kSlots < partial.shares;
      to.row_max[i] = there ? tile_max[i * kSlots] : kMaskedScore<float>;
      to.row_sum[i] = there ? row_sums[i * kSlots] : 0.f;
      to.acc[i] = {};
      if (there && column < value_size) to.acc[i] = device::load_pack<kPack>(acc + i * kSlots * value_size, true);
    }
  }
  // What a lane has of its shares, over the row's maximum.
  DEVICE_FN static void combine(const Taken& from, Combined& to) {
    const float base = finite_max(to.row_max);
    to.row_sum = 0;
    UNROLL for (int c = 0; c < kPack; ++c) to.acc[c] = 0;
    UNROLL for (int i = 0; i < kEach; ++i) {
      const bool seen = from.row_sum[i] != 0;
      const float factor = exponential(from.row_max[i] - base);
      to.row_sum += seen ? factor * from.row_sum[i] : 0.f;
      UNROLL for (int c = 0; c < kPack; ++c) to.acc[c] += seen ? factor * from.acc[i].at[c] : 0.f;
    }
  }
};

template <class T, int kPack, int kAcross, int kEach>
void combine(Context& context, const Attend& p, const SplitPartials& partial) {
  using Kernel = CombineSplits<T, kPack, kAcross, kEach>;
  constexpr int kValues = kAcross * kPack;
  const int64_t rows = checked_product(checked_product(p.batch, p.heads), p.queries);
  const int64_t parts = (p.value_size + kValues - 1) / kValues, blocks = checked_product(rows, parts);
  device::block_kernel<NoShared>(
      context.stream(), {blocks, 32},
      Kernel{partial, SinkView<T>(p), p.y, Divider(parts, blocks), Divider(p.queries, rows), Divider(p.heads, rows),
             int(p.value_size), packs_fit<kPack, T>(p.y, p.value_size)});
}

}  // namespace

int64_t splits_for(const Context& context, const Attend& p, int64_t blocks, int room, int64_t fewest_keys) {
  const int64_t enough = room * int64_t(device::multiprocessors(context.stream().device()));
  return std::clamp<int64_t>(std::min(enough / blocks, p.keys / fewest_keys), 1, kMostSplits);
}

SplitPartials make_partials(Context& context, const Attend& p, int64_t shares) {
  SplitPartials partial{nullptr, nullptr, nullptr, int(shares)};
  if (shares == 1) return partial;
  const int64_t count = checked_product(checked_product(checked_product(p.batch, p.heads), p.queries), shares);
  const auto floats = [&](int64_t wanted) {
    return static_cast<float*>(context.scratch(size_t(checked_product(wanted, int64_t(sizeof(float))))));
  };
  partial.acc = floats(checked_product(count, p.value_size));
  partial.row_max = floats(count);
  partial.row_sum = floats(count);
  return partial;
}

void combine_splits(Context& context, const Attend& p, const SplitPartials& partial) {
  if (partial.shares == 1) return;
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T> {
    if (p.value_size % 4 != 0) return combine<T, 1, 2, 8>(context, p, partial);
    if (partial.shares <= 4) return combine<T, 4, 8, 1>(context, p, partial);
    if (partial.shares <= 16) return combine<T, 4, 2, 1>(context, p, partial);
    static_assert(CombineSplits<T, 4, 2, 8>::kShares == kMostSplits);
    combine<T, 4, 2, 8>(context, p, partial);
  });
}

}  // namespace encore::ops
