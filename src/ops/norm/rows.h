// Rows that are read once and written once: how they are spread over threads, which keep them in registers meanwhile.
#pragma once
#include <algorithm>
#include <type_traits>

#include "device/device.h"
#include "device/half.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/reduce/team.h"

namespace encore::ops {

// A way to spread rows. Each thread of a team of kLanes takes up to kKeep packs of kPack values; with kKeep 0 it keeps
// none and goes through memory as often as asked. Rows of packs are read where they lie. Rows of which packs would not
// be aligned are staged: their block moves them, neighbours as they are, in packs between global and shared memory,
// where its threads take them one by one.
template <int kPack_, int kLanes_, int kKeep_, bool kStaged_>
struct Spread {
  static constexpr int kPack = kPack_, kLanes = kLanes_, kKeep = kKeep_;
  static constexpr bool kStaged = kStaged_;
};

// The state of a staged block is all in dynamic shared memory.
struct Staged {
  char none;
};

// Rows of x, of which rows of y of the same type and width are made; y may be x. `How` is a Spread.
template <class T, class How>
struct RowTeams {
  static constexpr int kPack = How::kPack, kKeep = How::kKeep;
  using C = device::Compute<T>;
  using Together = Team<How::kLanes>;
  using Shared = std::conditional_t<How::kStaged, Staged, device::NoShared>;
  using Block = device::Block<Shared>;
  static constexpr int kMaxThreads = Together::kMaxThreads;
  // What threads keep.
  template <class V>
  struct KeptAs {
    V at[kKeep ? kKeep : 1][kPack];
  };
  // As it is computed with unless that were more than 16 registers.
  using Kept = KeptAs<std::conditional_t<kKeep * kPack <= 16, C, T>>;
  static constexpr bool kKeepsComputed = kKeep != 0 && kKeep * kPack <= 16;

  const T* x;
  T* y;
  int64_t rows, width;

  // The row of a thread's team.
  DEVICE_FN int64_t index(const Block& b, int t) const { return Together::index(b, t); }
  DEVICE_FN const T* source(const Block& b, const Shared& s, int t) const {
    if constexpr (How::kStaged)
      return staged(b, s) + t / lanes(b) * int(width);
    else
      return x + index(b, t) * width;
  }
  DEVICE_FN T* target(const Block& b, Shared& s, int t) const {
    if constexpr (How::kStaged)
      return staged(b, s) + t / lanes(b) * int(width);
    else
      return y + index(b, t) * width;
  }

  // f(k, first value in the row) for each pack of a thread.
  template <class F>
  DEVICE_FN void each(const Block& b, int t, F f) const {
    const bool there = index(b, t) < rows;
    each_slot(b, t, [&](int k, auto first) {
      if (there && first < decltype(first)(width)) f(k, first);
    });
  }
  // The same for what is kept, without a condition: also beyond the row's end, and without a row.
  template <class F>
  DEVICE_FN void each_slot(const Block& b, int t, F f) const {
    const int lane = Together::lane(t);
    if constexpr (kKeep != 0) {
      UNROLL for (int k = 0; k < kKeep; ++k) {
        if (kKeep > 4 && k % 4 == 0 && k * lanes(b) * kPack >= int(width)) break;
        f(k, (lane + k * lanes(b)) * kPack);
      }
    } else {
      if (index(b, t) >= rows) return;
      for (int64_t first = int64_t(lane) * kPack; first < width; first += int64_t(lanes(b)) * kPack) f(0, first);
    }
  }
  // Reads what is kept; where nothing is, there will be `none`.
  template <class V>
  DEVICE_FN void read(const Block& b, const Shared& s, int t, KeptAs<V>& kept, T none) const {
    const T* from = source(b, s, t);
    const bool there = index(b, t) < rows;
    each_slot(b, t, [&](int k, auto first) {
      device::Pack<T, kPack> pack;
      UNROLL for (int j = 0; j < kPack; ++j) pack.at[j] = none;
      if (there && first < decltype(first)(width)) pack = device::load_pack<kPack>(from + first, true);
      UNROLL for (int j = 0; j < kPack; ++j) kept.at[k][j] = V(pack.at[j]);
    });
  }

  // Phases before and after the work on rows.
  DEVICE_FN void bring(Block& b) const {
    if constexpr (How::kStaged) {
      const T* from = x + first_row(b) * width;
      const int all = count(b);
      b.threads([&](int t, Shared& s) {
        T* to = staged(b, s);
        move(t, b.size(), all, past(b),
             [&]<int kCount>(int i) { device::store_pack(to + i, device::load_pack<kCount>(from + i, true), true); });
      });
    }
  }
  DEVICE_FN void take_back(Block& b) const {
    if constexpr (How::kStaged) {
      T* to = y + first_row(b) * width;
      const int all = count(b);
      const bool alike = (reinterpret_cast<uintptr_t>(x) ^ reinterpret_cast<uintptr_t>(y)) % 16 == 0;
      b.threads([&](int t, Shared& s) {
        const T* from = staged(b, s);
        if (alike)
          move(t, b.size(), all, past(b),
               [&]<int kCount>(int i) { device::store_pack(to + i, device::load_pack<kCount>(from + i, true), true); });
        else
          for (int i = t; i < all; i += b.size()) to[i] = from[i];
      });
    }
  }

