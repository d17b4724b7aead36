// com.microsoft's GemmFloat8: y = activation(alpha * scale_a * scale_b * a b + beta * c) * scale_y, where a and b may
// be floats of eight bits.
//
// The device's products of such floats are used where there are any for the problem. Elsewhere a and b become halves,
// or what else holds both of them exactly. What is left to do is done in float at the end.
#include <string>
#include <utility>

#include "device/divide.h"
#include "device/float8_product.h"
#include "device/transform.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/elementwise/gelu.h"
#include "ops/matmul/product.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Float8E4M3;
using device::Float8E5M2;
using device::Pack;

constexpr Types kFloat8s{Type::f8e4m3, Type::f8e5m2}, kWide{Type::f16, Type::bf16, Type::f32};

bool is_float8(Type type) { return type == Type::f8e4m3 || type == Type::f8e5m2; }

struct Widen {
  template <class T>
  DEVICE_FN float operator()(T value) const {
    return float(value);
  }
};

// A value of any of kWide.
struct Addend {
  const void* data;
  Type type;
  DEVICE_FN float at(int64_t i) const {
    switch (type) {
      case Type::f16: return float(static_cast<const Half*>(data)[i]);
      case Type::bf16: return float(static_cast<const BFloat16*>(data)[i]);
      default: return static_cast<const float*>(data)[i];
    }
  }
};

enum class Activation { none, relu, gelu };

// An index finishes kPack products.
template <class T>
struct Finish {
  static constexpr int kPack = 4;
  const float* products;
  T* y;
  int64_t count;
  const float *scale_a, *scale_b, *scale_y;  // or null
  float beta;
  Addend c;  // or none
  int64_t c_row, c_column;
  device::Divider by_columns;
  Activation activation;
  bool aligned;

  DEVICE_FN void operator()(int64_t i) const {
    const int64_t first = i * kPack;
    const int there = count - first < kPack ? int(count - first) : kPack;
    const auto sums = device::load_pack<kPack>(products + first, aligned, there);
    const float scale = (scale_a ? *scale_a : 1.f) * (scale_b ? *scale_b : 1.f), after = scale_y ? *scale_y : 1.f;
    Pack<T, kPack> made;
    UNROLL for (int j = 0; j < kPack; ++j) {
      float value = sums.at[j] * scale;
      if (c.data && j < there) {
        int64_t column;
        const int64_t row = by_columns(first + j, column);
        value += beta * c.at(row * c_row + column * c_column);
      }
      if (activation == Activation::relu) value = value < 0 ? 0.f : value;
      if (activation == Activation::gelu) value = GeluByTanh()(value);
      made.at[j] = T(value * after);
    }
    device::store_pack(y + first, made, aligned, there);
  }
};

class GemmFloat8 : public Op {
 public:
  explicit GemmFloat8(const NodeInfo& node)
      : alpha_(node.get_float("alpha", 1)),
        beta_(node.get_float("beta", 0)),
        transpose_a_(node.get_int("transA", 0) != 0),
        transpose_b_(node.get_int("transB", 0) != 0),
        tf32_(node.settings.use_tf32),
        type_(device::numbered_type(node.get_int("dtype", int64_t(Type::f32))).value_or(Type::undefined)) {
    activation_ =
        read_choice<Activation>(node, "activation", "NONE",
                                {{"NONE", Activation::none}, {"RELU", Activation::relu}, {"GELU", Activation::gelu}});
    require(type_ == Type::f32 || type_ == Type::f16 || type_ == Type::bf16 || is_float8(type_), "dtype is ",
            node.get_int("dtype", 1), "; it must be float, float16, bfloat16, float8e4m3fn or float8e5m2");
  }

