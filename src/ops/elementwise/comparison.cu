// Comparisons and logic. Anything compared with NaN is false.
#include "ops/elementwise/binary.h"
#include "ops/elementwise/scalar_functions.h"

namespace encore::ops {
namespace {

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
  return {.name = name,
          .since = since,
          .types = {in(0, kNumbers)},
          .make = make<Binary<scalar::Ordered, NumberList, bool>>};
}
template <class F>
OpRow logic_row(const char* name) {
  return {.name = name, .since = 1, .types = {in(0, kBool)}, .make = make<Logic<F>>, .may_reuse = {{0, 0}, {1, 0}}};
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
      logic_row<scalar::Both>("And"),
      logic_row<scalar::Either>("Or"),
      logic_row<scalar::OneOnly>("Xor"),
  };
}

}  // namespace encore::ops