 private:
  static constexpr int kWide = device::pack_size<T>();

  DEVICE_FN static int lanes(const Block& b) { return Together::size(b); }
  DEVICE_FN static int64_t first_row(const Block& b) { return b.index() * (b.size() / lanes(b)); }
  // The values of a block's rows.
  DEVICE_FN int count(const Block& b) const {
    const int64_t left = rows - first_row(b), own = b.size() / lanes(b);
    return int(left < own ? left : own) * int(width);
  }
  // How many values lie between an aligned address and the block's first, in global as in shared memory.
  DEVICE_FN int past(const Block& b) const {
    const int of_base = int(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
    return (of_base + int(first_row(b) % kWide) * int(width % kWide)) % kWide;
  }
  template <class S>
  DEVICE_FN auto staged(const Block& b, S& s) const {
    return b.template dynamic<T>(s) + past(b);
  }
  // f<kCount>(i) for values at i of `count`, dealt to threads: packs where they are aligned, and one by one what is
  // before and after.
  template <class F>
  DEVICE_FN static void move(int t, int threads, int count, int past, F f) {
    const int before = past ? kWide - past : 0, head = before < count ? before : count;
    const int packs = (count - head) / kWide, tail = head + packs * kWide;
    if (t < head) f.template operator()<1>(t);
    if (tail + t < count) f.template operator()<1>(tail + t);
    for (int p = t; p < packs; p += threads) f.template operator()<kWide>(head + p * kWide);
  }
};

// Calls f.template operator()<How>(grid) with a Spread for rows of `width` values that suits. `whole`: packs of kWide
// are aligned in every row. T is the type of what would be staged; void: nothing is. With kFew there are fewer to
// choose from, for combinations of types that are rare.
template <class T, int kWide, bool kFew, class F>
void spread_over_teams(device::StreamRef stream, int64_t rows, int64_t width, bool whole, F f) {
  constexpr bool kStages = !std::is_void_v<T>;
  const int64_t multiprocessors = device::multiprocessors(stream.device());
  const int64_t busy = multiprocessors * 4;  // rows that fill a GPU even if each has but one warp
  // The fewer blocks, the smaller, so that all multiprocessors get some.
  const auto teams = [&](int lanes) -> device::Blocks {
    int threads = 256;
    while (threads > 64 && (rows * lanes + threads - 1) / threads < 2 * multiprocessors) threads /= 2;
    return {(rows * lanes + threads - 1) / threads, threads};
  };
  const auto blocks = [&](int64_t values) -> device::Blocks {  // so many a thread
    const int64_t threads = std::min<int64_t>((width + values - 1) / values, 1024);
    return {rows, int((threads + 31) / 32 * 32)};
  };
  if (whole) {
    constexpr int kMost = std::min(8, 32 / kWide);
    const int64_t packs = width / kWide;
    if constexpr (!kFew) {
      if (packs <= 8) return f.template operator()<Spread<kWide, 4, 2, false>>(teams(4));
      if (packs <= 16) return f.template operator()<Spread<kWide, 8, 2, false>>(teams(8));
      if (packs <= 64) return f.template operator()<Spread<kWide, 32, 2, false>>(teams(32));
      if (rows < busy && packs <= 256) return f.template operator()<Spread<kWide, 0, 1, false>>(blocks(kWide));
    }
    if (packs <= 32 * kMost) return f.template operator()<Spread<kWide, 32, kMost, false>>(teams(32));
    if (packs <= 1024 * 4) return f.template operator()<Spread<kWide, 0, 4, false>>(blocks(4 * kWide));
    return f.template operator()<Spread<kWide, 0, 0, false>>(blocks(kWide));
  }
  if constexpr (kStages) {
    constexpr int64_t kShared = 47 * 1024;  // what any GPU has
    const auto staged = [&](device::Blocks grid, int64_t rows_of_block) {
      grid.dynamic_bytes = (rows_of_block * width * int64_t(sizeof(T)) + 31) / 16 * 16;
      return grid;
    };
    const auto staged_teams = [&](int lanes) {
      const device::Blocks grid = teams(lanes);
      return staged(grid, grid.threads / lanes);
    };
    if (width <= 16) return f.template operator()<Spread<1, 1, 16, true>>(staged_teams(1));
    if (width <= 64) return f.template operator()<Spread<1, 4, 16, true>>(staged_teams(4));
    if (width <= 256) return f.template operator()<Spread<1, 16, 16, true>>(staged_teams(16));
    if (width * int64_t(sizeof(T)) <= kShared && width <= 16 * 1024)
      return f.template operator()<Spread<1, 0, 16, true>>(staged(blocks(16), 1));
  } else {
    if (width <= 16 * 1024) return f.template operator()<Spread<1, 0, 16, false>>(blocks(16));
  }
  f.template operator()<Spread<1, 0, 0, false>>(blocks(1));
}

}  // namespace encore::ops
