#include "fuse/groups.h"

#include <algorithm>

#include "fuse/passes.h"
#include "fuse/region_plan.h"

namespace encore::fuse {
namespace {

// The steps of joined nodes; those that have nodes in common are one group.
std::vector<Group> groups_of(const Plan& plan, size_t nodes) {
  std::vector<const Step*> joined;
  for (const Step& step : plan.steps)
    if (step.origin.size() > 1) joined.push_back(&step);
  // Whatever a step has in common with others, the largest has.
  std::ranges::stable_sort(joined, std::ranges::greater(), [](const Step* step) { return step->origin.size(); });
  std::vector<bool> taken(nodes);
  std::vector<Group> groups;
  for (const Step* step : joined) {
    if (std::ranges::any_of(step->origin, [&](int n) { return taken[size_t(n)]; })) continue;
    for (int n : step->origin) taken[size_t(n)] = true;
    groups.push_back({step->origin, step->what});
  }
  return groups;
}

}  // namespace

std::vector<Group> find_groups(Graph graph, const RegionSettings& settings, KnownDims& known) {
  std::vector<Group> groups;
  for (std::vector<int>& nodes : find_regions(graph, settings)) {
    for (int n : nodes) graph.nodes[size_t(n)].takable = false;
    groups.push_back({std::move(nodes), kRegion});
  }
  Plan plan = plan_of(graph, {}, {});
  plan.is_group = true;
  rewrite(plan, {});
  for (Group& group : groups_of(plan, graph.nodes.size())) {
    for (int n : group.nodes)
      for (const auto* values : {&graph.nodes[size_t(n)].inputs, &graph.nodes[size_t(n)].outputs})
        for (int v : *values)
          if (v >= 0) known.of[plan.values[size_t(v)].name] = plan.values[size_t(v)].dims;
    groups.push_back(std::move(group));
  }
  known.symbols = std::move(plan.symbols);
  return groups;
}

Plan plan_of_group(Graph group, std::vector<int> inputs, std::vector<int> outputs, const KnownDims& known,
                   const Watch& watch) {
  if (std::ranges::any_of(group.nodes, [](const Node& node) { return is_convolution(*node.info); }))
    return plan_of_region(group, std::move(inputs), std::move(outputs), watch);
  group.symbols = known.symbols;
  for (Value& value : group.values) {
    const auto of = known.of.find(value.name);
    value.dims = of == known.of.end() ? std::nullopt : of->second;
  }
  Plan plan = plan_of(group, std::move(inputs), std::move(outputs));
  plan.is_group = true;
  if (watch) watch(kAsClaimed, plan);
  rewrite(plan, watch);
  return plan;
}

}  // namespace encore::fuse
