// MatMulInteger as tools spell linear layers whose rows are quantized as they come: the sums as floats, times both
// scales, plus a bias.
#include <utility>

#include "fuse/joined_products.h"
#include "fuse/passes.h"
#include "ops/quantize/integer_product.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

// Of rows, and of columns.
struct Scales {
  int a = -1, b = -1;
};

// The numbers that are multiplied: one that DynamicQuantizeLinear tells, and a constant one, or one for each column.
Scales scales_of(const Match& match, int v, int64_t columns) {
  const int product = match.maker(v, "Mul");
  if (product < 0) return {};
  const std::vector<int>& factors = match.step(product).inputs;
  for (size_t i = 0; i < 2; ++i) {
    const int a = factors[i], b = factors[1 - i];
    const auto &of_a = match.value(a).dims, &of_b = match.value(b).dims;
    if (match.value(b).is_constant && of_a && of_a->empty() && of_b &&
        (of_b->empty() || is_constant_row(match, b, columns, 1) || is_constant_row(match, b, 1, 1)))
      return {a, b};
  }
  return {};
}

}  // namespace

// No path leaves them and comes back: what is between has no other reader, and the scales are there before the bytes.
void join_integer_product(Match& match, int product) {
  if (!match.is(product, "MatMulInteger")) return;
  const Step& step = match.step(product);
  const auto &rows = match.value(step.inputs[0]).dims, &matrix = match.value(step.inputs[1]).dims;
  if (!rows || rows->size() < 2 || !matrix || matrix->size() != 2) return;
  const int64_t columns = matrix->back();
  const int cast = match.only_reader(step.outputs[0], "Cast");
  if (cast < 0 || match.value(match.step(cast).outputs[0]).type != Type::f32) return;
  const int sums = match.step(cast).outputs[0], scaled = match.only_reader(sums, "Mul");
  if (scaled < 0) return;
  const Scales scales = scales_of(match, match.other(scaled, sums), columns);
  if (scales.a < 0) return match.note(product, "the scales are not one that is told and a constant");
  std::vector<int> inputs = step.inputs;
  inputs.resize(4, -1);
  inputs.insert(inputs.end(), {scales.a, scales.b});
  std::vector<int> steps{product, cast, scaled};
  const int y = match.step(scaled).outputs[0], sum = match.only_reader(y, "Add");
  if (const int bias = sum < 0 ? -1 : match.other(sum, y); bias >= 0 && is_constant_row(match, bias, columns, 1)) {
    inputs.push_back(bias);
    steps.push_back(sum);
  }
  const std::vector<int> outputs = match.step(steps.back()).outputs;
  Step made = match.plan().step({kFusions, "ScaledIntegerProduct", 1}, step.node->name(), std::move(inputs), outputs);
  made.make = ops::make_scaled_integer_matmul;
  match.replace(std::move(steps), std::move(made));
}

}  // namespace encore::fuse
