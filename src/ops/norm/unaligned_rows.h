// Rows of odd widths, read and written where they lie: in packs at aligned addresses, of which a row's first and last
// may be a neighbour's in part. Where x and y are aligned alike these are the same packs of both.
#pragma once
#include <bit>

#include "device/unaligned_pack.h"
#include "ops/norm/rows.h"

namespace encore::ops {

// Of a pack, for an aligned address, the first `count` values, fewer than there are, or the last ones: in pieces of a
// half of a pack, a quarter and so on, as far as there are such. The larger a piece, the nearer it is to that end of
// the pack.
template <class T, int kPack>
DEVICE_FN void store_end(T* to, const device::Pack<T, kPack>& pack, unsigned count, bool last) {
  static_assert(sizeof pack == 16);
  constexpr int kOfWord = 4 / sizeof(T);
  const unsigned flip = last ? kPack - 1 : 0;
  const auto words = device::words_of(pack);
  const auto word = [&](unsigned i) {
    const uint32_t low = i & 1 ? words.at[1] : words.at[0], high = i & 1 ? words.at[3] : words.at[2];
    return i & 2 ? high : low;
  };
  const auto put = [&]<unsigned kPiece>(auto of) {
    const unsigned at = (count & (kPack - 2 * kPiece)) ^ (flip & (kPack - kPiece));
    if (count & kPiece) *reinterpret_cast<decltype(of(0u))*>(to + at) = of(at / kOfWord);
  };
  put.template operator()<2 * kOfWord>(
      [&](unsigned) { return uint64_t(last ? words.at[3] : words.at[1]) << 32 | (last ? words.at[2] : words.at[0]); });
  put.template operator()<kOfWord>(word);
  if constexpr (kOfWord == 2)
    put.template operator()<1>([&](unsigned i) { return uint16_t(word(i) >> (last ? 16 : 0)); });
}

// What a thread has of a row that lies in more packs than one. Each of kShare neighbours, a power of two, takes up to
// kKeep packs, and if there are more threads than these, the next neighbours those that follow. Only in its slot 0 may
// a thread have a pack that is the row's in part: the first of all has the row's first pack there, the last of the
// first neighbours the row's last.
template <class T, int kShare, int kKeep>
class UnalignedPart {
 public:
  static constexpr int kPack = device::pack_size<T>();
  using Raw = RawPack<T, kPack>;

  // `there`: the thread has a row.
  DEVICE_FN UnalignedPart(const T* row, int width, int thread, bool there) : row_(row), width_(width) {
    const int before = int(reinterpret_cast<uintptr_t>(row) / sizeof(T) % kPack), lane = thread % kShare;
    neighbours_ = (thread / kShare * kShare * kKeep - 1) * kPack - before;
    rest_ = neighbours_ + lane * kPack;
    const int last = (before + width - 1) / kPack * kPack - before;  // the first value of the row's last pack
    const bool has_last = thread == kShare - 1;
    first_ = has_last ? last : thread < kShare ? rest_ + kPack : rest_;
    has_first_ = there && (has_last || first_ < last);
    left_ = there ? last - rest_ : 0;
  }

  // f(k, first value in the row) for each pack. That of a pack at the row's beginning may be before it.
  template <class F>
  DEVICE_FN void each(F f) const {
    each_slot([&](int k, int first) {
      if (has(k)) f(k, first);
    });
  }
  // The same for what is kept, without a condition.
  template <class F>
  DEVICE_FN void each_slot(F f) const {
    f(0, first_);
    UNROLL for (int k = 1; k < kKeep; ++k) {
      if (kKeep > 4 && k % 2 == 0 && neighbours_ + k * kStep >= width_) break;  // all neighbours agree
      f(k, rest_ + k * kStep);
    }
  }
  // What is kept; where nothing is, there will be `none`.
  DEVICE_FN void read(Raw (&kept)[kKeep], T none) const {
    const char *const begin = reinterpret_cast<const char*>(row_), *const end =
                                                                       reinterpret_cast<const char*>(row_ + width_);
    UNROLL for (int k = 0; k < kKeep; ++k) {
      kept[k] = raw_pack_of<kPack>(none);
      const T* const from = k == 0 ? row_ + first_ : row_ + rest_ + k * kStep;
      if (has(k)) kept[k] = std::bit_cast<Raw>(device::load_granule(reinterpret_cast<const char*>(from), begin, end));
    }
    if (has_first_) keep_own(kept[0], none);
  }
  // The pack of another row, of any alignment, at a place that `each` names.
  DEVICE_FN device::Pack<T, kPack> load(const T* row, int k) const {
    if (k > 0) return device::load_unaligned_pack(row + rest_ + k * kStep);
    const unsigned own = own_values();
    if (own == kAll) return device::load_unaligned_pack(row + first_);
    device::Pack<T, kPack> pack;
    UNROLL for (int j = 0; j < kPack; ++j) pack.at[j] = own >> j & 1 ? row[first_ + j] : T(0.f);
    return pack;
  }
  DEVICE_FN void store(T* row, int k, const device::Pack<T, kPack>& pack) const {
    if (k > 0) return device::store_whole(row + rest_ + k * kStep, pack);
    if (own_values() == kAll) return device::store_whole(row + first_, pack);
    const bool begins = first_ < 0;
    store_end(row + first_, pack, begins ? first_ + kPack : width_ - first_, begins);
  }
  // In place of values that the row has not.
  template <class C>
  DEVICE_FN void fill(C (&values)[kPack], int k, C with) const {
    if (k > 0) return;
    const unsigned own = own_values();
    UNROLL for (int j = 0; j < kPack; ++j) values[j] = own >> j & 1 ? values[j] : with;
  }
  template <class C>
  static DEVICE_FN void take(C (&values)[kPack], const Raw& kept) {
    const auto pack = std::bit_cast<device::Pack<T, kPack>>(kept);
    UNROLL for (int j = 0; j < kPack; ++j) values[j] = C(pack.at[j]);
  }

