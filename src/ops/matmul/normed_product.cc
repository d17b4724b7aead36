// A norm and a product of its rows: of a few rows one kernel, which norms them on the way, else two.
#include "ops/matmul/normed_product.h"

#include "ops/inner_context.h"
#include "ops/quantize/matmul_nbits.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr int kSum = 3;  // the output of a norm

// The norm as if it stood alone.
class NormPart final : public InnerContext {
 public:
  NormPart(Context& whole, int inputs) : InnerContext(whole), inputs_(inputs) {}
  const Tensor& normed() const { return normed_; }

  int input_count() const override { return inputs_; }
  int output_count() const override { return kSum + 1; }
  const Tensor* find_input(int i) override { return i < inputs_ ? outer_.find_input(i) : nullptr; }
  bool wants_output(int i) const override { return i == 0 || (i == kSum && outer_.wants_output(1)); }
  Tensor output(int i, const Shape& shape) override {
    if (i == kSum) return outer_.output(1, shape);
    normed_ = {outer_.input(0).type, Where::device, shape, nullptr};
    normed_.data = scratch(normed_.bytes());
    return normed_;
  }

 private:
  int inputs_;  // of the whole, the first of which are the norm's
  Tensor normed_;
};

// Likewise the product, of rows that may be there already.
class ProductPart final : public InnerContext {
 public:
  ProductPart(Context& whole, int of_norm, const Tensor* a = nullptr) : InnerContext(whole), of_norm_(of_norm), a_(a) {}

  int input_count() const override { return outer_.input_count() - of_norm_ + 1; }
  int output_count() const override { return outer_.output_count(); }
  const Tensor* find_input(int i) override { return i == 0 ? a_ : outer_.find_input(of_norm_ + i - 1); }
  bool wants_output(int i) const override { return outer_.wants_output(i); }
  Tensor output(int i, const Shape& shape) override { return outer_.output(i, shape); }

 private:
  int of_norm_;  // inputs
  const Tensor* a_;
};

std::unique_ptr<NormableProduct> make_product(const NodeInfo& node) {
  return node.op_type() == "MatMulNBits" ? std::make_unique<MatMulNBits>(node) : make_matmul(node);
}

class NormedProduct final : public Op {
 public:
  NormedProduct(const NodeInfo& norm, const NodeInfo& product)
      : norm_(find_row(norm.domain(), norm.op_type(), norm.since_version())->make(norm)),
        product_(make_product(product)),
        norm_inputs_(norm.input_count()),
        skips_(norm.domain() == kMicrosoft),
        epsilon_(norm.get_float("epsilon", skips_ ? 1e-12f : 1e-5f)) {}

  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
    return input >= norm_inputs_ && product_->prepack(input - norm_inputs_ + 1, constant, prepack);
  }

  void run(Context& context) const override {
    if (run_at_once(context)) return;
    NormPart norm(context, norm_inputs_);
    norm_->run(norm);
    ProductPart product(context, norm_inputs_, &norm.normed());
    product_->run(product);
  }

 private:
  bool run_at_once(Context& context) const {
    const Tensor &x = context.input(0), &gamma = context.input(skips_ ? 2 : 1);
    const Tensor* const skip = skips_ ? &context.input(1) : nullptr;
    const bool has_bias = skips_ && norm_inputs_ > 3 && context.find_input(3);
    const int rank = x.shape.rank();
    if (rank < 2 || rank > 3 || has_bias || gamma.type != x.type || gamma.shape != Shape{x.shape.back()} ||
        (skip && skip->shape != x.shape))
      return false;
    for (const Tensor* read : {&x, skip, &gamma})
      if (read && reinterpret_cast<uintptr_t>(read->data) % 16 != 0) return false;
    const RowNorm norm{.rows = x.shape.count(0, rank - 1),
                       .width = x.shape.back(),
                       .x = x.data,
                       .skip = skip ? skip->data : nullptr,
                       .gamma = {gamma.data},
                       .epsilon = epsilon_};
    ProductPart product(context, norm_inputs_);
    return product_->run_normed(product, norm, x);
  }

  std::unique_ptr<Op> norm_;
  std::unique_ptr<NormableProduct> product_;
  int norm_inputs_;
  bool skips_;
  float epsilon_;
};

}  // namespace

std::unique_ptr<Op> make_normed_product(const NodeInfo& norm, const NodeInfo& product) {
  return std::make_unique<NormedProduct>(norm, product);
}

}  // namespace encore::ops
