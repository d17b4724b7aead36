#include "fuse/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "fuse/text_numbers.h"

namespace encore::fuse {
namespace {

using ops::Type;

constexpr int kMostSteps = 8;  // one behind the other
constexpr int64_t kMostNumbers = int64_t(1) << 20;

std::optional<Bounds> united(const std::optional<Bounds>& a, const std::optional<Bounds>& b) {
  if (!a || !b) return std::nullopt;
  return Bounds{std::min(a->least, b->least), std::max(a->most, b->most)};
}

std::optional<Bounds> of_numbers(const Tensor& constant) {
  std::optional<Bounds> all;
  if (constant.count() > kMostNumbers) return all;
  for (const double number : numbers_of(constant)) {
    if (!std::isfinite(number)) return std::nullopt;
    all = all ? united(all, Bounds{number, number}) : Bounds{number, number};
  }
  return all;
}

// The largest number, and one that surely is rounded to it, in double or from a float.
struct Largest {
  double number, rounded;
};
Largest largest(Type type) {
  switch (type) {
    case Type::f16: return {65504, 65519};
    case Type::bf16: return {0x1.fep127, 0x1.fefp127};
    case Type::f32: return {0x1.fffffep127, 0x1.fffffe8p127};
    default: return {};  // others' numbers are not followed
  }
}

std::optional<Bounds> of_whole(Type type) {
  switch (type) {
    case Type::boolean: return Bounds{0, 1};
    case Type::u8: return Bounds{0, 255};
    case Type::i8: return Bounds{-128, 127};
    default: return std::nullopt;
  }
}

bool only_moves(std::string_view op) {
  constexpr std::string_view kMoving[] = {"Identity", "Reshape",   "Flatten", "Squeeze", "Unsqueeze",
                                          "Expand",   "Transpose", "Slice",   "Gather",  "Tile"};
  return std::ranges::find(kMoving, op) != std::end(kMoving);
}

Bounds sum(const Bounds& a, const Bounds& b) { return {a.least + b.least, a.most + b.most}; }
std::optional<Bounds> product(const Bounds& a, const Bounds& b) {
  const auto [least, most] = std::minmax({a.least * b.least, a.least * b.most, a.most * b.least, a.most * b.most});
  return Bounds{least, most};
}

std::optional<Bounds> bounds_of(const Match& match, const Step& step, size_t input, int steps_left);

std::optional<Bounds> made_by(const Match& match, const Step& step, int steps_left) {
  if (!step.node->domain().empty()) return std::nullopt;
  const std::string& op = step.node->op_type();
  const auto of = [&](size_t input) { return bounds_of(match, step, input, steps_left); };
  if (only_moves(op)) return of(0);
  if (op == "Where") return united(of(1), of(2));
  if (op == "ConstantOfShape") {
    const Tensor* const number = step.node->find_tensor("value");
    return number ? of_numbers(*number) : Bounds{0, 0};
  }
  if (op == "Cast") {
    const auto whole = of_whole(match.value(step.inputs[0]).type);
    return whole ? whole : of(0);
  }
  if (op != "Add" && op != "Sub" && op != "Mul") return std::nullopt;
  const auto a = of(0), b = of(1);
  if (!a || !b) return std::nullopt;
  if (op == "Mul") return product(*a, *b);
  return op == "Add" ? sum(*a, *b) : Bounds{a->least - b->most, a->most - b->least};
}

// Rounding leaves numbers between those of the type, and brings to its largest what is a little beyond, as where a
// mask of that number is added to scores' small biases.
std::optional<Bounds> in_type(Type type, const Bounds& bounds) {
  const auto [most, rounded] = largest(type);
  if (!(bounds.least >= -rounded && bounds.most <= rounded)) return std::nullopt;
  return Bounds{std::max(bounds.least, -most), std::min(bounds.most, most)};
}

std::optional<Bounds> bounds_of(const Match& match, const Step& step, size_t input, int steps_left) {
  if (const Tensor* const constant = match.plan().constant(step, input)) return of_numbers(*constant);
  const int v = step.inputs[input], made = match.maker(v);
  if (made < 0 || steps_left == 0) return std::nullopt;
  const auto bounds = made_by(match, match.step(made), steps_left - 1);
  return bounds ? in_type(match.value(v).type, *bounds) : std::nullopt;
}

}  // namespace

std::optional<Bounds> bounds_of(const Match& match, const Step& step, size_t input) {
  return bounds_of(match, step, input, kMostSteps);
}

std::optional<Bounds> sum(Type type, const Bounds& a, const Bounds& b) { return in_type(type, sum(a, b)); }

bool each_row_sees(const Tensor& mask) {
  if (mask.count() == 0 || mask.count() > kMostNumbers) return false;
  const std::vector<double> numbers = numbers_of(mask);
  const size_t width = mask.shape.rank() == 0 ? 1 : size_t(mask.shape[mask.shape.rank() - 1]);
  const auto is_seen = [](double number) { return number != -std::numeric_limits<double>::infinity(); };
  for (auto row = numbers.begin(); row != numbers.end(); row += ptrdiff_t(width))
    if (std::none_of(row, row + ptrdiff_t(width), is_seen)) return false;
  return !numbers.empty();
}

}  // namespace encore::fuse
