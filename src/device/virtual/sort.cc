#include "device/sort.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "device/error.h"
#include "device/virtual/address_space.h"
#include "device/virtual/queue.h"

namespace encore::device {
namespace {

template <class Key>
void run(const SortPairs& sort, const void* keys, void* sorted_keys, const int32_t* places, int32_t* sorted_places) {
  const auto* const from = static_cast<const Key*>(keys);
  auto* const to = static_cast<Key*>(sorted_keys);
  const uint64_t looked_at = sort.key_bits >= 64 ? ~uint64_t(0) : (uint64_t(1) << sort.key_bits) - 1;
  std::vector<int32_t> order(size_t(sort.count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return (from[a] & looked_at) < (from[b] & looked_at); });
  for (size_t i = 0; i < order.size(); ++i) {
    to[i] = from[order[i]];
    sorted_places[i] = places[order[i]];
  }
}

}  // namespace

size_t sort_scratch(const SortPairs&) { return 0; }

void sort_pairs(StreamRef stream, const SortPairs& sort, const void* keys, void* sorted_keys, const int32_t* places,
                int32_t* sorted_places, void*) {
  require(sort.count < (int64_t(1) << 31), "a sort of ", sort.count, " pairs");
  if (sort.count == 0) return;
  const void* const from = virtual_gpu::followed(keys);
  void* const to = virtual_gpu::followed(sorted_keys);
  const auto* const places_from = static_cast<const int32_t*>(virtual_gpu::followed(places));
  auto* const places_to = static_cast<int32_t*>(virtual_gpu::followed(sorted_places));
  virtual_gpu::enqueue(stream, "sort_pairs", [=] {
    switch (sort.key_bytes) {
      case 4: return run<uint32_t>(sort, from, to, places_from, places_to);
      case 8: return run<uint64_t>(sort, from, to, places_from, places_to);
      default: fail(Code::internal, "keys of ", sort.key_bytes, " bytes");
    }
  });
}

size_t sort_scratch(const SortRows&) { return 0; }

void sort_rows(StreamRef stream, const SortRows& sort, int32_t* places, void*) {
  require(sort.count < (int64_t(1) << 31), "a sort of ", sort.count, " rows");
  if (sort.count == 0) return;
  const auto* const rows = static_cast<const uint64_t*>(virtual_gpu::followed(sort.rows));
  auto* const all = static_cast<int32_t*>(virtual_gpu::followed(places));
  virtual_gpu::enqueue(stream, "sort_rows", [=, count = sort.count, words = sort.words] {
    const auto row = [=](int32_t place) { return std::span(rows + place * words, size_t(words)); };
    std::stable_sort(all, all + count,
                     [&](int32_t a, int32_t b) { return std::ranges::lexicographical_compare(row(a), row(b)); });
  });
}

}  // namespace encore::device
