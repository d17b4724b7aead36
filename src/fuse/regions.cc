#include "fuse/regions.h"

#include <algorithm>
#include <set>

#include "fuse/channels_last.h"
#include "fuse/convex.h"
#include "ops/registry.h"

namespace encore::fuse {

bool is_convolution(const NodeInfo& info) { return info.op_type() == "Conv" || info.op_type() == "ConvTranspose"; }

Convolution convolution_kind(const NodeInfo& info) {
  if (!is_convolution(info)) return Convolution::none;
  if (info.get_int("group", 1) != 1) return Convolution::grouped;
  return info.input_type(0) != Type::f32 || info.settings.use_tf32 ? Convolution::dense
                                                                   : Convolution::without_tensor_cores;
}

namespace {

bool has_convolution(const Node& node) { return is_convolution(*node.info); }

bool is_dense_convolution(const Node& node) { return convolution_kind(*node.info) == Convolution::dense; }

class Search {
 public:
  Search(const Graph& graph, const RegionSettings& settings)
      : graph_(graph), settings_(settings), producers_(graph.producers()), consumers_(graph.consumers()) {}

  std::vector<std::vector<int>> run() {
    if (std::none_of(graph_.nodes.begin(), graph_.nodes.end(), has_convolution)) return {};
    for (const Node& node : graph_.nodes) fits_.push_back(fits(node));
    std::vector<std::vector<int>> regions;
    for (std::vector<int>& set : convex_sets(graph_.makers(), fits_, When::early))
      if (pays(set)) regions.push_back(std::move(set));
    return regions;
  }

 private:
  bool fits(const Node& node) const {
    const NodeInfo& info = *node.info;
    if (!node.takable) return false;
    if (!settings_.are_channels_last) return with_channels_last(graph_.values, borrowed(info), node.inputs).has_value();
    for (int value : node.outputs)
      if (value >= 0 && !is_picture(graph_.values[size_t(value)])) return false;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i] >= 0 && !graph_.values[size_t(node.inputs[i])].is_constant &&
          !is_picture(graph_.values[size_t(node.inputs[i])]))
        return false;
    if (info.domain() == ops::kChannelsLast) return true;
    if (!info.domain().empty() || !goes_between(info.op_type())) return false;
    for (int i : ops::find_row("", info.op_type(), info.since_version())->host_inputs)
      if (info.has_input(i) && !graph_.values[size_t(node.inputs[size_t(i)])].is_constant) return false;
    return true;
  }

  // What turning costs at the ends is to be less than what convolutions of the other layout do inside, twice each.
  bool pays(const std::vector<int>& group) const {
    const auto nodes = [&](auto is) {
      return std::count_if(group.begin(), group.end(), [&](int n) { return is(graph_.nodes[size_t(n)]); });
    };
    if (settings_.are_channels_last) return nodes(has_convolution) > 0;
    const std::set<int> inside(group.begin(), group.end());
    std::set<int> turns;
    for (int n : group) {
      for (int value : graph_.nodes[size_t(n)].inputs)
        if (value >= 0 && !graph_.values[size_t(value)].is_constant && !inside.contains(producers_[size_t(value)]))
          turns.insert(value);
      for (int value : graph_.nodes[size_t(n)].outputs)
        if (value >= 0 && leaves(value, inside)) turns.insert(value);
    }
    const auto turning =
        std::count_if(turns.begin(), turns.end(), [&](int value) { return !is_single(graph_.values[size_t(value)]); });
    return turning <= 2 * nodes(is_dense_convolution) && nodes(is_dense_convolution) > 0;
  }

  bool leaves(int value, const std::set<int>& inside) const {
    if (graph_.values[size_t(value)].is_output) return true;
    for (int n : consumers_[size_t(value)])
      if (!inside.contains(n)) return true;
    return false;
  }

  const Graph& graph_;
  const RegionSettings settings_;
  const std::vector<int> producers_;
  const std::vector<std::vector<int>> consumers_;
  std::vector<bool> fits_;  // by node
};

}  // namespace

std::vector<std::vector<int>> find_regions(const Graph& graph, const RegionSettings& settings) {
  return Search(graph, settings).run();
}

}  // namespace encore::fuse
