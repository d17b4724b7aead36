// Rows that are read once and written once: how they are spread over threads, which keep them in registers meanwhile.
#pragma once
#include <algorithm>
#include <bit>
#include <type_traits>

#include "device/device.h"
#include "device/half.h"
#include "device/launch.h"
#include "device/words.h"
#include "ops/reduce/team.h"

namespace encore::ops {

// A way to spread rows. Each thread of a team of kLanes takes up to kKeep packs of kPack values; with kKeep 0 it keeps
// none and goes through memory as often as asked. Rows of packs are read where they lie. Rows of which packs would not
// be aligned are staged: their block moves them, neighbours as they are, in packs between global and shared memory,
// where its threads take them one by one.
template <int kPack_, int kLanes_, int kKeep_, bool kStaged_>
struct RowSpread {
  static constexpr int kPack = kPack_, kLanes = kLanes_, kKeep = kKeep_;
  static constexpr bool kStaged = kStaged_, kWhole = kPack > 1;  // of packs alone
};

// The state of a staged block is all in dynamic shared memory.
struct Staged {
  char none;
};

// Of staged rows a thread takes so many values, and a block at most.
template <class T>
inline constexpr int kStagedSlots = sizeof(T) == 8 ? 16 : 32;
inline constexpr int kMostStaged = 16 * 1024;
// What a block keeps of a row that is not staged.
inline constexpr int kMostPacks = 4096;

// A pack as it was read: of halves in words.
template <class T, int kPack>
using RawPack = std::conditional_t<sizeof(T) == 2 && kPack % 2 == 0, device::WordsOf<T, kPack>, device::Pack<T, kPack>>;
template <int kPack, class T>
DEVICE_FN RawPack<T, kPack> raw_pack_of(T value) {
  device::Pack<T, kPack> pack;
  UNROLL for (int j = 0; j < kPack; ++j) pack.at[j] = value;
  return std::bit_cast<RawPack<T, kPack>>(pack);
}

template <class T>
BOTH_FN bool are_aligned_alike(const T* x, const T* y) {
  return (reinterpret_cast<uintptr_t>(x) ^ reinterpret_cast<uintptr_t>(y)) % 16 == 0;
}

// What a block has of rows of x, of which rows of y of the same type and width are made; y may be x. `How` is a
// RowSpread.
template <class T, class How>
class RowTeams {
 public:
  static constexpr int kPack = How::kPack, kKeep = How::kKeep;
  using C = device::Compute<T>;
  using Together = Team<How::kLanes>;
  using Shared = std::conditional_t<How::kStaged, Staged, device::NoShared>;
  using Block = device::Block<Shared>;
  using Index = std::conditional_t<kKeep != 0, int, int64_t>;  // in a row
  static constexpr int kMaxThreads = How::kStaged && kKeep != 0       ? kMostStaged / kStagedSlots<T>
                                     : How::kLanes == 0 && kKeep == 8 ? kMostPacks / kKeep
                                                                      : Together::kMaxThreads;
  using Raw = RawPack<T, kPack>;
  // What threads keep.
  template <class V>
  struct KeptAs {
    V at[kKeep ? kKeep : 1][kPack];
  };
  struct KeptRaw {
    Raw at[kKeep ? kKeep : 1];
  };
  // As it is computed with unless that were many registers.
  static constexpr bool kKeepsComputed = kKeep != 0 && kKeep * kPack <= (How::kStaged ? kStagedSlots<T> : 16);
  using Kept = std::conditional_t<kKeepsComputed, KeptAs<C>, KeptRaw>;
  // Whether there are registers for packs of other rows, so that all are on their way at once.
  static constexpr bool kAsksAhead = !How::kStaged && kKeep != 0 && kKeep <= (How::kLanes ? 4 : 1);
  template <class V>
  struct Asked {
    RawPack<V, kPack> at[kAsksAhead ? kKeep : 1];
  };

  DEVICE_FN RowTeams(const Block& b, const T* x, T* y, int64_t rows, int64_t width)
      : width_(Index(width)), lanes_(Together::size(b)) {
    const int own = b.size() / lanes_;
    first_row_ = b.index() * own;
    rows_ = rows - first_row_ < own ? int(rows - first_row_) : own;
    alike_ = are_aligned_alike(x, y);
    x_ = x + first_row_ * width;
    y_ = y + first_row_ * width;
    past_ = int(reinterpret_cast<uintptr_t>(x_) % 16 / sizeof(T));
  }

  // The row of a thread's team.
  DEVICE_FN int64_t index(int t) const { return first_row_ + t / lanes_; }
  DEVICE_FN bool has_row(int t) const { return t / lanes_ < rows_; }
  DEVICE_FN const T* source(const Block& b, const Shared& s, int t) const { return at(x_, b, s, t); }
  DEVICE_FN T* target(const Block& b, Shared& s, int t) const { return at(y_, b, s, t); }

