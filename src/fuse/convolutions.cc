#include <algorithm>
#include <limits>

#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using Floats = std::vector<float>;

// Clip's limits; none of them has to be there.
std::optional<Ending> clip(const Match& match, int s) {
  const Step& step = match.step(s);
  constexpr float kNone = std::numeric_limits<float>::max();
  Floats limits{step.node->get_float("min", -kNone), step.node->get_float("max", kNone)};
  for (size_t i = 1; i < step.inputs.size() && i <= 2; ++i) {
    if (step.inputs[i] < 0) continue;
    const auto limit = match.number(step, i, match.rank(step.inputs[0]).value_or(0));
    if (!limit) return std::nullopt;
    limits[i - 1] = float(*limit);
  }
  if (!(limits[0] <= limits[1])) return std::nullopt;
  return Ending{{s}, "Clip", limits};
}

}  // namespace

int residual_of(const Match& match, int sum, int v) {
  const int other = sum < 0 ? -1 : match.other(sum, v);
  if (other < 0 || other == v) return -1;
  const Value &one = match.value(v), &two = match.value(other), &made = match.value(match.step(sum).outputs[0]);
  if (two.is_constant || one.type != two.type || !one.dims || one.dims != two.dims) return -1;
  if (made.dims && made.dims != one.dims) return -1;
  return std::count(one.dims->begin(), one.dims->end(), -1) ? -1 : other;
}

std::vector<int> silu_of(const Match& match, int v) {
  const std::vector<int>& readers = match.readers(v);
  if (match.value(v).is_output || readers.size() != 2) return {};
  for (size_t i = 0; i < 2; ++i) {
    const int sigmoid = readers[i], product = readers[1 - i];
    if (!match.is(sigmoid, "Sigmoid") || !match.is(product, "Mul")) continue;
    const int gate = match.step(sigmoid).outputs[0];
    if (match.only_reader(gate) == product && match.other(product, gate) == v) return {sigmoid, product};
  }
  return {};
}

std::optional<Ending> ending_of(const Match& match, int v) {
  if (std::vector<int> silu = silu_of(match, v); !silu.empty()) return Ending{std::move(silu), "Silu", {}};
  const int s = match.only_reader(v);
  if (s < 0 || !match.node(s).domain().empty()) return std::nullopt;
  const NodeInfo& node = match.node(s);
  const std::string& op = node.op_type();
  if (op == "Relu" || op == "Sigmoid" || op == "Tanh" || op == "HardSwish") return Ending{{s}, op, {}};
  if (op == "LeakyRelu") return Ending{{s}, op, {node.get_float("alpha", 0.01f)}};
  if (op == "HardSigmoid") return Ending{{s}, op, {node.get_float("alpha", 0.2f), node.get_float("beta", 0.5f)}};
  if (op == "Clip") return clip(match, s);
  return std::nullopt;
}

// No path leaves them and comes back: what is between has no other reader, and the residual is made before the sum.
void join_convolution(Match& match, int conv) {
  if (!match.is_there(conv)) return;
  const Step& step = match.step(conv);
  const std::string& domain = step.node->domain();
  if (step.node->op_type() != "Conv" || !(domain.empty() || domain == ops::kChannelsLast)) return;
  std::vector<int> steps{conv}, inputs = step.inputs;
  inputs.resize(4, -1);
  int value = step.outputs[0];
  const int sum = match.only_reader(value, "Add");
  if (inputs[3] = residual_of(match, sum, value); inputs[3] >= 0) {
    steps.push_back(sum);
    value = match.step(sum).outputs[0];
  }
  const std::optional<Ending> end = ending_of(match, value);
  if (end) steps.insert(steps.end(), end->steps.begin(), end->steps.end());
  if (steps.size() == 1) return;
  auto node = std::make_shared<Variant>(step.node);
  node->set_operator(domain, "FusedConv", 1);
  node->inputs().resize(4);
  if (inputs[3] >= 0) node->inputs()[3] = {true, match.value(inputs[3]).type};
  node->set("activation", end ? end->activation : "");
  node->set("activation_params", end ? end->params : Floats());
  Step made{std::move(node), std::move(inputs), match.step(steps.back()).outputs};
  match.replace(std::move(steps), std::move(made));
}

}  // namespace encore::fuse
