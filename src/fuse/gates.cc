#include <algorithm>
#include <set>

#include "fuse/joined_products.h"
#include "fuse/links.h"
#include "fuse/passes.h"
#include "ops/elementwise/gate.h"
#include "ops/matmul/normed_product.h"
#include "ops/registry.h"

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

// Whether products by constants make both of the same rows.
bool are_of_the_same_rows(const Match& match, int x, int y) {
  const int left = match.maker(x), right = match.maker(y);
  return left >= 0 && right >= 0 && left != right && columns_of(match, match.step(left)) > 0 &&
         columns_of(match, match.step(right)) > 0 && match.step(left).inputs[0] == match.step(right).inputs[0];
}

// Whether a program of elementwise steps reads both where they lie, and nothing has to cut them apart.
bool are_parts_in_place(const Match& match, int x, int y) {
  const auto is_part = [&](int v) { return part_of(match, v) && is_read_in_place(match, v); };
  return match.plan().settings.fuses_elementwise && !match.plan().is_group && is_part(x) && is_part(y);
}

// The product of which both values, read so, are the halves, and the steps that cut it apart.
struct Halves {
  int product;
  std::set<int> cuts;
  int64_t x, y, size;  // where they begin
};
std::optional<Halves> halves_of_product(const Match& match, int x, size_t readings_of_x, int y) {
  const auto left = part_of(match, x), right = part_of(match, y);
  if (!left || !right || left->x != right->x || match.readers(x).size() != readings_of_x ||
      match.readers(y).size() != 1 || match.value(x).is_output || match.value(y).is_output)
    return std::nullopt;
  const int both = left->x, product = match.maker(both);
  const int64_t size = left->size / 2;
  const auto is_half = [&](const Part& part) {
    return part.axis == int(match.value(both).dims->size()) - 1 && part.end - part.begin == size &&
           part.begin % size == 0;
  };
  if (product < 0 || match.value(both).is_output || size % ops::kGateColumns != 0 || size == 0 || !is_half(*left) ||
      !is_half(*right) || left->begin == right->begin || columns_of(match, match.step(product)) != 2 * size ||
      !can_join(match, match.step(product), match.step(product)))
    return std::nullopt;
  const std::set<int> cuts{match.maker(x), match.maker(y)};
  if (!std::ranges::all_of(match.readers(both), [&](int s) { return cuts.contains(s); })) return std::nullopt;
  return Halves{product, cuts, left->begin, right->begin, size};
}

// Columns that alternate, of which the first ones are gated.
std::vector<int64_t> alternating(const Halves& halves) {
  std::vector<int64_t> order;
  for (int64_t first = 0; first < halves.size; first += ops::kGateColumns)
    for (const int64_t half : {halves.x, halves.y})
      for (int64_t i = 0; i < ops::kGateColumns; ++i) order.push_back(half + first + i);
  return order;
}

// The product of columns that alternate, and the gate.
Step gated_product(Match& match, Step both) {
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
  const ops::Attributes is_gated{{ops::kGated, int64_t(1)}};
  // x is read by the sigmoid and what multiplies by that, unless these are one.
  const size_t readings_of_x = match.is(first, "Sigmoid") ? 2 : 1;
  if (are_alike(match, x, readings_of_x, y)) {
    const int left = match.maker(x), right = match.maker(y);
    made.push_back(gated_product(match, join_products(match, {left, right}, ops::kGateColumns, outputs[0], is_gated)));
    steps.insert(steps.end(), {left, right});
  } else if (const auto halves = halves_of_product(match, x, readings_of_x, y)) {
    made.push_back(
        gated_product(match, with_columns(match, halves->product, alternating(*halves), outputs[0], is_gated)));
    steps.push_back(halves->product);
    steps.insert(steps.end(), halves->cuts.begin(), halves->cuts.end());
  } else {
    if (are_of_the_same_rows(match, x, y))
      match.note(match.maker(x),
                 "its columns are not alike those of the other product, or others read it or its weights");
    if (steps.size() > 1 && !are_parts_in_place(match, x, y)) {
      made.push_back(match.plan().step({kFusions, "Gate"}, name, {x, y}, outputs));
      made.back().make = ops::make_gate;
    }
  }
  if (!made.empty()) match.replace(std::move(steps), std::move(made));
}

// No path leaves them and comes back, for both are made of the same rows and constants.
void join_gated_products(Match& match, int product) {
  if (!match.is(product, "Mul") || !match.plan().settings.fuses_elementwise) return;
  for (size_t i = 0; i < 2; ++i) {
    const int gated = match.step(product).inputs[i], y = match.step(product).inputs[1 - i];
    const int gate = match.only_reader(gated) < 0 ? -1 : match.maker(gated);
    if (gate < 0 || match.is(gate, "Cast") || match.step(gate).inputs.size() != 1 || !is_for_programs(match, gate))
      continue;
    const int x = match.step(gate).inputs[0];
    if (!are_alike(match, x, 1, y) || !match.value(x).dims || match.value(x).dims != match.value(y).dims) continue;
    const int left = match.maker(x), right = match.maker(y);
    const int64_t columns = columns_of(match, match.step(left));
    auto dims = *match.value(x).dims;
    dims.back() = 2 * columns;
    const int both = match.add_like(x, " and " + match.value(y).name, std::move(dims));
    const auto part = [&](int64_t begin, int v) {
      return slice(match, begin, begin + columns, -1, match.value(v).name, both, v);
    };
    Step second = part(columns, y);
    match.replace({left, right}, std::vector{join_products(match, {left, right}, 0, both), part(0, x)});
    return match.insert(std::move(second));
  }
}

}  // namespace encore::fuse