  // f(k, first value in the row) for each pack of a thread.
  template <class F>
  DEVICE_FN void each(int t, F f) const {
    const Index left = left_of(t);
    each_slot(t, [&](int k, Index first) {
      if (kKeep == 0 || k * kStep < left) f(k, first);
    });
  }
  // The same for what is kept, without a condition: also beyond the row's end, and without a row.
  template <class F>
  DEVICE_FN void each_slot(int t, F f) const {
    if constexpr (kKeep != 0) {
      const int start = start_of(t), most = most_of(t);
      UNROLL for (int k = 0; k < kKeep; ++k) {
        if (kKeep > 4 && k % 4 == 0 && k * kStep >= most) break;
        f(k, start + k * kStep);
      }
    } else {
      if (!has_row(t)) return;
      for (Index first = Together::lane(t) * kPack; first < width_; first += lanes_ * kPack) f(0, first);
    }
  }
  // Reads what is kept; where nothing is, there will be `none`.
  DEVICE_FN void read(const Block& b, const Shared& s, int t, KeptRaw& kept, T none) const {
    const T* const from = source(b, s, t) + start_of(t);
    const Index left = left_of(t), most = most_of(t);
    UNROLL for (int k = 0; k < kKeep; ++k) {
      if (How::kStaged && k % 4 == 0 && k * kStep >= most) break;
      kept.at[k] = raw_pack_of<kPack>(none);
      if (k * kStep < left) kept.at[k] = *reinterpret_cast<const Raw*>(from + k * kStep);
    }
  }
  template <class V>
  DEVICE_FN void read(const Block& b, const Shared& s, int t, KeptAs<V>& kept, T none) const {
    KeptRaw raw;
    read(b, s, t, raw, none);
    each_slot(t, [&](int k, Index) { take(kept.at[k], raw.at[k], nullptr); });
  }

  // The packs of another row at the places of the thread's own.
  template <class V>
  DEVICE_FN void ask(int t, const V* row, Asked<V>& asked) const {
    each(t, [&](int k, Index first) { asked.at[k] = *reinterpret_cast<const RawPack<V, kPack>*>(row + first); });
  }

  // A pack of what was kept or, if nothing is, from where it comes.
  template <class Computed, class V>
  DEVICE_FN static void take(Computed (&values)[kPack], const V (&kept)[kPack], const T* from) {
    if constexpr (kKeep == 0)
      take_pack(values, device::load_pack<kPack>(from, true));
    else
      UNROLL for (int j = 0; j < kPack; ++j) values[j] = Computed(kept[j]);
  }
  template <class Computed>
  DEVICE_FN static void take(Computed (&values)[kPack], const Raw& kept, const T* from) {
    if constexpr (kKeep == 0)
      take_pack(values, device::load_pack<kPack>(from, true));
    else
      take_pack(values, std::bit_cast<device::Pack<T, kPack>>(kept));
  }

  // The pack at a place that `each` names. The row has all of it, other than one that is Unaligned: there `fill` puts
  // something in place of what it has not.
  template <class V>
  DEVICE_FN static device::Pack<V, kPack> load(int, const V* row, int, Index first) {
    return device::load_pack<kPack>(row + first, true);
  }
  template <class V>
  DEVICE_FN static void store(int, V* row, int, Index first, const device::Pack<V, kPack>& pack) {
    device::store_whole(row + first, pack);
  }
  template <class Computed>
  DEVICE_FN static void fill(int, Computed (&)[kPack], int, Computed) {}

  // Phases before and after the work on rows.
  DEVICE_FN void bring(Block& b) const {
    if constexpr (How::kStaged)
      b.threads([&](int t, Shared& s) { move(t, b.size(), x_, b.template dynamic<T>(s) + past_); });
  }
  DEVICE_FN void take_back(Block& b) const {
    if constexpr (How::kStaged)
      b.threads([&](int t, Shared& s) {
        const T* from = b.template dynamic<T>(s) + past_;
        if (alike_) return move(t, b.size(), from, y_);
        for (int i = t; i < rows_ * width_; i += b.size()) y_[i] = from[i];
      });
  }

 private:
  static constexpr int kWide = device::pack_size<T>();

  template <class Computed>
  DEVICE_FN static void take_pack(Computed (&values)[kPack], const device::Pack<T, kPack>& pack) {
    UNROLL for (int j = 0; j < kPack; ++j) values[j] = Computed(pack.at[j]);
  }

