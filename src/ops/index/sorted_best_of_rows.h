// More of each row than a few, of rows that a warp keeps in registers: it finds a key that hardly more elements than
// are wanted do not come after, first among the best of each four, lists those elements and sorts them.
#pragma once
#include "ops/index/comparators.h"
#include "ops/index/row_piece.h"

namespace encore::ops {

// T is a half.
template <class T>
struct SortedBestOfRows : RowPiece<T> {
  using Base = RowPiece<T>;
  using Base::task;
  using typename Base::Item;
  using typename Base::Kept;
  using typename Base::Key;
  using typename Base::Wide;
  static constexpr int kLeast = 64, kMost = 512;  // of what is sorted
  static constexpr int kMaxThreads = 64, kWarps = kMaxThreads / 32;
  static constexpr int kGroups = 32 * Base::kPack;
  struct Shared {
    int taken[kWarps];
  };

  int room;  // of what is sorted: a power of two. In dynamic memory for each warp, and 32 more

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const uint32_t row = uint32_t(b.index()) * uint32_t(kWarps) + uint32_t(warp.index());
      Item* const list = b.template dynamic<Item>(s) + warp.index() * (room + 32);
      if (row < task.rows) find(warp, list, &s.taken[warp.index()], row);
    });
  }

 private:
  DEVICE_FN void find(const device::Warp& warp, Item* list, int* taken, uint32_t row) const {
    const Key* const from = this->row_at(row);
    const int start = -this->before(from);
    typename Base::Keeping kept;
    typename Base::Masks mask;
    warp.lanes([&](int lane) {
      kept[lane] = this->load(from, start, lane);
      this->arrange(kept[lane], start, lane);
      if (lane == 0) *taken = 0;
    });
    const int chosen = this->choose(warp, kept, mask, start, guess(warp, kept), task.k, room, false);
    this->list_chosen(warp, mask, list, taken, 0, chosen, from, start);
    if (room == 64)
      finish<2>(warp, list, chosen, row, from);
    else if (room == 128)
      finish<4>(warp, list, chosen, row, from);
    else if (room == 256)
      finish<8>(warp, list, chosen, row, from);
    else
      finish<16>(warp, list, chosen, row, from);
  }
  template <int kEach>
  DEVICE_FN void finish(const device::Warp& warp, Item* list, int chosen, uint32_t row, const Key* from) const {
    sort<kEach>(warp, list, chosen);
    Key* const values = task.values + uint64_t(row) * uint32_t(task.k);
    int64_t* const indices = task.indices + uint64_t(row) * uint32_t(task.k);
    warp.lanes([&](int lane) {
      NO_UNROLL for (auto i = unsigned(lane); i < unsigned(task.k); i += 32) {
        const auto place = unsigned(list[place_of<kEach>(int(i))].place());
        values[i] = from[place];
        indices[i] = place;
      }
    });
  }
  // In the sorted list each lane's are one further apart than they need be, so that lanes write to different banks.
  template <int kEach>
  DEVICE_FN static int place_of(int rank) {
    return rank + int(unsigned(rank) / unsigned(kEach));
  }

  // A key that k or hardly more of the groups' best do not come after. The middle one if that says nothing. The search
  // begins with the last of the lanes' best.
  DEVICE_FN Wide guess(const device::Warp& warp, typename Base::Keeping& kept) const {
    Wide low = this->first_key(), high = this->last_key();
    if (task.k > kGroups / 2) return high / 2;
    device::PerThread<Kept, 32> best;
    device::PerThread<Wide, 32> key;
    warp.lanes([&](int lane) {
      auto most = kept[lane][0];
      UNROLL for (int u = 1; u < Base::kKeep; ++u) most = device::larger_of_each(most, kept[lane][u]);
      best[lane].set(0, most);
      key[lane] = this->key_of(Key(std::bit_cast<Key>(device::largest(most)) ^ this->flip));
    });
    const Wide first = warp.least([&](int lane) { return key[lane]; });
    const Wide last = Base::kLast - warp.least([&](int lane) { return Wide(Base::kLast - key[lane]); });
    low = first < low ? low : first;
    NO_UNROLL for (Wide middle = last < low    ? low
                                 : last < high ? last
                                               : high;
                   low < high; middle = low + (high - low) / 2) {
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
        if (count <= task.k + task.k / 16) break;
      }
    }
    return high;
  }

  // Each lane has neighbours. Runs become twice as long by comparing one with the other reversed, and then as if
  // bitonic.
  template <int kEach>
  DEVICE_FN void sort(const device::Warp& warp, Item* list, int count) const {
    using Words = device::Pack<uint32_t, kEach>;
    device::PerThread<Words, 32> own, other;
    warp.lanes([&](int lane) {
      UNROLL for (int i = 0; i < kEach; ++i) {
        own[lane].at[i] = lane + 32 * i < count ? list[lane + 32 * i].word : Item::last().word;
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
      UNROLL for (int i = 0; i < kEach; ++i) list[place_of<kEach>(lane * kEach + i)].word = own[lane].at[i];
    });
  }
};

template <class T>
void sort_best_of_each(StreamRef stream, const BestOfEach<UnsignedOf<sizeof(T)>>& task) {
  using Kernel = SortedBestOfRows<T>;
  const int room = std::max(Kernel::kLeast, int(std::bit_ceil(unsigned(task.k))));
  const int64_t bytes = int64_t(Kernel::kWarps) * (room + 32) * int64_t(sizeof(typename Kernel::Item));
  device::block_kernel<typename Kernel::Shared>(
      stream, {(int64_t(task.rows) + Kernel::kWarps - 1) / Kernel::kWarps, Kernel::kMaxThreads, bytes},
      Kernel{row_piece<T>(task), room});
}

}  // namespace encore::ops
