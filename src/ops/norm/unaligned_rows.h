// Rows of odd widths, read and written where they lie: in packs at aligned addresses, of which a row's first and last
// may be a neighbour's in part. Where x and y are aligned alike these are the same packs of both.
#pragma once
#include <bit>

#include "device/neighbours.h"
#include "ops/norm/rows.h"

namespace encore::ops {

// Of a row, at most.
inline constexpr int kMostUnalignedPacks = 1024;

// Each thread of a team of kLanes keeps kWhole packs; the packs at the row's ends, if they are its in part, are one
// more of the first two threads. kLanes is 32, or 0 for a block.
template <int kLanes_, int kWhole_>
struct Unaligned {
  static constexpr int kLanes = kLanes_, kWhole = kWhole_, kKeep = kWhole + 1;
  static constexpr bool kStaged = false;
};

template <class T, int kLanes, int kWhole>
class RowTeams<T, Unaligned<kLanes, kWhole>> {
 public:
  static constexpr int kPack = device::pack_size<T>(), kKeep = kWhole + 1;
  using C = device::Compute<T>;
  using Together = Team<kLanes>;
  using Shared = device::NoShared;
  using Block = device::Block<Shared>;
  using Index = int;  // in a row
  // Blocks have a third of these threads: three run side by side, with registers for all that they keep.
  static constexpr int kMaxThreads = kLanes ? Together::kMaxThreads : 3 * kMostUnalignedPacks / kWhole;
  template <class V>
  struct KeptAs {
    V at[kKeep][kPack];
  };
  using Kept = KeptAs<std::conditional_t<kWhole * kPack <= 16, C, T>>;

  DEVICE_FN RowTeams(const Block& b, const T* x, T* y, int64_t rows, int64_t width)
      : x_(x), y_(y), rows_(rows), first_row_(b.index() * (b.size() / Together::size(b))), width_(int(width)) {}

  DEVICE_FN int64_t index(int t) const { return first_row_ + (kLanes ? t / 32 : 0); }
  DEVICE_FN bool has_row(int t) const { return index(t) < rows_; }
  DEVICE_FN const T* source(const Block&, const Shared&, int t) const { return x_ + index(t) * width_; }
  DEVICE_FN T* target(const Block&, const Shared&, int t) const { return y_ + index(t) * width_; }

  // f(k, first value in the row) for each pack of a thread. That of a pack at the row's beginning is before it.
  template <class F>
  DEVICE_FN void each(int t, F f) const {
    const Ends ends = ends_of(t);
    each_slot(t, [&](int k, int first) {
      if (first < ends.of(k)) f(k, first);
    });
  }
  // The same for what is kept, without a condition.
  template <class F>
  DEVICE_FN void each_slot(int t, F f) const {
    const int before = before_row(t), lane = Together::lane(t);
    const int begin = (before ? kPack - before : 0) + lane / 32 * 32 * kWhole * kPack;  // of the warp
    UNROLL for (int k = 0; k < kWhole; ++k) {
      if (kWhole > 4 && k % 2 == 0 && begin + k * 32 * kPack >= width_) break;  // all lanes agree
      f(k, begin + (k * 32 + lane % 32) * kPack);
    }
    if (lane >= 32) return;
    int first = width_;
    if (lane == 0 && before != 0) first = -before;
    if (lane == 1) first = (width_ + before) / kPack * kPack - before;
    f(kWhole, first);
  }
  // Reads what is kept; where nothing is, there will be `none`.
  template <class V>
  DEVICE_FN void read(const Block& b, const Shared& s, int t, KeptAs<V>& kept, T none) const {
    const T* const from = source(b, s, t);
    const Ends ends = ends_of(t);
    each_slot(t, [&](int k, int first) {
      device::Pack<T, kPack> pack;
      UNROLL for (int j = 0; j < kPack; ++j) pack.at[j] = none;
      if (first < ends.of(k))
        pack = std::bit_cast<device::Pack<T, kPack>>(
            device::load_granule(reinterpret_cast<const char*>(from + first), reinterpret_cast<const char*>(from),
                                 reinterpret_cast<const char*>(from + width_)));
      if (k == kWhole) {
        UNROLL for (int j = 0; j < kPack; ++j) pack.at[j] = has(first + j) ? pack.at[j] : none;
      }
      UNROLL for (int j = 0; j < kPack; ++j) kept.at[k][j] = V(pack.at[j]);
    });
  }
  template <class V, class Computed>
  DEVICE_FN static void take(Computed (&values)[kPack], const V (&kept)[kPack], const T*) {
    UNROLL for (int j = 0; j < kPack; ++j) values[j] = Computed(kept[j]);
  }