  void run(Context& context) const override {
    const Tensor &a = context.input(0), &b = context.input(1);
    const Tensor* c = context.find_input(2);
    device::Gemm gemm = product_of(a, b, transpose_a_, transpose_b_, c);
    if (beta_ == 0) c = nullptr;
    const float *const scale_a = scale(context, 3, "scaleA"), *const scale_b = scale(context, 4, "scaleB"),
                       *const scale_y = scale(context, 5, "scaleY");
    const Tensor y = context.output(0, Shape{gemm.m, gemm.n});
    require(y.type == type_, "Y is ", device::name(y.type), ", and dtype says ", device::name(type_));
    if (y.count() == 0) return;

    const bool plain = !c && activation_ == Activation::none && !scale_y;
    ScratchWorkspace workspace(context);
    if (!transpose_a_ && transpose_b_) {
      float* products = nullptr;
      device::Float8Product product{a.type, b.type, Type::f32, gemm.m, gemm.n, gemm.k, alpha_};
      device::Float8Operands at{a.data, b.data, nullptr, scale_a, scale_b};
      const bool direct = plain && !is_float8(type_);
      if (direct) product.output = type_, at.c = y.data;
      if (device::takes(context.stream().device(), product, at)) {
        if (!direct) at.c = products = products_of(context, y);
        device::multiply(context.stream(), product, at, workspace);
        if (!direct) finish(context, products, y, nullptr, nullptr, scale_y, c);
        return;
      }
    }

    gemm.type = common_type(a.type, b.type);
    gemm.alpha = alpha_;
    gemm.tf32 = tf32_;
    const bool direct = plain && !scale_a && !scale_b && (type_ == gemm.type || type_ == Type::f32);
    gemm.output = direct ? type_ : Type::f32;
    void* const products = direct ? y.data : products_of(context, y);
    const void *const left = as(context, a, gemm.type), *const right = as(context, b, gemm.type);
    context.blas().gemm(context.stream(), gemm, left, right, products, nullptr, workspace);
    if (!direct) finish(context, static_cast<const float*>(products), y, scale_a, scale_b, scale_y, c);
  }

 private:
  static const float* scale(Context& context, int i, const char* name) {
    const Tensor* const given = context.find_input(i);
    if (!given) return nullptr;
    require(given->count() == 1, name, " has shape ", given->shape.str(), "; one number is wanted");
    return given->as<const float>();
  }
  static float* products_of(Context& context, const Tensor& y) {
    return static_cast<float*>(context.scratch(device::size_bytes(Type::f32, y.count())));
  }

  // The narrowest type of kWide that holds the values of both.
  static Type common_type(Type a, Type b) {
    if (is_float8(a)) std::swap(a, b);
    if (is_float8(a)) return Type::f16;
    return is_float8(b) || a == b ? a : Type::f32;
  }
  // x as values of the type, which holds them.
  static const void* as(Context& context, const Tensor& x, Type type) {
    if (x.type == type || x.count() == 0) return x.data;
    void* const made = context.scratch(device::size_bytes(type, x.count()));
    dispatch(TypeList<Half, BFloat16, float>{}, type, [&]<class To> {
      dispatch(TypeList<Float8E4M3, Float8E5M2, Half, BFloat16>{}, x.type, [&]<class From> {
        if constexpr (sizeof(From) < sizeof(To))
          device::transform(context.stream(), x.count(), static_cast<To*>(made), Widen(), x.as<const From>());
      });
    });
    return made;
  }

  void finish(Context& context, const float* products, const Tensor& y, const float* scale_a, const float* scale_b,
              const float* scale_y, const Tensor* c) const {
    const int64_t columns = c && c->shape.rank() > 0 ? c->shape.back() : 1,
                  rows = c && c->shape.rank() > 1 ? c->shape[0] : 1;
    dispatch(TypeList<Half, BFloat16, float, Float8E4M3, Float8E5M2>{}, y.type, [&]<class T> {
      constexpr int kPack = Finish<T>::kPack;
      T* const to = y.as<T>();
      device::for_each_index(context.stream(), (y.count() + kPack - 1) / kPack,
                             Finish<T>{products,
                                       to,
                                       y.count(),
                                       scale_a,
                                       scale_b,
                                       scale_y,
                                       beta_,
                                       {c ? c->data : nullptr, c ? c->type : Type::f32},
                                       rows == 1 ? 0 : columns,
                                       columns == 1 ? 0 : 1,
                                       device::Divider(y.shape[1], y.count()),
                                       activation_,
                                       device::is_pack_aligned<kPack>(to) && device::is_pack_aligned<kPack>(products)});
    });
  }

  float alpha_, beta_;
  bool transpose_a_, transpose_b_, tf32_;
  Type type_;
  Activation activation_;
};

}  // namespace

std::vector<OpRow> gemm_float8_rows() {
  const Types operands = kWide | kFloat8s, scales{Type::f32};
  return {{.domain = kMicrosoft,
           .name = "GemmFloat8",
           .since = 1,
           .types = {in(0, operands), in(1, operands), in(2, kWide), in(3, scales), in(4, scales), in(5, scales),
                     out(0, operands)},
           .make = make<GemmFloat8>}};
}

}  // namespace encore::ops
