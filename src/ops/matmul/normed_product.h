// Products by weights whose rows may be normed on their way to them.
#pragma once
#include <memory>

#include "ops/norm/row_norm.h"
#include "ops/op.h"

namespace encore::ops {

class NormableProduct : public Op {
 public:
  // The product of rows that are normed on the way, whose shape and type x has. False, and nothing is done, if that
  // takes two kernels. Input 0 is not there; output 1 is the sum, if it is wanted.
  virtual bool run_normed(Context& context, RowNorm norm, const Tensor& x) const = 0;
};

// MatMul, also one that fusion has gated (kGated).
std::unique_ptr<NormableProduct> make_matmul(const NodeInfo& node);
std::unique_ptr<Op> make_gated_matmul(const NodeInfo& node);

// A norm of rows by a constant and the product that alone reads them, MatMul or MatMulNBits. Inputs are the norm's,
// then the product's without A; outputs the product's, then the sum that the norm may have.
std::unique_ptr<Op> make_normed_product(const NodeInfo& norm, const NodeInfo& product);

}  // namespace encore::ops
