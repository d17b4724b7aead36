// The files of this room and their rows.
#pragma once
#include <vector>

#include "ops/registry.h"

namespace encore::ops {

std::vector<OpRow> sum_rows();      // sum.cu: sums, means and norms
std::vector<OpRow> extreme_rows();  // extreme.cu: Max, Min
std::vector<OpRow> product_rows();  // product.cu: Prod, LogSumExp
std::vector<OpRow> arg_rows();      // arg.cu: ArgMax, ArgMin

// Every Reduce operator: axes are an attribute, or since opset 13 or 18 an input in host memory.
template <class Op>
OpRow reduce_row(const char* name, Types types) {
  return {kOnnx, name, 1, kNewestOpset, {in(0, types)}, make<Op>, {1}};
}

}  // namespace encore::ops
