#include <algorithm>
#include <cmath>

#include "fuse/links.h"
#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// Whether the step only swaps rows and columns of matrices.
bool swaps(const Match& match, int turn) {
  auto order = match.is(turn, "Transpose") ? match.node(turn).find_ints("perm") : std::nullopt;
  if (!order || order->size() < 2) return false;
  std::swap(order->back(), (*order)[order->size() - 2]);
  return std::ranges::is_sorted(*order);
}

// Whether the transposition that makes the value goes with others above (movements.cc), which a product would leave.
bool cancels(const Match& match, int v) { return ViewChain(match, v).saved() > 1; }

}  // namespace

void join_product(Match& match, int product) {
  const Step& step = match.step(product);
  if (!match.is(product, "MatMul") || !kServed.has(match.value(step.inputs[0]).type)) return;
  std::vector<int> steps{product}, inputs = step.inputs;
  bool is_turned[2] = {};
  double alpha = 1;
  // What makes a factor for this product alone, the nearest step first.
  for (size_t i = 0; i < 2; ++i)
    for (int made = match.maker(inputs[i]); made >= 0 && match.only_reader(inputs[i]) >= 0;
         made = match.maker(inputs[i])) {
      if (const auto by = match.scaled(made)) {
        alpha *= by->factor;
        inputs[i] = by->from;
      } else if (swaps(match, made) && !cancels(match, inputs[i])) {
        is_turned[i] = !is_turned[i];
        inputs[i] = match.step(made).inputs[0];
      } else {
        break;
      }
      steps.push_back(made);
    }
  int end = product;
  // A bias is not to be scaled.
  if (const int next = match.only_reader(step.outputs[0]); next >= 0 && inputs.size() == 2)
    if (const auto by = match.scaled(next)) {
      alpha *= by->factor;
      steps.push_back(end = next);
    }
  if (steps.size() == 1 || !std::isnormal(float(alpha))) return;
  ops::Attributes attributes{{"alpha", float(alpha)}};
  if (is_turned[0]) attributes["transA"] = int64_t(1);
  if (is_turned[1]) attributes["transB"] = int64_t(1);
  match.replace(std::move(steps), match.plan().step({ops::kMicrosoft, "FusedMatMul", 1, std::move(attributes)},
                                                    step.node->name(), std::move(inputs), match.step(end).outputs));
}

}  // namespace encore::fuse
