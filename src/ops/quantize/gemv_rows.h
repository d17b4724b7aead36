// What a block of NBitsGemv multiplies by: rows that it brings into shared memory, as they are or normed on the way.
#pragma once
#include "device/device.h"
#include "device/divide_small.h"
#include "device/fast_math.h"
#include "device/unaligned_pack.h"
#include "device/warp.h"
#include "ops/norm/row_norm.h"

namespace encore::ops {

// Of the rows: how many, values of each, from one to the next in shared memory, and values up to which there are to be
// zeros behind a row's own.
struct RowsExtent {
  int count, depth, pitch, padded;
};

// keep<kOne>(b, extent, begin, rows, free) puts them to rows(s), where `free` finds floats that nobody needs meanwhile;
// a thread calls begin(t) before it waits for earlier work. kOne: there is one row. All warps of a multiprocessor do it
// at once before any can multiply, so each instruction counts.
template <class T>
struct RowsAsTheyAre {
  static constexpr int kPack = device::pack_size<T>(), kStrip = 32 * kPack, kMostFree = 1;
  using Pack = device::Pack<T, kPack>;
  const T* a;
  device::SmallDivider by_strips;  // of a row, which are 32 packs

  RowsAsTheyAre(const T* rows, int64_t padded) : a(rows), by_strips(int((padded + kStrip - 1) / kStrip)) {}

  template <bool kOne, class Shared, class Begin, class Rows, class Free>
  DEVICE_FN void keep(device::Block<Shared>& b, const RowsExtent& extent, Begin begin, Rows rows, Free) const {
    b.threads([&](int t, Shared& s) {
      begin(t);
      b.wait();
      kOne ? copy_one(extent, rows(s), t, b.size()) : copy(extent, rows(s), t, b.size() / 32);
    });
  }

 private:
  DEVICE_FN void copy_one(const RowsExtent& extent, T* to, int t, int threads) const {
    constexpr int kAtOnce = 2;
    NO_UNROLL for (int first = t * kPack; first < extent.padded; first += kAtOnce * kPack * threads) {
      Pack some[kAtOnce] = {};
      UNROLL for (int n = 0; n < kAtOnce; ++n) {
        const int at = first + n * kPack * threads;
        if (at < extent.depth) some[n] = *reinterpret_cast<const Pack*>(a + at);
      }
      UNROLL for (int n = 0; n < kAtOnce; ++n) {
        const int at = first + n * kPack * threads;
        if (at < extent.padded) *reinterpret_cast<Pack*>(to + at) = some[n];
      }
    }
  }
  // Warps share out strips of rows.
  DEVICE_FN void copy(const RowsExtent& extent, T* to, int t, int warps) const {
    constexpr int kAtOnce = 4;
    const int all = extent.count * by_strips.divisor();
    NO_UNROLL for (int first = t >> 5; first < all; first += kAtOnce * warps) {
      Pack some[kAtOnce] = {};
      const auto each = [&](auto f) {
        UNROLL for (int n = 0; n < kAtOnce; ++n) {
          int in_row;
          const int row = by_strips(first + n * warps, in_row), at = in_row * kStrip + (t & 31) * kPack;
          if (row < extent.count && at < extent.padded) f(some[n], row, at);
        }
      };
      each([&](Pack& pack, int row, int at) {
        if (at < extent.depth) pack = *reinterpret_cast<const Pack*>(a + row * extent.depth + at);
      });
      each([&](const Pack& pack, int row, int at) { *reinterpret_cast<Pack*>(to + row * extent.pitch + at) = pack; });
    }
  }
};

// (x + skip) / sqrt(mean of the squares + epsilon) * gamma. Warps share out strips of a row, which are 32 packs; a
// thread asks for all that it has at once and keeps it. Then warps tell each other the squares of their strips.
template <class T>
struct RowsNormed {
  static constexpr int kKeep = 4;  // strips of a warp, at most
  static constexpr int kPack = device::pack_size<T>(), kStrip = 32 * kPack;
  static constexpr int kMaxThreads = 512, kMostFree = kKeep * kMaxThreads / 32;
  using Pack = device::Pack<T, kPack>;
  using Granule = device::Granule;
  struct Kept {
    float values[kKeep][kPack];
    Granule gamma[kKeep];
  };
  struct Squares {
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

  template <bool kOne, class Shared, class Begin, class Rows, class Free>
  DEVICE_FN void keep(device::Block<Shared>& b, const RowsExtent& extent, Begin begin, Rows rows, Free free) const {
    kOne ? keep_one(b, extent, begin, rows, free) : keep_some(b, extent, begin, rows, free);
  }

