#include "ops/attention/inputs/projection.h"

#include <algorithm>

namespace encore::ops {

ProjectionWidths widths_of(const std::vector<int64_t>& sizes, int64_t heads, const Tensor& weights) {
  const Shape& shape = weights.shape;
  require(shape.rank() == 2, "weights has shape ", shape.str(), "; a matrix is wanted");
  if (sizes.empty()) {
    require(shape[1] % 3 == 0 && shape[1] / 3 % heads == 0, "weights ", shape.str(),
            " cannot be divided into three of ", heads, " heads");
    return {shape[1] / 3, shape[1] / 3};
  }
  require(sizes[0] + sizes[1] + sizes[2] == shape[1], "weights has shape ", shape.str(), "; qkv_hidden_sizes wants ",
          sizes[0] + sizes[1] + sizes[2], " columns");
  return {sizes[0], sizes[2]};
}

std::vector<int64_t> projection_sizes(const NodeInfo& node, int64_t heads) {
  const std::vector<int64_t> sizes = node.find_ints("qkv_hidden_sizes").value_or(std::vector<int64_t>{});
  if (sizes.empty()) return sizes;
  constexpr int64_t kMost = int64_t(1) << 40;
  require(sizes.size() == 3 && sizes[0] == sizes[1], "qkv_hidden_sizes has ", sizes.size(),
          " sizes; three are wanted, of which the first two are the same");
  for (const int64_t size : sizes)
    require(size > 0 && size < kMost && size % heads == 0, "qkv_hidden_sizes has ", size, "; the ", heads,
            " heads must divide it");
  return sizes;
}

ProjectedHeads split_projection(const void* all, int64_t batch, int64_t rows, int64_t heads,
                                const ProjectionWidths& widths, Type type) {
  const auto part = [&](int64_t from, int64_t width) {
    return heads_in_rows(offset(all, from, type), batch, rows, heads, width / heads, 2 * widths.keys + widths.values);
  };
  return {part(0, widths.keys), part(widths.keys, widths.keys), part(2 * widths.keys, widths.values)};
}

ProjectedHeads project(Context& context, const Tensor& input, int64_t batch, int64_t rows, const Tensor& weights,
                       const Tensor* bias, int64_t heads, const std::vector<int64_t>& sizes, bool tf32) {
  const ProjectionWidths widths = widths_of(sizes, heads, weights);
  device::Gemm gemm;
  gemm.type = gemm.output = input.type;
  gemm.m = checked_product(batch, rows), gemm.n = weights.shape[1], gemm.k = weights.shape[0];
  require(input.shape.back() == gemm.k, "input ", input.shape.str(), " and weights ", weights.shape.str(),
          " don't fit together");
  require(!bias || bias->shape == Shape{gemm.n}, "bias has shape ", bias ? bias->shape.str() : "", "; [", gemm.n,
          "] is wanted");
  gemm.lda = std::max<int64_t>(gemm.k, 1), gemm.ldb = gemm.ldc = std::max<int64_t>(gemm.n, 1);
  gemm.has_bias = bias != nullptr;
  gemm.tf32 = tf32;
  void* const all = context.scratch(device::size_bytes(input.type, checked_product(gemm.m, gemm.n)));
  if (gemm.m > 0 && gemm.n > 0) {
    ScratchWorkspace workspace(context);
    context.blas().gemm(context.stream(), gemm, input.data, weights.data, all, bias ? bias->data : nullptr, workspace);
  }
  return split_projection(all, batch, rows, heads, widths, input.type);
}

}  // namespace encore::ops
