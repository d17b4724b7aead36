#include "ops/norm/softmax_long_middle.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "device/cluster.h"
#include "device/device.h"
#include "device/divide.h"
#include "device/larger.h"
#include "device/warp.h"
#include "device/words.h"
#include "ops/dispatch.h"
#include "ops/norm/powers.h"
#include "ops/norm/rows.h"
#include "ops/reduce/team.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Pack;
using device::PerThread;
using device::Warp;

// Each block of a cluster keeps a part of the axis, of kLanes packs side by side, in shared memory. All that the blocks
// tell each other is the largest value of each column's part and the sum of powers below it: what is read is read once.
template <class T>
struct SoftmaxOfParts {
  static constexpr int kLanes = 4;  // read 64 bytes side by side
  static constexpr int kPack = device::pack_size<T>(), kColumns = kLanes * kPack;
  static constexpr int kThreads = 256, kEach = 8;  // packs of a thread
  static constexpr int kMaxThreads = 1024;  // more than there are: registers of which half of all threads find some
  static constexpr int kMostRows = kThreads / kLanes * kEach;
  using Raw = RawPack<T, kPack>;
  struct Sum {
    float top, powers;  // below the top
  };
  struct Shared {
    Raw kept[kEach * kThreads];
    Sum of_warp[kThreads / 32 * kColumns], of_block[kColumns];
    float top[kColumns], by[kColumns];  // of all, which no other block reads
  };

  const T* x;
  T* y;
  int64_t inner, packs;
  int axis, part, cluster_log2;  // rows of all blocks, and of each
  device::Divider packs_in_inner;
  bool log;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
      const int first_thread = 32 * warp.index();
      PerThread<Kept, 32> kept;
      PerThread<Column, 32> tops, sums;
      warp.lanes([&](int lane) {
        const int t = first_thread + lane;
        read(b, t, kept[lane].at);
        auto most = values_of(kept[lane].at[0]);
        UNROLL for (int k = 1; k < kEach; ++k) most = device::larger_or_nan(most, values_of(kept[lane].at[k]));
        UNROLL for (int j = 0; j < kPack; ++j) tops[lane].at[j] = float(most.at[j]);
        UNROLL for (int k = 0; k < kEach; ++k) s.kept[k * kThreads + t] = kept[lane].at[k];
      });
      UNROLL for (int j = 0; j < kPack; ++j)
          warp.template reduce_columns<kLanes>([&](int lane) -> float& { return tops[lane].at[j]; }, LargerNumber());
      warp.lanes([&](int lane) {
        UNROLL for (int j = 0; j < kPack; ++j) sums[lane].at[j] = 0;
        UNROLL for (int k = 0; k < kEach; ++k) {
          const auto values = values_of(kept[lane].at[k]);
          UNROLL for (int j = 0; j < kPack; ++j) sums[lane].at[j] +=
              power_of<T>(float(values.at[j]) - from_where(tops[lane].at[j]));
        }
      });
      UNROLL for (int j = 0; j < kPack; ++j)
          warp.template reduce_columns<kLanes>([&](int lane) -> float& { return sums[lane].at[j]; }, Plus());
      warp.lanes([&](int lane) {
        if (lane >= kLanes) return;
        UNROLL for (int j = 0; j < kPack; ++j)
            s.of_warp[warp.index() * kColumns + lane * kPack + j] = {tops[lane].at[j], sums[lane].at[j]};
      });
    });
    b.threads([&](int t, Shared& s) {
      if (t < kColumns) s.of_block[t] = all_of(b.size() / 32, [&](int i) { return s.of_warp[i * kColumns + t]; });
    });
  }

  DEVICE_FN void join(Block<Shared>& b, const Shared&, const device::Cluster<Shared>& cluster) const {
    b.threads([&](int t, Shared& s) {
      if (t >= kColumns) return;
      const Sum all = all_of(1 << cluster_log2, [&](int i) { return cluster.shared(i).of_block[t]; });
      s.top[t] = all.top;
      s.by[t] = log ? std::log(all.powers) : 1.f / all.powers;
    });
    b.threads([&](int t, Shared& s) {
      float top[kPack], by[kPack];
      UNROLL for (int j = 0; j < kPack; ++j) {
        top[j] = s.top[t % kLanes * kPack + j];
        by[j] = s.by[t % kLanes * kPack + j];
      }
      const Place place(*this, b, t);
      const auto write = [&](auto made) {
        T* to = y + place.first;
        UNROLL for (int k = 0; k < kEach; ++k, to += place.step * inner) {
          if (k * place.step >= place.rows) break;
          const auto values = values_of(s.kept[k * kThreads + t]);
          Pack<T, kPack> out;
          UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(made(j, float(values.at[j]) - top[j]));
          device::store_whole(to, out);
        }
      };
      if (log)
        write([&](int j, float below) { return below - by[j]; });
      else
        write([&](int j, float below) { return power_of<T>(below) * by[j]; });
    });
  }

 private:
  struct Kept {
    Raw at[kEach];
  };
  struct Column {
    float at[kPack];
  };
  // Where a thread's packs are: every step-th row from the first value on, as many as `rows` has, which may be none.
  struct Place {
    int64_t first;
    int step, rows;
    DEVICE_FN Place(const SoftmaxOfParts& kernel, const Block<Shared>& b, int t) {
      const int rank = int(b.index()) & ((1 << kernel.cluster_log2) - 1), row = rank * kernel.part + t / kLanes;
      const int64_t pack = (b.index() >> kernel.cluster_log2) * kLanes + t % kLanes;
      const int end = (rank + 1) * kernel.part;
      int64_t in_inner;
      const int64_t outer = kernel.packs_in_inner(pack, in_inner);
      first = (outer * kernel.axis + row) * kernel.inner + in_inner * kPack;
      step = b.size() / kLanes;
      rows = pack < kernel.packs ? (end < kernel.axis ? end : kernel.axis) - row : 0;
    }
  };
  DEVICE_FN void read(const Block<Shared>& b, int t, Raw (&raw)[kEach]) const {
    const Place place(*this, b, t);
    const T* from = x + place.first;
    UNROLL for (int k = 0; k < kEach; ++k, from += place.step * inner) {
      raw[k] = raw_pack_of<kPack>(T(kLowest<float>));
      if (k * place.step < place.rows) raw[k] = *reinterpret_cast<const Raw*>(from);
    }
  }
  DEVICE_FN static Pack<T, kPack> values_of(const Raw& raw) { return std::bit_cast<Pack<T, kPack>>(raw); }
  // What powers are below. Where there is nothing but -inf these add nothing.
  DEVICE_FN static float from_where(float top) { return top == kLowest<float> ? 0.f : top; }
  // A column's, of so many parts, all of which are asked for before one is waited for.
  template <class PartOf>
  DEVICE_FN static Sum all_of(int count, PartOf part_of) {
    constexpr int kMost = std::max(device::kMostInCluster, kThreads / 32);
    Sum parts[kMost], all = {kLowest<float>, 0};
    UNROLL for (int i = 0; i < kMost; ++i) parts[i] = part_of(i < count ? i : 0);
    UNROLL for (int i = 0; i < kMost; ++i) all.top = LargerNumber()(all.top, parts[i].top);
    UNROLL for (int i = 0; i < kMost; ++i) {
      if (i < count) all.powers += parts[i].powers * power_of<T>(parts[i].top - from_where(all.top));
    }
    return all;
  }
};

