// The best few of many rows, a warp for each, which goes through its row in pieces that its lanes keep in registers.
// The k-th of the lanes' best in the first piece is no better than the k-th of all, so that few elements need more than
// a comparison with it: those are listed, and each counts how many come before it. When the list is full all but the
// best leave it. A piece that hides more than there is room for, with all that is good in a few lanes, is searched for
// its k-th bit by bit.
#pragma once
#include <algorithm>
#include <bit>

#include "device/bits.h"
#include "device/larger.h"
#include "device/neighbours.h"
#include "device/warp.h"
#include "ops/index/ordering.h"
#include "ops/op.h"

namespace encore::ops {

// Rows, and where the best of them go.
template <class Key>
struct BestOfEach {
  const Key* x;  // [rows, columns]
  Key* values;   // [rows, k]
  int64_t* indices;
  Ordering order;
  uint32_t rows;
  int columns, k;  // columns: 2^16 at most
};

// T is a float, or an unsigned integer for all integers.
template <class T>
struct BestOfManyRows {
  using Key = UnsignedOf<sizeof(T)>;
  using Item = Placed<Key>;
  using Wide = std::conditional_t<sizeof(Key) <= 4, uint32_t, uint64_t>;  // keys, while they are compared
  static constexpr bool kFloating = !std::is_integral_v<T>;
  static constexpr int kMost = 16;  // of k
  static constexpr int kMaxThreads = 64, kWarps = kMaxThreads / 32;
  static constexpr int kPack = device::pack_size<T>(), kKeep = std::min(4, 32 / kPack);
  static constexpr int kPiece = 32 * kKeep * kPack;
  static constexpr int kRoom = 64, kAtOnce = 16 / int(sizeof(Item));
  struct alignas(16) List {
    Item items[kRoom], best[kMost];
    int taken;
  };
  struct Shared {
    List lists[kWarps];
  };
  using Values = device::Pack<T, kPack>;
  // Flipped, so that the best is the largest.
  struct Kept {
    device::Granule packs[kKeep];
    DEVICE_FN Values operator[](int u) const { return std::bit_cast<Values>(packs[u]); }
    DEVICE_FN void set(int u, const Values& values) { packs[u] = std::bit_cast<device::Granule>(values); }
  };

