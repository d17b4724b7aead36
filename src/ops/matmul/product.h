// Batched products with broadcast batches, in as few library calls as the strides allow.
#pragma once
#include "ops/op.h"
#include "ops/registry.h"

namespace encore::ops {

// `gemm` describes one matrix; batches of a and b broadcast to `batch`.
void batched_product(Context& context, device::Gemm gemm, const void* a, const Shape& a_batch, const void* b,
                     const Shape& b_batch, void* out, const Shape& batch);

std::vector<OpRow> gemm_rows();  // gemm.cu

}  // namespace encore::ops
