// MatMul, com.microsoft's FusedMatMul, and TransposeMatMul, which it was called before. Fusion gives a bias as the
// third input, and a residual as the fourth, whose elements are added in their order, and an activation, named as
// FusedConv does; or it gates what MatMul makes; or has rows made as columns of wider ones, as Gemm does.
#include <algorithm>
#include <optional>

#include "device/device.h"
#include "device/gemv.h"
#include "ops/elementwise/gate.h"
#include "ops/few.h"
#include "ops/matmul/normed_product.h"
#include "ops/matmul/product.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// How the matrices of an operand lie. With `rows_first` (transBatchA, transBatchB) the batch stands between rows and
// columns: [rows, batch.., columns].
struct Layout {
  int64_t rows, columns, leading;
  Matrices matrices;
};
Layout layout_of(const Tensor& tensor, bool vector_is_row, bool rows_first) {
  const Shape& shape = tensor.shape;
  const int rank = shape.rank();
  require(rank > 0, "a scalar cannot be multiplied as a matrix");
  if (rank == 1) {
    const int64_t rows = vector_is_row ? 1 : shape[0], columns = vector_is_row ? shape[0] : 1;
    return {rows, columns, columns, {tensor.data, Shape{}, rows * columns}};
  }
  const int64_t columns = shape[rank - 1];
  if (rows_first && rank > 2) {
    const Shape batch(shape.dims().subspan(1, size_t(rank - 2)));
    return {shape[0], columns, batch.count() * columns, {tensor.data, batch, columns}};
  }
  const int64_t rows = shape[rank - 2];
  return {rows, columns, columns, {tensor.data, Shape(shape.dims().first(size_t(rank - 2))), rows * columns}};
}

// As one kernel makes the product of few rows by a matrix.
struct FewRows {
  device::Gemm gemm;
  device::GemvWay way;
};

class MatMul : public NormableProduct {
 public:
  explicit MatMul(const NodeInfo& node)
      : alpha_(node.get_float("alpha", 1)),
        transpose_a_(node.get_int("transA", 0) != 0),
        transpose_b_(node.get_int("transB", 0) != 0),
        a_rows_first_(node.get_int("transBatchA", 0) != 0),
        b_rows_first_(node.get_int("transBatchB", 0) != 0),
        tf32_(node.settings.use_tf32),
        gated_(node.get_int(kGated, 0) != 0),
        activation_(Activation::of(node)),
        part_(node) {}

  bool prepack(int input, const Tensor&, Prepack&) override {
    if (input == 1) constant_b_ = true;
    return false;
  }

  void run(Context& context) const override {
    // A vector is a matrix of one row on the left, of one column on the right; transposing one changes nothing.
    const Tensor &a = context.input(0), &b = context.input(1);
    require(a.type == b.type, "inputs have types ", device::name(a.type), " and ", device::name(b.type));
    const bool row = a.shape.rank() == 1, column = b.shape.rank() == 1;
    const Layout left = layout_of(a, true, a_rows_first_), right = layout_of(b, false, b_rows_first_);
    device::Gemm gemm;
    gemm.transpose_a = transpose_a_ && !row, gemm.transpose_b = transpose_b_ && !column;
    gemm.m = gemm.transpose_a ? left.columns : left.rows;
    gemm.k = gemm.transpose_a ? left.rows : left.columns;
    gemm.n = gemm.transpose_b ? right.rows : right.columns;
    if (gemm.k != (gemm.transpose_b ? right.columns : right.rows))
      fail(Code::invalid_input, "inner dimensions differ: ", a.shape.str(), " and ", b.shape.str());
    const Shape batch = broadcast(left.matrices.batch, right.matrices.batch);
    Few<int64_t> dims;
    dims.append(batch.dims());
    if (!row) dims.push_back(gemm.m);
    gemm.ldc = part_.width(gemm.n);
    if (!column) dims.push_back(gated_ ? gemm.n / 2 : gemm.ldc);
    const Tensor* const bias = context.find_input(2);
    if (bias && bias->count() != gemm.n)
      fail(Code::invalid_input, "the bias has shape ", bias->shape.str(), "; ", gemm.n, " values are wanted");
    const Tensor* const residual = context.find_input(3);
    const Tensor out = context.output(0, Shape(dims));
    if (residual && (residual->type != out.type || residual->count() != out.count()))
      fail(Code::invalid_input, "the residual has shape ", residual->shape.str(), "; the product has ",
           out.shape.str());
    if (out.count() == 0) return;
    gemm.type = gemm.output = a.type;
    gemm.lda = std::max<int64_t>(left.leading, 1), gemm.ldb = std::max<int64_t>(right.leading, 1);
    gemm.alpha = alpha_;
    gemm.tf32 = tf32_;
    gemm.constant_b = constant_b_;
    if (gated_) return gate(context, gemm, left.matrices, right.matrices, bias, out, batch);
    batched_product(context, gemm, left.matrices, right.matrices, part_.begin_in(out), batch,
                    bias ? bias->data : nullptr, residual ? residual->data : nullptr, activation_);
  }