  // A thread's packs are as far apart as kShare neighbours have packs: its team, or its warp where that is a block, of
  // which each warp has a part of the row. That is known when this is compiled, and so are the offsets of all packs.
  static constexpr int kShare = How::kLanes ? How::kLanes : 32, kStep = kShare * kPack;
  DEVICE_FN static int start_of(int t) {
    const int lane = Together::lane(t);
    return (lane / kShare * kShare * kKeep + lane % kShare) * kPack;
  }
  // How many values there are from the first one of a thread's neighbours on, row or not.
  DEVICE_FN int most_of(int t) const { return int(width_) - (start_of(t) - Together::lane(t) % kShare * kPack); }
  // How many values there are from a thread's first one on.
  DEVICE_FN Index left_of(int t) const { return has_row(t) ? width_ - start_of(t) : 0; }
  template <class P, class S>
  DEVICE_FN P* at(P* first_row, const Block& b, S& s, int t) const {
    if constexpr (How::kStaged)
      return b.template dynamic<T>(s) + past_ + t / lanes_ * width_;
    else
      return first_row + int64_t(t / lanes_) * width_;
  }
  // All values of the block, in packs where addresses are aligned, as they are at both ends alike.
  DEVICE_FN void move(int t, int threads, const T* from, T* to) const {
    using Wide = RawPack<T, kWide>;
    const int count = rows_ * int(width_), before = -past_ & (kWide - 1), head = before < count ? before : count;
    const int packs = (count - head) / kWide, tail = head + packs * kWide;
    if (t < head) to[t] = from[t];
    if (tail + t < count) to[tail + t] = from[tail + t];
    const Wide* wide_from = reinterpret_cast<const Wide*>(from + head);
    Wide* wide_to = reinterpret_cast<Wide*>(to + head);
    constexpr int kAtOnce = sizeof(T) == 2 ? 4 : 2;  // all that there are of halves: memory is waited for once
    NO_UNROLL for (int p = t; p < packs; p += kAtOnce * threads) {
      Wide some[kAtOnce];
      UNROLL for (int i = 0; i < kAtOnce; ++i) {
        if (p + i * threads < packs) some[i] = wide_from[p + i * threads];
      }
      UNROLL for (int i = 0; i < kAtOnce; ++i) {
        if (p + i * threads < packs) wide_to[p + i * threads] = some[i];
      }
    }
  }

  const T* x_;  // of the block
  T* y_;
  int64_t first_row_;
  Index width_;
  int rows_, lanes_;
  int past_;    // values between an aligned address and the first, in global as in shared memory
  bool alike_;  // x and y are aligned alike
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
    int threads = 128;
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
      if (packs <= 8) return f.template operator()<RowSpread<kWide, 4, 2, false>>(teams(4));
      if (packs <= 16) return f.template operator()<RowSpread<kWide, 8, 2, false>>(teams(8));
      if (packs <= 64) return f.template operator()<RowSpread<kWide, 32, 2, false>>(teams(32));
      if (rows < busy && packs <= 256) return f.template operator()<RowSpread<kWide, 0, 1, false>>(blocks(kWide));
    }
    // Of blocks with 64 registers a thread, two fit only if they have half of the threads that there may be.
    constexpr int kMany = kStages ? 8 : 4;
    if constexpr (kFew)  // a row that has the GPU for itself takes as many threads as there are packs
      if (rows < busy && packs > 16 && packs <= 512)
        return f.template operator()<RowSpread<kWide, 0, kMany, false>>(blocks(kWide));
    if (packs <= 32 * kMost) return f.template operator()<RowSpread<kWide, 32, kMost, false>>(teams(32));
    if constexpr (!kFew)
      if (packs <= 256 * 4) return f.template operator()<RowSpread<kWide, 0, 4, false>>(blocks(4 * kWide));
    if (packs <= kMostPacks) return f.template operator()<RowSpread<kWide, 0, kMany, false>>(blocks(kMany * kWide));
    return f.template operator()<RowSpread<kWide, 0, 0, false>>(blocks(kWide));
  }
  if constexpr (kStages) {
    constexpr int64_t kShared = 47 * 1024, kMostShared = 99 * 1024 - 768;  // of any GPU: without asking, and at most
    const auto staged = [&](device::Blocks grid, int64_t rows_of_block) {
      grid.dynamic_bytes = (rows_of_block * width * int64_t(sizeof(T)) + 31) / 16 * 16;
      return grid;
    };
    const auto staged_teams = [&](int lanes) {
      const device::Blocks grid = teams(lanes);
      return staged(grid, grid.threads / lanes);
    };
    constexpr int kSlots = kStagedSlots<T>;
    if (width <= kSlots) return f.template operator()<RowSpread<1, 1, kSlots, true>>(staged_teams(1));
    if (width <= 2 * kSlots) return f.template operator()<RowSpread<1, 2, kSlots, true>>(staged_teams(2));
    if (width <= 8 * kSlots) return f.template operator()<RowSpread<1, 8, kSlots, true>>(staged_teams(8));
    if (width * int64_t(sizeof(T)) <= kShared && width <= kMostStaged)
      return f.template operator()<RowSpread<1, 0, kSlots, true>>(staged(blocks(kSlots), 1));
    if (width * int64_t(sizeof(T)) + 32 <= kMostShared)
      return f.template operator()<RowSpread<1, 0, 0, true>>(staged(blocks(1), 1));
  } else {
    if (width <= 16 * 1024) return f.template operator()<RowSpread<1, 0, 16, false>>(blocks(16));
  }
  f.template operator()<RowSpread<1, 0, 0, false>>(blocks(1));
}

}  // namespace encore::ops
