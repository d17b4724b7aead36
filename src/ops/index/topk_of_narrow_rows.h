// Top-k, up to the best eight, of many narrow rows of 16-bit numbers, four lanes for each. The best eight groups of
// four neighbours have them: a group's best has its place in the order, and so have groups, since their columns follow
// one another. So lanes sort what is best of each group, and then what the best groups have. Keys with their places are
// words, so that comparators of a network are all it takes, the same for any row.
#pragma once
#include "device/unaligned_pack.h"
#include "device/warp.h"
#include "device/words.h"
#include "ops/index/comparators.h"
#include "ops/index/row_piece.h"

namespace encore::ops {

template <class T>
struct TopkOfNarrowRows {
  static constexpr int kMost = 8;  // of k
  static constexpr int kMaxThreads = 128;
  static constexpr int kLanes = 4, kPack = 8, kKeep = 4, kGroup = 4;
  static constexpr int kReach = kLanes * kKeep * kPack;  // numbers from the first one's aligned pack to the last
  struct List {
    uint32_t at[kMost];  // the best first
  };
  using Lists = device::PerThread<List, 32>;

  TopkOfEach<uint16_t> task;
  uint32_t flip;     // of keys_of_pair()
  uint32_t nothing;  // a pair of numbers that none comes after
  bool in_pairs;     // outputs: k is even, and they are aligned
  bool in_packs;     // rows: they are aligned and of whole packs

  static TopkOfNarrowRows of(const TopkOfEach<uint16_t>& task) {
    const bool in_pairs =
        task.k % 2 == 0 && device::is_pack_aligned<2>(task.values) && device::is_pack_aligned<2>(task.indices);
    const bool in_packs = task.columns % kPack == 0 && device::is_pack_aligned<kPack>(task.x);
    const Ordering& order = task.order;
    const uint16_t last = order.descending ? order.last_key<uint16_t>() : uint16_t(0xffff);  // NaN, if there are any
    return {task, pair_flip(order), order.number(last) * 0x10001u, in_pairs, in_packs};
  }
  DEVICE_FN void operator()(device::Block<device::NoShared>& b, const device::NoShared&) const {
    device::for_each_warp(b, [&](const device::Warp& warp, device::NoShared&) {
      const uint32_t first_row = (uint32_t(b.index()) * (kMaxThreads / 32) + uint32_t(warp.index())) * (32 / kLanes);
      if (first_row < task.rows) find(warp, first_row);
    });
  }

 private:
  static constexpr uint32_t kNothing = 0xffff8000u;  // after all words

  DEVICE_FN void find(const device::Warp& warp, uint32_t first_row) const {
    Lists best;
    const auto row_of = [&](int lane) {  // there is always one
      return least(first_row + unsigned(lane) / kLanes, task.rows - 1);
    };
    warp.lanes([&](int lane) { best[lane] = best_groups(row_at(row_of(lane)), int(unsigned(lane) % kLanes)); });
    choose(warp, best);
    warp.lanes([&](int lane) { best[lane] = sorted_groups(row_at(row_of(lane)), best[lane].at[0], best[lane].at[1]); });
    choose(warp, best);
    put_in_order(warp, best);
    warp.lanes([&](int lane) {
      const uint32_t* const at = best[lane].at;
      put(first_row + unsigned(lane) / kLanes, int(unsigned(lane) % kLanes), at[0] & 0xffff, at[1] & 0xffff);
    });
  }

