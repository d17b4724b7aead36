#include "fuse/control_flow.h"

#include <algorithm>
#include <set>
#include <utility>

#include "fuse/body_run.h"
#include "ops/registry.h"

namespace encore::fuse {

std::vector<Type> types_of(const Plan& body, size_t from) {
  std::vector<Type> types;
  for (size_t i = from; i < body.outputs.size(); ++i) types.push_back(body.values[size_t(body.outputs[i])].type);
  return types;
}

size_t host_carried(const Step& step) { return step.bodies.empty() ? 0 : step.bodies[0].plan->host_carried; }

size_t host_captures(const Step& step) {
  if (step.bodies.empty()) return 0;
  const Plan& body = *step.bodies[0].plan;
  const bool has_own = step.node->op_type() == "Loop" && !body.by_data;
  const size_t all = body.host_inputs.size(), own = has_own ? 2 + body.host_carried : 0;
  return all - std::min(all, own);
}

Plan plan_of_body(const Graph& body, BodyEnds ends, size_t outer_inputs, const ops::Settings& settings) {
  Plan plan = plan_of(body, std::move(ends.inputs), std::move(ends.outputs));
  plan.host_inputs = std::move(ends.host_inputs);
  plan.outer_inputs = outer_inputs;
  plan.host_carried = ends.host_carried;
  plan.by_data = ends.by_data;
  plan.settings = settings;
  std::set<int> made;
  for (const Step& step : plan.steps) made.insert(step.outputs.begin(), step.outputs.end());
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    int& output = plan.outputs[i];
    if (made.erase(output)) continue;
    Value value = plan.values[size_t(output)];
    value.is_constant = false;
    value.constant = nullptr;
    const int to = plan.add(std::move(value));
    Step step = plan.step({ops::kOnnx, "Identity", 16}, plan.values[size_t(to)].name, {output}, {to});
    step.runs = i < ends.host_outputs ? Runs::on_host : Runs::on_device;
    plan.steps.push_back(std::move(step));
    output = to;
  }
  return plan;
}

std::unique_ptr<ops::Op> make_control_flow(Step& step) {
  if (step.node->op_type() == "Loop") return make_loop(step.bodies);
  if (step.node->op_type() == "Scan") return make_scan(*step.node, *step.bodies[0].plan);
  return make_if(step.bodies);
}

}  // namespace encore::fuse
