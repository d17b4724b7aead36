#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

bool halves(const Match& match, int product, int v) {
  const auto by = match.scaled(product);
  return by && by->from == v && by->factor == 0.5;
}

// The step that alone reads the value, and makes it of another one and this factor.
std::optional<Match::Scaled> scaled_to(const Match& match, int v, double factor, Type type) {
  const int made = match.maker(v);
  const auto by = made < 0 || match.only_reader(v) < 0 ? std::nullopt : match.scaled(made);
  return by && is_about(by->factor, factor, type) ? by : std::nullopt;
}

// Of a curve f of x, (1 + f) * x / 2: the steps, of which the last one makes the result. No steps if it is none.
std::vector<int> halved_around(const Match& match, int curve, int x) {
  const int sum = match.only_reader(match.step(curve).outputs[0], "Add");
  const auto raised = match.shifted(sum);
  if (!raised || raised->by != 1) return {};
  // Times x and a half, in either order, or times a half of x.
  const int plus_one = match.step(sum).outputs[0], first = match.only_reader(plus_one, "Mul");
  if (first < 0) return {};
  const int factor = match.other(first, plus_one), product = match.step(first).outputs[0];
  const int half = match.maker(factor, "Mul"), last = match.only_reader(product, "Mul");
  if (factor != x && half >= 0 && halves(match, half, x) && match.only_reader(factor) >= 0)
    return {curve, sum, half, first};
  const bool is_halved = last >= 0 && (factor == x ? halves(match, last, product)
                                                   : halves(match, first, plus_one) && match.other(last, product) == x);
  return is_halved ? std::vector{curve, sum, first, last} : std::vector<int>();
}

void join(Match& match, const std::vector<int>& before, int curve, int x, Operator gelu) {
  std::vector<int> steps = halved_around(match, curve, x);
  if (steps.empty()) return;
  const Step& last = match.step(steps.back());
  Step made = match.plan().step(std::move(gelu), last.node->name(), {x}, last.outputs);
  std::ranges::copy(before, std::back_inserter(steps));
  match.replace(std::move(steps), std::move(made));
}

// The step that makes the value, x times x, which alone one other step reads; below zero if it is none.
int squared(const Match& match, int v, int x) {
  const int made = match.maker(v, "Mul");
  return made >= 0 && match.step(made).inputs == std::vector{x, x} && match.only_reader(v) >= 0 ? made : -1;
}

// The steps that make x^3: Pow, or two products.
std::vector<int> cube_of(const Match& match, int v, int x) {
  const int made = match.maker(v);
  if (made < 0 || match.only_reader(v) < 0) return {};
  if (match.is(made, "Pow"))
    return match.step(made).inputs[0] == x && match.number(match.step(made), 1, match.rank(x).value_or(0)) == 3
               ? std::vector{made}
               : std::vector<int>();
  const auto& factors = match.step(made).inputs;
  if (!match.is(made, "Mul") || std::ranges::count(factors, x) != 1) return {};
  const int square = squared(match, match.other(made, x), x);
  return square >= 0 ? std::vector{made, square} : std::vector<int>();
}

// The steps that make factor * x^2.
std::vector<int> square_of(const Match& match, int v, int x, double factor, Type type) {
  const int made = match.maker(v, "Mul");
  if (made < 0 || match.only_reader(v) < 0) return {};
  if (const auto by = scaled_to(match, v, factor, type)) {
    const int square = squared(match, by->from, x);
    return square >= 0 ? std::vector{made, square} : std::vector<int>();
  }
  if (std::ranges::count(match.step(made).inputs, x) != 1) return {};
  const int part = match.other(made, x);
  const auto by = part < 0 ? std::nullopt : scaled_to(match, part, factor, type);
  return by && by->from == x ? std::vector{made, match.maker(part)} : std::vector<int>();
}

// What tanh is taken of, a polynomial of x, and the steps that make it.
struct Polynomial {
  int x = -1;
  std::vector<int> steps = {};
};
constexpr double kCubic = 0.044715;
const double kOuter = std::sqrt(2 * std::numbers::inv_pi);

// kOuter * (x + kCubic * x^3)
Polynomial sum_of_cube(const Match& match, int v) {
  const Type type = match.value(v).type;
  const auto by = scaled_to(match, v, kOuter, type);
  const int sum = by ? match.maker(by->from, "Add") : -1;
  if (sum < 0 || match.only_reader(by->from) < 0) return {};
  for (size_t i = 0; i < 2; ++i) {
    const int x = match.step(sum).inputs[i], cubic = match.step(sum).inputs[1 - i];
    const auto part = scaled_to(match, cubic, kCubic, type);
    std::vector<int> steps = part ? cube_of(match, part->from, x) : std::vector<int>();
    if (steps.empty()) continue;
    steps.insert(steps.end(), {match.maker(cubic), sum, match.maker(v)});
    return {x, std::move(steps)};
  }
  return {};
}

