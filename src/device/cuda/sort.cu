// CUB's radix sort: a pass for each eight bits of the keys, at about the speed of memory. It takes long to compile, so
// shorter keys come as some of the bits of longer ones.
#include "device/sort.h"

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

}  // namespace encore::device
