// Zeros for values picked at random.
#pragma once
#include "ops/op.h"

namespace encore::ops {

struct Dropping {
  float ratio;  // of the values that become zero, below 1
  uint64_t seed;
  uint64_t* runs;  // in device memory: how many runs there have been, replays of a graph counted
};

// y = x / (1 - ratio) where a value is kept. `mask` says where, one byte a value; it may be null. x may be y.
void drop(Context& context, const Dropping& dropping, const Tensor& x, const Tensor& y, uint8_t* mask);

}  // namespace encore::ops
