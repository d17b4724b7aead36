// Comparisons and logic. Anything compared with NaN is false.
#include "ops/elementwise/binary.h"

namespace encore::ops {
namespace {

struct Same {
  template <class T>
  DEVICE_FN bool operator()(T a, T b) const {
    return a == b;
  }
};
// The four orders share their kernels.
struct Ordered {
  bool descending, or_equal;
  Ordered() = default;
  explicit Ordered(const NodeInfo& node)
      : descending(node.op_type().starts_with("Greater")), or_equal(node.op_type().ends_with("OrEqual")) {}
  template <class T>
  DEVICE_FN bool operator()(T a, T b) const {
    const bool strictly = descending ? b < a : a < b;
    return strictly || (or_equal && a == b);
  }
};
struct Both {
  DEVICE_FN uint8_t operator()(uint8_t a, uint8_t b) const { return a && b; }
};
struct Either {
  DEVICE_FN uint8_t operator()(uint8_t a, uint8_t b) const { return a || b; }
};
struct OneOnly {
  DEVICE_FN uint8_t operator()(uint8_t a, uint8_t b) const { return !a != !b; }
};

template <class F>
class Logic : public Op {
 public:
  explicit Logic(const NodeInfo& node) : early_(node) {}
  void run(Context& context) const override {
    const Tensor &a = context.input(0), &b = context.input(1);
    const Shape b_shape = early_.aligned(a.shape, b.shape), shape = broadcast(a.shape, b_shape);
    const Tensor y = context.output(0, shape);
    transform_broadcast<uint8_t, uint8_t, uint8_t>(context.stream(), shape, y.data, F{},
                                                   {{a.shape, a.data}, {b_shape, b.data}});
  }

 private:
  EarlyBroadcast early_;
};

OpRow order_row(const char* name, int since) {
  return {.name = name, .since = since, .types = {in(0, kNumbers)}, .make = make<Binary<Ordered, NumberList, bool>>};
}
template <class F>
OpRow logic_row(const char* name) {
  return {.name = name, .since = 1, .types = {in(0, kBool)}, .make = make<Logic<F>>, .may_reuse = {{0, 0}, {1, 0}}};
}

}  // namespace

std::vector<OpRow> comparison_rows() {
  return {
      {.name = "Equal", .since = 1, .types = {in(0, kNumbers | kBool)}, .make = make<Binary<Same, WordList, bool>>},
      order_row("Greater", 1),
      order_row("GreaterOrEqual", 12),
      order_row("Less", 1),
      order_row("LessOrEqual", 12),
      logic_row<Both>("And"),
      logic_row<Either>("Or"),
      logic_row<OneOnly>("Xor"),
  };
}

}  // namespace encore::ops
