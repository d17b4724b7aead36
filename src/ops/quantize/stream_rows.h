// What a block of StreamCodes multiplies by: rows that it brings into shared memory, as they are or normed on the way.
#pragma once
#include "device/device.h"
#include "device/divide_small.h"
#include "device/neighbours.h"
#include "device/quick.h"
#include "device/warp.h"
#include "ops/norm/row_norm.h"

namespace encore::ops {

// Of the rows: how many, values of each, from one to the next in shared memory, and values up to which there are to be
// zeros behind a row's own.
struct RowsExtent {
  int count, depth, pitch, padded;
};

// Neighbours, so many lanes: what each has becomes the sum over them.
template <int kLanes, int kMany, class F>
DEVICE_FN void add_neighbours(const device::Warp& warp, F values_of) {
  struct Values {
    float at[kMany];
  };
  device::PerThread<Values, 32> others;
  UNROLL for (int mask = 1; mask < kLanes; mask *= 2) {
    warp.lanes([&](int lane) { UNROLL for (int i = 0; i < kMany; ++i) others[lane].at[i] = values_of(lane)[i]; });
    warp.exchange<kMany>(mask, [&](int lane) { return others[lane].at; });
    warp.lanes([&](int lane) { UNROLL for (int i = 0; i < kMany; ++i) values_of(lane)[i] += others[lane].at[i]; });
  }
}
template <class T>
DEVICE_FN float sum_of(const device::Pack<T, device::pack_size<T>()>& pack) {
  float sum = 0;
  UNROLL for (int i = 0; i < device::pack_size<T>(); ++i) sum += float(pack.at[i]);
  return sum;
}

// keep<kGroup>(b, extent, begin, rows, free, note) puts them to rows(s), where `free` finds floats that nobody needs
// meanwhile; a thread calls begin(t) before it waits for earlier work. note(s, row, group, sum) is told what each
// kGroup neighbours are together.
template <class T>
struct RowsAsTheyAre {
  static constexpr int kPack = device::pack_size<T>(), kAtOnce = 4;
  using Pack = device::Pack<T, kPack>;
  struct Packs {
    float sums[kAtOnce];
  };
  const T* a;

  template <int kGroup, class Shared, class Begin, class Rows, class Free, class Note>
  DEVICE_FN void keep(device::Block<Shared>& b, const RowsExtent& extent, Begin begin, Rows rows, Free,
                      Note note) const {
    constexpr int kLanes = kGroup / kPack;
    const int of_row = extent.padded / kPack, all = extent.count * of_row, threads = b.size();
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      device::PerThread<Packs, 32> packs;
      warp.lanes([&](int lane) {
        begin(32 * warp.index() + lane);
        b.wait();
      });
      NO_UNROLL for (int first = 32 * warp.index(); first < all; first += kAtOnce * threads) {
        warp.lanes([&](int lane) { copy(packs[lane], extent, rows(s), first + lane, threads); });
        add_neighbours<kLanes, kAtOnce>(warp, [&](int lane) { return packs[lane].sums; });
        warp.lanes([&](int lane) {
          UNROLL for (int n = 0; n < kAtOnce; ++n) {
            const int i = first + lane + n * threads, row = i / of_row, at = (i - row * of_row) * kPack;
            if (lane % kLanes == 0 && i < all) note(s, row, at / kGroup, packs[lane].sums[n]);
          }
        });
      }
    });
  }

 private:
  DEVICE_FN void copy(Packs& packs, const RowsExtent& extent, T* to, int from, int step) const {
    const unsigned of_row = unsigned(extent.padded) / kPack, all = unsigned(extent.count) * of_row;
    Pack some[kAtOnce];
    UNROLL for (int n = 0; n < kAtOnce; ++n) {
      const unsigned i = unsigned(from + n * step), row = i / of_row, at = (i - row * of_row) * kPack;
      some[n] = Pack{};
      if (i < all && at < unsigned(extent.depth))
        some[n] = *reinterpret_cast<const Pack*>(a + size_t(row) * unsigned(extent.depth) + at);
    }
    UNROLL for (int n = 0; n < kAtOnce; ++n) {
      const unsigned i = unsigned(from + n * step);
      const unsigned row = i / of_row, at = (i - row * of_row) * kPack;
      if (i < all) *reinterpret_cast<Pack*>(to + row * unsigned(extent.pitch) + at) = some[n];
      packs.sums[n] = sum_of<T>(some[n]);
    }
  }
};

// (x + skip) / sqrt(mean of the squares + epsilon) * gamma. Warps share out strips of a row, which are 32 packs; a
// thread asks for all that it has at once and keeps it. Then warps tell each other the squares of their strips.
template <class T>
struct RowsNormed {
  static constexpr int kKeep = 4;  // strips of a warp, at most
  static constexpr int kPack = device::pack_size<T>(), kStrip = 32 * kPack;
  static constexpr int kMaxThreads = 512;
  using Pack = device::Pack<T, kPack>;
  using Granule = device::Granule;
  struct Kept {
    float values[kKeep][kPack];
    Granule gamma[kKeep];
  };
  struct Sums {
    float at[kKeep];
  };

  const T *x, *skip, *gamma;
  T* sum;
  bool is_sum_aligned;
  float per_value, epsilon;  // 1 / depth
  device::SmallDivider by_strips;

