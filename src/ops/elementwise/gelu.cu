// The Gelu family of com.microsoft, with the bias that some of them add first.
#include "ops/dispatch.h"
#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/curves.h"
#include "ops/elementwise/gelu.h"
#include "ops/elementwise/unary.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

struct Quick {
  float alpha;
  Quick() = default;
  explicit Quick(const NodeInfo& node) : alpha(node.get_float("alpha", 1.702f)) {}
  template <class C>
  DEVICE_FN C operator()(C x) const {
    return silu(x, C(alpha));
  }
  DEVICE_FN float rough(float x) const { return rough_silu(x, alpha); }
};

// f(x + bias) in the type to compute in.
template <class F>
struct Biased {
  F f;
  template <class T>
  DEVICE_FN auto operator()(T x) const {
    return Computed<F>{f}(x);
  }
  template <class C>
  DEVICE_FN C operator()(C x, C bias) const {
    return f(x + bias);
  }
  DEVICE_FN float rough(float x, float bias) const { return f.rough(x + bias); }
};

template <class F>
class Gelu : public Op {
 public:
  explicit Gelu([[maybe_unused]] const NodeInfo& node) {
    if constexpr (std::is_constructible_v<F, const NodeInfo&>) f_ = {F(node)};
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor* bias = context.find_input(1);
    if (bias) {
      require(x.shape.rank() > 0, "the input is a scalar, to which no bias can be added");
      require(bias->shape == Shape{x.shape.back()}, "bias has shape ", bias->shape.str(), "; input ", x.shape.str(),
              " wants [", x.shape.back(), "]");
    }
    const Tensor y = context.output(0, x.shape);
    dispatch(FloatList{}, x.type, [&]<class T> {
      if (bias)
        transform_broadcast<T, T, T>(context.stream(), x.shape, y.data, f_,
                                     {{x.shape, x.data}, {bias->shape, bias->data}});
      else
        device::transform(context.stream(), x.count(), y.as<T>(), f_, x.as<const T>());
    });
  }

 private:
  Biased<F> f_;
};

template <class F>
OpRow gelu_row(const char* name) {
  return {.domain = kMicrosoft,
          .name = name,
          .since = 1,
          .types = {in(0, kFloats)},
          .make = make<Gelu<F>>,
          .may_reuse = {{0, 0}}};
}

}  // namespace

std::vector<OpRow> gelu_rows() {
  return {gelu_row<GeluByErf>("Gelu"), gelu_row<GeluByErf>("BiasGelu"), gelu_row<GeluByTanh>("FastGelu"),
          gelu_row<Quick>("QuickGelu")};
}

}  // namespace encore::ops
