#include <algorithm>
#include <cmath>

#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// Whether a number of this type is meant to be that one.
bool is_about(std::optional<double> number, double wanted, Type type) {
  return number && std::abs(*number / wanted - 1) < (type == Type::f32 ? 1e-6 : 2e-3);
}

std::optional<double> summand(const Match& match, int sum, size_t input) {
  const Step& step = match.step(sum);
  return match.number(step, input, match.rank(step.inputs[1 - input]).value_or(0));
}

bool halves(const Match& match, int product, int v) {
  const auto by = match.scaled(product);
  return by && by->from == v && by->factor == 0.5;
}

}  // namespace

// No path leaves them and comes back, for nobody else reads what is between.
void join_gelu(Match& match, int erf) {
  if (!match.is(erf, "Erf")) return;
  const int root = match.step(erf).inputs[0], divided = match.maker(root);
  const Type type = match.value(root).type;
  if (!kServed.has(type) || divided < 0 || match.only_reader(root) < 0) return;
  const auto by = match.scaled(divided);
  if (!by || !is_about(by->factor, std::sqrt(0.5), type)) return;
  const int x = by->from, sum = match.only_reader(match.step(erf).outputs[0], "Add");
  if (sum < 0 || (summand(match, sum, 0) != 1 && summand(match, sum, 1) != 1)) return;
  // Times x and a half, in either order, or times a half of x.
  const int plus_one = match.step(sum).outputs[0], first = match.only_reader(plus_one, "Mul");
  if (first < 0) return;
  const int factor = match.other(first, plus_one), product = match.step(first).outputs[0];
  const int half = match.maker(factor, "Mul"), last = match.only_reader(product, "Mul");
  int fifth = -1;
  if (factor != x && half >= 0 && halves(match, half, x) && match.only_reader(factor) >= 0)
    fifth = half;
  else if (last >= 0 && (factor == x ? halves(match, last, product)
                                     : halves(match, first, plus_one) && match.other(last, product) == x))
    fifth = last;
  if (fifth < 0) return;
  const int end = fifth == last ? last : first;
  match.replace({divided, erf, sum, first, fifth},
                match.plan().step({ops::kOnnx, "Gelu", 20}, match.node(end).name(), {x}, match.step(end).outputs));
}

}  // namespace encore::fuse
