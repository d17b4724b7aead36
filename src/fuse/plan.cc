#include "fuse/plan.h"

#include <algorithm>

namespace encore::fuse {

int Plan::add(Value value) {
  values.push_back(std::move(value));
  return int(values.size()) - 1;
}

int Plan::add_constant(std::string name, std::shared_ptr<OwnTensor> constant) {
  const auto dims = constant->view.shape.dims();
  Value made{std::move(name), constant->view.type, std::vector<int64_t>(dims.begin(), dims.end()), true,
             &constant->view};
  constants.push_back(std::move(constant));
  return add(std::move(made));
}

int Plan::add_like(int v, const std::string& what) {
  Value made = values[size_t(v)];
  made.is_constant = made.is_output = false;
  made.constant = nullptr;
  made.name += what;
  return add(std::move(made));
}

const Tensor* Plan::constant(const Step& step, size_t input) const {
  const int v = input < step.inputs.size() ? step.inputs[input] : -1;
  if (v < 0 || !values[size_t(v)].is_constant) return nullptr;
  return values[size_t(v)].constant ? values[size_t(v)].constant : step.node->constant_input(int(input));
}

Operator operator_of(const NodeInfo& node) {
  return {node.domain(), node.op_type(), node.since_version(), node.attributes()};
}

Step Plan::step(Operator op, std::string name, std::vector<int> reads, std::vector<int> makes) const {
  const auto slots = [&](const std::vector<int>& of) {
    std::vector<Variant::Slot> slots;
    for (int v : of) {
      Variant::Slot& slot = slots.emplace_back();
      if (v < 0) continue;
      const Value& value = values[size_t(v)];
      slot = {true, value.type, value.dims, value.constant};
      if (slot.dims)
        std::ranges::transform(*slot.dims, slot.dims->begin(), [](int64_t dim) { return std::max<int64_t>(dim, -1); });
    }
    return slots;
  };
  auto node = std::make_shared<Variant>(op.name, settings, slots(reads), slots(makes));
  node->set_operator(op.domain, op.name, op.since_version);
  node->set_name(std::move(name));
  for (auto& [attribute, value] : op.attributes) node->set(attribute, std::move(value));
  return {std::move(node), std::move(reads), std::move(makes)};
}

Plan plan_of(const Graph& graph, std::vector<int> inputs, std::vector<int> outputs) {
  Plan plan;
  plan.values = graph.values;
  plan.inputs = std::move(inputs);
  plan.outputs = std::move(outputs);
  plan.symbols = graph.symbols;
  if (!graph.nodes.empty()) plan.settings = graph.nodes.front().info->settings;
  for (int value : plan.outputs) plan.values[size_t(value)].is_output = true;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const Runs runs = node.takable ? Runs::on_device : node.is_free ? Runs::on_host : Runs::elsewhere;
    Step& step = plan.steps.emplace_back(Step{borrowed(*node.info), node.inputs, node.outputs, runs, {int(n)}});
    if (node.compiled) step.node = plan.step({kFusions, "Region"}, node.info->name(), node.inputs, node.outputs).node;
    if (node.own) {
      const std::string& name = node.bodies.empty() ? plan.values[size_t(node.outputs[0])].name : node.info->name();
      step.node = plan.step(*node.own, name, node.inputs, node.outputs).node;
    }
    step.compiled = node.compiled;
    step.bodies = node.bodies;
  }
  return plan;
}

}  // namespace encore::fuse
