// CUB's radix sort: a pass for each eight bits of the keys, at about the speed of memory. It takes long to compile, so
// shorter keys come as some of the bits of longer ones. Rows are merged, which looks at as many of their words as it
// takes to tell them apart.
#include "device/sort.h"

#include <cub/device/device_merge_sort.cuh>
#include <cub/device/device_radix_sort.cuh>

#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/error.h"

namespace encore::device {
namespace {

template <class Key>
size_t run(cudaStream_t stream, const SortPairs& sort, const void* keys, void* sorted_keys, const int32_t* places,
           int32_t* sorted_places, void* scratch, size_t bytes) {
  cuda::check(
      cub::DeviceRadixSort::SortPairs(scratch, bytes, static_cast<const Key*>(keys), static_cast<Key*>(sorted_keys),
                                      places, sorted_places, int(sort.count), 0, sort.key_bits, stream),
      "cub::DeviceRadixSort::SortPairs");
  return bytes;
}

// Without scratch it only tells how much it wants.
size_t run(cudaStream_t stream, const SortPairs& sort, const void* keys, void* sorted_keys, const int32_t* places,
           int32_t* sorted_places, void* scratch, size_t bytes) {
  require(sort.count < (int64_t(1) << 31), "a sort of ", sort.count, " pairs");
  switch (sort.key_bytes) {
    case 4: return run<uint32_t>(stream, sort, keys, sorted_keys, places, sorted_places, scratch, bytes);
    case 8: return run<uint64_t>(stream, sort, keys, sorted_keys, places, sorted_places, scratch, bytes);
    default: fail(Code::internal, "keys of ", sort.key_bytes, " bytes");
  }
}

struct RowComesFirst {
  const uint64_t* rows;
  int64_t words;
  __device__ bool operator()(int32_t a, int32_t b) const {
    for (int64_t i = 0; i < words; ++i) {
      const uint64_t one = rows[a * words + i], other = rows[b * words + i];
      if (one != other) return one < other;
    }
    return false;
  }
};

size_t run(cudaStream_t stream, const SortRows& sort, int32_t* places, void* scratch, size_t bytes) {
  require(sort.count < (int64_t(1) << 31), "a sort of ", sort.count, " rows");
  cuda::check(cub::DeviceMergeSort::StableSortKeys(scratch, bytes, places, int(sort.count),
                                                   RowComesFirst{sort.rows, sort.words}, stream),
              "cub::DeviceMergeSort::StableSortKeys");
  return bytes;
}

}  // namespace

size_t sort_scratch(const SortPairs& sort) {
  return run(nullptr, sort, nullptr, nullptr, nullptr, nullptr, nullptr, 0);
}

void sort_pairs(StreamRef stream, const SortPairs& sort, const void* keys, void* sorted_keys, const int32_t* places,
                int32_t* sorted_places, void* scratch) {
  if (sort.count == 0) return;
  run(static_cast<cudaStream_t>(stream.native()), sort, keys, sorted_keys, places, sorted_places, scratch,
      sort_scratch(sort));
  cuda::note_capture(stream);
}

size_t sort_scratch(const SortRows& sort) { return run(nullptr, sort, nullptr, nullptr, 0); }

void sort_rows(StreamRef stream, const SortRows& sort, int32_t* places, void* scratch) {
  if (sort.count == 0) return;
  run(static_cast<cudaStream_t>(stream.native()), sort, places, scratch, sort_scratch(sort));
  cuda::note_capture(stream);
}

}  // namespace encore::device
