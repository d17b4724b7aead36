// Recurrent layers on top of one another are one step, which may take them as a wavefront.
#include <algorithm>
#include <array>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/recurrent/stacked.h"

namespace encore::fuse {
namespace {

constexpr size_t kLengths = 4, kOutputs = 3;

// Of what the pass has made; one of all else.
int64_t layers_of(const Step& step) {
  return step.make && step.node->domain() == kFusions ? step.node->get_int(ops::kLayers, 1) : 1;
}

// One layer, or some that are one step already, in one direction and of sequences that are all as long.
bool is_stack(const Match& match, int s) {
  if (s < 0 || !match.step(s).node) return false;
  const Step& step = match.step(s);
  const bool is_made = layers_of(step) > 1;
  const auto is = [&](const char* op) { return is_made ? step.node->op_type() == op : match.is(s, op); };
  return std::ranges::any_of(std::array{"LSTM", "GRU", "RNN"}, is) &&
         (step.inputs.size() <= kLengths || step.inputs[kLengths] < 0) &&
         step.node->get_string("direction", "forward") != "bidirectional" && step.node->get_int("hidden_size", 0) > 0;
}

// What Y is without the directions, of which there is one.
std::optional<Dims> states_of(const Match& match, int s) {
  const Step& step = match.step(s);
  std::optional<Dims> dims = match.value(step.outputs[0]).dims;
  const size_t direction = step.node->get_int("layout", 0) ? 2 : 1;
  if (!dims || dims->size() != 4 || (*dims)[direction] != 1 || std::ranges::count(*dims, -1) > 0) return {};
  dims->erase(dims->begin() + ptrdiff_t(direction));
  return dims;
}

bool are_alike(const NodeInfo& a, const NodeInfo& b) {
  const auto own = [](const NodeInfo& node) {
    ops::Attributes all = node.attributes();
    all.erase(ops::kLayers);
    return all;
  };
  return a.op_type() == b.op_type() && own(a) == own(b);
}

bool depends_on(const Match& match, int above, int x, int below) {
  const Makers makers = match.makers();
  return std::ranges::any_of(match.step(above).inputs, [&](int v) {
    const int maker = v == x ? -1 : match.producer(v);
    return maker >= 0 && waits_for(makers, maker, below);
  });
}

}  // namespace

// No path leaves them and comes back: nobody else reads what is between, and nothing else of the upper one waits for
// the lower one.
void stack_recurrences(Match& match, int above) {
  if (!is_stack(match, above) || layers_of(match.step(above)) != 1) return;
  const int x = match.step(above).inputs[0];
  std::vector<int> steps{above};
  int value = x, below = match.producer(value);
  for (; below >= 0 && only_shapes(match, below) && match.only_reader(value) == steps.back();
       below = match.producer(value)) {
    steps.push_back(below);
    value = match.step(below).inputs[0];
  }
  if (!is_stack(match, below) || match.step(below).outputs[0] != value || match.only_reader(value) != steps.back() ||
      !are_alike(match.node(below), match.node(above)) || depends_on(match, above, x, below))
    return;
  const auto states = states_of(match, below);
  if (!states || match.value(x).dims != states) return;
  const Step &lower = match.step(below), &upper = match.step(above);
  const int64_t layers = layers_of(lower) + 1;
  if (layers > ops::kMostStacked) return;
  std::vector<int> inputs = lower.inputs, outputs = lower.outputs;
  inputs.resize(size_t(ops::kFirstLayerInputs + (layers - 2) * ops::kMoreLayerInputs), -1);
  for (const size_t input : {1, 2, 3, 5, 6, 7})
    inputs.push_back(input < upper.inputs.size() ? upper.inputs[input] : -1);
  outputs.resize(size_t(1 + 2 * (layers - 1)), -1);
  outputs[0] = upper.outputs[0];
  for (size_t output = 1; output < kOutputs; ++output)
    outputs.push_back(output < upper.outputs.size() ? upper.outputs[output] : -1);
  ops::Attributes attributes = lower.node->attributes();
  attributes[ops::kLayers] = layers;
  Step made =
      match.plan().step({kFusions, lower.node->op_type(), 1, std::move(attributes)},
                        lower.node->name() + " and " + upper.node->name(), std::move(inputs), std::move(outputs));
  made.make = ops::make_stacked_recurrence;
  steps.push_back(below);
  match.replace(std::move(steps), std::move(made));
}

}  // namespace encore::fuse
