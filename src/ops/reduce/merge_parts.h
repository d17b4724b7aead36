// The second launch of a reduction whose outputs were split: merges what each split left of them.
#pragma once
#include <algorithm>
#include <bit>

#include "device/cluster.h"
#include "ops/reduce/results.h"

namespace encore::ops {

// Neighbouring lanes take neighbouring outputs, and rows of threads the splits.
template <class F>
struct MergeParts {
  using Acc = typename F::Acc;
  static constexpr int kThreads = 256, kMaxThreads = kThreads;
  static constexpr int kMostLanes = 8;  // few, for blocks on all multiprocessors
  static constexpr int kAtOnce = 8;     // of a thread, on their way and merged
  static constexpr bool kBeginsEarly = true, kSpreads = true;
  struct Shared {
    Acc acc[kThreads];
  };

  const Acc* parts;
  typename F::Out* y;
  int64_t outputs, splits;
  int lanes_log2;
  F f;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    b.threads([&](int t, Shared& s) {
      const int64_t output = output_of(b, t), step = kThreads >> lanes_log2;
      const Acc* from = parts + (t >> lanes_log2) * outputs + output;
      b.wait();
      Acc acc = f.zero();
      if (output < outputs) {
        NO_UNROLL for (int64_t split = t >> lanes_log2; split < splits; split += kAtOnce * step) {
          Acc batch[kAtOnce];
          UNROLL for (int u = 0; u < kAtOnce; ++u) {
            batch[u] = f.zero();
            if (split + u * step < splits) batch[u] = *from;
            from += step * outputs;
          }
          UNROLL for (int u = 0; u < kAtOnce; ++u) acc = f.merge(acc, batch[u]);
        }
      }
      s.acc[t] = acc;
    });
    for (int left = kThreads, next; left > kAtOnce << lanes_log2; left = next) {
      next = std::max(left / kAtOnce, 1 << lanes_log2);
      b.threads([&](int t, Shared& s) {
        if (t < next) s.acc[t] = merged(s, t, next, left);
      });
    }
  }

  DEVICE_FN void join(Block<Shared>& b, const Shared& s, const device::Cluster<Shared>&) const {
    const int lanes = 1 << lanes_log2;
    int left = kThreads;
    while (left > kAtOnce << lanes_log2) left = std::max(left / kAtOnce, lanes);
    b.threads([&](int t, Shared&) {
      if (t < lanes && output_of(b, t) < outputs) y[output_of(b, t)] = f.finish(merged(s, t, lanes, left));
    });
  }

 private:
  DEVICE_FN int64_t output_of(const Block<Shared>& b, int t) const {
    return (b.index() << lanes_log2) + (t & ((1 << lanes_log2) - 1));
  }
  DEVICE_FN Acc merged(const Shared& s, int t, int apart, int end) const {
    Acc all = s.acc[t];
    UNROLL for (int k = 1; k < kAtOnce; ++k) {
      if (t + k * apart < end) all = f.merge(all, s.acc[t + k * apart]);
    }
    return all;
  }
};

template <class F>
void merge_parts(Context& context, const Results<F>& results, const F& f) {
  if (results.splits == 1) return;
  using Kernel = MergeParts<F>;
  const int lanes = int(std::bit_ceil(uint64_t(std::min<int64_t>(results.outputs, Kernel::kMostLanes))));
  device::cluster_kernel<typename Kernel::Shared>(
      context.stream(), {(results.outputs + lanes - 1) / lanes, 1, Kernel::kThreads},
      Kernel{results.parts, results.y, results.outputs, results.splits, std::countr_zero(unsigned(lanes)), f});
}

}  // namespace encore::ops
