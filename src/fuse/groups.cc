#include "fuse/groups.h"

#include <algorithm>

#include "fuse/biases.h"
#include "fuse/gates.h"
#include "fuse/gelu.h"
#include "fuse/norms.h"
#include "fuse/residuals.h"
#include "ops/registry.h"

namespace encore::fuse {

std::vector<Group> find_groups(Graph& graph, const RegionSettings& settings) {
  std::vector<Group> groups;
  const auto add = [&](std::vector<std::vector<int>> found, const char* what) {
    for (std::vector<int>& nodes : found) {
      for (int n : nodes) graph.nodes[size_t(n)].takable = false;
      groups.push_back({std::move(nodes), what});
    }
  };
  const ShapeSymbols symbols(graph);
  add(find_regions(graph, settings), "convolutions and what is between");
  for (Attention& found : find_attentions(graph, symbols, settings.only_own_shapes)) {
    add({found.nodes}, "an attention");
    groups.back().attention = std::move(found);
  }
  add(find_gates(graph), "a gate");
  add(find_norms(graph), "a norm and a product");
  add(find_biases(graph), "a product and its bias");
  add(find_gelus(graph), "a Gelu");
  add(find_residuals(graph, symbols), "a sum and its norm");
  return groups;
}

Plan plan_of(const Graph& group, std::vector<int> inputs, std::vector<int> outputs) {
  bool has_convolution = false, is_turned = false;
  for (const Node& node : group.nodes) {
    has_convolution |= is_convolution(*node.info);
    is_turned |= node.info->domain() == ops::kChannelsLast;
  }
  Plan plan = plan_of(group, std::move(inputs), std::move(outputs), has_convolution && !is_turned);
  if (has_convolution) {
    join_convolutions(plan);
  } else {
    join_gate(plan);
    join_norm(plan);
    join_bias(plan);
    join_gelu(plan);
    join_residual(plan);
  }
  return plan;
}

}  // namespace encore::fuse
