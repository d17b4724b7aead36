// com.microsoft's MatMulNBits: a product with constant weights of 2, 4 or 8 bits.
#pragma once
#include <vector>

#include "ops/matmul/normed_product.h"
#include "ops/quantize/block_weights.h"

namespace encore::ops {

// With the attribute kGated (elementwise/gate.h) as BlockProduct says.
class MatMulNBits final : public NormableProduct {
 public:
  explicit MatMulNBits(const NodeInfo& node);

  bool prepack(int input, const Tensor& constant, Prepack& prepack) override;
  void run(Context& context) const override;
  bool run_normed(Context& context, RowNorm norm, const Tensor& x) const override;

 private:
  Shape shape_of_codes() const { return {weights_.rows, weights_.blocks, weights_.block() / 8 * weights_.bits}; }
  int64_t columns() const { return gated_ ? weights_.rows / 2 : weights_.rows; }
  // Of a run, as it is given them.
  BlockCodes weights_of(Context& context) const;
  const void* bias_of(Context& context) const;

  BlockCodes weights_;
  WovenCodes woven_;
  std::vector<int32_t> order_;  // in which woven codes stand along the depth; none if that is their own
  const int32_t* kept_order_ = nullptr;
  bool may_weave_, tf32_, gated_, constant_bias_;
};

}  // namespace encore::ops
