// More of each row than a few, of rows that a warp keeps in registers: it finds a key that hardly more elements than
// are wanted do not come after, first among the best of each four, and lists those elements. Lists of several rows are
// sorted at once, by a few lanes each, since most comparisons are of what a lane has then.
#pragma once
#include <cstdlib>

#include "ops/index/comparators.h"
#include "ops/index/row_piece.h"

namespace encore::ops {

// T is a half. kRoom is a power of two, of what is sorted of a row; kRows of a warp.
template <class T, int kRoom, int kRows>
struct SortedBestOfRows : RowPiece<T> {
  using Base = RowPiece<T>;
  using Base::task;
  using typename Base::Item;
  using typename Base::Kept;
  using typename Base::Key;
  using typename Base::Wide;
  static constexpr int kLeast = 64, kMost = 512;  // of kRoom
  static constexpr int kMaxThreads = 64, kWarps = kMaxThreads / 32;
  static constexpr int kGroups = 32 * Base::kPack;
  static constexpr int kLanes = 32 / kRows, kEach = kRoom / kLanes;
  // Sorted lists lie so that lanes next to one another write to different banks.
  static constexpr int kApart = kEach >= 8 ? kEach + 4 : kEach, kListed = kApart * kLanes;
  struct Shared {
    alignas(16) uint32_t lists[kWarps][kRows][kListed];
    int taken[kWarps];
  };
  bool in_pairs;  // outputs: k is even, and they are aligned

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const uint32_t first = (uint32_t(b.index()) * uint32_t(kWarps) + uint32_t(warp.index())) * kRows;
      if (first < task.rows) find(warp, s.lists[warp.index()], &s.taken[warp.index()], first);
    });
  }

 private:
  DEVICE_FN void find(const device::Warp& warp, uint32_t (*lists)[kListed], int* taken, uint32_t first) const {
    const int rows = int(least(task.rows - first, kRows));
    typename Base::Keeping kept, next;
    warp.lanes([&](int lane) { next[lane] = load_row(first, lane); });
    NO_UNROLL for (int i = 0; i < rows; ++i) {
      warp.lanes([&](int lane) {
        kept[lane] = next[lane];
        if (i + 1 < rows) next[lane] = load_row(first + uint32_t(i) + 1, lane);  // it comes while this one is searched
      });
      list_row(warp, kept, lists[i], taken, this->row_at(first + uint32_t(i)));
    }
    sort(warp, lists);
    NO_UNROLL for (int i = 0; i < rows; ++i) put(warp, lists[i], first + uint32_t(i));
  }
  DEVICE_FN Kept load_row(uint32_t row, int lane) const {
    const Key* const from = this->row_at(row);
    return this->load(from, -this->before(from), lane);
  }
  DEVICE_FN void list_row(const device::Warp& warp, typename Base::Keeping& kept, uint32_t* list, int* taken,
                          const Key* from) const {
    const int start = -this->before(from);
    typename Base::Masks mask;
    warp.lanes([&](int lane) {
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
    const int enough = task.k + (kRoom == kLeast ? (kRoom - task.k) * 2 / 5 : task.k / 16);
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
    if (kRoom == kLeast) high = none_worse;  // k of them hardly ever come after
    NO_UNROLL for (Wide middle = kRoom == kLeast ? low + (high - low) / 2 : none_worse; low < high;
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

  // Each lane has neighbours of its row's list. Runs become twice as long by comparing one with the other reversed, and
  // then as if bitonic.
  DEVICE_FN void sort(const device::Warp& warp, uint32_t (*lists)[kListed]) const {
    constexpr int kWords = std::min(4, kEach), kPacks = kEach / kWords;
    using Pack = device::Pack<uint32_t, kWords>;
    using Words = device::Pack<uint32_t, kEach>;
    device::PerThread<Words, 32> own, other;
    warp.lanes([&](int lane) {
      const uint32_t* const list = lists[lane / kLanes] + lane % kLanes * kWords;
      UNROLL for (int i = 0; i < kPacks; ++i) {
        const Pack some = device::load_pack<kWords>(list + i * kLanes * kWords, true);
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
    UNROLL for (int run = 2; run <= kLanes; run *= 2) {
      compare_lanes.template operator()<true>(run - 1, run / 2);
      UNROLL for (int distance = run / 4; distance > 0; distance /= 2)
          compare_lanes.template operator()<false>(distance, distance);
      warp.lanes([&](int lane) { sort_bitonic<kEach>(own[lane].at); });
    }
    warp.lanes([&](int lane) {
      uint32_t* const list = lists[lane / kLanes] + lane % kLanes * kApart;
      UNROLL for (int i = 0; i < kPacks; ++i) {
        Pack some;
        UNROLL for (int j = 0; j < kWords; ++j) some.at[j] = own[lane].at[i * kWords + j];
        device::store_pack(list + i * kWords, some, true);
      }
    });
  }

  DEVICE_FN void put(const device::Warp& warp, const uint32_t* list, uint32_t row) const {
    const Key* const from = this->row_at(row);
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
  const auto sort = [&]<class Kernel, int kRows>() {
    constexpr int kOfBlock = Kernel::kWarps * kRows;
    device::block_kernel<typename Kernel::Shared>(stream,
                                                  {(int64_t(task.rows) + kOfBlock - 1) / kOfBlock, Kernel::kMaxThreads},
                                                  Kernel{row_piece<T>(task), in_pairs});
  };
  const auto sort_rows = [&]<int kRows>() {
    if (task.k <= 64)
      sort.template operator()<SortedBestOfRows<T, 64, kRows>, kRows>();
    else if (task.k <= 128)
      sort.template operator()<SortedBestOfRows<T, 128, kRows>, kRows>();
    else if (task.k <= 256)
      sort.template operator()<SortedBestOfRows<T, 256, kRows>, kRows>();
    else
      sort.template operator()<SortedBestOfRows<T, 512, kRows>, kRows>();
  };
  const char* const tried = std::getenv("TRY_TOPK_ROWS");
  const int rows = tried ? std::atoi(tried) : 4;
  if (rows == 1)
    sort_rows.template operator()<1>();
  else if (rows == 2)
    sort_rows.template operator()<2>();
  else
    sort_rows.template operator()<4>();
}

}  // namespace encore::ops
