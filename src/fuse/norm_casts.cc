// Norms and reductions in float of halves, of which halves are made.
#include <algorithm>

#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {

// No path leaves them and comes back, for nobody else reads what is between, and scale and bias are constants.
void join_norm_casts(Match& match, int norm) {
  if (!match.is(norm, "LayerNormalization") && !match.is(norm, "RMSNormalization")) return;
  const Step& step = match.step(norm);
  const int y = step.outputs[0], narrowed = match.only_reader(y, "Cast");
  if (narrowed < 0 || match.value(y).type != Type::f32 || step.inputs.size() < 2 ||
      !std::all_of(step.outputs.begin() + 1, step.outputs.end(), [](int v) { return v < 0; }) ||
      !std::all_of(step.inputs.begin() + 1, step.inputs.end(),
                   [&](int v) { return v < 0 || (match.value(v).is_constant && match.value(v).type == Type::f32); }))
    return;
  const int widened = match.value(step.inputs[0]).type == Type::f32 ? match.maker(step.inputs[0], "Cast") : -1;
  std::vector<int> inputs = step.inputs;
  if (widened >= 0) inputs[0] = match.step(widened).inputs[0];
  const Type type = match.value(inputs[0]).type;
  if (!ops::kHalves.has(type) || match.value(match.step(narrowed).outputs[0]).type != type) return;
  match.replace({norm, narrowed}, match.plan().step(operator_of(match.node(norm)), match.node(norm).name(),
                                                    std::move(inputs), match.step(narrowed).outputs));
  if (widened >= 0) drop_unread(match, widened);
}

// Those of halves add up floats, and round once.
void join_reduction_casts(Match& match, int reduction) {
  constexpr const char* kThose[] = {"ReduceSum", "ReduceMean", "ReduceL2", "ReduceMax", "ReduceMin"};
  if (!std::ranges::any_of(kThose, [&](const char* op) { return match.is(reduction, op); })) return;
  const Step& step = match.step(reduction);
  const int widened = match.maker(step.inputs[0], "Cast"), narrowed = match.only_reader(step.outputs[0], "Cast");
  if (widened < 0 || narrowed < 0 || match.value(step.inputs[0]).type != Type::f32) return;
  std::vector<int> inputs = step.inputs;
  inputs[0] = match.step(widened).inputs[0];
  const Type type = match.value(inputs[0]).type;
  if (!ops::kHalves.has(type) || match.value(match.step(narrowed).outputs[0]).type != type) return;
  match.replace({reduction, narrowed}, match.plan().step(operator_of(*step.node), step.node->name(), std::move(inputs),
                                                         match.step(narrowed).outputs));
  drop_unread(match, widened);
}

}  // namespace encore::fuse
