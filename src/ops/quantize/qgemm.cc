// QGemm: a product of two matrices of 8-bit integers with a bias of 32 bits, as floats or scaled back to 8 bits.
#include "ops/matmul/product.h"
#include "ops/quantize/integer_product.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

class QGemm : public Op {
 public:
  explicit QGemm(const NodeInfo& node)
      : alpha_(node.get_float("alpha", 1.f)),
        transpose_a_(node.get_int("transA", 0) != 0),
        transpose_b_(node.get_int("transB", 0) != 0),
        a_zero_known_(is_constant_zero(node, kAZero)),
        b_zero_known_(is_constant_zero(node, kBZero)) {
    const bool floats = node.output_type(0) == Type::f32;
    require(floats != node.has_input(kYZero), "the output is of type ", device::name(node.output_type(0)),
            floats ? ", though it has a zero point" : ", and its zero point is missing");
  }

  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
    if (input != kB || constant.shape.rank() != 2 || constant.count() == 0) return false;
    const int64_t depth = constant.shape[transpose_b_ ? 1 : 0], columns = constant.shape[transpose_b_ ? 0 : 1];
    if (transpose_b_)
      constant_.keep_rows(prepack, constant, Shape{}, columns, depth);
    else
      constant_.keep_columns(prepack, constant, Shape{}, columns, depth);
    return true;
  }

  void run(Context& context) const override {
    const Tensor& a = context.input(kA);
    const Tensor& b = constant_ ? constant_.like : context.input(kB);
    const Tensor* const bias = context.find_input(kC);
    const device::Gemm gemm = product_of(a, b, transpose_a_, transpose_b_, bias);
    const int64_t rows = gemm.m, depth = gemm.k, columns = gemm.n;
    const Tensor y = context.output(0, Shape{rows, columns});

    IntegerProduct product;
    product.a_zero = ZeroPoint::of(&context.input(kAZero), a.type, 1, 1, a_zero_known_);
    product.b_zero = ZeroPoint::of(&context.input(kBZero), b.type, 1, columns, b_zero_known_);
    IntegerFinish& finish = product.finish;
    finish.y = y.data;
    finish.type = y.type;
    finish.alpha = alpha_;
    finish.a_scale = per_row(context.input(kAScale), 1, 1, "a_scale");
    finish.b_scale = per_row(context.input(kBScale), 1, columns, "b_scale");
    finish.y_scale = single(context, kYScale, "y_scale");
    finish.y_zero = single(context, kYZero, "y_zero_point");
    if (const Tensor* const zero = context.find_input(kYZero))
      require(zero->type == y.type, "y_zero_point is of type ", device::name(zero->type), ", Y of type ",
              device::name(y.type));
    if (bias) {
      const int rank = bias->shape.rank();
      finish.bias = bias->as<const int32_t>();
      finish.bias_column_step = rank >= 1 && bias->shape[rank - 1] != 1;
      finish.bias_row_step = rank == 2 && bias->shape[0] != 1 ? bias->shape[1] : 0;
    }
    if (y.count() == 0) return;

    product.a = packed(context, a, transpose_a_, rows, depth, product.b_zero);
    product.b = constant_ ? constant_.rows : packed(context, b, !transpose_b_, columns, depth, product.a_zero);
    product.row_step = columns;
    product.matrix_step = y.count();
    multiply(context, product);
  }

 private:
  enum { kA, kAScale, kAZero, kB, kBScale, kBZero, kC, kYScale, kYZero };

  static AnyInput single(Context& context, int input, const char* what) {
    const Tensor* const value = context.find_input(input);
    if (!value) return {nullptr, Type::f32};
    require(value->count() == 1, what, " has shape ", value->shape.str(), "; one value is wanted");
    return {value->data, value->type};
  }
  static IntegerRows packed(Context& context, const Tensor& from, bool by_columns, int64_t rows, int64_t depth,
                            const ZeroPoint& other) {
    const int64_t stored = by_columns ? stored_rows(rows) : rows;
    auto* const sums =
        other.known_zero() ? nullptr : static_cast<int32_t*>(context.scratch(size_t(stored) * sizeof(int32_t)));
    const bool as_it_is = !by_columns && has_form(from, depth);
    void* const into = as_it_is ? nullptr : context.scratch(integer_rows_bytes(1, stored, depth));
    return (by_columns ? pack_columns : pack_rows)(context.stream(), from, Shape{}, rows, depth, into, sums);
  }

  float alpha_;
  bool transpose_a_, transpose_b_, a_zero_known_, b_zero_known_;
  ConstantSide constant_;  // b, if it is one
};

}  // namespace

std::vector<OpRow> qgemm_rows() {
  const Types bytes{Type::i8, Type::u8}, floats{Type::f32};
  return {{.domain = kMicrosoft,
           .name = "QGemm",
           .since = 1,
           .until = 1,
           .types = {in(0, bytes), in(1, floats), in(3, bytes), in(4, floats), in(6, Types{Type::i32}), in(7, floats),
                     in(8, bytes), out(0, bytes | floats)},
           .make = make<QGemm>}};
}

}  // namespace encore::ops
