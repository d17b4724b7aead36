#include "fuse/residuals.h"

#include <algorithm>

#include "fuse/match.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// Of rows in two or three dimensions, along the last one, by constants of the same type.
bool is_norm(const Match& match, const ShapeSymbols& symbols, const Node& norm) {
  const NodeInfo& info = *norm.info;
  if (!norm.takable || !is_onnx(info, "LayerNormalization") || !kServed.has(info.input_type(0))) return false;
  const auto& dims = symbols.dims(norm.inputs[0]);
  if (!dims || dims->size() < 2 || dims->size() > 3 || dims->back().number < 1) return false;
  const int64_t axis = info.get_int("axis", -1);
  if (axis != -1 && axis != int64_t(dims->size()) - 1) return false;
  for (size_t i = 1; i < norm.outputs.size(); ++i)
    if (norm.outputs[i] >= 0) return false;
  for (size_t i = 1; i < norm.inputs.size(); ++i)
    if (norm.inputs[i] >= 0 &&
        (!match.value(norm.inputs[i]).is_constant || info.input_type(int(i)) != info.input_type(0) ||
         info.input_dims(int(i)) != std::vector{dims->back().number}))
      return false;
  return true;
}

// Of two computed values of surely the same shape.
bool is_residual(const Match& match, const ShapeSymbols& symbols, const Node& sum) {
  if (!sum.takable || !is_onnx(*sum.info, "Add")) return false;
  const int a = sum.inputs[0], b = sum.inputs[1];
  return !match.value(a).is_constant && !match.value(b).is_constant && symbols.dims(a) &&
         symbols.dims(a) == symbols.dims(b);
}

}  // namespace

std::vector<std::vector<int>> find_residuals(const Graph& graph, const ShapeSymbols& symbols) {
  const Match match(graph);
  std::vector<std::vector<int>> found;
  std::vector<bool> taken(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!is_norm(match, symbols, graph.nodes[n])) continue;
    const int sum = match.maker(graph.nodes[n].inputs[0]);
    if (sum < 0 || taken[size_t(sum)] || !is_residual(match, symbols, match.node(sum))) continue;
    taken[size_t(sum)] = true;
    found.push_back({sum, int(n)});
  }
  return found;
}

void join_residual(Plan& plan) {
  if (plan.steps.size() != 2 || !is_onnx(*plan.steps[0].node, "Add") ||
      !is_onnx(*plan.steps[1].node, "LayerNormalization"))
    return;
  Step &sum = plan.steps[0], &norm = plan.steps[1];
  const bool is_read = std::count(plan.outputs.begin(), plan.outputs.end(), sum.outputs[0]) > 0;
  Step both{
      std::make_unique<Variant>(*norm.node), sum.inputs, {norm.outputs[0], -1, -1, is_read ? sum.outputs[0] : -1}};
  both.node->set_operator(ops::kMicrosoft, "SkipLayerNormalization", 1);
  both.node->set_name(sum.node->name() + " and " + norm.node->name());
  both.node->set("epsilon", norm.node->get_float("epsilon", 1e-5f));
  const auto of_sum = sum.node->inputs();
  auto& slots = both.node->inputs();
  slots.erase(slots.begin());
  slots.insert(slots.begin(), of_sum.begin(), of_sum.end());
  both.inputs.insert(both.inputs.end(), norm.inputs.begin() + 1, norm.inputs.end());
  const Type type = norm.node->output_type(0);
  both.node->outputs() = {{true, type}, {}, {}, {is_read, type}};
  plan.steps.clear();
  plan.steps.push_back(std::move(both));
}

}  // namespace encore::fuse
