#include "fuse/biases.h"

#include <algorithm>

#include "fuse/match.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// Which input of a sum is the other one.
size_t other(const std::vector<int>& inputs, int value) { return inputs[0] == value ? 1 : 0; }

// Version 7 is the first that broadcasts as today.
bool is_sum(const NodeInfo& info) { return is_onnx(info, "Add") && info.since_version() >= 7; }

// One row of so many columns, with no more dimensions than the product has.
bool is_row(const std::optional<std::vector<int64_t>>& dims, int64_t columns, size_t rank) {
  return dims && !dims->empty() && dims->size() <= rank && dims->back() == columns &&
         std::all_of(dims->begin(), dims->end() - 1, [](int64_t dim) { return dim == 1; });
}

}  // namespace

std::vector<std::vector<int>> find_biases(const Graph& graph) {
  const Match match(graph);
  std::vector<std::vector<int>> found;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& product = graph.nodes[n];
    if (!product.takable || !is_onnx(*product.info, "MatMul") || !kServed.has(product.info->input_type(0))) continue;
    const int rows = product.outputs[0], reader = match.only_reader(rows);
    const Value& factor = match.value(product.inputs[1]);
    if (reader < 0 || !is_sum(*match.node(reader).info) || !factor.is_constant || match.rank(product.inputs[1]) != 2u)
      continue;
    const Node& sum = match.node(reader);
    const size_t at = other(sum.inputs, rows);
    if (match.value(sum.inputs[at]).is_constant &&
        is_row(sum.info->input_dims(int(at)), factor.dims->back(), match.rank(rows).value_or(1)))
      found.push_back({int(n), reader});
  }
  return found;
}

void join_bias(Plan& plan) {
  if (plan.steps.size() != 2 || !is_onnx(*plan.steps[0].node, "MatMul") || !is_sum(*plan.steps[1].node)) return;
  Step& product = plan.steps[0];
  const Step& sum = plan.steps[1];
  const size_t at = other(sum.inputs, product.outputs[0]);
  product.inputs.push_back(sum.inputs[at]);
  product.node->inputs().push_back({true, sum.node->input_type(int(at)), sum.node->input_dims(int(at))});
  product.node->set_name(product.node->name() + " and " + sum.node->name());
  product.outputs = sum.outputs;
  plan.steps.pop_back();
}

}  // namespace encore::fuse
