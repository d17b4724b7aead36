// Batched products with broadcast batches, in as few library calls as the strides allow.
#pragma once
#include "ops/op.h"

namespace encore::ops {

// The matrices of one side: the shape of their batch, and how many elements lie between one and the next.
struct Matrices {
  const void* data;
  Shape batch;
  int64_t distance;
};

// `gemm` describes one product; the batches of a and b broadcast to `batch`.
void batched_product(Context& context, device::Gemm gemm, const Matrices& a, const Matrices& b, void* out,
                     const Shape& batch);

}  // namespace encore::ops
