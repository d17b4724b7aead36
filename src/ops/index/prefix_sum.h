// Prefix sums and stream compaction: which elements are not zero, for outputs of as many elements as there are such.
#pragma once
#include "ops/op.h"

namespace encore::ops {

// sums[i] becomes the sum of those before it; the total goes to sums[count].
void exclusive_sum(StreamRef stream, int64_t* sums, int64_t count);

// out[outer, j, …] = in[outer, places[j], …] for the `count` places, where `in` is [outer, dim, …].
void take(StreamRef stream, const Tensor& in, int64_t outer, int64_t dim, const int64_t* places, int64_t count,
          void* out);

class Selection {
 public:
  // Counts the elements of `bytes` bytes of which bits in the mask are set, and waits for the number.
  Selection(Context& context, const void* data, size_t bytes, uint64_t mask, int64_t size);
  int64_t count() const { return count_; }
  // Where they are, in ascending order.
  void write_places(int64_t* to) const;

 private:
  Context& context_;
  const void* data_;
  size_t bytes_;
  uint64_t mask_;
  int64_t size_, tiles_, count_ = 0;
  int64_t* sums_;
};

}  // namespace encore::ops