template <class T>
bool launch(StreamRef stream, const T* x, T* y, const AxisRows& shape, bool log) {
  using Kernel = SoftmaxOfParts<T>;
  using Shared = typename Kernel::Shared;
  constexpr int kLanes = Kernel::kLanes;
  const int64_t in_inner = shape.inner / Kernel::kPack, packs = shape.outer * in_inner;
  const int64_t clusters = (packs + kLanes - 1) / kLanes, multiprocessors = device::multiprocessors(stream.device());
  // Shorter axes a block keeps in registers: as they are, or halves of not too few columns.
  const bool few = packs < 2 * multiprocessors;
  if (shape.width <= (sizeof(T) == 4 || few ? 1024 : 2048)) return false;
  if (shape.width > device::kMostInCluster * Kernel::kMostRows) return false;
  int log2 = 0;
  const auto part_of = [&] { return int((shape.width + (int64_t(1) << log2) - 1) >> log2); };
  while (part_of() > Kernel::kMostRows) ++log2;
  // More of them, with less each, where columns are few.
  while ((2 << log2) <= device::kMostInCluster && clusters << log2 < 2 * multiprocessors) ++log2;
  if (1 << log2 > device::most_in_cluster<Shared, Kernel>(stream.device())) return false;
  const int threads = (part_of() + Kernel::kEach - 1) / Kernel::kEach * kLanes;
  device::cluster_kernel<Shared>(stream, {clusters, 1 << log2, (threads + 31) / 32 * 32},
                                 Kernel{x, y, shape.inner, packs, int(shape.width), part_of(), log2,
                                        device::Divider(in_inner, packs + kLanes), log});
  return true;
}

}  // namespace

bool softmax_long_middle(StreamRef stream, const Tensor& x, const AxisRows& shape, bool log, const Tensor& y) {
  if (x.type == Type::f64) return false;
  bool done = false;
  dispatch(TypeList<float, Half, BFloat16>{}, x.type, [&]<class T> {
    constexpr int kPack = device::pack_size<T>();
    const T* const from = x.as<const T>();
    T* const to = y.as<T>();
    if (shape.inner % kPack != 0 || !device::is_pack_aligned<kPack>(from) || !device::is_pack_aligned<kPack>(to))
      return;
    done = launch(stream, from, to, shape, log);
  });
  return done;
}

}  // namespace encore::ops
