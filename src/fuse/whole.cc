#include "fuse/whole.h"

#include <algorithm>
#include <map>

namespace encore::fuse {
namespace {

// Some of a graph's nodes, with values of their own.
struct Part {
  Graph graph;
  std::vector<int> inputs, outputs;  // of its values
  std::vector<int> reads, makes;     // the same ones as the whole graph counts them
};

template <class IsInside>
Part part_of(const Graph& whole, const std::vector<int>& nodes, const std::vector<std::vector<int>>& consumers,
             IsInside is_inside) {
  Part part;
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

class Whole {
 public:
  Whole(Graph& graph, std::vector<int> inputs, std::vector<int> outputs, const std::set<std::string>& on_host)
      : graph_(graph), consumers_(graph.consumers()), group_of_(graph.nodes.size(), -1), on_host_(graph.nodes.size()) {
    plan_.inputs = std::move(inputs);
    plan_.outputs = std::move(outputs);
    for (int value : plan_.outputs) graph_.values[size_t(value)].is_output = true;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      Node& node = graph_.nodes[n];
      on_host_[n] = std::any_of(node.outputs.begin(), node.outputs.end(), [&](int value) {
        return value >= 0 && on_host.contains(graph_.values[size_t(value)].name);
      });
      node.takable = !on_host_[n];
    }
  }

  Plan run(const RegionSettings& settings) {
    groups_ = find_groups(graph_, settings);
    plan_.values = graph_.values;
    for (size_t g = 0; g < groups_.size(); ++g)
      for (int n : groups_[g].nodes) group_of_[size_t(n)] = int(g);
    done_.resize(graph_.nodes.size());
    seen_.resize(graph_.nodes.size());
    const std::vector<int> producers = graph_.producers();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) add(int(n), producers);
    return std::move(plan_);
  }

 private:
  // Depth first: what a node or its group reads is made before. Not by recursion, for models may be deep.
  void add(int first, const std::vector<int>& producers) {
    std::vector<int> open{first};
    while (!open.empty()) {
      const int n = open.back();
      if (done_[size_t(n)]) {
        open.pop_back();
        continue;
      }
      const std::vector<int> alone{n};
      const std::vector<int>& unit = group_of_[size_t(n)] < 0 ? alone : groups_[size_t(group_of_[size_t(n)])].nodes;
      const size_t before = open.size();
      for (int member : unit)
        for (int value : graph_.nodes[size_t(member)].inputs) {
          const int from = value < 0 ? -1 : producers[size_t(value)];
          if (from >= 0 && !done_[size_t(from)] && !is_same_group(from, n)) open.push_back(from);
        }
      if (open.size() > before) {
        if (seen_[size_t(n)]) fail(Code::internal, "groups of nodes wait for each other");
        seen_[size_t(n)] = true;
        continue;
      }
      open.pop_back();
      for (int member : unit) done_[size_t(member)] = true;
      plan_.steps.push_back(group_of_[size_t(n)] < 0 ? step_of(n) : step_of(groups_[size_t(group_of_[size_t(n)])]));
    }
  }

  bool is_same_group(int a, int b) const {
    return group_of_[size_t(a)] >= 0 && group_of_[size_t(a)] == group_of_[size_t(b)];
  }

  Step step_of(int n) const {
    const Node& node = graph_.nodes[size_t(n)];
    Step step{std::make_unique<Variant>(*node.info), node.inputs, node.outputs};
    step.on_host = on_host_[size_t(n)];
    return step;
  }
  Step step_of(const Group& group) const {
    Part part = part_of(graph_, group.nodes, consumers_, [&](int n) { return is_same_group(n, group.nodes.front()); });
    Step step;
    step.inputs = std::move(part.reads);
    step.outputs = std::move(part.makes);
    step.parts = std::make_shared<Plan>(
        group.attention ? plan_of(part.graph, std::move(part.inputs), std::move(part.outputs), *group.attention)
                        : plan_of(part.graph, std::move(part.inputs), std::move(part.outputs)));
    return step;
  }

  Graph& graph_;
  const std::vector<std::vector<int>> consumers_;
  std::vector<Group> groups_;
  std::vector<int> group_of_;  // by node, as are the next
  std::vector<bool> on_host_, done_, seen_;
  Plan plan_;
};

}  // namespace

Plan plan_of_whole(Graph& graph, std::vector<int> inputs, std::vector<int> outputs,
                   const std::set<std::string>& on_host, const RegionSettings& settings) {
  return Whole(graph, std::move(inputs), std::move(outputs), on_host).run(settings);
}

}  // namespace encore::fuse
