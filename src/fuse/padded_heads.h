// Attention by heads of a size that fast kernels lack, made of products by constants: these get columns of zeros, which
// change no score and no result.
#pragma once
#include <optional>
#include <set>
#include <vector>

#include "fuse/match.h"
#include "ops/attention/operators/viewed_attention.h"

namespace encore::fuse {

// Where a product by a constant and what is added to its rows are.
struct ConstantProduct {
  int product, sum;  // the latter is -1 if there is none
  int bias;          // as is this one
  int y;
};

struct PaddedHeads {
  int64_t size, padded;
  std::vector<ConstantProduct> from;  // of queries, keys and values: one product, or several
  ops::ViewedAttention how;
  int flat, product;  // behind attention: the Reshape to rows, and their product
};

// How that would be done with attention that reads these and makes y, in which nobody else reads what is between.
std::optional<PaddedHeads> padded_heads(const Match& match, const std::vector<int>& inputs,
                                        const ops::ViewedAttention& how, int y, const std::set<int>& inside);

}  // namespace encore::fuse