  DEVICE_FN static auto words_from(Lists& best, int at) {
    return [&best, at](int lane) { return best[lane].at + at; };
  }
  // Leaves each lane two words in order, which together are the best of the lanes' lists.
  DEVICE_FN static void choose(const device::Warp& warp, Lists& best) {
    // Of two lanes the better half of i and 7 - i each; half of those in each lane, in the order of the other reversed.
    warp.template exchange<4>(1, words_from(best, 4));
    warp.lanes([&](int lane) {
      uint32_t* const at = best[lane].at;
      UNROLL for (int i = 0; i < 4; ++i) at[i] = least(at[i], at[7 - i]);
      UNROLL for (int i = 0; i < 4; ++i) at[4 + i] = at[i];
    });
    warp.template exchange<4>(1, words_from(best, 4));
    warp.lanes([&](int lane) {
      uint32_t* const at = best[lane].at;
      UNROLL for (int i = 0; i < 4; ++i) at[i] = chosen(lane % 2 == 0, at[i], at[7 - i]);
      sort_bitonic<4>(at);
    });
    // The lanes 0 and 3, 1 and 2 in the same way, with two for each.
    warp.template exchange<2>(3, words_from(best, 2));
    warp.lanes([&](int lane) {
      uint32_t* const at = best[lane].at;
      UNROLL for (int i = 0; i < 2; ++i) at[i] = least(at[i], at[3 - i]);
    });
  }
  DEVICE_FN static void put_in_order(const device::Warp& warp, Lists& best) {
    warp.lanes([&](int lane) {
      uint32_t* const at = best[lane].at;
      UNROLL for (int i = 0; i < 2; ++i) at[2 + i] = at[i];
    });
    warp.template exchange<2>(1, words_from(best, 2));
    warp.lanes([&](int lane) {
      uint32_t* const at = best[lane].at;
      const bool outer = lane % 4 == 0 || lane % 4 == 3;
      UNROLL for (int i = 0; i < 2; ++i) at[2 + i] = at[i] = chosen(outer, at[i], at[2 + i]);
    });
    warp.template exchange<2>(3, words_from(best, 2));
    warp.lanes([&](int lane) {
      uint32_t* const at = best[lane].at;
      UNROLL for (int i = 0; i < 2; ++i) at[i] = chosen(lane % 4 < 2, at[i], at[3 - i]);
      sort_bitonic<2>(at);
    });
  }

