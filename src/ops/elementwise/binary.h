// Operators of two tensors under NumPy's broadcasting, element by element.
#pragma once
#include <optional>
#include <type_traits>

#include "ops/dispatch.h"
#include "ops/elementwise/broadcast.h"
#include "ops/registry.h"

namespace encore::ops {

// Every type once, where signed and unsigned integers give the same bits.
using WordList = TypeList<float, Half, BFloat16, double, uint8_t, uint16_t, uint32_t, uint64_t>;

template <class List>
inline constexpr bool kIsSignless = std::is_same_v<List, WordList> || std::is_same_v<List, UnsignedList>;
// What flipped makes unsigned words have the order of signed ones.
template <class T>
DEVICE_FN T sign_bit(bool is_signed) {
  return T(T(is_signed) << (8 * sizeof(T) - 1));
}

// Broadcasting as it was before opset 7: not at all unless asked for, and then b has one element, or the dimensions
// that a has from `axis` on, or the last ones.
class EarlyBroadcast {
 public:
  explicit EarlyBroadcast(const NodeInfo& node)
      : applies_(node.domain() == kOnnx && node.since_version() < 7),
        allowed_(node.get_int("broadcast", 0) != 0),
        axis_(node.find_int("axis")) {}
  // The shape of b, with dimensions of 1 put behind it so that today's rule does the same.
  Shape aligned(const Shape& a, const Shape& b) const;

 private:
  bool applies_, allowed_;
  std::optional<int64_t> axis_;
};

// F is a functor for any two Compute<T>, T of List, or has one for each: of<T>(). Out is the output's type if it is not
// T.
template <class F, class List, class Out = void>
class Binary : public Op {
 public:
  explicit Binary(const NodeInfo& node) : early_(node), f_(made_of(node)) {}
  void run(Context& context) const override {
    const Tensor &a = context.input(0), &b = context.input(1);
    require(a.type == b.type, "inputs have types ", device::name(a.type), " and ", device::name(b.type));
    const Shape b_shape = early_.aligned(a.shape, b.shape), shape = broadcast(a.shape, b_shape);
    const Tensor y = context.output(0, shape);
    F f = f_;
    if constexpr (requires { f.fault; }) f.fault = context.fault();
    const Type type = kIsSignless<List> ? as_unsigned(a.type) : a.type;
    dispatch(List{}, type, [&]<class T> {
      using Result = std::conditional_t<std::is_void_v<Out>, T, Out>;
      const auto launch = [&](auto f) {
        transform_broadcast<Result, T, T>(context.stream(), shape, y.data, f, {{a.shape, a.data}, {b_shape, b.data}});
      };
      if constexpr (kHasOneForEach)
        launch(f.template of<T>());
      else
        launch(f);
    });
  }

 private:
  static constexpr bool kHasOneForEach = requires(F f) { f.template of<float>(); };
  static F made_of([[maybe_unused]] const NodeInfo& node) {
    if constexpr (std::is_constructible_v<F, const NodeInfo&>)
      return F(node);
    else
      return F();
  }

  EarlyBroadcast early_;
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
