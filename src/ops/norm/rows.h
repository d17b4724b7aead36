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
    if constexpr (How::kStaged) return staged(b, s) + (index(b, t) - first_row(b)) * width;
    return x + index(b, t) * width;
  }
  DEVICE_FN T* target(const Block& b, Shared& s, int t) const {
    if constexpr (How::kStaged) return staged(b, s) + (index(b, t) - first_row(b)) * width;
    return y + index(b, t) * width;
  }

  // f(k, first value in the row) for each pack of a thread.
  template <class F>
  DEVICE_FN void each(const Block& b, int t, F f) const {
    if (index(b, t) >= rows) return;
    const int lane = Together::lane(t), lanes = Together::size(b);
    if constexpr (kKeep != 0) {
      UNROLL for (int k = 0; k < kKeep; ++k) {
        if (kKeep > 4 && k % 4 == 0 && k * lanes * kPack >= int(width)) break;
        const int first = (lane + k * lanes) * kPack;
        if (first < int(width)) f(k, first);
      }
    } else {
      for (int64_t first = int64_t(lane) * kPack; first < width; first += int64_t(lanes) * kPack) f(0, first);
    }
  }

  // Phases before and after the work on rows.
  DEVICE_FN void bring(Block& b) const {
    if constexpr (How::kStaged)
      b.threads([&](int t, Shared& s) {
        T* to = staged(b, s);
        const T* from = x + first_row(b) * width;
        move(t, b.size(), count(b), from, [&]<int kCount>(int64_t i) {
          device::store_pack(to + i, device::load_pack<kCount>(from + i, true), true);
        });
      });
  }
  DEVICE_FN void take_back(Block& b) const {
    if constexpr (How::kStaged)
      b.threads([&](int t, Shared& s) {
        const T* from = staged(b, s);
        T* to = y + first_row(b) * width;
        if (reinterpret_cast<uintptr_t>(x) % 16 != reinterpret_cast<uintptr_t>(y) % 16) {
          for (int64_t i = t; i < count(b); i += b.size()) to[i] = from[i];
          return;
        }
        move(t, b.size(), count(b), to, [&]<int kCount>(int64_t i) {
          device::store_pack(to + i, device::load_pack<kCount>(from + i, true), true);
        });
      });
  }

 private:
  static constexpr int kWide = device::pack_size<T>();

  DEVICE_FN int64_t first_row(const Block& b) const {
    return b.index() * (How::kLanes ? b.size() / (How::kLanes ? How::kLanes : 1) : 1);
  }
  // Of a block's rows.
  DEVICE_FN int64_t count(const Block& b) const {
    const int64_t first = first_row(b), own = How::kLanes ? b.size() / (How::kLanes ? How::kLanes : 1) : 1;
    return (rows - first < own ? rows - first : own) * width;
  }
  // Aligned as in global memory.
  template <class S>
  DEVICE_FN auto staged(const Block& b, S& s) const {
    return b.template dynamic<T>(s) +
           reinterpret_cast<uintptr_t>(x + first_row(b) * width) % sizeof(device::Pack<T, kWide>) / sizeof(T);
  }
  // f<kCount>(i) for values at i, dealt to threads: packs where `at` is aligned, and one by one what is before and
  // after.
  template <class F>
  DEVICE_FN static void move(int t, int threads, int64_t count, const T* at, F f) {
    const int64_t past = reinterpret_cast<uintptr_t>(at) % sizeof(device::Pack<T, kWide>) / sizeof(T);
    const int64_t before = past ? kWide - past : 0, head = before < count ? before : count;
    const int64_t packs = (count - head) / kWide, tail = count - head - packs * kWide;
    if (t < head) f.template operator()<1>(t);
    if (t >= kWide && t - kWide < tail) f.template operator()<1>(count - tail + t - kWide);
    for (int64_t p = t; p < packs; p += threads) f.template operator()<kWide>(head + p * kWide);
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
