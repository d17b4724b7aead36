#include "fuse/whole.h"

#include <algorithm>

#include "fuse/padding_masks.h"
#include "fuse/passes.h"

namespace encore::fuse {

Plan plan_of_whole(Graph graph, std::vector<int> inputs, std::vector<int> outputs, const std::set<std::string>& on_host,
                   const std::vector<Padding>& paddings, const Compute& compute, const Watch& watch) {
  for (int value : outputs) graph.values[size_t(value)].is_output = true;
  for (Node& node : graph.nodes)
    node.takable = std::ranges::none_of(
        node.outputs, [&](int value) { return value >= 0 && on_host.contains(graph.values[size_t(value)].name); });
  Plan plan = plan_of(graph, std::move(inputs), std::move(outputs));
  plan.compute = compute;
  if (watch) watch(kAsClaimed, plan);
  for (const Padding& padding : paddings) add_padding_masks(plan, padding.axes, padding.dim);
  rewrite(plan, watch);
  return plan;
}

}  // namespace encore::fuse
