// What a warp looks at of a row at once: its lanes keep it in registers, and choose those elements that do not come
// after a key by comparisons alone.
#pragma once
#include <algorithm>
#include <bit>

#include "device/bits.h"
#include "device/larger.h"
#include "device/unaligned_pack.h"
#include "device/warp.h"
#include "device/words.h"
#include "ops/index/ordering.h"
#include "ops/op.h"

namespace encore::ops {

// Rows, and where the best of them go.
template <class Key>
struct TopkOfEach {
  const Key* x;  // [rows, columns]
  Key* values;   // [rows, k]
  int64_t* indices;
  Ordering order;
  uint32_t rows;
  int columns, k;  // columns: 2^16 at most
};

// T is a float, or an unsigned integer for all integers. An element's place is its column.
template <class T>
struct RowPiece {
  using Key = UnsignedOf<sizeof(T)>;
  using Item = Placed<Key>;
  using Wide = std::conditional_t<sizeof(Key) <= 4, uint32_t, uint64_t>;  // keys, while they are compared
  static constexpr bool kFloating = !std::is_integral_v<T>;
  static constexpr int kPack = device::pack_size<T>(), kKeep = std::is_same_v<T, float> ? 8 : std::min(4, 32 / kPack);
  static constexpr int kPiece = 32 * kKeep * kPack;
  static constexpr int kOfLoad = 16 / int(sizeof(Item));
  // Other types are too rare for ways of their own.
  static constexpr bool kCommon = device::kIsHalf<T> || std::is_same_v<T, float>;
  using Values = device::Pack<T, kPack>;
  struct Limit {
    Wide key;
    T number;  // flipped
  };
  // Flipped, so that the best is the largest.
  struct Kept {
    device::Granule packs[kKeep];
    DEVICE_FN Values operator[](int u) const { return device::pack_of<T>(packs[u]); }
    DEVICE_FN void set(int u, const Values& values) { packs[u] = device::words_of(values); }
  };

  TopkOfEach<Key> task;
  Key flip;
  uint32_t flip_of_pair;
  device::Granule nothing;  // of a number that none comes after
  using Keeping = device::PerThread<Kept, 32>;
  using Masks = device::PerThread<uint32_t, 32>;

