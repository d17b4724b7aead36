// The projection of com.microsoft's attentions: a row of input makes one of queries, keys and values.
#pragma once
#include <vector>

#include "ops/attention/inputs/heads.h"

namespace encore::ops {

struct ProjectedHeads {
  Heads q, k, v;
};

// The attribute qkv_hidden_sizes, checked; empty if there is none.
std::vector<int64_t> projection_sizes(const NodeInfo& node, int64_t heads);

// How wide queries and keys are, and values.
struct ProjectionWidths {
  int64_t keys, values;
};
ProjectionWidths widths_of(const std::vector<int64_t>& sizes, int64_t heads, const Tensor& weights);

// The heads in [batch, row, 2 * keys + values].
ProjectedHeads split_projection(const void* all, int64_t batch, int64_t rows, int64_t heads,
                                const ProjectionWidths& widths, Type type);

// input [batch, row, k] * weights [k, 2 * keys + values] + bias, in scratch.
ProjectedHeads project(Context& context, const Tensor& input, int64_t batch, int64_t rows, const Tensor& weights,
                       const Tensor* bias, int64_t heads, const std::vector<int64_t>& sizes, bool tf32);

}  // namespace encore::ops
