// Dropout at inference: nothing is dropped.
#include "device/memory.h"
#include "ops/op.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

class Dropout : public Op {
 public:
  explicit Dropout(const NodeInfo& node) : mask_value_(node.since_version() >= 12 ? 1 : 0) {
    if (const Tensor* training = node.constant_input(2)) check_inference(*training);
  }
  void run(Context& context) const override {
    if (const Tensor* training = context.find_input(2)) check_inference(*training);
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    copy_bytes(context.stream(), x.data, y.data, int64_t(x.bytes()));
    if (!context.wants_output(1)) return;
    // All true; before opset 12 the reference leaves it at zero.
    const Tensor mask = context.output(1, x.shape);
    if (mask.bytes() > 0) device::fill(context.stream(), mask.data, mask_value_, mask.bytes());
  }

 private:
  static void check_inference(const Tensor& training) {
    require(training.type == Type::boolean && training.count() == 1, "training_mode must be one bool");
    if (*training.as<const bool>()) fail(Code::not_supported, "training_mode is true; only inference is supported");
  }
  unsigned char mask_value_;
};

}  // namespace

std::vector<OpRow> dropout_rows() {
  return {
      {.name = "Dropout", .since = 7, .until = 11, .types = {in(0, kFloats)}, .make = make<Dropout>, .alias = {{0, 0}}},
      {.name = "Dropout",
       .since = 12,
       .types = {in(0, kFloats)},
       .make = make<Dropout>,
       .host_inputs = {1, 2},
       .alias = {{0, 0}}},
  };
}

}  // namespace encore::ops