  BestOfEach<Key> task;
  Key flip;
  uint32_t flip_of_pair;
  device::Granule nothing;  // of a number that none comes after
  int warps;                // of a block

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const uint32_t row = uint32_t(b.index()) * uint32_t(warps) + uint32_t(warp.index());
      if (row < task.rows) find(warp, s.lists[warp.index()], row);
    });
  }

 private:
  using Masks = device::PerThread<uint32_t, 32>;

  DEVICE_FN void find(const device::Warp& warp, List& list, uint32_t row) const {
    const Key* const from = task.x + uint64_t(row) * uint32_t(task.columns);
    const int before = int(reinterpret_cast<uintptr_t>(from) / sizeof(Key) % kPack);
    device::PerThread<Kept, 32> kept;
    device::PerThread<Wide, 32> most;
    Masks mask;
    warp.lanes([&](int lane) {
      kept[lane] = load(from, -before, lane);
      if (lane == 0) list.taken = 0;
    });
    Wide limit{};
    int found = 0;
    NO_UNROLL for (int start = -before; start < task.columns; start += kPiece) {
      warp.lanes([&](int lane) {
        arrange(kept[lane], start, lane);
        most[lane] = best_of(kept[lane]);
      });
      if (start <= 0) limit = limit_of(warp, most);
      int more = 0;
      if (start <= 0 || warp.sum([&](int lane) { return most[lane] <= limit; }) != 0) {
        NO_UNROLL while ((more = look(warp, kept, mask, start, limit, found)) > kRoom) {
          limit = settle(warp, list, found);
          warp.lanes([&](int lane) {
            if (lane < task.k + kAtOnce) list.items[lane] = lane < task.k ? list.best[lane] : Item::last();
            if (lane == 0) list.taken = task.k;
          });
          found = task.k;
        }
      }
      if (start + kPiece < task.columns) warp.lanes([&](int lane) { kept[lane] = load(from, start + kPiece, lane); });
      if (more != 0) add(warp, mask, list, found, more, from, start);
      found += more;
    }
    settle(warp, list, found);
    warp.lanes([&](int lane) {
      if (lane >= task.k) return;
      const auto place = uint32_t(list.best[lane].place());
      const uint64_t to = uint64_t(row) * uint32_t(task.k) + uint32_t(lane);
      task.values[to] = from[place];
      task.indices[to] = place;
    });
  }

  DEVICE_FN static int first_of(int start, int lane, int pack) { return start + (lane + 32 * pack) * kPack; }
  // What is known of it when this is compiled spares branches.
  DEVICE_FN Ordering ordering() const {
    Ordering order = task.order;
    if constexpr (kFloating) order.kind = Ordering::Kind::floating;
    return order;
  }
  static constexpr Wide kLast = Key(~Key(0));
  DEVICE_FN Wide first_key() const { return kLast - last_key(); }
  DEVICE_FN Wide last_key() const { return ordering().template last_key<Key>(); }
  DEVICE_FN T number(Wide key) const { return std::bit_cast<T>(Key(ordering().number(Key(key)) ^ flip)); }
  DEVICE_FN Wide key_of(Key bits) const {
    if constexpr (sizeof(Key) == 2)
      return keys_of_pair<T>(bits, flip_of_pair) & kLast;
    else
      return ordering()(bits);
  }

  // Granules, of which those on the borders of the row have something else, too.
  DEVICE_FN Kept load(const Key* from, int start, int lane) const {
    const char *const begin = reinterpret_cast<const char*>(from), *const end = begin + task.columns * int(sizeof(Key));
    const int first = first_of(start, lane, 0);
    const char* const at = begin + first * int(sizeof(Key));
    Kept kept;
    if (start >= 0 && start + kPiece <= task.columns) {
      UNROLL for (int u = 0; u < kKeep; ++u) kept.packs[u] = device::load_granule(at + u * 512, begin, end);
    } else {
      UNROLL for (int u = 0; u < kKeep; ++u) {
        UNROLL for (int i = 0; i < 4; ++i) kept.packs[u].words[i] = nothing.words[i];
        if (first + u * 32 * kPack < task.columns) kept.packs[u] = device::load_granule(at + u * 512, begin, end);
      }
    }
    return kept;
  }
  // Flips, and puts what no number comes after where there is none.
  DEVICE_FN void arrange(Kept& kept, int start, int lane) const {
    if (start < 0 || start + kPiece > task.columns) {
      const T none = std::bit_cast<Values>(nothing).at[0];
      UNROLL for (int u = 0; u < kKeep; ++u) {
        const int from = -first_of(start, lane, u), to = task.columns + from;
        if (!(u == 0 && from > 0) && (to <= 0 || to >= kPack)) continue;
        Values values = kept[u];
        UNROLL for (int j = 0; j < kPack; ++j) {
          if (j < from || j >= to) values.at[j] = none;
        }
        kept.set(u, values);
      }
    }
    if (flip == 0) return;
    UNROLL for (int u = 0; u < kKeep; ++u) kept.set(u, device::flipped(kept[u], flip));
  }
  DEVICE_FN Wide best_of(const Kept& kept) const {
    Values most = kept[0];
    UNROLL for (int u = 1; u < kKeep; ++u) most = device::larger_of_each(most, kept[u]);
    return key_of(Key(std::bit_cast<Key>(device::largest(most)) ^ flip));
  }
  // The k-th of the lanes' best. Forgets those before.
  DEVICE_FN Wide limit_of(const device::Warp& warp, device::PerThread<Wide, 32>& best) const {
    constexpr bool kRoomForLane = sizeof(Key) <= 2;  // so that no two are the same
    if constexpr (kRoomForLane) warp.lanes([&](int lane) { best[lane] = best[lane] << 16 | Wide(lane); });
    NO_UNROLL for (int left = task.k;;) {
      const Wide limit = warp.least([&](int lane) { return best[lane]; });
      left -= kRoomForLane ? 1 : warp.sum([&](int lane) { return best[lane] == limit; });
      if (left <= 0) return kRoomForLane ? limit >> 16 : limit;
      warp.lanes([&](int lane) {
        if (best[lane] == limit) best[lane] = Wide(~Wide(0));
      });
    }
  }

  // Which bit stands for the j-th element of a pack: halves are compared in pairs.
  DEVICE_FN static constexpr int bit_of(int pack, int j) {
    const int element = pack * kPack + j;
    return device::kIsHalf<T> ? element / 2 + element % 2 * 16 : element;
  }
  DEVICE_FN static unsigned element_of(unsigned bit) { return device::kIsHalf<T> ? bit % 16 * 2 + bit / 16 : bit; }
  // Bits for the elements of which this says so: `of_pair` for halves, for each of which it has all bits.
  template <class Pair, class One>
  DEVICE_FN static uint32_t bits_of(const Kept& kept, [[maybe_unused]] Pair of_pair, [[maybe_unused]] One of_one) {
    uint32_t bits = 0;
    UNROLL for (int u = 0; u < kKeep; ++u) {
      if constexpr (device::kIsHalf<T>) {
        const auto pairs = std::bit_cast<device::Pack<device::Pack<T, 2>, kPack / 2>>(kept[u]);
        UNROLL for (int j = 0; j < kPack / 2; ++j) bits |=
            of_pair(pairs.at[j]) & (uint32_t(0x10001) << bit_of(u, 2 * j));
      } else {
        const Values values = kept[u];
        UNROLL for (int j = 0; j < kPack; ++j) bits |= of_one(values.at[j]) ? uint32_t(1) << bit_of(u, j) : 0;
      }
    }
    return bits;
  }
  struct Looked {
    uint32_t until, equal;
  };
  // Bits for the elements that do not come after a key and, if they are wanted, for those of them that have it.
  DEVICE_FN Looked look_at(const Kept& kept, int start, int lane, Wide key, bool wants_equal) const {
    const T limit = number(key < first_key() ? first_key() : key > last_key() ? last_key() : key);
    Looked bits{};
    if (task.order.descending)  // NaN comes first
      bits.until = bits_of(
          kept,
          [&](auto pair) {
            return device::not_smaller(pair, {limit, limit});
          },
          [&](auto value) { return !(value < limit); });
    else
      bits.until = bits_of(
          kept,
          [&](auto pair) {
            return device::at_least(pair, {limit, limit});
          },
          [&](auto value) { return value >= limit; });
    if (wants_equal || key < first_key())
      bits.equal = bits_of(
          kept,
          [&](auto pair) {
            const decltype(pair) other{limit, limit};
            return device::at_least(pair, other) & device::at_least(other, pair);
          },
          [&](auto value) { return value == limit; });
    if (key < first_key()) {
      bits.until &= ~bits.equal;
      bits.equal = bits.until;
    }
    if (key < last_key()) return bits;
    if (key > last_key()) {
      bits.equal = key == kLast ? ~bits.until : 0;
      bits.until |= bits.equal;
    }
    uint32_t valid = 0;
    NO_UNROLL for (int u = 0; u < kKeep; ++u) {
      UNROLL for (int j = 0; j < kPack; ++j) {
        const int column = first_of(start, lane, u) + j;
        if (column >= 0 && column < task.columns) valid |= uint32_t(1) << bit_of(u, j);
      }
    }
    return {bits.until & valid, bits.equal & valid};
  }
  // Bits for those elements of a piece that may be wanted, and how many they are. More than there is room for only if
  // it is time to settle what is listed.
  DEVICE_FN int look(const device::Warp& warp, device::PerThread<Kept, 32>& kept, Masks& mask, int start, Wide limit,
                     int found) const {
    Masks equal;
    Wide low = 0, high = kLast;
    NO_UNROLL for (bool closely = false;;) {
      warp.lanes([&](int lane) {
        const Looked bits = look_at(kept[lane], start, lane, limit, closely);
        mask[lane] = bits.until;
        equal[lane] = bits.equal;
      });
      const int more = warp.sum([&](int lane) { return device::set_bits(mask[lane]); });
      if (!closely) {
        const bool fits = found + more <= kRoom;
        if (fits && (start > 0 || more >= task.k)) return more;
        if (!fits && found > task.k) return kRoom + 1;
        closely = true;
        continue;
      }
      const int ahead = warp.sum([&](int lane) { return device::set_bits(mask[lane] & ~equal[lane]); });
      if (more < task.k) {
        low = limit + 1;
      } else if (ahead >= task.k) {
        high = limit - 1;
      } else {
        take_first(warp, mask, equal, task.k - ahead);
        return task.k;
      }
      limit = low + (high - low) / 2;
    }
  }
  // Leaves so many of those that are equal.
  DEVICE_FN static void take_first(const device::Warp& warp, Masks& mask, Masks& equal, int wanted) {
    device::PerThread<int, 32> rank, total;
    warp.lanes([&](int lane) { mask[lane] &= ~equal[lane]; });
    NO_UNROLL for (int u = 0; u < kKeep; ++u) {
      const auto pack = [&](int lane) {
        return equal[lane] & (device::kIsHalf<T> ? 0xf000fu << 4 * u : ((uint32_t(1) << kPack % 32) - 1) << kPack * u);
      };
      warp.lanes([&](int lane) { rank[lane] = device::set_bits(uint32_t(pack(lane))); });
      warp.template scan<1>(
          32, 0, [&](int lane) { return &rank[lane]; }, [&](int lane) { return &total[lane]; },
          [](int a, int b) { return a + b; });
      warp.lanes([&](int lane) {
        int left = wanted - rank[lane];
        NO_UNROLL for (int j = 0; j < kPack; ++j) {
          const uint32_t bit = equal[lane] & uint32_t(1) << bit_of(u, j);
          if (bit != 0 && left-- > 0) mask[lane] |= bit;
        }
      });
      wanted -= total[0];
    }
  }

  // Adds so many more to those that are listed, in any order.
  DEVICE_FN void add(const device::Warp& warp, Masks& mask, List& list, int found, int more, const Key* from,
                     int start) const {
    warp.lanes([&](int lane) {
      if (mask[lane] == 0) return;
      int slot = device::atomic_add(&list.taken, device::set_bits(mask[lane]));
      const auto first = unsigned(first_of(start, lane, 0));
      NO_UNROLL for (uint32_t bits = mask[lane]; bits != 0; bits &= bits - 1) {
        const unsigned element = element_of(unsigned(device::lowest_bit(bits)));
        list.items[slot++] = Item::of(Key(0), int(first + element + (element & ~unsigned(kPack - 1)) * 31));
      }
    });
    warp.lanes([&](int lane) {
      NO_UNROLL for (int i = found + lane; i < found + more; i += 32) {
        const int place = list.items[i].place();
        list.items[i] = Item::of(Key(key_of(from[unsigned(place)])), place);
      }
      // up to whole packs
      if (lane < kAtOnce && found + more + lane < kRoom) list.items[found + more + lane] = Item::last();
    });
  }
  // The best k of what is listed, in order. Returns the last of their keys.
  DEVICE_FN Wide settle(const device::Warp& warp, List& list, int found) const {
    warp.lanes([&](int lane) {
      NO_UNROLL for (int i = lane; i < found; i += 32) {
        const Item mine = list.items[i];
        int rank = 0;
        NO_UNROLL for (int j = 0; j < found; j += kAtOnce) {
          const auto some = device::load_pack<kAtOnce>(list.items + j, true);
          UNROLL for (int n = 0; n < kAtOnce; ++n) rank += some.at[n] < mine;
        }
        if (rank < task.k) list.best[rank] = mine;
      }
    });
    return list.best[task.k - 1].key();
  }
};

template <class T>
void find_best_of_each(StreamRef stream, const BestOfEach<UnsignedOf<sizeof(T)>>& task, int warps) {
  using Kernel = BestOfManyRows<T>;
  using Key = typename Kernel::Key;
  device::Pack<Key, Kernel::kPack> nothing;
  for (Key& of : nothing.at) of = task.order.number(task.order.template last_key<Key>());
  device::block_kernel<typename Kernel::Shared>(stream, {(task.rows + warps - 1) / warps, 32 * warps},
                                                Kernel{task, task.order.template flip<Key>(), pair_flip(task.order),
                                                       std::bit_cast<device::Granule>(nothing), warps});
}

}  // namespace encore::ops
