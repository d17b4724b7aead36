// Operators of two tensors under NumPy's broadcasting, element by element.
#pragma once
#include <type_traits>

#include "ops/dispatch.h"
#include "ops/elementwise/broadcast.h"
#include "ops/registry.h"

namespace encore::ops {

// Every type once, where signed and unsigned integers give the same bits.
using WordList = TypeList<float, Half, BFloat16, double, uint8_t, uint16_t, uint32_t, uint64_t>;

// F is a functor for any two Compute<T>, T of List. Out is the output's type if it is not T.
template <class F, class List, class Out = void>
class Binary : public Op {
 public:
  explicit Binary([[maybe_unused]] const NodeInfo& node) {
    if constexpr (std::is_constructible_v<F, const NodeInfo&>) f_ = F(node);
  }
  void run(Context& context) const override {
    const Tensor &a = context.input(0), &b = context.input(1);
    require(a.type == b.type, "inputs have types ", device::name(a.type), " and ", device::name(b.type));
    const Shape shape = broadcast(a.shape, b.shape);
    const Tensor y = context.output(0, shape);
    F f = f_;
    if constexpr (requires { f.fault; }) f.fault = context.fault();
    const Type type = std::is_same_v<List, WordList> ? as_unsigned(a.type) : a.type;
    dispatch(List{}, type, [&]<class T> {
      using Result = std::conditional_t<std::is_void_v<Out>, T, Out>;
      transform_broadcast<Result, T, T>(context.stream(), shape, y.data, f, {{a.shape, a.data}, {b.shape, b.data}});
    });
  }

 private:
  F f_;
};

template <class F, class List>
OpRow binary_row(const char* name, int since, Types types) {
  return {.name = name,
          .since = since,
          .types = {in(0, types)},
          .make = make<Binary<F, List>>,
          .may_reuse = {{0, 0}, {1, 0}}};
}

}  // namespace encore::ops
