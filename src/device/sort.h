// Sorting on the device.
#pragma once
#include <cstddef>
#include <cstdint>

#include "device/stream.h"

namespace encore::device {

// Unsigned keys, each with a place that goes along: ascending, and in the order they had where they are the same.
struct SortPairs {
  int64_t count;  // below 2^31
  int key_bytes;  // 4 or 8
  int key_bits;   // only the lowest ones are looked at
  bool operator==(const SortPairs&) const = default;
};
// Bytes of scratch that sort_pairs() needs; may be asked during a capture.
size_t sort_scratch(const SortPairs& sort);
// Launches only. What is sorted is left as it was; the results lie elsewhere.
void sort_pairs(StreamRef stream, const SortPairs& sort, const void* keys, void* sorted_keys, const int32_t* places,
                int32_t* sorted_places, void* scratch);

// Rows of words, compared word by word from the first on.
struct SortRows {
  const uint64_t* rows;  // [any, words]
  int64_t count;         // of places, below 2^31
  int64_t words;
};
size_t sort_scratch(const SortRows& sort);
// Launches only. Brings the places of rows in ascending order; those of equal rows stay in the order they had.
void sort_rows(StreamRef stream, const SortRows& sort, int32_t* places, void* scratch);

}  // namespace encore::device
