// HardSwish and HardSigmoid as exporters spell them: x + 3, kept from 0 to 6.
#include <utility>

#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed{Type::f16, Type::f32};

// The step that alone reads the value, and takes a sixth of it.
int sixth_of(const Match& match, int v) {
  const int s = match.only_reader(v);
  const auto by = s < 0 ? std::nullopt : match.scaled(s);
  return by && by->from == v && is_about(by->factor, 1. / 6, match.value(v).type) ? s : -1;
}

// The one that alone reads it, and multiplies it by x.
int product_of(const Match& match, int v, int x) {
  const int s = match.only_reader(v, "Mul");
  return s >= 0 && match.other(s, v) == x ? s : -1;
}

}  // namespace

void join_hard_swish(Match& match, int sum) {
  const auto raised = match.shifted(sum);
  if (!raised || raised->by != 3) return;
  const int x = raised->from, above = match.step(sum).outputs[0];
  if (!kServed.has(match.value(x).type) || match.value(x).dims != match.value(above).dims) return;
  const auto clip = ending_of(match, above);
  if (!clip || clip->activation != "Clip" || clip->params != std::vector<float>{0, 6}) return;
  const int kept = match.step(clip->steps[0]).outputs[0];
  const auto put = [&](std::vector<int> steps, Operator made) {
    const std::vector<int> outputs = match.step(steps.back()).outputs;
    const std::string name = match.node(sum).name() + " to " + match.node(steps.back()).name();
    match.replace(std::move(steps), match.plan().step(std::move(made), name, {x}, outputs));
  };
  const Operator swish{ops::kOnnx, "HardSwish", 14};
  if (const int product = product_of(match, kept, x); product >= 0) {
    const int sixth = sixth_of(match, match.step(product).outputs[0]);
    if (sixth >= 0) put({sum, clip->steps[0], product, sixth}, swish);
    return;
  }
  const int sixth = sixth_of(match, kept);
  if (sixth < 0) return;
  if (const int product = product_of(match, match.step(sixth).outputs[0], x); product >= 0)
    return put({sum, clip->steps[0], sixth, product}, swish);
  put({sum, clip->steps[0], sixth}, {ops::kOnnx, "HardSigmoid", 6, {{"alpha", 1 / 6.f}, {"beta", 0.5f}}});
}

}  // namespace encore::fuse
