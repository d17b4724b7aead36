// Operators of one tensor, element by element.
#pragma once
#include <type_traits>

#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/elementwise/rough.h"
#include "ops/op.h"
#include "ops/registry.h"

namespace encore::ops {

// Calls f in the type to compute in; of half types f.rough(float), if it has that.
template <class F>
struct Computed {
  F f;
  template <class T>
  DEVICE_FN auto operator()(T x) const {
    if constexpr (kIsHalf<T> && requires(float v) { f.rough(v); })
      return f.rough(float(x));
    else
      return f(Compute<T>(x));
  }
};

// F is a functor for any Compute<T>, T of List; it reads its attributes, if it has any, from the node.
template <class F, class List>
class Unary : public Op {
 public:
  explicit Unary([[maybe_unused]] const NodeInfo& node) {
    if constexpr (std::is_constructible_v<F, const NodeInfo&>) f_ = F(node);
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    dispatch(List{}, x.type, [&]<class T> {
      device::transform(context.stream(), x.count(), y.as<T>(), Computed<F>{f_}, x.as<const T>());
    });
  }

 private:
  F f_;
};

template <class F, class List>
OpRow unary_row(const char* name, int since, Types types) {
  return {.name = name, .since = since, .types = {in(0, types)}, .make = make<Unary<F, List>>, .may_reuse = {{0, 0}}};
}

}  // namespace encore::ops