  static int64_t strips(int64_t padded) { return (padded + kStrip - 1) / kStrip; }
  RowsNormed(const RowNorm& norm, int64_t padded)
      : x(static_cast<const T*>(norm.x)),
        skip(static_cast<const T*>(norm.skip)),
        gamma(static_cast<const T*>(norm.gamma.data)),
        sum(static_cast<T*>(norm.sum)),
        is_sum_aligned(device::is_pack_aligned<kPack>(sum)),
        per_value(1 / float(norm.width)),
        epsilon(float(norm.epsilon)),
        by_strips(int(strips(padded))) {}

  template <int kGroup, class Shared, class Begin, class Rows, class Free, class Note>
  DEVICE_FN void keep(device::Block<Shared>& b, const RowsExtent& extent, Begin begin, Rows rows, Free free,
                      Note note) const {
    constexpr int kLanes = kGroup / kPack;
    const int warps = b.size() / 32;
    device::PerThread<Kept, kMaxThreads> kept;
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      device::PerThread<Sums, 32> squares;
      warp.lanes([&](int lane) {
        const int t = 32 * warp.index() + lane;
        begin(t);
        load(kept[t], squares[lane], extent, t, warps, [&] { b.wait(); });
      });
      UNROLL for (int n = 0; n < kKeep; ++n) {
        const int strip = warp.index() + n * warps;
        if (strip >= extent.count * by_strips.divisor()) break;
        warp.template reduce_columns<1>([&](int lane) -> float& { return squares[lane].at[n]; },
                                        [](float p, float q) { return p + q; });
        warp.lanes([&](int lane) {
          if (lane == 0) free(s)[strip] = squares[lane].at[n];
        });
      }
    });
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      device::PerThread<Sums, 32> sums;
      const auto thread = [&](int lane) { return 32 * warp.index() + lane; };
      warp.lanes([&](int lane) {
        const int t = thread(lane);
        store(kept[t], sums[lane], extent, t, warps, rows(s), free(s));
        if (sum && b.index() == 0) store_sum(kept[t], extent, t, warps);
      });
      add_neighbours<kLanes, kKeep>(warp, [&](int lane) { return sums[lane].at; });
      warp.lanes([&](int lane) {
        if (lane % kLanes == 0)
          each(extent, thread(lane), warps,
               [&](int n, int row, int at) { note(s, row, at / kGroup, sums[lane].at[n]); });
      });
    });
  }

 private:
  // f(n, row, place in the row) for each pack of a thread.
  template <class F>
  DEVICE_FN void each(const RowsExtent& extent, int t, int warps, F f) const {
    const int warp = t >> 5, lane = t & 31;
    UNROLL for (int n = 0; n < kKeep; ++n) {
      int in_row;
      const int row = by_strips(warp + n * warps, in_row), at = in_row * kStrip + lane * kPack;
      if (row < extent.count && at < extent.padded) f(n, row, at);
    }
  }

  template <class Wait>
  DEVICE_FN void load(Kept& own, Sums& squares, const RowsExtent& extent, int t, int warps, Wait wait) const {
    const auto each_own = [&](auto f) {
      each(extent, t, warps, [&](int n, int row, int at) {
        if (at < extent.depth) f(n, row * extent.depth + at, at);
      });
    };
    const auto granule = [](const T* from) { return *reinterpret_cast<const Granule*>(from); };
    Granule some[kKeep] = {}, more[kKeep] = {};
    UNROLL for (int n = 0; n < kKeep; ++n) own.gamma[n] = Granule{};
    each_own([&](int n, int, int at) { own.gamma[n] = granule(gamma + at); });
    wait();
    each_own([&](int n, int place, int) {
      some[n] = granule(x + place);
      if (skip) more[n] = granule(skip + place);
    });
    UNROLL for (int n = 0; n < kKeep; ++n) {
      const auto value = std::bit_cast<Pack>(some[n]), added = std::bit_cast<Pack>(more[n]);
      squares.at[n] = 0;
      UNROLL for (int i = 0; i < kPack; ++i) {
        own.values[n][i] = float(value.at[i]) + float(added.at[i]);
        squares.at[n] += own.values[n][i] * own.values[n][i];
      }
    }
  }

  DEVICE_FN void store(const Kept& own, Sums& sums, const RowsExtent& extent, int t, int warps, T* to,
                       const float* squares) const {
    sums = Sums{};
    each(extent, t, warps, [&](int n, int row, int at) {
      const int strips = by_strips.divisor();
      float total = 0;
      for (int strip = 0; strip < strips; ++strip) total += squares[row * strips + strip];
      const float scale = device::quick_inverse_root(total * per_value + epsilon);
      const auto factors = std::bit_cast<Pack>(own.gamma[n]);
      Pack made;
      UNROLL for (int i = 0; i < kPack; ++i) made.at[i] = T(own.values[n][i] * scale * float(factors.at[i]));
      device::store_pack(to + row * extent.pitch + at, made, true);
      sums.at[n] = sum_of<T>(made);
    });
  }

  DEVICE_FN void store_sum(const Kept& own, const RowsExtent& extent, int t, int warps) const {
    each(extent, t, warps, [&](int n, int row, int at) {
      if (at >= extent.depth) return;
      Pack made;
      UNROLL for (int i = 0; i < kPack; ++i) made.at[i] = T(own.values[n][i]);
      device::store_pack(sum + row * extent.depth + at, made, is_sum_aligned);
    });
  }
};

}  // namespace encore::ops