 private:
  static constexpr int kStep = kShare * kPack;
  static constexpr unsigned kAll = (1u << kPack) - 1;

  DEVICE_FN bool has(int k) const { return k == 0 ? has_first_ : k * kStep < left_; }
  // A bit for each value of the pack in slot 0 which the row has: one at least.
  DEVICE_FN unsigned own_values() const {
    const int before = first_ < 0 ? -first_ : 0, after = first_ + kPack > width_ ? first_ + kPack - width_ : 0;
    return (kAll << (before & 31)) & (kAll >> (after & 31));
  }
  DEVICE_FN void keep_own(Raw& raw, T none) const {
    const unsigned own = own_values();
    if constexpr (sizeof(raw.at[0]) == sizeof(T)) {
      UNROLL for (int j = 0; j < kPack; ++j) raw.at[j] = own >> j & 1 ? raw.at[j] : none;
    } else {
      const uint32_t instead = raw_pack_of<kPack>(none).at[0];
      UNROLL for (int i = 0; i < kPack / 2; ++i) {
        if (!(own >> (2 * i) & 1)) raw.at[i] = (raw.at[i] & 0xffff0000u) | (instead & 0xffffu);
        if (!(own >> (2 * i + 1) & 1)) raw.at[i] = (raw.at[i] & 0xffffu) | (instead & 0xffff0000u);
      }
    }
  }

  const T* row_;
  int width_;
  int first_, rest_;  // the first value in slot 0, and what would be that of slot 1 one step before it
  int neighbours_;    // rest_ of the first neighbour
  int left_;          // from rest_ to the row's last pack
  bool has_first_;
};

// A team of kLanes threads for each row, or a block if that is 0.
template <int kLanes_, int kKeep_>
struct Unaligned {
  static constexpr int kLanes = kLanes_, kKeep = kKeep_;
  static constexpr bool kStaged = false, kWhole = false;
};

template <class T, int kLanes, int kKeep_>
class RowTeams<T, Unaligned<kLanes, kKeep_>> {
 public:
  static constexpr int kPack = device::pack_size<T>(), kKeep = kKeep_;
  using C = device::Compute<T>;
  using Together = Team<kLanes>;
  using Shared = device::NoShared;
  using Block = device::Block<Shared>;
  using Index = int;  // in a row
  // More than there are: a thread gets registers of which half of all that a multiprocessor may have find some.
  static constexpr int kMaxThreads = 1024;
  using Raw = RawPack<T, kPack>;
  template <class V>
  struct KeptAs {
    V at[kKeep][kPack];
  };
  struct Kept {
    Raw at[kKeep];
  };
  static constexpr bool kAsksAhead = false;
  template <class>
  struct Asked {};

  DEVICE_FN RowTeams(const Block& b, const T* x, T* y, int64_t rows, int64_t width)
      : x_(x), y_(y), rows_(rows), first_row_(b.index() * (b.size() / Together::size(b))), width_(int(width)) {}

  DEVICE_FN int64_t index(int t) const { return first_row_ + (kLanes ? t / (kLanes ? kLanes : 1) : 0); }
  DEVICE_FN bool has_row(int t) const { return index(t) < rows_; }
  DEVICE_FN const T* source(const Block&, const Shared&, int t) const { return x_ + index(t) * width_; }
  DEVICE_FN T* target(const Block&, const Shared&, int t) const { return y_ + index(t) * width_; }

  template <class F>
  DEVICE_FN void each(int t, F f) const {
    part(t).each(f);
  }
  template <class F>
  DEVICE_FN void each_slot(int t, F f) const {
    part(t).each_slot(f);
  }
  DEVICE_FN void read(const Block&, const Shared&, int t, Kept& kept, T none) const { part(t).read(kept.at, none); }
  DEVICE_FN static void take(C (&values)[kPack], const Raw& kept, const T*) { Part::take(values, kept); }

  DEVICE_FN device::Pack<T, kPack> load(int t, const T* row, int k, int) const { return part(t).load(row, k); }
  DEVICE_FN void store(int t, T* row, int k, int, const device::Pack<T, kPack>& pack) const {
    part(t).store(row, k, pack);
  }
  DEVICE_FN void fill(int t, C (&values)[kPack], int k, C with) const { part(t).fill(values, k, with); }

  DEVICE_FN void bring(Block&) const {}
  DEVICE_FN void take_back(Block&) const {}

 private:
  using Part = UnalignedPart<T, kLanes ? kLanes : 32, kKeep>;
  DEVICE_FN Part part(int t) const { return {x_ + index(t) * width_, width_, Together::lane(t), has_row(t)}; }

  const T* x_;
  T* y_;
  int64_t rows_, first_row_;
  int width_;
};

// How many packs a row lies in, at most.
template <class T>
constexpr int64_t most_packs(int64_t width) {
  constexpr int kPack = device::pack_size<T>();
  return (width + 2 * kPack - 2) / kPack;
}

}  // namespace encore::ops
