// The best eight at most of many narrow rows of 16-bit numbers, which four lanes sort: keys with their places are
// words, so that comparators of a network are all it takes, the same for any row.
#pragma once
#include "device/neighbours.h"
#include "device/warp.h"
#include "ops/index/comparators.h"
#include "ops/index/row_piece.h"

namespace encore::ops {

template <class T>
struct BestOfNarrowRows {
  static constexpr int kMost = 8;  // of k
  static constexpr int kMaxThreads = 128;
  static constexpr int kLanes = 4, kPack = 8, kKeep = 4;
  static constexpr int kReach = kLanes * kKeep * kPack;  // numbers from the first one's aligned pack to the last
  struct List {
    uint32_t at[kMost];  // the best first
  };

  BestOfEach<uint16_t> task;
  uint32_t flip;  // of keys_of_pair()
  bool in_pairs;  // outputs: k is even, and they are aligned

  DEVICE_FN void operator()(device::Block<device::NoShared>& b, const device::NoShared&) const {
    device::for_each_warp(b, [&](const device::Warp& warp, device::NoShared&) {
      const uint32_t first_row = (uint32_t(b.index()) * (kMaxThreads / 32) + uint32_t(warp.index())) * (32 / kLanes);
      if (first_row < task.rows) find(warp, first_row);
    });
  }

 private:
  static constexpr uint32_t kNothing = 0xffff8000u;  // after all words

  DEVICE_FN void find(const device::Warp& warp, uint32_t first_row) const {
    device::PerThread<List, 32> best;
    warp.lanes([&](int lane) {
      const uint32_t row = first_row + unsigned(lane) / kLanes;
      best[lane] = row < task.rows ? best_of_lane(row_of(row), int(unsigned(lane) % kLanes)) : List{};
    });
    const auto words_from = [&](int at) { return [&best, at](int lane) { return best[lane].at + at; }; };
    // Of two lanes the better half of i and 7 - i each; half of those in each lane, in the order of the other reversed.
    warp.template exchange<4>(1, words_from(4));
    warp.lanes([&](int lane) {
      uint32_t* const at = best[lane].at;
      UNROLL for (int i = 0; i < 4; ++i) at[i] = least(at[i], at[7 - i]);
      UNROLL for (int i = 0; i < 4; ++i) at[4 + i] = at[i];
    });
    warp.template exchange<4>(1, words_from(4));
    warp.lanes([&](int lane) {
      uint32_t* const at = best[lane].at;
      UNROLL for (int i = 0; i < 4; ++i) at[i] = chosen(lane % 2 == 0, at[i], at[7 - i]);
      sort_bitonic<4>(at);
    });
    // The lanes 0 and 3, 1 and 2 in the same way, with two for each.
    warp.template exchange<2>(3, words_from(2));
    warp.lanes([&](int lane) {
      uint32_t* const at = best[lane].at;
      UNROLL for (int i = 0; i < 2; ++i) at[i] = least(at[i], at[3 - i]);
      UNROLL for (int i = 0; i < 2; ++i) at[2 + i] = at[i];
    });
    warp.template exchange<2>(1, words_from(2));
    warp.lanes([&](int lane) {
      uint32_t* const at = best[lane].at;
      const bool outer = lane % 4 == 0 || lane % 4 == 3;
      UNROLL for (int i = 0; i < 2; ++i) at[2 + i] = at[i] = chosen(outer, at[i], at[2 + i]);
    });
    warp.template exchange<2>(3, words_from(2));
    warp.lanes([&](int lane) {
      uint32_t* const at = best[lane].at;
      UNROLL for (int i = 0; i < 2; ++i) at[i] = chosen(lane % 4 < 2, at[i], at[3 - i]);
      sort_bitonic<2>(at);
      put(first_row + unsigned(lane) / kLanes, int(unsigned(lane) % kLanes), at[0] & 0xffff, at[1] & 0xffff);
    });
  }

  DEVICE_FN const uint16_t* row_of(uint32_t row) const { return task.x + uint64_t(row) * uint32_t(task.columns); }
  DEVICE_FN List best_of_lane(const uint16_t* from, int lane) const {
    const int before = int(reinterpret_cast<uintptr_t>(from) / sizeof(uint16_t) % kPack);
    const char *const begin = reinterpret_cast<const char*>(from), *const end = begin + task.columns * 2;
    constexpr int kStep = kLanes * kPack;
    const int start = lane * kPack - before;
    const char* const at = begin + start * 2;
    device::Granule packs[kKeep];
    UNROLL for (int u = 0; u < kKeep; ++u) {
      packs[u] = {};
      if (start + u * kStep < task.columns) packs[u] = device::load_granule(at + u * kStep * 2, begin, end);
    }
    List all;
    UNROLL for (int u = 0; u < kKeep; ++u) {
      const int first = start + u * kStep;
      List some;
      UNROLL for (int j = 0; j < kPack / 2; ++j) {
        const uint32_t keys = keys_of_pair<T>(packs[u].words[j], flip);
        some.at[2 * j] = keys * 0x10000u + uint32_t(u * kStep + 2 * j);
        some.at[2 * j + 1] = device::masked_with<0xffff0000u>(keys, uint32_t(u * kStep + 2 * j + 1));
      }
      if (first < 0 || first + kPack > task.columns) {
        UNROLL for (int j = 0; j < kPack; ++j) {
          if (first + j < 0 || first + j >= task.columns) some.at[j] = kNothing;
        }
      }
      sort_words<kPack>(some.at);
      if (u == 0) {
        all = some;
      } else {
        UNROLL for (int i = 0; i < kMost; ++i) all.at[i] = least(all.at[i], some.at[kMost - 1 - i]);
        sort_bitonic<kMost>(all.at);
      }
    }
    UNROLL for (int i = 0; i < kMost; ++i) all.at[i] += uint32_t(start);  // now the places are columns
    return all;
  }

  // What a lane of a row has in the end: two neighbours.
  DEVICE_FN void put(uint32_t row, int lane, uint32_t first, uint32_t second) const {
    const int rank = lane < 2 ? 4 * lane : 14 - 4 * lane;
    if (row >= task.rows || rank >= task.k) return;
    const uint16_t* const from = row_of(row);
    const uint64_t to = uint64_t(row) * uint32_t(task.k) + uint32_t(rank);
    const bool both = rank + 1 < task.k;
    const device::Pack<uint16_t, 2> values{from[first], from[both ? second : first]};
    const device::Pack<int64_t, 2> places{int64_t(first), int64_t(second)};
    device::store_pack(task.values + to, values, in_pairs, both ? 2 : 1);
    device::store_pack(task.indices + to, places, in_pairs, both ? 2 : 1);
  }
};

}  // namespace encore::ops
