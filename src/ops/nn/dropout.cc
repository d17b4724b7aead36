// Dropout: at inference nothing is dropped.
#include "ops/nn/dropout.h"
#include "device/memory.h"
#include "ops/dispatch.h"
#include "ops/op.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

class Dropout : public Op {
 public:
  explicit Dropout(const NodeInfo& node)
      : mask_value_(node.since_version() >= 12 ? 1 : 0), trains_(node.since_version() >= 12 && node.has_input(2)) {
    if (node.since_version() < 7 && node.get_int("is_test", 0) == 0)
      fail(Code::not_supported, "is_test is 0; dropping at random is supported from opset 12 on");
    if (const Tensor* training = node.constant_input(2)) trains_ = drops_at_random(*training);
    if (const Tensor* ratio = node.constant_input(1)) dropout_ratio(*ratio);
    if (!trains_) return;
    const std::optional<int64_t> seed = node.find_int("seed");
    runs_.emplace(seed ? std::optional<uint64_t>(*seed) : std::nullopt);
  }
  void prepare(Prepack& prepack) override {
    if (runs_) runs_->prepare(prepack);
  }
  void run(Context& context) const override {
    const Tensor *ratio = context.find_input(1), *training = context.find_input(2);
    const float share = ratio ? dropout_ratio(*ratio) : 0.5f;
    const bool drops = training && drops_at_random(*training) && share > 0;
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    const Tensor mask = context.wants_output(1) ? context.output(1, x.shape) : Tensor();
    if (drops) return apply_dropout(context, *runs_, share, x, y, mask.as<uint8_t>());
    copy_bytes(context.stream(), x.data, y.data, int64_t(x.bytes()));
    // All true; before opset 12 the reference leaves it at zero.
    if (mask.data && mask.bytes() > 0) device::fill(context.stream(), mask.data, mask_value_, mask.bytes());
  }

 private:
  unsigned char mask_value_;
  bool trains_;                     // or may, if only a run can tell
  std::optional<RandomRuns> runs_;  // if it trains
};

}  // namespace

std::vector<OpRow> dropout_rows() {
  return {
      {.name = "Dropout", .since = 1, .until = 11, .types = {in(0, kFloats)}, .make = make<Dropout>, .alias = {{0, 0}}},
      // What is dropped does not come back, so x is overwritten only if nobody else reads it.
      {.name = "Dropout",
       .since = 12,
       .types = {in(0, kFloats)},
       .make = make<Dropout>,
       .host_inputs = {1, 2},
       .may_reuse = {{0, 0}}},
  };
}

}  // namespace encore::ops
