// Sorting in scratch memory.
#pragma once
#include <type_traits>

#include "ops/index/ordering.h"
#include "ops/op.h"

namespace encore::ops {

// What keys of a size are sorted as.
template <class Key>
using SortedAs = std::conditional_t<sizeof(Key) == 8, uint64_t, uint32_t>;

// Keys with places, in scratch memory of the run, to be sorted as often as one likes.
class Sorter {
 public:
  // Keys have 4 or 8 bytes. Throws Error{invalid_input} for 2^31 of them or more.
  Sorter(Context& context, int64_t count, size_t key_bytes);
  // To be filled before each sort(). Places stay between sorts, at the addresses of after the last one.
  void* keys() const { return keys_; }
  int32_t* places() const { return places_; }
  // Stable; looks at the lowest `bits` of the keys.
  void sort(size_t key_bytes, int bits);

 private:
  Context& context_;
  int64_t count_;
  void *keys_, *sorted_keys_;
  int32_t *places_, *other_places_;
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
};

// Where the elements of [rows, columns] lie, row by row in the order, which is stable. The values have `bytes` bytes.
const int32_t* sorted_places(Context& context, const Ordering& order, const void* x, size_t bytes, int64_t rows,
                             int64_t columns);

}  // namespace encore::ops
