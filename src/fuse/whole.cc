#include "fuse/whole.h"

#include <algorithm>
#include <map>

#include "fuse/padding_masks.h"
#include "fuse/passes.h"
#include "fuse/region_plan.h"

namespace encore::fuse {
namespace {

// Some of a graph's nodes, with values of their own.
struct Part {
  Graph graph;
  std::vector<int> inputs, outputs;  // of its values
  std::vector<int> reads, makes;     // the same ones as the whole graph counts them
};

Part part_of(const Graph& whole, const std::vector<int>& nodes, const std::vector<std::vector<int>>& consumers) {
  const std::set<int> inside(nodes.begin(), nodes.end());
  const auto is_inside = [&](int n) { return inside.contains(n); };
  Part part;
  part.graph.symbols = whole.symbols;
  std::map<int, int> numbers;
  std::set<int> made;
  const auto number = [&](int value) {
    if (value < 0) return -1;
    const auto [known, is_new] = numbers.try_emplace(value, int(part.graph.values.size()));
    if (is_new) part.graph.values.push_back(whole.values[size_t(value)]), part.graph.values.back().is_output = false;
    return known->second;
  };
  for (int n : nodes) {
    Node node = whole.nodes[size_t(n)];
    node.takable = true;
    for (int& value : node.inputs) {
      if (value >= 0 && !whole.values[size_t(value)].is_constant && !made.contains(value) && !numbers.contains(value)) {
        part.reads.push_back(value);
        part.inputs.push_back(number(value));
      }
      value = number(value);
    }
    for (int& value : node.outputs) {
      if (value >= 0) {
        made.insert(value);
        const auto& readers = consumers[size_t(value)];
        if (whole.values[size_t(value)].is_output || !std::all_of(readers.begin(), readers.end(), is_inside)) {
          part.makes.push_back(value);
          part.outputs.push_back(number(value));
        }
      }
      value = number(value);
    }
    part.graph.nodes.push_back(std::move(node));
  }
  return part;
}

// Makes one step of the region's nodes.
void join_region(Match& match, const Graph& graph, const std::vector<int>& nodes,
                 const std::vector<std::vector<int>>& consumers) {
  Part part = part_of(graph, nodes, consumers);
  Step step = match.plan().step({kFusions, "Region"}, match.node(nodes.back()).name(), std::move(part.reads),
                                std::move(part.makes));
  step.parts = std::make_shared<Plan>(plan_of_region(part.graph, std::move(part.inputs), std::move(part.outputs), {}));
  match.replace(nodes, std::move(step));
}

}  // namespace

Plan plan_of_whole(Graph graph, std::vector<int> inputs, std::vector<int> outputs, const std::set<std::string>& on_host,
                   const std::vector<Padding>& paddings, const RegionSettings& settings, const Watch& watch) {
  for (int value : outputs) graph.values[size_t(value)].is_output = true;
  for (Node& node : graph.nodes)
    node.takable = std::ranges::none_of(
        node.outputs, [&](int value) { return value >= 0 && on_host.contains(graph.values[size_t(value)].name); });
  Plan plan = plan_of(graph, std::move(inputs), std::move(outputs));
  if (watch) watch(kAsClaimed, plan);
  Match match(plan, kRegion);
  const auto consumers = graph.consumers();
  for (const std::vector<int>& nodes : find_regions(graph, settings)) join_region(match, graph, nodes, consumers);
  if (match.finish() && watch) watch("regions", plan);
  for (const Padding& padding : paddings) add_padding_masks(plan, padding.axes, padding.dim);
  rewrite(plan, watch);
  return plan;
}

}  // namespace encore::fuse
