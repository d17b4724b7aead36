// QOrderedMatMul of com.microsoft: products of 8-bit integers, scaled back to 8 bits.
#include "device/divide.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/quantize/integer_product.h"
#include "ops/quantize/tile_order.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;

// y = alpha * scales * sums + bias + beta * c, for kPack neighbours of a row.
template <int kPack>
struct Finish {
  const int32_t* sums;
  const float *scales, *bias;  // of columns, or one scale; bias may be null
  const int8_t* c;             // may be null
  int8_t* y;
  float alpha, beta;
  bool one_scale, one_c;
  TileOrderPlace place;
  Divider packs, rows;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, row;
    const int64_t matrix = rows(packs(i, pack), row), size = place.rows * place.columns, column = pack * kPack;
    const int64_t at = place(row, column);
    const auto sum = device::load_pack<kPack>(sums + i * kPack, true);
    Pack<int8_t, kPack> made;
    UNROLL for (int k = 0; k < kPack; ++k) {
      float value = alpha * scales[one_scale ? 0 : column + k] * float(sum.at[k]);
      if (bias) value += bias[column + k];
      if (c) value += beta * float(c[(one_c ? 0 : matrix * size) + at + k]);
      made.at[k] = to_int8(value);
    }
    int8_t* const to = y + matrix * size + at;
    device::store_pack(to, made, device::is_pack_aligned<kPack>(to));
  }
};

class QOrderedMatMul : public Op {
 public:
  explicit QOrderedMatMul(const NodeInfo& node)
      : a_(tile_order_of(node, "order_A", TileOrder::rows)), b_(tile_order_of(node, "order_B", TileOrder::columns)) {
    const bool plain = b_ == TileOrder::columns && a_ == TileOrder::rows;
    tiled_ = (b_ == TileOrder::col4_4r2_8c || b_ == TileOrder::col32_2r_4r4) && a_ == TileOrder::col32;
    if (!plain && !tiled_)
      fail(Code::not_supported, "order_A ", int(a_), " with order_B ", int(b_),
           "; 1 with 0 and 2 with 3 or 4 are known");
    require(tile_order_of(node, "order_Y", a_) == a_, "order_Y is another one than order_A");
    require(!tiled_ || !node.has_input(kBias), "a bias goes with order_B 0 only");
    require(node.has_input(kC) == node.has_input(kScaleC), "C and scale_C must both be given, or neither");
  }
  void run(Context& context) const override {
    const Tensor &a = context.input(kA), &b = context.input(kB), &scales = context.input(kScaleB);
    const Tensor *bias = context.find_input(kBias), *c = context.find_input(kC);
    for (const Tensor* matrices : {&a, &b, c})
      require(!matrices || matrices->shape.rank() == 2 || matrices->shape.rank() == 3, "A, B or C has shape ",
              matrices ? matrices->shape.str() : "", "; two or three dimensions are wanted");
    const TileOrderShape left(a.shape), right(b.shape);
    const int64_t depth = left.columns, columns = right.columns;
    require(right.rows == depth, "inner dimensions differ: ", a.shape.str(), " and ", b.shape.str());
    require(right.batch == 1 || right.batch == left.batch, "A has ", left.batch, " matrices and B ", right.batch);
    require(scales.count() == 1 || scales.shape == Shape{columns}, "scale_B has shape ", scales.shape.str(),
            "; one value is wanted, or one for each of ", columns, " columns");
    require(!bias || bias->shape == Shape{columns}, "bias has another shape than ", Shape{columns}.str());
    if (c) {
      const TileOrderShape added(c->shape);
      require(added.rows == left.rows && added.columns == columns && (added.batch == 1 || added.batch == left.batch),
              "C has shape ", c->shape.str(), ", which is not that of the result");
    }
    check_tile_order(a_, left.rows, depth, "A");
    check_tile_order(a_, left.rows, columns, "Y");
    check_tile_order(b_, columns, depth, "B");
    const float y_scale = host_scale(context, kScaleY, "scale_Y");
    const float alpha = host_scale(context, kScaleA, "scale_A") / y_scale;
    const float beta = c ? host_scale(context, kScaleC, "scale_C") / y_scale : 0.f;
    const Tensor y = context.output(0, a.shape.with(a.shape.rank() - 1, columns));
    const int64_t count = y.count();
    if (count == 0) return;

    const auto bytes = [&](int64_t n) { return static_cast<int8_t*>(context.scratch(size_t(n))); };
    // Either side row after row: B's order leaves the depth side by side.
    const auto in_rows = [&](const Tensor& tensor, TileOrder order, int64_t batch, int64_t rows) {
      Tensor plain = tensor;
      if (tiled_ && tensor.count() != 0) {
        plain.data = bytes(tensor.count());
        to_rows(context.stream(), order, batch, rows, depth, tensor.as<const int8_t>(), plain.as<int8_t>());
      }
      return plain;
    };
    const auto side = [&](const Tensor& tensor, const Shape& batch, int64_t rows) {
      void* const into =
          has_form(tensor, depth) ? nullptr : context.scratch(integer_rows_bytes(batch.count(), rows, depth));
      return pack_rows(context.stream(), tensor, batch, rows, depth, into, nullptr);
    };
    // Many matrices times one are one tall matrix.
    const bool tall = right.batch == 1;
    const Shape batch = tall ? Shape{} : Shape{left.batch};
    const int64_t rows = tall ? left.batch * left.rows : left.rows;
    auto* const sums = static_cast<int32_t*>(context.scratch(size_t(count) * sizeof(int32_t)));
    IntegerProduct product;
    product.a = side(in_rows(a, a_, left.batch, left.rows), batch, rows);
    product.b = side(in_rows(b, b_, right.batch, columns), batch, columns);
    product.finish.y = sums;
    product.row_step = columns;
    product.matrix_step = rows * columns;
    multiply(context, product);

    const TileOrderPlace place{a_, left.rows, columns};
    const auto finish = [&]<int kPack> {
      device::for_each_index(context.stream(), count / kPack,
                             Finish<kPack>{sums, scales.as<const float>(), bias ? bias->as<const float>() : nullptr,
                                           c ? c->as<const int8_t>() : nullptr, y.as<int8_t>(), alpha, beta,
                                           scales.count() == 1, !c || TileOrderShape(c->shape).batch == 1, place,
                                           Divider(columns / kPack, count), Divider(left.rows, count)});
    };
    if (columns % 4 == 0)
      finish.template operator()<4>();
    else
      finish.template operator()<1>();
  }

 private:
  enum Input { kA, kScaleA, kB, kScaleB, kScaleY, kBias, kC, kScaleC };
  static float host_scale(Context& context, int input, const char* what) {
    const Tensor& scale = context.input(input);
    require(scale.count() == 1, what, " has ", scale.count(), " values; it must have one");
    return *scale.as<const float>();
  }

  TileOrder a_, b_;
  bool tiled_;
};

}  // namespace

std::vector<OpRow> qordered_matmul_rows() {
  const Types whole{Type::i8}, scale{Type::f32};
  return {{.domain = kMicrosoft,
           .name = "QOrderedMatMul",
           .since = 1,
           .types = {in(0, whole), in(1, scale), in(2, whole), in(3, scale), in(4, scale), in(5, scale), in(6, whole)},
           .make = make<QOrderedMatMul>,
           .host_inputs = {1, 4, 7}}};
}

}  // namespace encore::ops