  DEVICE_FN const uint16_t* row_at(uint32_t row) const { return task.x + uint64_t(row) * uint32_t(task.columns); }
  // Packs lie at aligned addresses: the first has numbers of other rows before the row's.
  DEVICE_FN static int before(const uint16_t* from) {
    return int(reinterpret_cast<uintptr_t>(from) / sizeof(uint16_t) % kPack);
  }
  // The better of each two. NaN, where it comes last, is better than none.
  template <bool kLargest>
  DEVICE_FN static uint32_t better(uint32_t a, uint32_t b) {
    if constexpr (device::kIsHalf<T>) {
      using Pair = device::Pack<T, 2>;
      const auto one = std::bit_cast<Pair>(a), other = std::bit_cast<Pair>(b);
      return std::bit_cast<uint32_t>(kLargest ? device::larger_or_nan(one, other) : device::smaller_number(one, other));
    } else {
      return device::least_of_pairs(a, b);
    }
  }
  // Two words of two groups each become one, with what is best of each group.
  template <bool kLargest>
  DEVICE_FN static uint32_t best_of_two(const uint32_t* words) {
    const uint32_t first = better<kLargest>(words[0], words[1]), second = better<kLargest>(words[2], words[3]);
    return better<kLargest>(device::low_halves(first, second), device::high_halves(first, second));
  }
  DEVICE_FN List best_groups(const uint16_t* from, int lane) const {
    const char *const begin = reinterpret_cast<const char*>(from), *const end = begin + task.columns * 2;
    constexpr int kStep = kLanes * kPack;
    const int start = lane * kPack - before(from);
    const char* const at = begin + start * 2;
    device::Granule packs[kKeep];
    if (in_packs && task.columns == kReach) {
      UNROLL for (int u = 0; u < kKeep; ++u) packs[u] = device::load_granule(at + u * kStep * 2, begin, end);
    } else {
      UNROLL for (int u = 0; u < kKeep; ++u) {
        UNROLL for (int i = 0; i < 4; ++i) packs[u].at[i] = nothing;
        if (start + u * kStep < task.columns) packs[u] = device::load_granule(at + u * kStep * 2, begin, end);
      }
    }
    UNROLL for (int u = 0; u < kKeep; ++u) {
      const int first = start + u * kStep, last = task.columns - first;
      if (!in_packs && (first < 0 || (last > 0 && last < kPack))) {
        auto numbers = std::bit_cast<device::Pack<uint16_t, kPack>>(packs[u]);
        UNROLL for (int j = 0; j < kPack; ++j) {
          if (j < -first || j >= last) numbers.at[j] = uint16_t(nothing);
        }
        packs[u] = std::bit_cast<device::Granule>(numbers);
      }
      if constexpr (!device::kIsHalf<T>) UNROLL for (uint32_t& word : packs[u].at) word = keys_of_pair<T>(word, flip);
    }
    uint32_t pairs[kKeep];
    if (device::kIsHalf<T> && !task.order.descending) {
      UNROLL for (int u = 0; u < kKeep; ++u) pairs[u] = best_of_two<false>(packs[u].at);
    } else {
      UNROLL for (int u = 0; u < kKeep; ++u) pairs[u] = best_of_two<true>(packs[u].at);
    }
    List all;
    UNROLL for (int u = 0; u < kKeep; ++u) {
      if constexpr (device::kIsHalf<T>) pairs[u] = keys_of_pair<T>(pairs[u], flip);
      put_words<kGroup>(all.at + 2 * u, pairs[u], uint32_t((lane + u * kLanes) * kPack));
    }
    if (start <= -kGroup) all.at[0] = kNothing;  // all of it lies before the row
    sort_words<kMost>(all.at);
    return all;
  }
  // Of two keys, whose places are so far apart.
  template <int kStep>
  DEVICE_FN static void put_words(uint32_t* at, uint32_t keys, uint32_t place) {
    at[0] = keys * 0x10000u + place;
    at[1] = device::masked_with<0xffff0000u>(keys, place + kStep);
  }
  // What two groups have, in order. Their places count from the first pack on.
  DEVICE_FN List sorted_groups(const uint16_t* from, uint32_t one, uint32_t other) const {
    const int before = this->before(from);
    const int firsts[] = {int(one & 0xffff) - before, int(other & 0xffff) - before};
    device::WordsOf<uint16_t, kGroup> words[2];
    UNROLL for (int group = 0; group < 2; ++group) {
      const int first = firsts[group] < task.columns ? firsts[group] : -(before % kGroup);  // of something
      words[group] = device::words_of(device::load_pack_within<kGroup>(from + first, from, from + task.columns));
    }
    List all;
    UNROLL for (int group = 0; group < 2; ++group) {
      const int first = firsts[group];
      uint32_t* const at = all.at + group * kGroup;
      UNROLL for (int i = 0; i < 2; ++i)
          put_words<1>(at + 2 * i, keys_of_pair<T>(words[group].at[i], flip), uint32_t(first + 2 * i));
      if (!in_packs || first >= task.columns) {
        UNROLL for (int j = 0; j < kGroup; ++j) {
          if (first + j < 0 || first + j >= task.columns) at[j] = kNothing;
        }
      }
    }
    sort_words<kMost>(all.at);
    return all;
  }

  // What a lane of a row has in the end: two neighbours.
  DEVICE_FN void put(uint32_t row, int lane, uint32_t first, uint32_t second) const {
    const int rank = lane < 2 ? 4 * lane : 14 - 4 * lane;
    if (row >= task.rows || rank >= task.k) return;
    const uint16_t* const from = row_at(row);
    const uint64_t to = uint64_t(row) * uint32_t(task.k) + uint32_t(rank);
    const bool both = rank + 1 < task.k;
    const device::Pack<uint16_t, 2> values{from[first], from[both ? second : first]};
    const device::Pack<int64_t, 2> places{int64_t(first), int64_t(second)};
    device::store_pack(task.values + to, values, in_pairs, both ? 2 : 1);
    device::store_pack(task.indices + to, places, in_pairs, both ? 2 : 1);
  }
};

}  // namespace encore::ops
