// Norms of groups of channels, as exporters spell them out.
#include <algorithm>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed{Type::f16, Type::bf16, Type::f32};

bool is_all(const Match& match, const Step& step, size_t input, double number) {
  const Tensor* const constant = match.plan().constant(step, input);
  return constant && kServed.has(constant->type) &&
         std::ranges::all_of(numbers_of(*constant), [&](double one) { return one == number; });
}

// What alone reads the value and multiplies or adds a constant, one for each channel of so many dimensions; or -1.
int by_channels(const Match& match, int v, const char* op, int64_t channels, size_t rank) {
  const int s = match.only_reader(v, op);
  if (s < 0) return -1;
  const Value& row = match.value(match.other(s, v));
  if (!row.is_constant || !row.constant || row.type != match.value(v).type || !row.dims || row.dims->size() > rank ||
      row.dims->size() + 1 < rank)
    return -1;
  Dims wanted(row.dims->size(), 1);
  wanted[wanted.size() - rank + 1] = channels;
  return row.dims == wanted ? s : -1;
}

}  // namespace

// No path leaves them and comes back, for nobody else reads what is between.
void join_group_norm(Match& match, int norm) {
  if (!match.is(norm, "InstanceNormalization") || match.step(norm).inputs.size() != 3) return;
  const Step& step = match.step(norm);
  // Of groups of one channel nothing is reshaped.
  const auto& of_groups = match.value(step.inputs[0]).dims;
  const int grouped = match.maker(step.inputs[0], "Reshape"), back = match.only_reader(step.outputs[0], "Reshape");
  if (grouped >= 0 && match.only_reader(step.inputs[0]) != norm) return;
  const bool are_channels = of_groups && (grouped < 0 || match.value(match.step(grouped).inputs[0]).dims == of_groups);
  if (!are_channels && back < 0) return;
  const int x = grouped < 0 ? step.inputs[0] : match.step(grouped).inputs[0];
  int y = are_channels ? step.outputs[0] : match.step(back).outputs[0];
  const auto& dims = match.value(x).dims;
  if (!dims || !of_groups || dims->size() < 3 || (!are_channels && of_groups->size() != 3) ||
      match.value(y).dims != dims || std::ranges::count(*dims, -1) || (*of_groups)[0] != (*dims)[0])
    return;
  const int64_t channels = (*dims)[1], groups = (*of_groups)[1];
  const Type type = match.value(x).type;
  if (channels < 1 || groups < 1 || channels % groups != 0 || !kServed.has(type) || !is_all(match, step, 1, 1) ||
      !is_all(match, step, 2, 0))
    return;
  std::vector<int> steps{norm};
  if (grouped >= 0) steps.push_back(grouped);
  if (!are_channels) steps.push_back(back);
  const std::string name = match.node(norm).name();
  int gamma = -1, beta = -1;
  if (const int scaled = by_channels(match, y, "Mul", channels, dims->size()); scaled >= 0) {
    gamma = match.other(scaled, y);
    y = match.step(scaled).outputs[0];
    steps.push_back(scaled);
  }
  if (const int shifted = by_channels(match, y, "Add", channels, dims->size()); shifted >= 0) {
    beta = match.other(shifted, y);
    y = match.step(shifted).outputs[0];
    steps.push_back(shifted);
  }
  const float epsilon = match.node(norm).get_float("epsilon", 1e-5f);
  // What it is of the same numbers, whatever the dimensions; or so often the one number.
  const auto row_of = [&](int row, const char* what, double otherwise) {
    const ops::Shape shape{channels};
    if (row < 0)
      return match.add_constant(name + what,
                                own_numbers(type, shape, std::vector<double>(size_t(channels), otherwise)));
    return match.add_constant(match.value(row).name, own(type, shape, match.value(row).constant->data));
  };
  gamma = row_of(gamma, "'s ones", 1);
  beta = row_of(beta, "'s zeros", 0);
  match.replace(
      std::move(steps),
      match.plan().step({ops::kOnnx, "GroupNormalization", 21, {{"num_groups", groups}, {"epsilon", epsilon}}}, name,
                        {x, gamma, beta}, {y}));
}

void end_group_norm(Match& match, int norm) {
  if (!match.is_there(norm) || match.node(norm).op_type() != "GroupNorm" ||
      match.node(norm).domain() != ops::kMicrosoft || match.node(norm).get_int("activation", 0) != 0)
    return;
  const Step& step = match.step(norm);
  std::optional<Ending> end = ending_behind(match, step.outputs[0]);
  if (!end) return;
  const bool is_long = end->activation == "Gelu" || end->activation == "FastGelu" || end->activation == "Tanh";
  if (is_long && !ops::kHalves.has(match.value(step.inputs[0]).type)) return;
  auto node = std::make_shared<Variant>(step.node);
  node->set("ending", end->activation);
  node->set("ending_params", end->params);
  Step made{std::move(node), step.inputs, ended_outputs(match, norm, *end)};
  end_with(match, norm, std::move(made), std::move(*end));
}

}  // namespace encore::fuse
