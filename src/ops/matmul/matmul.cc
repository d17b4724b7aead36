// MatMul and com.microsoft's FusedMatMul.
#include <algorithm>

#include "ops/matmul/product.h"
#include "ops/rooms.h"

namespace encore::ops {
namespace {

class MatMul : public Op {
 public:
  explicit MatMul(const NodeInfo& node)
      : alpha_(node.get_float("alpha", 1)),
        transpose_a_(node.get_int("transA", 0) != 0),
        transpose_b_(node.get_int("transB", 0) != 0),
        tf32_(node.use_tf32) {
    if (node.get_int("transBatchA", 0) || node.get_int("transBatchB", 0))
      fail(Code::not_supported, "transBatchA and transBatchB are not supported");
  }
  void run(Context& context) const override {
    const Tensor &a = context.input(0), &b = context.input(1);
    require(a.shape.rank() > 0 && b.shape.rank() > 0, "a scalar cannot be multiplied as a matrix: ", a.shape.str(),
            " and ", b.shape.str());
    // A vector is a matrix of one row on the left, of one column on the right; transposing one changes nothing.
    const bool row = a.shape.rank() == 1, column = b.shape.rank() == 1;
    const bool ta = transpose_a_ && !row, tb = transpose_b_ && !column;
    const int ra = a.shape.rank(), rb = b.shape.rank();
    const int64_t a_rows = row ? 1 : a.shape[ra - 2], a_columns = a.shape[ra - 1];
    const int64_t b_rows = column ? b.shape[0] : b.shape[rb - 2], b_columns = column ? 1 : b.shape[rb - 1];
    const int64_t m = ta ? a_columns : a_rows, k = ta ? a_rows : a_columns, n = tb ? b_rows : b_columns;
    require(k == (tb ? b_columns : b_rows), "inner dimensions differ: ", a.shape.str(), " and ", b.shape.str());
    const Shape a_batch(a.shape.dims().first(size_t(row ? 0 : ra - 2))),
        b_batch(b.shape.dims().first(size_t(column ? 0 : rb - 2)));
    const Shape batch = broadcast(a_batch, b_batch);
    std::vector<int64_t> dims(batch.dims().begin(), batch.dims().end());
    if (!row) dims.push_back(m);
    if (!column) dims.push_back(n);
    const Tensor out = context.output(0, Shape(dims));
    if (out.count() == 0) return;

    device::Gemm gemm;
    gemm.type = gemm.output = a.type;
    gemm.m = m, gemm.n = n, gemm.k = k;
    gemm.transpose_a = ta, gemm.transpose_b = tb;
    gemm.lda = std::max<int64_t>(a_columns, 1), gemm.ldb = std::max<int64_t>(b_columns, 1), gemm.ldc = n;
    gemm.alpha = alpha_;
    gemm.tf32 = tf32_;
    batched_product(context, gemm, a.data, a_batch, b.data, b_batch, out.data, batch);
  }

 private:
  float alpha_;
  bool transpose_a_, transpose_b_, tf32_;
};

}  // namespace

std::vector<OpRow> matmul_rows() {
  const Types fused{Type::f32, Type::f16, Type::bf16, Type::f64};
  std::vector<OpRow> rows = {
      {kOnnx, "MatMul", 1, kNewestOpset, {in(0, kFloats), in(1, kFloats)}, make<MatMul>},
      {kMicrosoft, "FusedMatMul", 1, 1, {in(0, fused), in(1, fused)}, make<MatMul>},
  };
  for (OpRow& row : gemm_rows()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace encore::ops