 private:
  // The packs of a thread are as far apart as there are threads.
  template <class Shared, class Begin, class Rows, class Free>
  DEVICE_FN void keep_one(device::Block<Shared>& b, const RowsExtent& extent, Begin begin, Rows rows, Free free) const {
    const int threads = b.size();
    device::PerThread<Kept, kMaxThreads> kept;
    const auto each = [&](int t, int end, auto f) {
      UNROLL for (int n = 0; n < kKeep; ++n) {
        const int at = (n * threads + t) * kPack;
        if (at < end) f(n, at);
      }
    };
    const auto granule = [](const T* from) { return *reinterpret_cast<const Granule*>(from); };
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      device::PerThread<float, 32> squares;
      warp.lanes([&](int lane) {
        const int t = 32 * warp.index() + lane;
        begin(t);
        Granule some[kKeep], more[kKeep];
        UNROLL for (int n = 0; n < kKeep; ++n) kept[t].gamma[n] = some[n] = more[n] = Granule{};
        each(t, extent.depth, [&](int n, int at) { kept[t].gamma[n] = granule(gamma + at); });
        b.wait();
        each(t, extent.depth, [&](int n, int at) {
          some[n] = granule(x + at);
          if (skip) more[n] = granule(skip + at);
        });
        squares[lane] = 0;
        each(t, extent.depth, [&](int n, int) { squares[lane] += take(kept[t].values[n], some[n], more[n]); });
      });
      warp.template reduce_columns<1>([&](int lane) -> float& { return squares[lane]; },
                                      [](float p, float q) { return p + q; });
      warp.lanes([&](int lane) {
        if (lane == 0) free(s)[warp.index()] = squares[lane];
      });
    });
    b.threads([&](int t, Shared& s) {
      float total = 0;
      UNROLL for (int w = 0; w < kMaxThreads / 32; w += 4) {
        if (w >= threads / 32) break;
        const auto four = *reinterpret_cast<const device::Pack<float, 4>*>(free(s) + w);
        total += (four.at[0] + four.at[1]) + (four.at[2] + four.at[3]);
      }
      const float scale = device::fast_inverse_root(total * per_value + epsilon);
      each(t, extent.padded, [&](int n, int at) {
        const bool there = at < extent.depth;
        device::store_pack(rows(s) + at, there ? scaled(kept[t], n, scale) : Pack{}, true);
        if (there && sum && b.index() == 0) device::store_pack(sum + at, rounded(kept[t].values[n]), is_sum_aligned);
      });
    });
  }

  template <class Shared, class Begin, class Rows, class Free>
  DEVICE_FN void keep_some(device::Block<Shared>& b, const RowsExtent& extent, Begin begin, Rows rows,
                           Free free) const {
    const int warps = b.size() / 32;
    device::PerThread<Kept, kMaxThreads> kept;
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      device::PerThread<Squares, 32> squares;
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
    b.threads([&](int t, Shared& s) {
      store(kept[t], extent, t, warps, rows(s), free(s));
      if (sum && b.index() == 0) store_sum(kept[t], extent, t, warps);
    });
  }

  // Of a pack x + skip, and the sum of the squares.
  DEVICE_FN static float take(float (&values)[kPack], const Granule& some, const Granule& more) {
    const auto value = std::bit_cast<Pack>(some), added = std::bit_cast<Pack>(more);
    float squares = 0;
    UNROLL for (int i = 0; i < kPack; ++i) {
      values[i] = float(value.at[i]) + float(added.at[i]);
      squares += values[i] * values[i];
    }
    return squares;
  }
  DEVICE_FN static Pack scaled(const Kept& own, int n, float scale) {
    const auto factors = std::bit_cast<Pack>(own.gamma[n]);
    Pack made;
    UNROLL for (int i = 0; i < kPack; ++i) made.at[i] = T(own.values[n][i] * scale * float(factors.at[i]));
    return made;
  }
  DEVICE_FN static Pack rounded(const float (&values)[kPack]) {
    Pack made;
    UNROLL for (int i = 0; i < kPack; ++i) made.at[i] = T(values[i]);
    return made;
  }

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
  DEVICE_FN void load(Kept& own, Squares& squares, const RowsExtent& extent, int t, int warps, Wait wait) const {
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
    UNROLL for (int n = 0; n < kKeep; ++n) squares.at[n] = take(own.values[n], some[n], more[n]);
  }

  DEVICE_FN void store(const Kept& own, const RowsExtent& extent, int t, int warps, T* to, const float* squares) const {
    each(extent, t, warps, [&](int n, int row, int at) {
      const int strips = by_strips.divisor();
      float total = 0;
      for (int strip = 0; strip < strips; ++strip) total += squares[row * strips + strip];
      const float scale = device::fast_inverse_root(total * per_value + epsilon);
      device::store_pack(to + row * extent.pitch + at, scaled(own, n, scale), true);
    });
  }

  DEVICE_FN void store_sum(const Kept& own, const RowsExtent& extent, int t, int warps) const {
    each(extent, t, warps, [&](int n, int row, int at) {
      if (at >= extent.depth) return;
      device::store_pack(sum + row * extent.depth + at, rounded(own.values[n]), is_sum_aligned);
    });
  }
};

}  // namespace encore::ops
