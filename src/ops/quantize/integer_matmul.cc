// MatMulInteger and QLinearMatMul.
#include <algorithm>

#include "ops/matmul/product.h"
#include "ops/quantize/integer_product.h"
#include "ops/quantize/scale_grid.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// A side of a product: a vector is a matrix of one row on the left, of one column on the right.
struct Side {
  Shape batch;
  int64_t rows, columns;
};
Side side_of(const Shape& shape, bool vector_is_row) {
  const int rank = shape.rank();
  require(rank > 0, "a scalar cannot be multiplied as a matrix");
  if (rank == 1) return vector_is_row ? Side{Shape{}, 1, shape[0]} : Side{Shape{}, shape[0], 1};
  return {Shape(shape.dims().first(size_t(rank - 2))), shape[rank - 2], shape[rank - 1]};
}

// The inputs that both operators have, by their numbers.
struct Inputs {
  int a, b, a_zero, b_zero;
};

class IntegerMatMul : public Op {
 public:
  IntegerMatMul(const NodeInfo& node, Inputs inputs)
      : inputs_(inputs),
        a_zero_known_(is_constant_zero(node, inputs.a_zero)),
        b_zero_known_(is_constant_zero(node, inputs.b_zero)) {}

  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
    if (input != inputs_.b || constant.count() == 0) return false;
    const Side side = side_of(constant.shape, false);
    constant_.keep_columns(prepack, constant, side.batch, side.columns, side.rows);
    return true;
  }

 protected:
  // `set_finish` completes the product, of which it gets the numbers of matrices.
  template <class F>
  void run(Context& context, F set_finish) const {
    const Tensor& a = context.input(inputs_.a);
    const Tensor& b = constant_ ? constant_.like : context.input(inputs_.b);
    Side left = side_of(a.shape, true);
    const Side right = side_of(b.shape, false);
    require(left.columns == right.rows, "inner dimensions differ: ", a.shape.str(), " and ", b.shape.str());
    const Shape batch = broadcast(left.batch, right.batch);
    std::vector<int64_t> dims(batch.dims().begin(), batch.dims().end());
    if (a.shape.rank() != 1) dims.push_back(left.rows);
    if (b.shape.rank() != 1) dims.push_back(right.columns);
    const Tensor y = context.output(0, Shape(dims));
    const int64_t depth = left.columns, b_matrices = right.batch.count();
    IntegerProduct product;
    product.finish.y = y.data;
    product.finish.type = y.type;
    product.a_zero =
        ZeroPoint::of(context.find_input(inputs_.a_zero), a.type, left.batch.count(), left.rows, a_zero_known_);
    product.b_zero =
        ZeroPoint::of(context.find_input(inputs_.b_zero), b.type, b_matrices, right.columns, b_zero_known_);
    set_finish(product.finish, left.batch.count(), left.rows, b_matrices, right.columns);
    if (y.count() == 0) return;

    // Many matrices times one are one tall matrix, unless they share what belongs to their rows.
    const auto tall = [&](const PerRow& values) { return values.row_step == 0 || values.matrix_step != 0; };
    if (b_matrices == 1 && tall(product.a_zero.point) && tall(product.finish.a_scale)) {
      left.rows = checked_product(left.rows, left.batch.count());
      left.batch = Shape{};
    }
    const int64_t a_matrices = left.batch.count();

    const auto sums = [&](const ZeroPoint& other, int64_t rows) {
      return other.known_zero() ? nullptr : static_cast<int32_t*>(context.scratch(size_t(rows) * sizeof(int32_t)));
    };
    void* const a_into =
        has_form(a, depth) ? nullptr : context.scratch(integer_rows_bytes(a_matrices, left.rows, depth));
    product.a = pack_rows(context.stream(), a, left.batch, left.rows, depth, a_into,
                          sums(product.b_zero, a_matrices * left.rows));
    if (constant_)
      product.b = constant_.rows;
    else
      product.b = pack_columns(context.stream(), b, right.batch, right.columns, depth,
                               context.scratch(integer_rows_bytes(b_matrices, stored_rows(right.columns), depth)),
                               sums(product.a_zero, b_matrices * stored_rows(right.columns)));
    product.row_step = right.columns;
    product.matrix_step = left.rows * right.columns;
    multiply(context, product);
  }

 private:
  Inputs inputs_;
  bool a_zero_known_, b_zero_known_;
  ConstantSide constant_;  // b, if it is one
};

class MatMulInteger : public IntegerMatMul {
 public:
  explicit MatMulInteger(const NodeInfo& node) : IntegerMatMul(node, {0, 1, 2, 3}) {}
  void run(Context& context) const override {
    IntegerMatMul::run(context, [](IntegerFinish&, int64_t, int64_t, int64_t, int64_t) {});
  }
};

class ScaledIntegerMatMul : public IntegerMatMul {
 public:
  explicit ScaledIntegerMatMul(const NodeInfo& node) : IntegerMatMul(node, {0, 1, 2, 3}) {}
  void run(Context& context) const override {
    IntegerMatMul::run(
        context, [&](IntegerFinish& finish, int64_t a_matrices, int64_t rows, int64_t b_matrices, int64_t columns) {
          finish.a_scale = per_row(context.input(4), a_matrices, rows, "a_scale");
          finish.b_scale = per_row(context.input(5), b_matrices, columns, "b_scale");
          const Tensor* const addend = context.find_input(6);
          if (!addend) return;
          require(addend->count() == columns, "what is added has shape ", addend->shape.str(), "; ", columns,
                  " values are wanted");
          finish.addend = addend->as<const float>();
        });
  }
};

