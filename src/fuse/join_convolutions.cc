#include <algorithm>
#include <limits>

#include "fuse/region_plan.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using Floats = std::vector<float>;

// What FusedConv is to do at the end.
struct Ending {
  std::string activation;
  Floats params;
};

std::optional<float> scalar(const Tensor* constant) {
  if (!constant || constant->count() != 1) return std::nullopt;
  if (constant->type == Type::f32) return *constant->as<const float>();
  if (constant->type == Type::f16) return float(*constant->as<const device::Half>());
  if (constant->type == Type::bf16) return float(*constant->as<const device::BFloat16>());
  return std::nullopt;
}

// Clip's limits; none of them has to be there.
std::optional<Ending> clip(const NodeInfo& node) {
  constexpr float kNone = std::numeric_limits<float>::max();
  Floats limits{node.get_float("min", -kNone), node.get_float("max", kNone)};
  for (int i = 1; i <= 2; ++i) {
    if (!node.has_input(i)) continue;
    const auto limit = scalar(node.constant_input(i));
    if (!limit) return std::nullopt;
    limits[size_t(i - 1)] = *limit;
  }
  if (!(limits[0] <= limits[1])) return std::nullopt;
  return Ending{"Clip", limits};
}

std::optional<Ending> ending(const NodeInfo& node) {
  const std::string& op = node.op_type();
  if (!node.domain().empty()) return std::nullopt;
  if (op == "Relu" || op == "Sigmoid" || op == "Tanh" || op == "HardSwish") return Ending{op, {}};
  if (op == "LeakyRelu") return Ending{op, {node.get_float("alpha", 0.01f)}};
  if (op == "HardSigmoid") return Ending{op, {node.get_float("alpha", 0.2f), node.get_float("beta", 0.5f)}};
  if (op == "Clip") return clip(node);
  return std::nullopt;
}

class Joining {
 public:
  explicit Joining(Plan& plan) : plan_(plan), readers_(plan.values.size()), visible_(plan.values.size()) {
    find_readers();
    for (int value : plan_.outputs) visible_[size_t(value)] = true;
    for (const View& view : plan_.views) visible_[size_t(view.inner)] = visible_[size_t(view.outer)];
  }

  void run() {
    for (size_t s = 0; s < plan_.steps.size(); ++s)
      if (plan_.steps[s].node && is_convolution(*plan_.steps[s].node)) join(s);
    std::erase_if(plan_.steps, [](const Step& step) { return !step.node; });
  }

 private:
  static bool is_convolution(const NodeInfo& node) {
    return node.op_type() == "Conv" && (node.domain().empty() || node.domain() == ops::kChannelsLast);
  }

  // The steps that read the value, if nobody else does.
  std::vector<size_t> only_readers(int value) const {
    return visible_[size_t(value)] ? std::vector<size_t>() : readers_[size_t(value)];
  }

  void join(size_t first) {
    Step& conv = plan_.steps[first];
    int value = conv.outputs[0], residual = -1;
    std::vector<size_t> joined;
    if (const auto readers = only_readers(value); readers.size() == 1 && (residual = summand(readers[0], value)) >= 0) {
      joined.push_back(readers[0]);
      value = plan_.steps[readers[0]].outputs[0];
    }
    std::optional<Ending> end;
    if (const auto readers = only_readers(value); readers.size() == 1) {
      if ((end = ending(*plan_.steps[readers[0]].node))) joined.push_back(readers[0]);
    } else if (readers.size() == 2 && is_silu(readers[0], readers[1], value)) {
      end = Ending{"Silu", {}};
      joined.insert(joined.end(), readers.begin(), readers.end());
    }
    if (joined.empty()) return;
    replace(first, joined, residual, end.value_or(Ending()));
  }

  // The value that the step adds to this one, which must surely have the same shape; -1 if it does nothing like it.
  int summand(size_t step, int value) const {
    const Step& add = plan_.steps[step];
    if (add.node->op_type() != "Add" || !add.node->domain().empty()) return -1;
    const int other = add.inputs[0] == value ? add.inputs[1] : add.inputs[0];
    const Value &one = plan_.values[size_t(value)], &two = plan_.values[size_t(other)];
    const Value& sum = plan_.values[size_t(add.outputs[0])];
    if (other == value || two.is_constant || one.type != two.type || !one.dims || one.dims != two.dims) return -1;
    if (sum.dims && sum.dims != one.dims) return -1;
    return std::count(one.dims->begin(), one.dims->end(), -1) ? -1 : other;
  }

  // x * Sigmoid(x)
  bool is_silu(size_t one, size_t two, int value) const {
    const Step *sigmoid = &plan_.steps[one], *mul = &plan_.steps[two];
    if (sigmoid->node->op_type() != "Sigmoid") std::swap(sigmoid, mul);
    if (sigmoid->node->op_type() != "Sigmoid" || mul->node->op_type() != "Mul") return false;
    const int gate = sigmoid->outputs[0];
    const auto readers = only_readers(gate);
    return readers.size() == 1 && &plan_.steps[readers[0]] == mul &&
           ((mul->inputs[0] == gate && mul->inputs[1] == value) || (mul->inputs[1] == gate && mul->inputs[0] == value));
  }

  // Puts the one step where the last of the joined ones was: what they read is there by then.
  void replace(size_t first, const std::vector<size_t>& joined, int residual, const Ending& end) {
    const size_t last = *std::max_element(joined.begin(), joined.end());
    Step made;
    made.outputs = plan_.steps[last].outputs;
    Step& conv = plan_.steps[first];
    made.inputs = conv.inputs;
    made.inputs.resize(4, -1);
    made.inputs[3] = residual;
    auto node = std::make_shared<Variant>(std::move(conv.node));
    node->set_operator(node->domain(), "FusedConv", 1);
    node->inputs().resize(4);
    if (residual >= 0) node->inputs()[3] = {true, plan_.values[size_t(residual)].type};
    node->set("activation", end.activation);
    node->set("activation_params", end.params);
    made.node = std::move(node);
    made.origin = std::move(conv.origin);
    for (size_t step : joined) {
      made.origin.insert(made.origin.end(), plan_.steps[step].origin.begin(), plan_.steps[step].origin.end());
      plan_.steps[step].node = nullptr;
    }
    plan_.steps[last] = std::move(made);
    find_readers();
  }

  void find_readers() {
    for (auto& steps : readers_) steps.clear();
    for (size_t s = 0; s < plan_.steps.size(); ++s)
      if (plan_.steps[s].node)
        for (int value : plan_.steps[s].inputs)
          if (value >= 0) readers_[size_t(value)].push_back(s);
  }

  Plan& plan_;
  std::vector<std::vector<size_t>> readers_;  // by value: steps, one for each reading
  std::vector<bool> visible_;                 // by value: outside of the plan
};

}  // namespace

void join_convolutions(Plan& plan) { Joining(plan).run(); }

}  // namespace encore::fuse
