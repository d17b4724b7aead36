#include <algorithm>

#include "fuse/joined_products.h"
#include "fuse/passes.h"
#include "ops/elementwise/gate.h"
#include "ops/matmul/normed_product.h"

namespace encore::fuse {
namespace {

constexpr const char* kGatedProduct = "GatedMatMul";

// x * sigmoid(x), and that times y, where they are operators.
bool is_unscaled(const Match& match, int step, const char* op) {
  return match.is(step, op) && match.node(step).get_float("alpha", 1.f) == 1.f;
}

// The product that alone reads the value, by another one that is computed, too; or -1. Version 7 is the first that
// broadcasts as today.
int product_with(const Match& match, int v) {
  const int reader = match.only_reader(v, "Mul");
  return reader < 0 || match.node(reader).since_version() < 7 || match.value(match.other(reader, v)).is_constant
             ? -1
             : reader;
}

struct Gate {
  std::vector<int> steps;
  int x = -1, y = -1;
};
// What begins with this step; no steps if nothing does.
Gate gate_from(const Match& match, int first) {
  const std::vector<int>& inputs = match.step(first).inputs;
  if (is_unscaled(match, first, "SwiGLU")) return {{first}, inputs[0], inputs[1]};
  const bool is_sigmoid = match.is(first, "Sigmoid");
  if (!is_sigmoid && !is_unscaled(match, first, "Swish")) return {};
  std::vector<int> steps{first};
  if (is_sigmoid) {
    const int gated = match.step(first).outputs[0], silu = product_with(match, gated);
    if (silu < 0 || match.other(silu, gated) != inputs[0]) return {};
    steps.push_back(silu);
  }
  const int silu_of_x = match.step(steps.back()).outputs[0], last = product_with(match, silu_of_x);
  if (last < 0) return {};
  steps.push_back(last);
  return {steps, inputs[0], match.other(last, silu_of_x)};
}

// Whether both values, of which the first is read so often, are products that can be one.
bool are_alike(const Match& match, int x, size_t readings_of_x, int y) {
  const int left = match.maker(x), right = match.maker(y);
  if (x == y || left < 0 || right < 0 || match.readers(x).size() != readings_of_x || match.readers(y).size() != 1 ||
      match.value(x).is_output || match.value(y).is_output)
    return false;
  const Step &a = match.step(left), &b = match.step(right);
  const int64_t columns = columns_of(match, a);
  return columns % ops::kGateColumns == 0 && columns == columns_of(match, b) && can_join(match, a, b);
}

// The product of both steps, of columns that alternate, and the gate.
Step join_both(Match& match, int left, int right, int gated) {
  Step both = join_products(match, {left, right}, ops::kGateColumns, gated, {{ops::kGated, int64_t(1)}});
  if (is_quantized_product(*both.node)) return both;
  both = match.plan().step({kFusions, kGatedProduct, 1, both.node->attributes()}, both.node->name(), both.inputs,
                           both.outputs);
  both.make = ops::make_gated_matmul;
  return both;
}

}  // namespace

bool is_gated_product(const NodeInfo& info) { return info.domain() == kFusions && info.op_type() == kGatedProduct; }

// No path leaves them and comes back, for what is between has no other reader.
void join_gate(Match& match, int first) {
  auto [steps, x, y] = gate_from(match, first);
  if (steps.empty()) return;
  const std::string name = match.node(steps.back()).name();
  const std::vector<int> outputs = match.step(steps.back()).outputs;
  std::vector<Step> made;
  // x is read by the sigmoid and what multiplies by that, unless these are one.
  if (are_alike(match, x, match.is(first, "Sigmoid") ? 2 : 1, y)) {
    const int left = match.maker(x), right = match.maker(y);
    made.push_back(join_both(match, left, right, outputs[0]));
    steps.insert(steps.end(), {left, right});
  } else if (steps.size() > 1) {
    made.push_back(match.plan().step({kFusions, "Gate"}, name, {x, y}, outputs));
    made.back().make = ops::make_gate;
  }
  if (!made.empty()) match.replace(std::move(steps), std::move(made));
}

}  // namespace encore::fuse
