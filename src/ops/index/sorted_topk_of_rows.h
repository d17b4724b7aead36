// Top-k for a larger k, of rows that a warp keeps in registers: it finds a key that hardly more elements than
// are wanted do not come after, lists those elements and sorts them. Dozens: the sixth last of what the lanes have for
// their best is near that key, and how many do not come after says which is nearer. Some more: the key is sought among
// the best of each four. Hundreds: between the best and the worst.
#pragma once
#include "device/fast_math.h"
#include "device/settled.h"
#include "ops/index/comparators.h"
#include "ops/index/row_piece.h"

namespace encore::ops {

inline constexpr int kMostSorted = 512;                 // of a row
inline constexpr int kDozens = 64, kMostOfDozens = 56;  // listed, and wanted: what is listed has to be some more

// T is a half. kRoom is a power of two, of what is sorted.
template <class T, int kRoom>
struct SortedTopkOfRows : RowPiece<T> {
  using Base = RowPiece<T>;
  using Base::task;
  using typename Base::Item;
  using typename Base::Kept;
  using typename Base::Key;
  using typename Base::Wide;
  static constexpr int kMaxThreads = 64, kWarps = kMaxThreads / 32;
  static constexpr int kGroups = 32 * Base::kPack;
  static constexpr int kEach = kRoom / 32;
  static constexpr bool kIsDozens = kRoom == kDozens;
  // A sorted list lies so that lanes next to one another write to different banks.
  static constexpr int kApart = kEach >= 8 ? kEach + 4 : kEach;
  using Listed = std::conditional_t<kIsDozens, uint16_t, uint32_t>;
  using Words = device::Pack<uint32_t, kEach>;
  using Pair = device::Pack<uint32_t, 2>;
  struct Shared {
    alignas(16) Listed lists[kWarps][32 * kApart];
    int taken[kWarps];
  };
  bool in_pairs;  // outputs: k is even, and they are aligned

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const uint32_t own = uint32_t(b.index()) * uint32_t(kWarps) + uint32_t(warp.index());
      // There is always one; and it is the same for all lanes, which the compiler only knows of what they agreed on.
      const uint32_t row = warp.least([&](int) { return own < task.rows ? own : task.rows - 1; });
      find(warp, s.lists[warp.index()], &s.taken[warp.index()], row);
    });
  }

 private:
  DEVICE_FN void find(const device::Warp& warp, Listed* list, int* taken, uint32_t row) const {
    const Key* const from = device::settled(this->row_at(row));
    const int start = -this->before(from);
    typename Base::Keeping kept;
    typename Base::Masks mask;
    warp.lanes([&](int lane) {
      kept[lane] = this->load(from, start, lane);
      this->arrange(kept[lane], start, lane);
      if (!kIsDozens && lane == 0) *taken = 0;
    });
    if constexpr (kIsDozens) {
      const int chosen = choose_dozens(warp, kept, mask, start);
      list_bits(warp, mask, list);
      device::PerThread<Words, 32> own;
      warp.apart([&](int lane) { own[lane] = words_of(list, lane, chosen, from, start); });
      sort_of_warp<kEach>(warp, own);
      put(warp, own, 0, row, from);
    } else {
      int chosen;
      if constexpr (kRoom <= 128)
        chosen = this->choose(warp, kept, mask, start, guess(warp, kept), kRoom);
      else
        chosen = choose_hundreds(warp, kept, mask, start);
      if constexpr (kRoom <= 128)
        this->list_chosen(warp, mask, reinterpret_cast<Item*>(list), taken, chosen, from, start);
      else
        list_many(warp, kept, mask, list, start);
      warp.lanes(
          [&](int lane) { NO_UNROLL for (int i = chosen + lane; i < kRoom; i += 32) list[i] = Item::last().word; });
      sort(warp, list);
      NO_UNROLL for (int first = 0; first < task.k; first += 64) {
        device::PerThread<Pair, 32> words;
        warp.apart([&](int lane) {
          const int rank = first + 2 * lane;
          words[lane] = device::load_pack<2>(list + rank + rank / kEach * (kApart - kEach), true);
        });
        put(warp, words, first, row, from);
      }
    }
  }

  // Marks the elements that are not below a number, as no NaN is, and returns how many.
  DEVICE_FN static int mark(const device::Warp& warp, typename Base::Keeping& kept, typename Base::Masks& mask,
                            T limit) {
    return warp.sum([&](int lane) {
      mask[lane] = Base::until(kept[lane], limit);
      return device::set_bits(mask[lane]);
    });
  }
  DEVICE_FN Wide key_of_number(T number) const { return this->key_of(Key(std::bit_cast<Key>(number) ^ this->flip)); }
  // As choose() does, and mostly by fewer looks, which count alone. The key moves as far as it did from the last of the
  // lanes' best, by 64 elements more or less.
  DEVICE_FN int choose_dozens(const device::Warp& warp, typename Base::Keeping& kept, typename Base::Masks& mask,
                              int start) const {
    constexpr int kLanes = 6, kLooks = 5;
    device::PerThread<uint32_t, 32> after;
    warp.apart([&](int lane) {
      after[lane] = key_of_number(device::largest_or_nan(best_of_groups(kept[lane]))) << 16 | uint32_t(lane);
    });
    const uint32_t last = warp.most([&](int lane) { return after[lane]; });
    uint32_t some = last, most = last;
    UNROLL for (int i = 1; i < kLanes; ++i) {
      // Round zero: what has been the most is the least then, and the next is the most.
      warp.apart([&](int lane) { after[lane] -= most; });
      most = warp.most([&](int lane) { return after[lane]; });
      some += most;
    }
    const Wide guessed = some >> 16;
    const int step = int((last >> 16) - guessed), middle = (task.k + kRoom) / 2;
    Wide key = guessed;
    // A lane's NaN hides what else it has, if they come last.
    int looks = (last >> 16) > this->last_key() ? 0 : kLooks;
    NO_UNROLL for (; looks > 0 && key >= this->first_key() && key < this->last_key(); --looks) {
      const int found = mark(warp, kept, mask, this->number(key));
      if (found >= task.k && found <= kRoom) return found;
      const int more = step * (middle - found) >> 6;
      if (more == 0) break;
      key += Wide(more);
    }
    return this->choose(warp, kept, mask, start, guessed, kRoom);
  }
  // Likewise: what is tried lies between the best and the worst of the lanes' first elements as it would if numbers
  // were spread evenly, and from the fourth look on in the middle of the keys that are left.
  DEVICE_FN int choose_hundreds(const device::Warp& warp, typename Base::Keeping& kept, typename Base::Masks& mask,
                                int start) const {
    constexpr int kEvenly = 3, kLooks = 10, kSeen = 32 * Base::kPack;
    constexpr uint32_t kSigns = 0x80008000u;
    Wide low = 0, high = Base::kLast;
    device::PerThread<Wide, 32> first, last;
    warp.apart([&](int lane) {
      const auto some = kept[lane][0];
      const T least = device::largest_or_nan(device::flipped(some, kSigns));
      first[lane] = key_of_number(device::largest_or_nan(some));
      last[lane] = key_of_number(std::bit_cast<T>(Key(std::bit_cast<Key>(least) ^ kSigns)));
      if (lane == 0) last[lane] = 0;  // there may be nothing before the row's first element
    });
    float best = this->number(warp.least([&](int lane) { return first[lane]; }));
    float worst = this->number(warp.most([&](int lane) { return last[lane]; }));
    float fewer = float(task.columns) / kSeen, more = float(task.columns) - fewer;
    const float middle = float(task.k + kRoom) / 2;
    // NaN that come last would be marked.
    const bool marks_all = !task.order.descending && warp.votes([&](int lane) {
      const float value = device::largest_or_nan(best_of_groups(kept[lane]));
      return value != value;
    }) != 0;
    NO_UNROLL for (int look = marks_all ? kLooks : 0; look < kLooks && low < high; ++look) {
      T limit = T(best + (worst - best) * ((middle - fewer) * device::fast_reciprocal(more - fewer)));
      Wide key = key_of_number(limit);
      if (look >= kEvenly || key < most(low, this->first_key()) || key >= least(high, this->last_key())) {
        key = low + (high - low) / 2;
        limit = this->number(key);
      }
      if (key < this->first_key() || key >= this->last_key()) break;
      const int found = mark(warp, kept, mask, limit);
      if (found >= task.k && found <= kRoom) return found;
      if (found < task.k) {
        low = key + 1;
        best = limit;
        fewer = float(found);
      } else {
        high = key;
        worst = limit;
        more = float(found);
      }
    }
    return this->choose(warp, kept, mask, start, low + (high - low) / 2, kRoom, low, high);
  }
  // Lists the lane and the bit of each that is chosen, in any order.
  DEVICE_FN void list_bits(const device::Warp& warp, typename Base::Masks& mask, uint16_t* list) const {
    device::PerThread<int, 32> slot;
    warp.apart([&](int lane) { slot[lane] = device::set_bits(mask[lane]); });
    warp.sums_before([&](int lane) -> int& { return slot[lane]; });
    warp.lanes([&](int lane) {
      uint32_t bits = mask[lane];
      uint16_t* to = list + slot[lane];
      if (bits == 0) return;
      NO_UNROLL for (;; ++to) {
        const int bit = device::highest_bit(bits);
        *to = uint16_t(lane * 32 + bit);
        bits &= ~(uint32_t(1) << bit);
        if (bits == 0) return;
      }
    });
  }
  // Two keys with their places, of so many that are listed.
  DEVICE_FN Words words_of(const uint16_t* list, int lane, int listed, const Key* from, int start) const {
    static_assert(Base::kPack == 8 && Base::kKeep == 4);
    Words words{Item::last().word, Item::last().word};
    if (2 * lane >= listed) return words;
    const bool both = 2 * lane + 1 < listed;
    const uint32_t listed_two = std::bit_cast<uint32_t>(device::load_pack<2>(list + 2 * lane, true));
    const uint32_t codes = both ? listed_two : device::low_halves(listed_two, listed_two);
    // A code has five bits of the lane, one of the element in its pair, two of the granule and two of the pair in it.
    uint32_t places = ((codes & 0x1f001fu) * 66 & 0x3060306u) | (codes >> 2 & 0xf800f8u) | (codes >> 4 & 0x10001u);
    places += uint32_t(start) * 0x10001u;
    const uint32_t keys =
        keys_of_pair<T>(from[places & 0xffff] | uint32_t(from[places >> 16]) << 16, this->flip_of_pair);
    words.at[0] = device::low_halves(places, keys);
    if (both) words.at[1] = device::high_halves(places, keys);
    return words;
  }

  // Lanes go through all that they keep.
  DEVICE_FN void list_many(const device::Warp& warp, typename Base::Keeping& kept, typename Base::Masks& mask,
                           uint32_t* list, int start) const {
    device::PerThread<int, 32> slot, total;
    warp.lanes([&](int lane) { slot[lane] = device::set_bits(mask[lane]); });
    warp.template scan<1>(
        32, 0, [&](int lane) { return &slot[lane]; }, [&](int lane) { return &total[lane]; },
        [](int a, int b) { return a + b; });
    warp.lanes([&](int lane) {
      uint32_t* to = list + slot[lane];
      UNROLL for (int u = 0; u < Base::kKeep; ++u) {
        const auto place = uint32_t(this->first_of(start, lane, u));
        UNROLL for (int i = 0; i < 4; ++i) {
          const uint32_t keys = keys_of_pair<T>(kept[lane].packs[u].at[i] ^ this->flip * 0x10001u, this->flip_of_pair);
          if (mask[lane] & uint32_t(1) << this->bit_of(u, 2 * i)) *to++ = keys * 0x10000u + (place + uint32_t(2 * i));
          if (mask[lane] & uint32_t(1) << this->bit_of(u, 2 * i + 1))
            *to++ = device::masked_with<0xffff0000u>(keys, place + uint32_t(2 * i + 1));
        }
      }
    });
  }

  DEVICE_FN static auto best_of_groups(const Kept& kept) {
    auto best = kept[0];
    UNROLL for (int u = 1; u < Base::kKeep; ++u) best = device::larger_or_nan(best, kept[u]);
    return best;
  }
  // A key that k or hardly more of the groups' best do not come after, where the search begins with the last of the
  // lanes' best. For half of the groups at most.
  DEVICE_FN Wide guess(const device::Warp& warp, typename Base::Keeping& kept) const {
    Wide low = this->first_key(), high = this->last_key();
    const int enough = task.k + std::max(task.k / 16, (kRoom - task.k) / 4);
    device::PerThread<Kept, 32> best;
    device::PerThread<Wide, 32> key;
    warp.apart([&](int lane) {
      const auto largest = best_of_groups(kept[lane]);
      best[lane].set(0, largest);
      key[lane] = key_of_number(device::largest_or_nan(largest));
    });
    const Wide first = warp.least([&](int lane) { return key[lane]; });
    const Wide last = Base::kLast - warp.least([&](int lane) { return Wide(Base::kLast - key[lane]); });
    low = most(low, first);
    NO_UNROLL for (Wide middle = most(low, least(last, high)); low < high; middle = low + (high - low) / 2) {
      const T limit = this->number(middle);
      const int count = warp.sum([&](int lane) {
        using Pairs = device::Pack<device::Pack<T, 2>, Base::kPack / 2>;
        const auto pairs = std::bit_cast<Pairs>(best[lane][0]);
        uint32_t bits = 0;
        UNROLL for (int j = 0; j < Base::kPack / 2; ++j) bits |=
            device::at_least(pairs.at[j], {limit, limit}) & uint32_t(0x10001) << j;
        return device::set_bits(bits);
      });
      if (count < task.k) {
        low = middle + 1;
      } else {
        high = middle;
        if (count <= enough) break;
      }
    }
    return high;
  }

  DEVICE_FN void sort(const device::Warp& warp, uint32_t* list) const {
    constexpr int kWords = std::min(4, kEach), kPacks = kEach / kWords;
    using Pack = device::Pack<uint32_t, kWords>;
    device::PerThread<Words, 32> own;
    warp.lanes([&](int lane) {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        const Pack some = device::load_pack<kWords>(list + (lane + 32 * i) * kWords, true);
        UNROLL for (int j = 0; j < kWords; ++j) own[lane].at[i * kWords + j] = some.at[j];
      }
    });
    sort_of_warp<kEach>(warp, own);
    warp.lanes([&](int lane) {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        Pack some;
        UNROLL for (int j = 0; j < kWords; ++j) some.at[j] = own[lane].at[i * kWords + j];
        device::store_pack(list + lane * kApart + i * kWords, some, true);
      }
    });
  }

  // Two of each lane, as they follow one another from that rank on.
  DEVICE_FN void put(const device::Warp& warp, device::PerThread<Pair, 32>& words, int first, uint32_t row,
                     const Key* from) const {
    Key* const values = task.values + uint64_t(row) * uint32_t(task.k) + uint32_t(first);
    int64_t* const indices = task.indices + uint64_t(row) * uint32_t(task.k) + uint32_t(first);
    const int left = task.k - first;
    device::PerThread<uint32_t, 32> pair;
    const bool sure = warp.votes([&](int lane) {
      const uint32_t keys = device::high_halves(words[lane].at[0], words[lane].at[1]);
      return !numbers_of(keys, pair[lane]) & (2 * lane < left);
    }) == 0;
    if (!sure) {
      warp.lanes([&](int lane) {
        const uint32_t one = words[lane].at[0] & 0xffff, other = words[lane].at[1] & 0xffff;
        if (2 * lane < left) pair[lane] = from[one] | uint32_t(from[2 * lane + 1 < left ? other : one]) << 16;
      });
    }
    warp.apart([&](int lane) {
      const int rank = 2 * lane;
      if (rank >= left) return;
      const uint32_t one = words[lane].at[0] & 0xffff, other = words[lane].at[1] & 0xffff;
      const int count = rank + 1 < left ? 2 : 1;
      const auto numbers = std::bit_cast<device::Pack<Key, 2>>(pair[lane]);
      const device::Pack<int64_t, 2> places{int64_t(one), int64_t(other)};
      if (in_pairs) {
        device::store_pack(values + rank, numbers, true);
        device::store_pack(indices + rank, places, true);
      } else {
        device::store_pack(values + rank, numbers, false, count);
        device::store_pack(indices + rank, places, false, count);
      }
    });
  }
  // The numbers that have these keys; false if there may be more of such, as zeros and NaN are.
  DEVICE_FN bool numbers_of(uint32_t keys, uint32_t& pair) const {
    const uint32_t bits = keys ^ this->flip_of_pair, from_nan = bits ^ 0x7fff7fffu;
    const auto may_have_zero = [](uint32_t halves) { return (halves - 0x10001u) & ~halves; };
    pair = bits ^ (device::signs_of_pair(bits) & 0x7fff7fffu);
    return ((may_have_zero(bits) | may_have_zero(from_nan)) & 0x80008000u) == 0;
  }
};

template <class T>
void sort_topk_of_each(StreamRef stream, const TopkOfEach<UnsignedOf<sizeof(T)>>& task) {
  const bool in_pairs =
      task.k % 2 == 0 && device::is_pack_aligned<2>(task.values) && device::is_pack_aligned<2>(task.indices);
  const auto sort = [&]<int kRoom>() {
    using Kernel = SortedTopkOfRows<T, kRoom>;
    device::block_kernel<typename Kernel::Shared>(
        stream, {(int64_t(task.rows) + Kernel::kWarps - 1) / Kernel::kWarps, Kernel::kMaxThreads},
        Kernel{row_piece<T>(task), in_pairs});
  };
  if (task.k <= kMostOfDozens)
    sort.template operator()<kDozens>();
  else if (task.k <= 128)
    sort.template operator()<128>();
  else if (task.k <= 256)
    sort.template operator()<256>();
  else
    sort.template operator()<kMostSorted>();
}

}  // namespace encore::ops
