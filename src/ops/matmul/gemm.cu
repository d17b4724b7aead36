// Gemm: alpha * a * b + beta * c, where c broadcasts to the result. Fusion gives an activation, named as FusedConv
// does, or has rows made as columns of wider ones, whose other columns somebody else fills in.
#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/matmul/product.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// out[row, column] = c[row or 0, column or 0], so that the product can be added to it.
template <class T>
struct SpreadAddend {
  const T* c;
  T* out;
  int64_t row_stride, column_stride, row_width;
  device::Divider by_columns;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column;
    const int64_t row = by_columns(i, column);
    out[row * row_width + column] = c[row * row_stride + column * column_stride];
  }
};

class Gemm : public Op {
 public:
  explicit Gemm(const NodeInfo& node)
      : alpha_(node.get_float("alpha", 1)),
        beta_(node.get_float("beta", 1)),
        transpose_a_(node.get_int("transA", 0) != 0),
        transpose_b_(node.get_int("transB", 0) != 0),
        tf32_(node.settings.use_tf32),
        activation_(Activation::of(node)),
        part_(node) {}

  bool prepack(int input, const Tensor&, Prepack&) override {
    if (input == 1) constant_b_ = true;
    return false;
  }

  void run(Context& context) const override {
    const Tensor &a = context.input(0), &b = context.input(1);
    const Tensor* c = context.find_input(2);
    device::Gemm gemm = product_of(a, b, transpose_a_, transpose_b_, c);
    gemm.ldc = part_.width(gemm.n);
    Tensor out = context.output(0, Shape{gemm.m, gemm.ldc});
    if (gemm.m == 0 || gemm.n == 0) return;
    out.data = part_.begin_in(out);

    gemm.type = gemm.output = a.type;
    gemm.alpha = alpha_;
    gemm.tf32 = tf32_;
    gemm.constant_b = constant_b_;
    const void* bias = nullptr;
    if (c && beta_ != 0) {
      const int64_t columns = c->shape.rank() > 0 ? c->shape.back() : 1, rows = c->shape.rank() > 1 ? c->shape[0] : 1;
      if (beta_ == 1 && rows == 1 && columns == gemm.n) {
        bias = c->data;
      } else {
        dispatch(FloatList{}, out.type, [&]<class T>() {
          const int64_t n = gemm.m * gemm.n;
          device::for_each_index(context.stream(), n,
                                 SpreadAddend<T>{c->as<const T>(), out.as<T>(), rows == 1 ? 0 : columns,
                                                 columns == 1 ? 0 : 1, gemm.ldc, device::Divider(gemm.n, n)});
        });
        gemm.beta = beta_;
      }
    }
    product(context, gemm, {a.data, b.data, bias, out.data}, activation_);
  }

 private:
  float alpha_, beta_;
  bool transpose_a_, transpose_b_, tf32_, constant_b_ = false;
  Activation activation_;
  RowPart part_;
};

}  // namespace

std::vector<OpRow> gemm_rows() {
  return {{.name = "Gemm", .since = 1, .types = {in(0, kFloats), in(1, kFloats), in(2, kFloats)}, .make = make<Gemm>}};
}

}  // namespace encore::ops