// kOuter * x * (1 + kCubic * x^2)
Polynomial product_of_square(const Match& match, int v) {
  const Type type = match.value(v).type;
  const int product = match.maker(v, "Mul");
  if (product < 0 || match.only_reader(v) < 0) return {};
  for (size_t i = 0; i < 2; ++i) {
    const int outer = match.step(product).inputs[i], plus_one = match.step(product).inputs[1 - i];
    const auto by = scaled_to(match, outer, kOuter, type);
    const int sum = by ? match.maker(plus_one, "Add") : -1;
    if (sum < 0 || match.only_reader(plus_one) < 0) continue;
    const auto raised = match.shifted(sum);
    if (!raised || raised->by != 1) continue;
    std::vector<int> steps = square_of(match, raised->from, by->from, kCubic, type);
    if (steps.empty()) continue;
    steps.insert(steps.end(), {sum, match.maker(outer), product});
    return {by->from, std::move(steps)};
  }
  return {};
}

}  // namespace

// No path leaves them and comes back, for nobody else reads what is between.
void join_gelu(Match& match, int erf) {
  if (!match.is(erf, "Erf")) return;
  const int root = match.step(erf).inputs[0];
  const Type type = match.value(root).type;
  if (!kServed.has(type)) return;
  if (const auto by = scaled_to(match, root, std::sqrt(0.5), type))
    join(match, {match.maker(root)}, erf, by->from, {ops::kOnnx, "Gelu", 20});
}

void join_tanh_gelu(Match& match, int tanh) {
  if (!match.is(tanh, "Tanh")) return;
  const int inner = match.step(tanh).inputs[0];
  if (!kServed.has(match.value(inner).type)) return;
  for (const auto polynomial : {sum_of_cube, product_of_square})
    if (const auto [x, steps] = polynomial(match, inner); !steps.empty())
      return join(match, steps, tanh, x, {ops::kMicrosoft, "FastGelu"});
}

void join_quick_gelu(Match& match, int sigmoid) {
  if (!match.is(sigmoid, "Sigmoid")) return;
  const int scaled = match.step(sigmoid).inputs[0], y = match.step(sigmoid).outputs[0];
  const int product = match.only_reader(y, "Mul");
  if (product < 0 || !kServed.has(match.value(y).type)) return;
  const int x = match.other(product, y);
  std::vector<int> steps{sigmoid, product};
  double alpha = 1;
  if (x != scaled) {
    const auto by = match.only_reader(scaled) < 0 ? std::nullopt : match.scaled(match.maker(scaled));
    if (!by || by->from != x) return;
    alpha = by->factor;
    steps.push_back(match.maker(scaled));
  }
  match.replace(std::move(steps), match.plan().step({ops::kMicrosoft, "QuickGelu", 1, {{"alpha", float(alpha)}}},
                                                    match.node(product).name(), {x}, match.step(product).outputs));
}

void join_bias_gelu(Match& match, int gelu) {
  if (!match.is_there(gelu) || match.step(gelu).inputs.size() != 1) return;
  const NodeInfo& info = match.node(gelu);
  const bool is_fast = info.op_type() == "FastGelu" && info.domain() == ops::kMicrosoft;
  if (!is_fast && !(is_onnx(info, "Gelu") && info.get_string("approximate", "none") == "none")) return;
  const int x = match.step(gelu).inputs[0], sum = match.maker(x, "Add");
  if (sum < 0 || match.only_reader(x) < 0 || match.node(sum).since_version() < 7) return;
  for (size_t i = 0; i < 2; ++i) {
    const int bias = match.step(sum).inputs[i], rows = match.step(sum).inputs[1 - i];
    const auto &row = match.value(bias).dims, &dims = match.value(rows).dims;
    if (!match.value(bias).is_constant || match.value(rows).is_constant || !row || row->size() != 1 || !dims ||
        dims->empty() || dims->back() != row->front())
      continue;
    if (is_elementwise_for(match, rows)) return match.note(gelu, "an elementwise step ahead takes both along");
    return match.replace({sum, gelu}, match.plan().step({ops::kMicrosoft, is_fast ? "FastGelu" : "BiasGelu"},
                                                        match.node(sum).name() + " and " + info.name(), {rows, bias},
                                                        match.step(gelu).outputs));
  }
}

}  // namespace encore::fuse
