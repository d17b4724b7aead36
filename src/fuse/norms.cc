#include "fuse/norms.h"

#include <algorithm>

#include "ops/quantize/matmul_nbits.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr size_t kSum = 3;  // an output

bool adds_a_skip(const NodeInfo& info) {
  return info.op_type() == "SkipSimplifiedLayerNormalization" && info.domain() == ops::kMicrosoft;
}

// One that takes the root of the mean square along the last dimension.
bool is_norm(const NodeInfo& info) {
  if (adds_a_skip(info)) return true;
  return (info.op_type() == "SimplifiedLayerNormalization" || info.op_type() == "RMSNormalization") &&
         info.domain().empty() && info.get_int("axis", -1) == -1;
}

// Of halves and by a constant row, with no other outputs than the rows and their sum.
bool suits(const Graph& graph, const Node& norm, int64_t width) {
  const size_t gamma = adds_a_skip(*norm.info) ? 2 : 1;
  if (norm.inputs.size() <= gamma || norm.inputs[gamma] < 0) return false;
  for (size_t i = 1; i < norm.outputs.size(); ++i)
    if (i != kSum && norm.outputs[i] >= 0) return false;
  return graph.values[size_t(norm.inputs[gamma])].is_constant && ops::kHalves.has(norm.info->input_type(0)) &&
         norm.info->input_type(int(gamma)) == norm.info->input_type(0) &&
         norm.info->input_dims(int(gamma)) == std::vector{width};
}

bool has_constant_weights(const Graph& graph, const Node& product) {
  return std::all_of(product.inputs.begin() + 1, product.inputs.end(),
                     [&](int value) { return value < 0 || graph.values[size_t(value)].is_constant; });
}

}  // namespace

bool is_quantized_product(const NodeInfo& info) {
  return info.op_type() == "MatMulNBits" && info.domain() == ops::kMicrosoft;
}

int norm_before(const Graph& graph, const std::vector<int>& producers, const std::vector<std::vector<int>>& consumers,
                const std::vector<int>& products) {
  const Node& first = graph.nodes[size_t(products[0])];
  const int rows = first.inputs[0], found = rows < 0 ? -1 : producers[size_t(rows)];
  if (found < 0 || graph.values[size_t(rows)].is_output || consumers[size_t(rows)].size() != products.size()) return -1;
  for (int n : products) {
    const Node& product = graph.nodes[size_t(n)];
    if (!product.takable || !is_quantized_product(*product.info) || product.inputs[0] != rows ||
        !has_constant_weights(graph, product))
      return -1;
  }
  const Node& norm = graph.nodes[size_t(found)];
  const bool fits =
      norm.takable && is_norm(*norm.info) && norm.outputs[0] == rows && suits(graph, norm, first.info->get_int("K", 0));
  return fits ? found : -1;
}

std::vector<std::vector<int>> find_norms(const Graph& graph) {
  const std::vector<int> producers = graph.producers();
  const std::vector<std::vector<int>> consumers = graph.consumers();
  std::vector<std::vector<int>> found;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (is_quantized_product(*graph.nodes[n].info))
      if (const int norm = norm_before(graph, producers, consumers, {int(n)}); norm >= 0)
        found.push_back({norm, int(n)});
  return found;
}

void join_norm(Plan& plan) {
  const auto norm =
      std::find_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return is_norm(*step.node); });
  if (norm == plan.steps.end()) return;
  const auto product = std::find_if(norm, plan.steps.end(), [&](const Step& step) {
    return is_quantized_product(*step.node) && step.inputs[0] == norm->outputs[0];
  });
  if (product == plan.steps.end()) return;
  const std::shared_ptr<Variant> of_norm = std::move(norm->node), of_product = std::move(product->node);
  Step both{std::make_unique<Variant>(*of_product), norm->inputs, product->outputs,
            [=](const NodeInfo&) { return ops::make_normed_product(*of_norm, *of_product); }};
  both.node->set_operator("", of_norm->op_type() + " and " + of_product->op_type(), 1);
  both.node->set_name(of_norm->name() + " and " + of_product->name());
  both.inputs.insert(both.inputs.end(), product->inputs.begin() + 1, product->inputs.end());
  if (norm->outputs.size() > kSum && norm->outputs[kSum] >= 0) {
    both.outputs.push_back(norm->outputs[kSum]);
    both.node->outputs().push_back({true, of_norm->output_type(kSum)});
  }
  *product = std::move(both);
  plan.steps.erase(norm);
}

}  // namespace encore::fuse
