// More of each row than a few, of rows that a warp keeps in registers: it finds a key that hardly more elements than
// are wanted do not come after, first among the best of each four, lists those elements and sorts them.
#pragma once
#include "ops/index/comparators.h"
#include "ops/index/row_piece.h"

namespace encore::ops {

inline constexpr int kLeastSorted = 64, kMostSorted = 512;  // of a row

// T is a half. kRoom is a power of two, of what is sorted.
template <class T, int kRoom>
struct SortedBestOfRows : RowPiece<T> {
  using Base = RowPiece<T>;
  using Base::task;
  using typename Base::Item;
  using typename Base::Kept;
  using typename Base::Key;
  using typename Base::Wide;
  static constexpr int kMaxThreads = 64, kWarps = kMaxThreads / 32;
  static constexpr int kGroups = 32 * Base::kPack;
  static constexpr int kEach = kRoom / 32;
  // A sorted list lies so that lanes next to one another write to different banks.
  static constexpr int kApart = kEach >= 8 ? kEach + 4 : kEach;
  struct Shared {
    alignas(16) uint32_t lists[kWarps][32 * kApart];
    int taken[kWarps];
  };
  bool in_pairs;  // outputs: k is even, and they are aligned

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const uint32_t row = uint32_t(b.index()) * uint32_t(kWarps) + uint32_t(warp.index());
      if (row < task.rows) find(warp, s.lists[warp.index()], &s.taken[warp.index()], row);
    });
  }

 private:
  DEVICE_FN void find(const device::Warp& warp, uint32_t* list, int* taken, uint32_t row) const {
    const Key* const from = this->row_at(row);
    const int start = -this->before(from);
    typename Base::Keeping kept;
    typename Base::Masks mask;
    warp.lanes([&](int lane) {
      kept[lane] = this->load(from, start, lane);
      this->arrange(kept[lane], start, lane);
      if (lane == 0) *taken = 0;
    });
    const int chosen = this->choose(warp, kept, mask, start, guess(warp, kept), task.k, kRoom, false);
    if constexpr (kRoom <= 128)
      this->list_chosen(warp, mask, reinterpret_cast<Item*>(list), taken, 0, chosen, from, start);
    else
      list_many(warp, kept, mask, list, start);
    warp.lanes(
        [&](int lane) { NO_UNROLL for (int i = chosen + lane; i < kRoom; i += 32) list[i] = Item::last().word; });
    sort(warp, list);
    put(warp, list, row, from);
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
          const uint32_t keys =
              keys_of_pair<T>(kept[lane].packs[u].words[i] ^ this->flip * 0x10001u, this->flip_of_pair);
          if (mask[lane] & uint32_t(1) << this->bit_of(u, 2 * i)) *to++ = keys * 0x10000u + (place + uint32_t(2 * i));
          if (mask[lane] & uint32_t(1) << this->bit_of(u, 2 * i + 1))
            *to++ = device::masked_with<0xffff0000u>(keys, place + uint32_t(2 * i + 1));
        }
      }
    });
  }

  // A key that k or hardly more of the groups' best do not come after. The middle one if that says nothing. Few are
  // sought up to the last of the lanes' best, many begin with it.
  DEVICE_FN Wide guess(const device::Warp& warp, typename Base::Keeping& kept) const {
    Wide low = this->first_key(), high = this->last_key();
    if (task.k > kGroups / 2) return high / 2;
    const int enough = task.k + (kRoom == kLeastSorted ? (kRoom - task.k) * 2 / 5 : task.k / 16);
    device::PerThread<Kept, 32> best;
    device::PerThread<Wide, 32> key;
    warp.lanes([&](int lane) {
      auto largest = kept[lane][0];
      UNROLL for (int u = 1; u < Base::kKeep; ++u) largest = device::larger_of_each(largest, kept[lane][u]);
      best[lane].set(0, largest);
      key[lane] = this->key_of(Key(std::bit_cast<Key>(device::largest(largest)) ^ this->flip));
    });
    const Wide first = warp.least([&](int lane) { return key[lane]; });
    const Wide last = Base::kLast - warp.least([&](int lane) { return Wide(Base::kLast - key[lane]); });
    low = most(low, first);
    const Wide none_worse = most(low, least(last, high));
    if (kRoom == kLeastSorted) high = none_worse;  // k of them hardly ever come after
    NO_UNROLL for (Wide middle = kRoom == kLeastSorted ? low + (high - low) / 2 : none_worse; low < high;
                   middle = low + (high - low) / 2) {
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

  // Each lane has neighbours. Runs become twice as long by comparing one with the other reversed, and then as if
  // bitonic.
  DEVICE_FN void sort(const device::Warp& warp, uint32_t* list) const {
    constexpr int kWords = std::min(4, kEach), kPacks = kEach / kWords;
    using Pack = device::Pack<uint32_t, kWords>;
    using Words = device::Pack<uint32_t, kEach>;
    device::PerThread<Words, 32> own, other;
    warp.lanes([&](int lane) {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        const Pack some = device::load_pack<kWords>(list + (lane + 32 * i) * kWords, true);
        UNROLL for (int j = 0; j < kWords; ++j) own[lane].at[i * kWords + j] = some.at[j];
      }
      sort_words<kEach>(own[lane].at);
    });
    const auto compare_lanes = [&]<bool kReversed>(int mask, int distance) {
      warp.lanes([&](int lane) {
        UNROLL for (int i = 0; i < kEach; ++i) other[lane].at[i] = own[lane].at[kReversed ? kEach - 1 - i : i];
      });
      warp.template exchange<kEach>(mask, [&](int lane) { return other[lane].at; });
      warp.lanes([&](int lane) {
        UNROLL for (int i = 0; i < kEach; ++i) own[lane].at[i] =
            ops::chosen((lane & distance) == 0, own[lane].at[i], other[lane].at[i]);
      });
    };
    UNROLL for (int run = 2; run <= 32; run *= 2) {
      compare_lanes.template operator()<true>(run - 1, run / 2);
      UNROLL for (int distance = run / 4; distance > 0; distance /= 2)
          compare_lanes.template operator()<false>(distance, distance);
      warp.lanes([&](int lane) { sort_bitonic<kEach>(own[lane].at); });
    }
    warp.lanes([&](int lane) {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        Pack some;
        UNROLL for (int j = 0; j < kWords; ++j) some.at[j] = own[lane].at[i * kWords + j];
        device::store_pack(list + lane * kApart + i * kWords, some, true);
      }
    });
  }

  DEVICE_FN void put(const device::Warp& warp, const uint32_t* list, uint32_t row, const Key* from) const {
    Key* const values = task.values + uint64_t(row) * uint32_t(task.k);
    int64_t* const indices = task.indices + uint64_t(row) * uint32_t(task.k);
    warp.lanes([&](int lane) {
      NO_UNROLL for (int rank = 2 * lane; rank < task.k; rank += 64) {
        const auto words = device::load_pack<2>(list + rank + rank / kEach * (kApart - kEach), true);
        const uint32_t one = words.at[0] & 0xffff, other = words.at[1] & 0xffff;
        const int count = rank + 1 < task.k ? 2 : 1;
        uint32_t pair = 0;
        if (!numbers_of(device::high_halves(words.at[0], words.at[1]), pair))
          pair = from[one] | uint32_t(from[count == 2 ? other : one]) << 16;
        device::store_pack(values + rank, std::bit_cast<device::Pack<Key, 2>>(pair), in_pairs, count);
        device::store_pack(indices + rank, device::Pack<int64_t, 2>{int64_t(one), int64_t(other)}, in_pairs, count);
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
void sort_best_of_each(StreamRef stream, const BestOfEach<UnsignedOf<sizeof(T)>>& task) {
  const bool in_pairs =
      task.k % 2 == 0 && device::is_pack_aligned<2>(task.values) && device::is_pack_aligned<2>(task.indices);
  const auto sort = [&]<int kRoom>() {
    using Kernel = SortedBestOfRows<T, kRoom>;
    device::block_kernel<typename Kernel::Shared>(
        stream, {(int64_t(task.rows) + Kernel::kWarps - 1) / Kernel::kWarps, Kernel::kMaxThreads},
        Kernel{row_piece<T>(task), in_pairs});
  };
  if (task.k <= kLeastSorted)
    sort.template operator()<kLeastSorted>();
  else if (task.k <= 128)
    sort.template operator()<128>();
  else if (task.k <= 256)
    sort.template operator()<256>();
  else
    sort.template operator()<kMostSorted>();
}

}  // namespace encore::ops
