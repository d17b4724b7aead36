// Networks of comparators: words in ascending order, whatever they are in the same steps.
#pragma once
#include <cstdint>

#include "device/annotate.h"

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

}  // namespace encore::ops