  DEVICE_FN const Key* row_at(uint32_t row) const { return task.x + uint64_t(row) * uint32_t(task.columns); }
  // How many elements of other rows may lie before the row's in its first granule.
  DEVICE_FN static int before(const Key* from) { return int(reinterpret_cast<uintptr_t>(from) / sizeof(Key) % kPack); }
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
        UNROLL for (int i = 0; i < 4; ++i) kept.packs[u].at[i] = nothing.at[i];
        if (first + u * 32 * kPack < task.columns) kept.packs[u] = device::load_granule(at + u * 512, begin, end);
      }
    }
    return kept;
  }
  // Flips, and puts what no number comes after where there is none.
  DEVICE_FN void arrange(Kept& kept, int start, int lane) const {
    if (start < 0 || start + kPiece > task.columns) {
      const T none = device::pack_of<T>(nothing).at[0];
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
  // The k-th of the lanes' best, or one that comes hardly after it.
  DEVICE_FN Limit limit_of(const device::Warp& warp, device::PerThread<T, 32>& best) const {
    const auto key_at = [&](int lane) { return key_of(Key(std::bit_cast<Key>(best[lane]) ^ flip)); };
    // There is room for the lane, or else it takes some of the last bits, so that no two are the same.
    constexpr int kMore = sizeof(Key) <= 2 ? 16 : 0;
    constexpr Wide kLanes = kMore ? 0xffff : 31;
    device::PerThread<Wide, 32> left;
    warp.lanes([&](int lane) { left[lane] = (Wide(key_at(lane)) << kMore & ~kLanes) | Wide(lane); });
    Wide last = warp.least([&](int lane) { return left[lane]; });
    const auto go_on = [&] {
      last = warp.least([&](int lane) {
        if (left[lane] == last) left[lane] = Wide(~Wide(0));
        return left[lane];
      });
    };
    if constexpr (kCommon) {
      const auto go_on_for = [&]<int kTimes>() { UNROLL for (int i = 0; i < kTimes; ++i) go_on(); };
      if (task.k > 1) go_on_for.template operator()<3>();
      if (task.k > 4) go_on_for.template operator()<4>();
      if (task.k > 8) go_on_for.template operator()<8>();
    } else {
      NO_UNROLL for (int i = 1; i < task.k; ++i) go_on();
    }
    if constexpr (kMore != 0)
      return {last >> kMore, warp.from(int(last & 31), [&](int lane) { return best[lane]; })};
    else
      return limit_at(last | kLanes);
  }
  DEVICE_FN Limit limit_at(Wide key) const { return {key, number(key)}; }

  // How many of those that are listed, in whole packs, come before one of them.
  DEVICE_FN static int rank_of(const Item& item, const Item* list, int found) {
    int rank = 0;
    NO_UNROLL for (int i = 0; i < found; i += kOfLoad) {
      const auto some = device::load_pack<kOfLoad>(list + i, true);
      UNROLL for (int n = 0; n < kOfLoad; ++n) rank = some.at[n].counted_before(item, rank);
    }
    return rank;
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
  // Bits for the elements that are not below a number, as no NaN is. The one of no number is where the row has none.
  DEVICE_FN static uint32_t until(const Kept& kept, T limit) {
    return bits_of(
        kept,
        [&](auto pair) {
          return device::not_smaller(pair, {limit, limit});
        },
        [&](auto value) { return !(value < limit); });
  }
  // The column of the element for which a bit stands.
  DEVICE_FN static int place_of(unsigned bit, int start, int lane) {
    const unsigned element = element_of(bit);
    return int(unsigned(first_of(start, lane, 0)) + element + (element & ~unsigned(kPack - 1)) * 31);
  }
  struct Looked {
    uint32_t until, equal;
  };
  // Bits for the elements that do not come after a key and, if they are wanted, for those of them that have it.
  DEVICE_FN Looked look_at(const Kept& kept, int start, int lane, Wide key, bool wants_equal) const {
    const T limit = number(key < first_key() ? first_key() : key > last_key() ? last_key() : key);
    Looked bits{};
    if (task.order.descending)  // NaN comes first
      bits.until = until(kept, limit);
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
  // Chooses at least k elements, and so many that there is room for: those until a key, if it is good. Returns how
  // many. The k-th key lies between `low` and `high`.
  DEVICE_FN int choose(const device::Warp& warp, Keeping& kept, Masks& mask, int start, Wide key, int room,
                       Wide low = 0, Wide high = kLast) const {
    Masks equal;
    bool wants_equal = false;
    NO_UNROLL for (bool guessed = true;;) {
      warp.lanes([&](int lane) {
        const Looked bits = look_at(kept[lane], start, lane, key, wants_equal);
        mask[lane] = wants_equal ? bits.until & ~bits.equal : bits.until;
        equal[lane] = bits.equal;
      });
      const int chosen = warp.sum([&](int lane) { return device::set_bits(mask[lane]); });
      if (wants_equal) {
        if (chosen < task.k) {
          take_first(warp, mask, equal, task.k - chosen);
          return task.k;
        }
        if (chosen <= room) return chosen;
        high = key - 1;
        wants_equal = false;
      } else if (chosen < task.k) {
        low = key + 1;
      } else if (chosen <= room) {
        return chosen;
      } else if (guessed || low == high) {
        wants_equal = true;
        guessed = false;
        continue;
      } else {
        high = key;
      }
      guessed = false;
      key = low + (high - low) / 2;
    }
  }
  // Writes those that are chosen to a list, in any order. `taken` is zero before.
  DEVICE_FN void list_chosen(const device::Warp& warp, Masks& mask, Item* list, int* taken, int chosen, const Key* from,
                             int start) const {
    warp.lanes([&](int lane) {
      if (mask[lane] == 0) return;
      int slot = device::atomic_add(taken, device::set_bits(mask[lane]));
      NO_UNROLL for (uint32_t bits = mask[lane]; bits != 0; bits &= bits - 1) list[slot++] =
          Item::of(Key(0), place_of(unsigned(device::lowest_bit(bits)), start, lane));
    });
    warp.lanes([&](int lane) {
      NO_UNROLL for (int i = lane; i < chosen; i += 32) {
        const int place = list[i].place();
        list[i] = Item::of(Key(key_of(from[unsigned(place)])), place);
      }
    });
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
};

template <class T>
RowPiece<T> row_piece(const TopkOfEach<UnsignedOf<sizeof(T)>>& task) {
  using Piece = RowPiece<T>;
  using Key = typename Piece::Key;
  device::Pack<Key, Piece::kPack> nothing;
  for (Key& of : nothing.at) of = task.order.number(task.order.template last_key<Key>());
  return {task, task.order.template flip<Key>(), pair_flip(task.order), std::bit_cast<device::Granule>(nothing)};
}

}  // namespace encore::ops
