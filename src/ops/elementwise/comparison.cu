// Comparisons and logic. Anything compared with NaN is false.
#include "ops/elementwise/binary.h"
#include "ops/elementwise/scalar_functions.h"

namespace encore::ops {
namespace {

// Integers are compared without their sign, its bit being flipped before if they have one.
struct OrderedWords : scalar::Ordered {
  bool is_signed;
  OrderedWords() = default;
  explicit OrderedWords(const NodeInfo& node) : Ordered(node), is_signed(kSigned.has(node.input_type(0))) {}
  template <class T>
  DEVICE_FN bool operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      const T flip = sign_bit<T>(is_signed);
      return Ordered::operator()(T(a ^ flip), T(b ^ flip));
    } else {
      return Ordered::operator()(a, b);
    }
  }
};

// And, Or and Xor share their kernels.
struct Logical {
  bool of_both, of_one;  // what comes of two that are true, and of one
  DEVICE_FN uint8_t operator()(uint8_t a, uint8_t b) const {
    const bool both = a && b, one = !a != !b;
    return (both & of_both) | (one & of_one);
  }
};
class Logic : public Op {
 public:
  explicit Logic(const NodeInfo& node) : early_(node), f_{node.op_type() != "Xor", node.op_type() != "And"} {}
  void run(Context& context) const override {
    const Tensor &a = context.input(0), &b = context.input(1);
    const Shape b_shape = early_.aligned(a.shape, b.shape), shape = broadcast(a.shape, b_shape);
    const Tensor y = context.output(0, shape);
    transform_broadcast<uint8_t, uint8_t, uint8_t>(context.stream(), shape, y.data, f_,
                                                   {{a.shape, a.data}, {b_shape, b.data}});
  }

 private:
  EarlyBroadcast early_;
  Logical f_;
};

OpRow order_row(const char* name, int since) {
  return {.name = name, .since = since, .types = {in(0, kNumbers)}, .make = make<Binary<OrderedWords, WordList, bool>>};
}
OpRow logic_row(const char* name) {
  return {.name = name, .since = 1, .types = {in(0, kBool)}, .make = make<Logic>, .may_reuse = {{0, 0}, {1, 0}}};
}

}  // namespace

std::vector<OpRow> comparison_rows() {
  return {
      {.name = "Equal",
       .since = 1,
       .types = {in(0, kNumbers | kBool)},
       .make = make<Binary<scalar::Same, WordList, bool>>},
      order_row("Greater", 1),
      order_row("GreaterOrEqual", 12),
      order_row("Less", 1),
      order_row("LessOrEqual", 12),
      logic_row("And"),
      logic_row("Or"),
      logic_row("Xor"),
  };
}

}  // namespace encore::ops