  bool run_normed(Context& context, RowNorm norm, const Tensor& x) const override {
    if (activation_.kind != Activation::Kind::none) return false;
    const Tensor& b = context.input(1);
    const Tensor* const bias = context.find_input(2);
    device::GemvMore more{.gamma = norm.gamma.data, .skip = norm.skip, .epsilon = float(norm.epsilon), .gated = gated_};
    const auto few = few_rows(context, x, b, bias, more);
    if (!few) return false;
    const int64_t columns = gated_ ? few->gemm.n / 2 : few->gemm.n;
    const Tensor out = context.output(0, x.shape.with(x.shape.rank() - 1, columns));
    if (context.wants_output(1)) more.sum = context.output(1, x.shape).data;
    device::gemv(context.stream(), few->gemm, x.data, b.data, nullptr, out.data, bias ? bias->data : nullptr, few->way,
                 more);
    return true;
  }

 private:
  // Of a constant matrix, by which all rows are multiplied.
  void gate(Context& context, const device::Gemm& gemm, const Matrices& left, const Matrices& right, const Tensor* bias,
            const Tensor& out, const Shape& batch) const {
    const Tensor &a = context.input(0), &b = context.input(1);
    const device::GemvMore more{.gated = true};
    const void* const added = bias ? bias->data : nullptr;
    if (const auto few = few_rows(context, a, b, bias, more))
      return device::gemv(context.stream(), few->gemm, a.data, b.data, nullptr, out.data, added, few->way, more);
    void* const both = context.scratch(2 * out.bytes());
    batched_product(context, gemm, left, right, both, batch, added);
    gate_of_both(context.stream(), out.type, both, out.data, out.count());
  }

  // None if that is not how the product is made, or not with what there is more.
  std::optional<FewRows> few_rows(Context& context, const Tensor& a, const Tensor& b, const Tensor* bias,
                                  const device::GemvMore& more) const {
    if (b.shape.rank() != 2 || a.shape.back() != b.shape[0] || a.type != b.type || a.shape.count() == 0 ||
        (bias && bias->count() != b.shape[1]))
      return {};
    const int64_t depth = b.shape[0], columns = b.shape[1];
    const device::Gemm gemm{.type = a.type,
                            .output = a.type,
                            .m = a.shape.count() / depth,
                            .n = columns,
                            .k = depth,
                            .lda = depth,
                            .ldb = columns,
                            .ldc = columns,
                            .alpha = alpha_,
                            .has_bias = bias != nullptr,
                            .constant_b = constant_b_};
    bool aligned = true;
    for (const void* read : std::initializer_list<const void*>{a.data, b.data, more.gamma, more.skip})
      aligned &= reinterpret_cast<uintptr_t>(read) % 16 == 0;
    const auto way = device::gemv_way(gemm, aligned, device::multiprocessors(context.stream().device()), more);
    if (way == device::GemvWay{}) return {};
    return FewRows{gemm, way};
  }

  float alpha_;
  bool transpose_a_, transpose_b_, a_rows_first_, b_rows_first_, tf32_, gated_, constant_b_ = false;
  Activation activation_;
  RowPart part_;
};

}  // namespace

std::unique_ptr<NormableProduct> make_matmul(const NodeInfo& node) { return std::make_unique<MatMul>(node); }
std::unique_ptr<Op> make_gated_matmul(const NodeInfo& node) { return make_matmul(node); }

std::vector<OpRow> matmul_rows() {
  const Types fused{Type::f32, Type::f16, Type::bf16, Type::f64};
  constexpr Types kTypes = kFloats | kWholeNumbers;
  return {
      {.name = "MatMul", .since = 1, .types = {in(0, kTypes), in(1, kTypes)}, .make = make<MatMul>},
      {.domain = kMicrosoft,
       .name = "FusedMatMul",
       .since = 1,
       .until = 1,
       .types = {in(0, fused), in(1, fused)},
       .make = make<MatMul>},
      {.domain = kMicrosoft,
       .name = "TransposeMatMul",
       .since = 1,
       .until = 1,
       .types = {in(0, fused), in(1, fused)},
       .make = make<MatMul>},
  };
}

}  // namespace encore::ops
