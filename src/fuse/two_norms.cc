// Products whose rows are normed, added to a residual, and normed again, as Gemma has them: two norms of a row are one
// step with the product.
#include <algorithm>

#include "fuse/passes.h"
#include "ops/matmul/product_norm.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using enum ops::ProductNormInputs::Input;

// One of a product alone that takes no mean and adds nothing.
bool is_first(const Step& step) {
  const NodeInfo& info = *step.node;
  if (!is_product_norm(info) || info.get_int(ops::kCentred, 1) != 0) return false;
  for (const int input : {kBias, kResidual, kBeta, kAdded})
    if (step.inputs[input] >= 0) return false;
  return step.inputs.size() == kBehind && step.outputs.size() == 1;
}

// One of such a sum by a constant row like this one, with no other outputs than the rows and their sum.
bool is_second(const Match& match, int s, int gamma) {
  if (s < 0 || match.node(s).domain() != ops::kMicrosoft ||
      match.node(s).op_type() != "SkipSimplifiedLayerNormalization")
    return false;
  const Step& step = match.step(s);
  const Value &row = match.value(step.inputs[2]), &wanted = match.value(gamma);
  for (size_t i = 3; i < step.inputs.size(); ++i)
    if (step.inputs[i] >= 0) return false;
  for (size_t i : {1, 2})
    if (step.outputs.size() > i && step.outputs[i] >= 0) return false;
  return row.is_constant && row.type == wanted.type && row.dims == wanted.dims;
}

}  // namespace

// No path leaves both and comes back, for nobody else reads what the first norm makes.
void join_two_norms(Match& match, int norm) {
  const Step& first = match.step(norm);
  if (!is_first(first)) return;
  const int rows = first.outputs[0], s = match.only_reader(rows);
  if (!is_second(match, s, first.inputs[kGamma])) return;
  const Step& second = match.step(s);
  const int residual = match.other(s, rows);
  const Value &one = match.value(rows), &other = match.value(residual);
  if (residual == rows || !one.dims || one.dims != other.dims || one.type != other.type ||
      std::ranges::count(*one.dims, -1) > 0)
    return;
  std::vector<int> inputs = first.inputs, outputs{second.outputs[0]};
  inputs[kResidual] = residual;
  inputs[kGamma] = second.inputs[2];
  inputs.insert(inputs.end(), {-1, first.inputs[kGamma]});
  if (second.outputs.size() > 3 && second.outputs[3] >= 0) outputs.push_back(second.outputs[3]);
  Operator op = operator_of(*first.node);
  op.attributes[ops::kEpsilonAhead] = first.node->get_float("epsilon", 0);
  op.attributes["epsilon"] = second.node->get_float("epsilon", 1e-12f);
  Step made = match.plan().step(std::move(op), first.node->name() + " and " + second.node->name(), std::move(inputs),
                                std::move(outputs));
  made.make = first.make;
  match.replace({norm, s}, std::move(made));
}

}  // namespace encore::fuse
