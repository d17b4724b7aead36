// com.microsoft's MatMulNBits: a product with constant weights of 2, 4 or 8 bits.
#pragma once
#include <memory>

#include "ops/quantize/block_weights.h"

namespace encore::ops {

// With the attribute kGated, which fusion sets and no model may, as BlockProduct says.
inline constexpr const char* kGated = "gated";

class MatMulNBits final : public Op {
 public:
  explicit MatMulNBits(const NodeInfo& node);
  int64_t depth() const { return weights_.depth; }

  bool prepack(int input, const Tensor& constant, Prepack& prepack) override;
  void run(Context& context) const override;
  // The same of rows that are normed on the way, whose shape and type x has. False, and nothing is done, if that takes
  // two kernels. Output 1 is the sum, if it is wanted.
  bool run_normed(Context& context, RowNorm norm, const Tensor& x) const;

 private:
  Shape shape_of_codes() const { return {weights_.rows, weights_.blocks, weights_.block() / 8 * weights_.bits}; }
  int64_t columns() const { return gated_ ? weights_.rows / 2 : weights_.rows; }
  // Of a run, as it is given them.
  BlockCodes weights_of(Context& context) const;
  const void* bias_of(Context& context) const;

  BlockCodes weights_;
  WovenCodes woven_;
  bool may_weave_, tf32_, gated_;
};

// A norm of rows by a constant and the product that alone reads them. Inputs are the norm's, then the product's without
// A; outputs the product's, then the sum that the norm may have.
std::unique_ptr<Op> make_normed_product(const NodeInfo& norm, const NodeInfo& product);

}  // namespace encore::ops
