#include <algorithm>
#include <cmath>
#include <limits>

#include "fuse/passes.h"
#include "fuse/regions.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using Floats = std::vector<float>;

bool are_all(const std::optional<std::vector<int64_t>>& numbers, int64_t number) {
  return !numbers || std::ranges::count(*numbers, number) == std::ssize(*numbers);
}

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

bool is_depthwise(const Match& match, int conv) {
  const Step& step = match.step(conv);
  const auto& weights = match.value(step.inputs[1]).dims;
  return convolution_kind(*step.node) == Convolution::grouped && weights && weights->size() > 2 && (*weights)[1] == 1;
}

// One that is a product of rows.
bool is_pointwise(const Match& match, int conv) {
  const Step& step = match.step(conv);
  return step.node->op_type() == "Conv" && step.node->domain() == ops::kChannelsLast && has_one_tap(match, step) &&
         are_all(step.node->find_ints("strides"), 1);
}

// cuDNN does it behind a convolution.
bool is_librarys(const Ending& end) {
  constexpr const char* kThose[] = {"Relu", "Silu", "Gelu", "FastGelu"};
  return std::ranges::any_of(kThose, [&](const char* name) { return end.activation == name; });
}

// What the activation makes times a number, or plus one, or both.
void take_scale(const Match& match, Ending& end) {
  if (end.activation != "Relu" && end.activation != "HardSwish") return;
  double scale = 1, shift = 0;
  const size_t steps = end.steps.size();
  const auto made = [&] { return match.step(end.steps.back()).outputs[0]; };
  if (const int product = match.only_reader(made()); product >= 0)
    if (const auto by = match.scaled(product); by && by->from == made())
      scale = by->factor, end.steps.push_back(product);
  const int sum = match.only_reader(made());
  if (const auto added = match.shifted(sum); added && added->from == made())
    shift = added->by, end.steps.push_back(sum);
  if (end.steps.size() == steps || !std::isfinite(float(scale)) || !std::isfinite(float(shift)))
    return end.steps.resize(steps);
  end.activation = "Scaled" + end.activation;
  end.params = {float(scale), float(shift)};
}

bool only_moves(const Match& match, int s, int v) {
  constexpr const char* kMoving[] = {"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"};
  return s >= 0 && match.step(s).inputs[0] == v &&
         std::ranges::any_of(kMoving, [&](const char* op) { return match.is(s, op); });
}

// x * Sigmoid(x), which alone read the value: both steps, the product last; or none.
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

std::optional<Ending> gelu_of(const Match& match, int v) {
  const int s = match.only_reader(v);
  if (s < 0 || match.step(s).inputs.size() != 1) return std::nullopt;
  const NodeInfo& node = match.node(s);
  const bool is_contrib = node.domain() == ops::kMicrosoft;
  if (is_onnx(node, "Gelu") || (is_contrib && node.op_type() == "Gelu"))
    return Ending{{s}, node.get_string("approximate", "none") == "tanh" ? "FastGelu" : "Gelu", {}};
  if (is_contrib && node.op_type() == "FastGelu") return Ending{{s}, "FastGelu", {}};
  if (is_contrib && node.op_type() == "QuickGelu") return Ending{{s}, "QuickGelu", {node.get_float("alpha", 1.702f)}};
  return std::nullopt;
}

// The convolution with what follows it, its inputs among them.
std::shared_ptr<Variant> with_ending(const Match& match, int conv, int residual, const std::optional<Ending>& end) {
  auto node = std::make_shared<Variant>(match.step(conv).node);
  node->set_operator(node->domain(), "FusedConv", 1);
  node->inputs().resize(4);
  if (residual >= 0) node->inputs()[3] = {true, match.value(residual).type};
  node->set("activation", end ? end->activation : "");
  node->set("activation_params", end ? end->params : Floats());
  return node;
}

}  // namespace

bool is_conv(const Match& match, int s) {
  if (!match.is_there(s)) return false;
  const NodeInfo& node = match.node(s);
  return node.op_type() == "Conv" && (node.domain().empty() || node.domain() == ops::kChannelsLast);
}

