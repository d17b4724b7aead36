// Attention of floats: a product, a softmax of its rows, and a product. All heads are one batch of the library's where
// they lie evenly apart, and what they are made of is read in place; scores are in scratch.
#pragma once
#include <cstdint>
#include <optional>

#include "ops/op.h"

namespace encore::ops {

// [batch, head, row, column] by strides in elements.
struct HeadMatrices {
  const void* data = nullptr;
  int64_t batch = 0, head = 0, row = 0, column = 1;
};

struct ProductAttention {
  int64_t batch = 0, heads = 0, kv_heads = 0;  // heads / kv_heads neighbours share a head of k and v
  int64_t queries = 0, keys = 0, head_size = 0, value_size = 0;
  HeadMatrices q, k, v, y;  // y is written, and has its columns beside each other
  double scale = 1;
  std::optional<Tensor> mask;  // is added, and broadcast to [batch, head, query, key]
  bool zeros = false;          // are for queries of which all keys are masked; else NaN
  bool tf32 = false;
};

void attend_by_products(Context& context, const ProductAttention& problem);

}  // namespace encore::ops
