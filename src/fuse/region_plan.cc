#include "fuse/region_plan.h"

#include <algorithm>
#include <map>

#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

class Turning {
 public:
  Turning(const Graph& graph, Plan& plan) : graph_(graph), plan_(plan) {
    for (const Node& node : graph_.nodes) {
      auto made = with_channels_last(graph_, node);
      if (!made) fail(Code::internal, "node '", node.info->name(), "' cannot be turned");
      turned_.push_back(std::move(*made));
    }
  }

  void run() {
    plan_.steps.clear();
    for (int input : plan_.inputs)
      if (is_read_turned(input)) enter(input);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) add(int(n), turned_[n]);
    for (int output : plan_.outputs) leave(output);
  }

 private:
  bool is_read_turned(int value) const {
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (size_t i = 0; i < turned_[n].inputs.size(); ++i)
        if (graph_.nodes[n].inputs[i] == value && turned_[n].inputs[i]) return true;
    return false;
  }

  // The same value with its channels last.
  int inner(int value) {
    const auto [known, is_new] = inner_.try_emplace(value, -1);
    if (is_new) {
      Value made = graph_.values[size_t(value)];
      made.is_output = false;
      if (made.dims && made.dims->size() == kPictureRank) made.dims = permuted(*made.dims, kToChannelsLast);
      known->second = plan_.add(std::move(made));
    }
    return known->second;
  }

  void enter(int value) {
    const Value& outer = graph_.values[size_t(value)];
    const int into = inner(value);
    if (is_single(outer))
      plan_.views.push_back({into, value});
    else
      transpose(value, into, kToChannelsLast);
  }

  void leave(int value) {
    const auto found = inner_.find(value);
    if (found == inner_.end()) return;  // an input
    if (!is_single(graph_.values[size_t(value)])) return transpose(found->second, value, kToChannelsFirst);
    plan_.views.push_back({found->second, value});
    plan_.values[size_t(found->second)].is_output = true;  // it is seen outside
  }

  void transpose(int from, int to, const std::array<int64_t, 4>& order) {
    const Value& value = plan_.values[size_t(from)];
    plan_.steps.push_back(
        plan_.step({ops::kOnnx, "Transpose", 1, {{"perm", std::vector<int64_t>(order.begin(), order.end())}}},
                   value.name + "'s layout", {from}, {to}));
  }

  void add(int n, ChannelsLast& made) {
    const Node& node = graph_.nodes[size_t(n)];
    Step step{std::move(made.node), {}, {}, Runs::on_device, {n}};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (const auto& constant = made.constants[i]) {
        Value value = graph_.values[size_t(node.inputs[i])];
        const auto dims = constant->view.shape.dims();
        value.dims.emplace(dims.begin(), dims.end());
        value.constant = &constant->view;
        plan_.constants.push_back(constant);
        step.inputs.push_back(plan_.add(std::move(value)));
      } else {
        step.inputs.push_back(made.inputs[i] ? inner(node.inputs[i]) : node.inputs[i]);
      }
    }
    for (int value : node.outputs) step.outputs.push_back(value < 0 ? -1 : inner(value));
    plan_.steps.push_back(std::move(step));
  }

  const Graph& graph_;
  Plan& plan_;
  std::vector<ChannelsLast> turned_;  // by node, until it is a step
  std::map<int, int> inner_;
};

}  // namespace

Plan plan_of_region(const Graph& region, std::vector<int> inputs, std::vector<int> outputs, const Watch& watch) {
  Plan plan = plan_of(region, std::move(inputs), std::move(outputs));
  const auto show = [&](const char* pass) {
    if (watch) watch(pass, plan);
  };
  show(kAsClaimed);
  const bool is_turned =
      std::ranges::any_of(region.nodes, [](const Node& node) { return node.info->domain() == ops::kChannelsLast; });
  if (!is_turned) {
    Turning(region, plan).run();
    show("channels_last");
  }
  if (run(kConvolutions, plan)) show(kConvolutions.name);
  return plan;
}

}  // namespace encore::fuse
