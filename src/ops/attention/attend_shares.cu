#include "ops/attention/attend_shares.h"

#include "device/device.h"
#include "device/launch.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;

constexpr int kThreads = 512, kLanes = 32, kSlices = kThreads / kLanes, kColumns = 8, kMostValues = kLanes * kColumns;
constexpr int kAtOnce = 4;      // shares that a thread reads at once
constexpr float kLeftOut = -1;  // in place of a factor

// A block for each row. Threads of a slice take neighbouring columns of every kSlices-th share.
template <class T>
struct CombineShares {
  static constexpr int kMaxThreads = kThreads;
  struct Shared {
    float factor[kMostShares];
    float sums[kSlices][kMostValues];
  };
  Partial partial;
  SinkView<T> sinks;
  HeadView<T> y;
  Divider by_queries, by_heads;
  int value_size;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    int64_t query, head;
    const int64_t row = b.index(), batch = by_heads(by_queries(row, query), head);
    const int shares = partial.shares;
    const float* const tops = partial.top + row * shares;
    const float* const totals = partial.total + row * shares;
    const float sink = sinks.at(head);
    const float base = base_of(b.reduce(
        sink, [&](int t) { return t < shares ? tops[t] : kUnseen<float>; },
        [](float a, float c) { return larger(a, c); }));
    const float total = b.reduce(
        exponential(sink - base),
        [&](int t) { return t < shares && totals[t] != 0 ? totals[t] * exponential(tops[t] - base) : 0.f; },
        [](float a, float c) { return a + c; });
    b.threads([&](int t, Shared& s) {
      if (t < shares) s.factor[t] = totals[t] != 0 ? exponential(tops[t] - base) : kLeftOut;
    });
    b.threads([&](int t, Shared& s) {
      float sums[kColumns] = {};
      for (int first = t / kLanes; first < shares; first += kAtOnce * kSlices) {
        float values[kAtOnce][kColumns];
        UNROLL for (int i = 0; i < kAtOnce; ++i) {
          const int n = first + i * kSlices;
          const bool there = n < shares && s.factor[n] != kLeftOut;
          const float* const from = partial.sums + (row * shares + n) * value_size;
          UNROLL for (int c = 0; c < kColumns; ++c) {
            const int column = c * kLanes + t % kLanes;
            values[i][c] = there && column < value_size ? from[column] : 0.f;
          }
        }
        UNROLL for (int i = 0; i < kAtOnce; ++i) {
          const int n = first + i * kSlices;
          const float factor = n < shares ? s.factor[n] : 0.f;
          UNROLL for (int c = 0; c < kColumns; ++c) sums[c] += factor * values[i][c];
        }
      }
      UNROLL for (int c = 0; c < kColumns; ++c) s.sums[t / kLanes][c * kLanes + t % kLanes] = sums[c];
    });
    b.threads([&](int t, Shared& s) {
      if (t >= value_size) return;
      float sum = 0;
      UNROLL for (int n = 0; n < kSlices; ++n) sum += s.sums[n][t];
      y.at(batch, head, query)[t] = T(normalised(sum, total));
    });
  }
};

}  // namespace

int64_t shares_for(const Context& context, const Attend& p, int64_t blocks, int room, int64_t fewest_keys) {
  const int64_t enough = room * int64_t(device::multiprocessors(context.stream().device()));
  return std::clamp<int64_t>(std::min(enough / blocks, p.keys / fewest_keys), 1, kMostShares);
}

Partial make_partial(Context& context, const Attend& p, int64_t shares) {
  Partial partial{nullptr, nullptr, nullptr, int(shares)};
  if (shares == 1) return partial;
  const int64_t count = checked_product(checked_product(checked_product(p.batch, p.heads), p.queries), shares);
  const auto floats = [&](int64_t wanted) {
    return static_cast<float*>(context.scratch(size_t(checked_product(wanted, int64_t(sizeof(float))))));
  };
  partial.sums = floats(checked_product(count, p.value_size));
  partial.top = floats(count);
  partial.total = floats(count);
  return partial;
}

void combine_shares(Context& context, const Attend& p, const Partial& partial) {
  if (partial.shares == 1) return;
  const int64_t rows = checked_product(checked_product(p.batch, p.heads), p.queries);
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T> {
    device::block_kernel<typename CombineShares<T>::Shared>(
        context.stream(), {rows, kThreads},
        CombineShares<T>{partial, SinkView<T>(p), p.y, Divider(p.queries, rows), Divider(p.heads, rows),
                         int(p.value_size)});
  });
}

}  // namespace encore::ops