bool has_one_tap(const Match& match, const Step& conv) {
  const auto& weights = match.value(conv.inputs[1]).dims;
  return weights && weights->size() > 2 &&
         std::all_of(weights->begin() + 2, weights->end(), [](int64_t taps) { return taps == 1; }) &&
         conv.node->get_int("group", 1) == 1 && are_all(conv.node->find_ints("pads"), 0);
}

int residual_of(const Match& match, int sum, int v) {
  const int other = sum < 0 ? -1 : match.other(sum, v);
  if (other < 0 || other == v) return -1;
  const Value &one = match.value(v), &two = match.value(other), &made = match.value(match.step(sum).outputs[0]);
  if (two.is_constant || one.type != two.type || !one.dims || one.dims != two.dims) return -1;
  if (made.dims && made.dims != one.dims) return -1;
  return std::count(one.dims->begin(), one.dims->end(), -1) ? -1 : other;
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

std::optional<Ending> ending_behind(const Match& match, int v) {
  int move = -1;
  for (int s = match.only_reader(v); only_moves(match, s, v); s = match.only_reader(v))
    v = match.step(move = s).outputs[0];
  std::optional<Ending> end = ending_of(match, v);
  if (!end) end = gelu_of(match, v);
  if (end) end->move = move;
  return end;
}

const std::vector<int>& ended_outputs(const Match& match, int step, const Ending& end) {
  return match.step(end.move < 0 ? end.steps.back() : step).outputs;
}

void end_with(Match& match, int step, Step made, Ending end) {
  std::vector<int> steps = std::move(end.steps);
  if (end.move >= 0) {
    Step move = match.step(end.move);
    move.outputs = match.step(steps.back()).outputs;
    steps.push_back(end.move);
    match.replace(std::move(steps), std::move(move));
    steps.clear();
  }
  steps.push_back(step);
  match.replace(std::move(steps), std::move(made));
}

// No path leaves them and comes back: what is between has no other reader, and the residual is made before the sum.
void join_convolution(Match& match, int conv) {
  if (!is_conv(match, conv)) return;
  const Step& step = match.step(conv);
  std::vector<int> steps{conv}, inputs = step.inputs;
  inputs.resize(4, -1);
  int value = step.outputs[0];
  const int sum = match.only_reader(value, "Add");
  if (inputs[3] = residual_of(match, sum, value); inputs[3] >= 0) {
    steps.push_back(sum);
    value = match.step(sum).outputs[0];
  }
  std::optional<Ending> end = ending_of(match, value);
  if (!end) end = gelu_of(match, value);
  if (end) {
    take_scale(match, *end);
    steps.insert(steps.end(), end->steps.begin(), end->steps.end());
  }
  if (steps.size() == 1) return;
  auto node = with_ending(match, conv, inputs[3], end);
  Step made{std::move(node), std::move(inputs), match.step(steps.back()).outputs};
  match.replace(std::move(steps), std::move(made));
}

// In halves, for which depthwise and pointwise ones have kernels with all activations, and the library has some; where
// these have numbers, they are before what only moves. In floats pointwise ones alone.
void end_convolution(Match& match, int conv) {
  if (!is_conv(match, conv)) return;
  const int value = match.step(conv).outputs[0];
  const bool is_half = ops::kHalves.has(match.value(value).type);
  if (!is_half && match.value(value).type != Type::f32) return;
  std::optional<Ending> end = ending_behind(match, value);
  if (!end) return;
  if (!is_pointwise(match, conv) && (!is_half || (!is_depthwise(match, conv) && !is_librarys(*end))))
    return match.note(conv, "only depthwise and pointwise ones end with this activation");
  std::vector<int> inputs = match.step(conv).inputs;
  inputs.resize(4, -1);
  Step made{with_ending(match, conv, -1, end), std::move(inputs), ended_outputs(match, conv, *end)};
  end_with(match, conv, std::move(made), std::move(*end));
}

}  // namespace encore::fuse
