// Where: one of two values. It only moves bytes.
#include "ops/elementwise/binary.h"

namespace encore::ops {
namespace {

struct Chosen {
  template <class T>
  DEVICE_FN T operator()(uint8_t condition, T yes, T no) const {
    return condition ? yes : no;
  }
};
class WhereOp : public Op {
 public:
  explicit WhereOp(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor &condition = context.input(0), &yes = context.input(1), &no = context.input(2);
    require(yes.type == no.type, "inputs have types ", device::name(yes.type), " and ", device::name(no.type));
    const Shape shape = broadcast(broadcast(condition.shape, yes.shape), no.shape);
    const Tensor y = context.output(0, shape);
    dispatch(TypeList<uint8_t, uint16_t, uint32_t, uint64_t>{}, of_size(device::size_bytes(yes.type)), [&]<class T> {
      transform_broadcast<T, uint8_t, T, T>(
          context.stream(), shape, y.data, Chosen{},
          {{condition.shape, condition.data}, {yes.shape, yes.data}, {no.shape, no.data}});
    });
  }

 private:
  static Type of_size(size_t bytes) {
    return bytes == 1   ? Type::u8
           : bytes == 2 ? Type::u16
           : bytes == 4 ? Type::u32
           : bytes == 8 ? Type::u64
                        : Type::undefined;
  }
};

}  // namespace

std::vector<OpRow> where_rows() {
  return {{.name = "Where",
           .since = 9,
           .types = {in(0, kBool), in(1, kFixedSize)},
           .make = make<WhereOp>,
           .may_reuse = {{1, 0}, {2, 0}}}};
}

}  // namespace encore::ops
