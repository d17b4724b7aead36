#include "fuse/control_flow.h"

#include <algorithm>
#include <set>
#include <utility>

#include "fuse/program.h"
#include "ops/inner_context.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using ops::Shape;
using ops::Where;

// A body's run, whose inputs are the step's from `first` on.
class BodyRun : public ops::InnerContext {
 public:
  BodyRun(ops::Context& outer, int first, const std::vector<Type>& types)
      : InnerContext(outer), first_(first), types_(types) {}
  int input_count() const override { return outer_.input_count() - first_; }
  int output_count() const override { return int(types_.size()); }
  const Tensor* find_input(int i) override { return outer_.find_input(i + first_); }
  bool wants_output(int) const override { return true; }
  // Whoever makes an output that nobody wants does not know of it.
  Tensor output(int i, const Shape& shape) override {
    const Tensor made = outer_.wants_output(i) ? outer_.output(i, shape) : Tensor();
    if (made.data) return made;
    Tensor unwanted{types_[size_t(i)], Where::device, shape, nullptr};
    unwanted.data = outer_.scratch(unwanted.bytes());
    return unwanted;
  }

 private:
  const int first_;
  const std::vector<Type>& types_;  // of the step's outputs
};

class If final : public ops::Op {
 public:
  If(std::vector<Body>& branches, std::vector<Type> types) : types_(std::move(types)) {
    for (Body& branch : branches)
      (branch.name == kThen ? then_ : else_) = std::make_unique<Program>(std::move(*branch.plan));
    if (!then_ || !else_) fail(Code::internal, "an If lacks a branch");
  }
  void prepare(ops::Prepack& loader) override {
    then_->prepare(loader);
    else_->prepare(loader);
  }
  void run(ops::Context& context) const override {
    const Tensor& test = context.input(0);
    require(test.count() == 1, "the condition has shape ", test.shape.str(), "; one element is wanted");
    BodyRun branch(context, 1, types_);
    (*test.as<const bool>() ? then_ : else_)->run(branch);
  }

 private:
  static constexpr const char* kThen = "then_branch";
  const std::vector<Type> types_;
  std::unique_ptr<Program> then_, else_;
};

}  // namespace

size_t host_captures(const Step& step) {
  return step.bodies.empty() ? 0 : step.bodies.front().plan->host_inputs.size();
}

Plan plan_of_body(const Graph& body, BodyEnds ends, size_t outer_inputs, const ops::Settings& settings) {
  Plan plan = plan_of(body, std::move(ends.inputs), std::move(ends.outputs));
  plan.host_inputs = std::move(ends.host_inputs);
  plan.outer_inputs = outer_inputs;
  plan.settings = settings;
  std::set<int> made;
  for (const Step& step : plan.steps) made.insert(step.outputs.begin(), step.outputs.end());
  for (int& output : plan.outputs) {
    if (made.erase(output)) continue;
    Value value = plan.values[size_t(output)];
    value.is_constant = false;
    value.constant = nullptr;
    const int to = plan.add(std::move(value));
    const bool is_only_on_host =
        std::ranges::count(plan.host_inputs, output) && !std::ranges::count(plan.inputs, output);
    Step step = plan.step({ops::kOnnx, "Identity", 16}, plan.values[size_t(to)].name, {output}, {to});
    step.runs = is_only_on_host ? Runs::on_host : Runs::on_device;
    plan.steps.push_back(std::move(step));
    output = to;
  }
  return plan;
}

std::unique_ptr<ops::Op> make_control_flow(Step& step, std::vector<Type> types) {
  return std::make_unique<If>(step.bodies, std::move(types));
}

}  // namespace encore::fuse
