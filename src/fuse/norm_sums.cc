// Norms whose rows are added to a residual, as models have them that norm what each block makes: the norm adds it as it
// writes its rows.
#include <algorithm>

#include "fuse/passes.h"
#include "ops/matmul/product_norm.h"
#include "ops/norm/row_norm.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

// Which input of the step is what it adds to the rows that it has normed; 0: it is no norm.
size_t behind_of(const Match& match, int s) {
  constexpr const char* kNorms[] = {"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"};
  if (std::ranges::any_of(kNorms, [&](const char* op) { return match.is(s, op); })) return ops::kBehindNorm;
  return is_product_norm(match.node(s)) ? ops::ProductNormInputs::kBehind : 0;
}

}  // namespace

// No path leaves both and comes back, for nobody else reads what the norm makes.
void join_norm_sum(Match& match, int norm) {
  const Step& step = match.step(norm);
  const size_t behind = behind_of(match, norm);
  if (behind == 0 || step.inputs.size() > behind) return;
  const int y = step.outputs[0], sum = match.only_reader(y, "Add"), residual = residual_of(match, sum, y);
  if (residual < 0 || is_elementwise_for(match, residual) ||
      !std::all_of(step.outputs.begin() + 1, step.outputs.end(), [](int v) { return v < 0; }))
    return;
  std::vector<int> inputs = step.inputs;
  inputs.resize(behind, -1);
  inputs.push_back(residual);
  Step made = match.plan().step(operator_of(*step.node), step.node->name() + " and " + match.node(sum).name(),
                                std::move(inputs), match.step(sum).outputs);
  made.make = step.make;
  match.replace({norm, sum}, std::move(made));
}

}  // namespace encore::fuse