class QLinearMatMul : public IntegerMatMul {
 public:
  explicit QLinearMatMul(const NodeInfo& node) : IntegerMatMul(node, {0, 3, 2, 5}) {}
  void run(Context& context) const override {
    IntegerMatMul::run(
        context, [&](IntegerFinish& finish, int64_t a_matrices, int64_t rows, int64_t b_matrices, int64_t columns) {
          const Tensor &scale = context.input(6), &zero = context.input(7);
          require(scale.count() == 1 && zero.count() == 1, "y_scale has shape ", scale.shape.str(),
                  " and y_zero_point ", zero.shape.str(), "; one value is wanted of each");
          finish.a_scale = per_row(context.input(1), a_matrices, rows, "a_scale");
          finish.b_scale = per_row(context.input(4), b_matrices, columns, "b_scale");
          finish.y_scale = AnyInput(scale.data, scale.type);
          finish.y_zero = AnyInput(zero.data, zero.type);
        });
  }
};

// With float8 among the types: a product of floats, which neither side's scale lets tensor cores round.
class QLinearMatMulOfFloats : public Op {
 public:
  explicit QLinearMatMulOfFloats(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor &a = context.input(0), &b = context.input(3), &scale = context.input(6), &zero = context.input(7);
    const Side left = side_of(a.shape, true), right = side_of(b.shape, false);
    require(left.columns == right.rows, "inner dimensions differ: ", a.shape.str(), " and ", b.shape.str());
    require(scale.count() == 1 && zero.count() == 1, "y_scale has shape ", scale.shape.str(), " and y_zero_point ",
            zero.shape.str(), "; one value is wanted of each");
    const Shape batch = broadcast(left.batch, right.batch);
    std::vector<int64_t> dims(batch.dims().begin(), batch.dims().end());
    if (a.shape.rank() != 1) dims.push_back(left.rows);
    if (b.shape.rank() != 1) dims.push_back(right.columns);
    const Tensor y = context.output(0, Shape(dims));
    if (y.count() == 0) return;

    device::Gemm gemm;
    gemm.m = left.rows, gemm.n = gemm.ldb = gemm.ldc = right.columns;
    gemm.k = left.columns;
    gemm.lda = std::max<int64_t>(gemm.k, 1);
    const Matrices wide_a{as_floats(context, a, 1, true), left.batch, gemm.m * gemm.k};
    const Matrices wide_b{as_floats(context, b, 4, false), right.batch, gemm.k * gemm.n};
    const Tensor sums = floats(context, y.shape);
    batched_product(context, gemm, wide_a, wide_b, sums.data, batch);
    quantize(context.stream(), sums, {in(scale), in(zero), ScaleGrid(y.shape, Shape{}, 0, 0)}, y);
  }

 private:
  static AnyInput in(const Tensor& tensor) { return AnyInput(tensor.data, tensor.type); }
  static Tensor floats(Context& context, const Shape& shape) {
    const auto bytes = size_t(checked_product(shape.count(), sizeof(float)));
    return {Type::f32, Where::device, shape, context.scratch(bytes)};
  }
  // Scale and zero point are the inputs `scale` and the one after it: single values, one for each row of the left side
  // or column of the right, or such of each matrix.
  static const void* as_floats(Context& context, const Tensor& x, int scale_input, bool is_left) {
    const Tensor &scale = context.input(scale_input), &zero = context.input(scale_input + 1);
    require(zero.count() == scale.count(), "a zero point has shape ", zero.shape.str(), ", its scale ",
            scale.shape.str());
    const Tensor wide = floats(context, x.shape);
    if (x.count() == 0) return wide.data;
    const int across = is_left ? -2 : -1, along = is_left ? -1 : -2;
    const ScaleGrid grid = scale.count() == 1 ? ScaleGrid(x.shape, Shape{}, 0, 0)
                           : scale.shape.rank() == 1
                               ? ScaleGrid(x.shape, scale.shape, across, 0)
                               : ScaleGrid(x.shape, scale.shape, along, x.shape[x.shape.rank() + along]);
    dequantize(context.stream(), x, {in(scale), in(zero), grid}, wide);
    return wide.data;
  }
};

std::unique_ptr<Op> make_qlinear_matmul(const NodeInfo& node) {
  for (const int input : {0, 3, 7})
    if (kFloat8.has(node.input_type(input))) return std::make_unique<QLinearMatMulOfFloats>(node);
  return std::make_unique<QLinearMatMul>(node);
}

}  // namespace

std::unique_ptr<Op> make_scaled_integer_matmul(const NodeInfo& node) {
  return std::make_unique<ScaledIntegerMatMul>(node);
}

std::vector<OpRow> integer_matmul_rows() {
  const Types bytes{Type::i8, Type::u8}, scales{Type::f32, Type::f16, Type::bf16}, any = bytes | kFloat8;
  return {
      {.name = "MatMulInteger", .since = 10, .types = {in(0, bytes), in(1, bytes)}, .make = make<MatMulInteger>},
      {.name = "QLinearMatMul",
       .since = 10,
       .types = {in(0, any), in(1, scales), in(3, any), in(4, scales), in(6, scales), in(7, any), out(0, any)},
       .make = make_qlinear_matmul},
  };
}

}  // namespace encore::ops
