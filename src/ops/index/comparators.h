// Networks of comparators: words in ascending order, whatever they are in the same steps.
#pragma once
#include <cstdint>

#include "device/annotate.h"
#include "device/transform.h"
#include "device/warp.h"

namespace encore::ops {

DEVICE_FN uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
DEVICE_FN uint32_t most(uint32_t a, uint32_t b) { return a < b ? b : a; }
DEVICE_FN uint32_t chosen(bool the_least, uint32_t a, uint32_t b) { return (a < b) == the_least ? a : b; }

DEVICE_FN void compare(uint32_t& a, uint32_t& b) {
  const uint32_t low = least(a, b);
  b = most(a, b);
  a = low;
}
// Of words that ascend and then descend, or the other way, however rotated.
template <int kCount>
DEVICE_FN void sort_bitonic(uint32_t* at) {
  UNROLL for (int distance = kCount / 2; distance > 0; distance /= 2) {
    UNROLL for (int i = 0; i < kCount; ++i) {
      if ((i & distance) == 0) compare(at[i], at[i + distance]);
    }
  }
}
// Of any words: Batcher's network. Both halves of those that are kStep apart are in order when they are merged.
template <int kCount, int kStep = 1>
DEVICE_FN void merge_words(uint32_t* at) {
  if constexpr (2 * kStep < kCount) {
    merge_words<kCount, 2 * kStep>(at);
    merge_words<kCount, 2 * kStep>(at + kStep);
    UNROLL for (int i = kStep; i + kStep < kCount; i += 2 * kStep) compare(at[i], at[i + kStep]);
  } else {
    compare(at[0], at[kStep]);
  }
}
template <int kCount>
DEVICE_FN void sort_words(uint32_t* at) {
  if constexpr (kCount > 1) {
    sort_words<kCount / 2>(at);
    sort_words<kCount / 2>(at + kCount / 2);
    merge_words<kCount>(at);
  }
}

// Of all that the lanes of a warp have: each of them has neighbours in the end. Runs become twice as long by comparing
// one with the other reversed, and then as if bitonic.
template <int kEach>
DEVICE_FN void sort_of_warp(const device::Warp& warp, device::PerThread<device::Pack<uint32_t, kEach>, 32>& own) {
  device::PerThread<device::Pack<uint32_t, kEach>, 32> other;
  const auto compare_lanes = [&]<bool kReversed>(int mask, int distance) {
    warp.apart([&](int lane) {
      UNROLL for (int i = 0; i < kEach; ++i) other[lane].at[i] = own[lane].at[kReversed ? kEach - 1 - i : i];
    });
    warp.template exchange<kEach>(mask, [&](int lane) { return other[lane].at; });
    warp.apart([&](int lane) {
      UNROLL for (int i = 0; i < kEach; ++i) {
        const uint32_t a = own[lane].at[i], b = other[lane].at[i];
        own[lane].at[i] = (lane & distance) == 0 ? least(a, b) : most(a, b);
      }
    });
  };
  warp.apart([&](int lane) { sort_words<kEach>(own[lane].at); });
  UNROLL for (int run = 2; run <= 32; run *= 2) {
    compare_lanes.template operator()<true>(run - 1, run / 2);
    UNROLL for (int distance = run / 4; distance > 0; distance /= 2)
        compare_lanes.template operator()<false>(distance, distance);
    warp.apart([&](int lane) { sort_bitonic<kEach>(own[lane].at); });
  }
}

}  // namespace encore::ops
