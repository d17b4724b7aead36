// Layer scales: the columns of a product, each multiplied by a constant, as ConvNeXt has them before its residual sums,
// or all by the same number, as conformers have it.
#include <algorithm>
#include <cmath>

#include "fuse/joined_products.h"
#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// Halves have few numbers near zero, where small scales lead. So that weights stay away from there, they are multiplied
// by such a power of two besides, which the product, in floats, takes back.
int exponent_for(Type type, const std::vector<double>& factors) {
  constexpr int kMost = 6;  // of the largest factor then
  double largest = 0;
  for (const double factor : factors) largest = std::max(largest, std::abs(factor));
  return type == Type::f16 && std::isnormal(largest) ? kMost - std::ilogb(largest) : 0;
}

}  // namespace

void fold_layer_scale(Match& match, int product) {
  if (!match.is(product, "MatMul")) return;
  const Step& step = match.step(product);
  const NodeInfo& node = *step.node;
  const int y = step.outputs[0], scale = match.only_reader(y);
  const int64_t columns = columns_of(match, step);
  if (scale < 0 || match.node(scale).since_version() < 7 || columns == 0 || step.inputs.size() > 3 ||
      match.readers(step.inputs[1]).size() != 1)
    return;
  const auto number = match.scaled(scale);
  if (number ? step.inputs.size() < 3 : !match.is(scale, "Mul")) return;  // a product without a bias has that besides
  const int gamma = match.other(scale, y);
  const Value weights = match.value(step.inputs[1]);
  const Tensor *const factors = match.value(gamma).constant, *const bias = step.inputs.size() > 2
                                                                               ? match.value(step.inputs[2]).constant
                                                                               : nullptr;
  if (!(number || is_constant_row(match, gamma, columns, match.rank(y).value_or(1))) || !factors || !weights.constant ||
      (step.inputs.size() > 2 && !bias) || !kServed.has(weights.type) || match.value(gamma).type != weights.type)
    return;
  std::vector<double> numbers = number ? std::vector<double>(size_t(columns), number->factor) : numbers_of(*factors);
  const int exponent = exponent_for(weights.type, numbers);
  std::vector<double> biases = bias ? numbers_of(*bias) : std::vector<double>();
  for (size_t i = 0; i < biases.size(); ++i) biases[i] *= numbers[i];
  for (double& number : numbers) number = std::ldexp(number, exponent);
  auto scaled = scaled_columns(*weights.constant, numbers);
  auto scaled_bias = own_finite_numbers(weights.type, ops::Shape{std::ssize(biases)}, biases);
  if (!scaled || !scaled_bias) return match.note(product, "its weights or bias would lose too much in their type");
  const std::string name = node.name() + " and " + match.node(scale).name();
  std::vector<int> inputs{step.inputs[0], match.add_constant(weights.name, std::move(scaled))};
  if (bias) inputs.push_back(match.add_constant(name + "'s bias", std::move(scaled_bias)));
  Operator op{ops::kOnnx, "MatMul", node.since_version()};
  if (exponent) op = {ops::kMicrosoft, "FusedMatMul", 1, {{"alpha", std::ldexp(1.f, -exponent)}}};
  match.replace({product, scale}, match.plan().step(std::move(op), name, std::move(inputs), match.step(scale).outputs));
}

}  // namespace encore::fuse
