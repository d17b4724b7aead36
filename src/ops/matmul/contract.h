// Sums of products along any strides: what no library does, and products that a library would not do faster.
#pragma once
#include <span>

#include "ops/op.h"

namespace encore::ops {

// A dimension and how the two operands walk it, in elements; 0 repeats.
struct ContractDim {
  int64_t size, a_stride, b_stride;
};
inline constexpr int kMostSummedDims = 8;

// out = the sum over the `summed` dimensions of a * b, row-major along the `kept` ones; both outermost first. Integers
// wrap around. Summed dimensions that are not neighbours in both operands are kMostSummedDims at most.
void contract(StreamRef stream, Type type, const void* a, const void* b, void* out, std::span<const ContractDim> kept,
              std::span<const ContractDim> summed);

}  // namespace encore::ops