  // The pack of another row, of any alignment, at a place that `each` names.
  template <class V>
  DEVICE_FN device::Pack<V, kPack> load(const V* row, int k, int first) const {
    static_assert(sizeof(V) == sizeof(T));
    if (k < kWhole) return device::load_neighbours(row + first);
    device::Pack<V, kPack> pack;
    UNROLL for (int j = 0; j < kPack; ++j) pack.at[j] = has(first + j) ? row[first + j] : V(0.f);
    return pack;
  }
  DEVICE_FN void store(T* row, int k, int first, const device::Pack<T, kPack>& pack) const {
    if (k < kWhole) return device::store_pack(row + first, pack, true);
    UNROLL for (int j = 0; j < kPack; ++j) {
      if (has(first + j)) row[first + j] = pack.at[j];
    }
  }
  // In place of values that the row has not.
  DEVICE_FN void fill(C (&values)[kPack], int k, int first, C with) const {
    if (k < kWhole) return;
    UNROLL for (int j = 0; j < kPack; ++j) {
      if (!has(first + j)) values[j] = with;
    }
  }

  DEVICE_FN void bring(Block&) const {}
  DEVICE_FN void take_back(Block&) const {}

 private:
  struct Ends {
    int whole, all;
    DEVICE_FN int of(int k) const { return k < kWhole ? whole : all; }
  };
  DEVICE_FN int before_row(int t) const {
    return int(reinterpret_cast<uintptr_t>(x_ + index(t) * width_) / sizeof(T) % kPack);
  }
  DEVICE_FN Ends ends_of(int t) const {
    const int before = before_row(t);
    if (!has_row(t)) return {-kPack, -kPack};
    return {(width_ + before) / kPack * kPack - before, width_};
  }
  DEVICE_FN bool has(int i) const { return unsigned(i) < unsigned(width_); }

  const T* x_;
  T* y_;
  int64_t rows_, first_row_;
  int width_;
};

// Calls f.template operator()<How>(grid) with an Unaligned if that suits rows of odd widths: those of which the packs
// at both ends are few among all.
template <class T, class F>
bool spread_unaligned(device::StreamRef stream, int64_t rows, int64_t width, const T* x, const T* y, F f) {
  constexpr int kPack = device::pack_size<T>();
  const bool alike = (reinterpret_cast<uintptr_t>(x) ^ reinterpret_cast<uintptr_t>(y)) % 16 == 0;
  const int64_t packs = width / kPack;  // whole ones, at most
  if (!alike || width <= 8 * kStagedSlots<T> || packs > kMostUnalignedPacks) return false;
  const auto warps = [&]() -> device::Blocks {
    const int threads = rows < 8 * int64_t(device::multiprocessors(stream.device())) ? 64 : 128;
    return {(rows * 32 + threads - 1) / threads, threads};
  };
  if (packs <= 256)
    f.template operator()<Unaligned<32, 8>>(warps());
  else
    f.template operator()<Unaligned<0, 4>>(device::Blocks{rows, int((packs + 127) / 128 * 32)});
  return true;
}

}  // namespace encore::ops
