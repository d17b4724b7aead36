// What is cut in two along an axis and put together the other way round.
#include <algorithm>
#include <array>

#include "fuse/links.h"
#include "fuse/rolls.h"
#include "fuse/shape_symbols.h"
#include "fuse/text_numbers.h"
#include "ops/elementwise/program.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// Perhaps its negative.
struct SignedPart : Part {
  int negative = -1;  // the step that makes it so
};

std::optional<SignedPart> signed_part_of(const Match& match, int v) {
  const int negative = match.maker(v, "Neg");
  const bool is_negative = negative >= 0 && match.only_reader(v) >= 0;
  const auto part = part_of(match, is_negative ? match.step(negative).inputs[0] : v);
  return part ? std::optional(SignedPart{*part, is_negative ? negative : -1}) : std::nullopt;
}

// One for each index of the axis, to be multiplied by: -1 from `begin` to `end`.
int add_signs(Match& match, const Value& x, int axis, int64_t begin, int64_t end) {
  const int64_t size = (*x.dims)[size_t(axis)];
  Dims dims(x.dims->size() - size_t(axis), 1);
  dims[0] = size;
  std::vector<double> signs(size_t(size), 1);
  std::fill(signs.begin() + begin, signs.begin() + end, -1);
  return match.add_constant(x.name + "'s signs", own_numbers(x.type, ops::Shape(dims), signs));
}

Step step_of(const Match& match, const Rolled& rolled, const std::string& name, int made) {
  std::vector<int64_t> axes, shifts;
  for (const auto& [axis, shift] : rolled.shifts) axes.push_back(axis), shifts.push_back(shift);
  Step step =
      match.plan().step({kFusions, "Roll", 1, {{"axes", axes}, {"shifts", shifts}}}, name, {rolled.from}, {made});
  step.make = ops::make_roll;
  return step;
}

// Every second value of x along the last axis.
struct EverySecond {
  int x, slice;
  bool is_odd;
};
std::optional<EverySecond> every_second_by(const Match& match, int slice) {
  if (!match.is(slice, "Slice") || match.node(slice).since_version() < 10) return std::nullopt;
  const Step& step = match.step(slice);
  const ShapeSymbols symbols(match);
  const auto rank = match.rank(step.inputs[0]);
  if (step.inputs.size() != 5 || !rank || *rank == 0) return std::nullopt;
  std::array<int64_t, 4> numbers{};  // start, end, axis and step
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto held = step.inputs[i + 1] < 0 ? std::nullopt : symbols.constants(step, i + 1);
    if (!held || held->size() != 1) return std::nullopt;
    numbers[i] = held->front();
  }
  const auto [start, end, axis, by] = numbers;
  const int64_t size = match.value(step.inputs[0]).dims->back();
  if (by != 2 || (start != 0 && start != 1) || size < 2 || size % 2 != 0 || end < size ||
      counted_from_first(axis, *rank) != *rank - 1)
    return std::nullopt;
  return EverySecond{step.inputs[0], slice, start == 1};
}

// That, perhaps negated, with one more dimension at the end; what comes after the Slice goes to `steps`.
struct Column : EverySecond {
  bool is_negative = false;
};
std::optional<Column> column_by(const Match& match, int v, size_t rank, std::vector<int>& steps) {
  bool is_single = false, is_negative = false;
  int made = match.maker(v);
  for (; made >= 0 && match.only_reader(v) >= 0; made = match.maker(v)) {
    const auto axes = match.is(made, "Unsqueeze") ? ShapeSymbols(match).axes(match.step(made)) : std::nullopt;
    if (axes && !is_single && axes->size() == 1 && counted_from_first(axes->front(), rank) == rank - 1)
      is_single = true;
    else if (match.is(made, "Neg") && !is_negative)
      is_negative = true;
    else
      break;
    steps.push_back(made);
    v = match.step(made).inputs[0];
  }
  const auto part = is_single ? every_second_by(match, made) : std::nullopt;
  return part ? std::optional(Column{*part, is_negative}) : std::nullopt;
}

}  // namespace

std::optional<TurnedPairs> halves_turned_by(const Match& match, int concat) {
  if (!match.is(concat, "Concat") || match.step(concat).inputs.size() != 2) return std::nullopt;
  const std::vector<int>& parts = match.step(concat).inputs;
  const auto first = signed_part_of(match, parts[0]), second = signed_part_of(match, parts[1]);
  if (!first || !second || first->x != second->x || first->axis != second->axis) return std::nullopt;
  const auto rank = match.rank(first->x);
  const int64_t half = first->begin;
  if (!rank || first->axis != int(*rank) - 1 ||
      counted_from_first(match.node(concat).get_int("axis", 0), *rank) != size_t(first->axis) ||
      first->size != 2 * half || first->end != first->size || second->begin != 0 || second->end != half ||
      first->negative < 0 || second->negative >= 0)
    return std::nullopt;
  return TurnedPairs{
      first->x, {match.maker(match.step(first->negative).inputs[0]), match.maker(parts[1])}, {concat, first->negative}};
}

std::optional<TurnedPairs> pairs_turned_by(const Match& match, int concat) {
  if (!match.is(concat, "Concat") || match.step(concat).inputs.size() != 2) return std::nullopt;
  const auto rank = match.rank(match.step(concat).outputs[0]);
  if (!rank || counted_from_first(match.node(concat).get_int("axis", 0), *rank) != *rank - 1) return std::nullopt;
  std::vector<int> steps{concat};
  const auto first = column_by(match, match.step(concat).inputs[0], *rank, steps),
             second = column_by(match, match.step(concat).inputs[1], *rank, steps);
  if (!first || !second || first->x != second->x || !first->is_odd || !first->is_negative || second->is_odd ||
      second->is_negative)
    return std::nullopt;
  return TurnedPairs{first->x, {first->slice, second->slice}, std::move(steps)};
}

bool is_roll(const Step& step) {
  return step.node && step.make && step.node->op_type() == "Roll" && step.node->domain() == kFusions;
}

Rolled rolled_by(const Step& roll) {
  Rolled made{roll.inputs[0], {}};
  const auto axes = *roll.node->find_ints("axes"), shifts = *roll.node->find_ints("shifts");
  for (size_t i = 0; i < axes.size(); ++i) made.shifts.emplace(int(axes[i]), shifts[i]);
  return made;
}

// No path leaves the steps and comes back, for nobody else reads what is negative.
void turn_pairs(Match& match, int concat) {
  const auto of_pairs = pairs_turned_by(match, concat);
  if (!of_pairs) return;
  const int x = of_pairs->x;
  const Type type = match.value(x).type;
  if (!kServed.has(type)) return;
  const std::string name = match.node(concat).name(), of = match.value(x).name;
  Dims dims = *match.value(x).dims;
  dims.back() /= 2;
  dims.push_back(2);
  std::vector<double> target(dims.size(), 0);  // 0: as it was
  std::copy(dims.end() - 2, dims.end(), target.end() - 2);
  const ops::Shape of_target{int64_t(target.size())};
  const int shape = match.add_constant(of + "'s pairs", own_numbers(Type::i64, of_target, target));
  const int signs = match.add_constant(of + "'s signs", own_numbers(type, ops::Shape{2}, {-1, 1}));
  const int pairs = match.add_like(x, " in pairs", dims), turned = match.add_like(x, " turned", dims);
  std::vector<Step> made;
  made.push_back(match.plan().step({ops::kOnnx, "Reshape", 14}, name, {x, shape}, {pairs}));
  made.push_back(step_of(match, {pairs, {{-1, 1}}}, name, turned));
  made.push_back(match.plan().step({ops::kOnnx, "Mul", 14}, name, {turned, signs}, match.step(concat).outputs));
  match.replace(of_pairs->steps, std::move(made));
  for (const int slice : of_pairs->cuts) drop_unread(match, slice);
}

// No path leaves the steps and comes back, for nobody else reads what is negative.
void join_roll(Match& match, int concat) {
  if (!match.is(concat, "Concat") || match.step(concat).inputs.size() != 2) return;
  const auto first = signed_part_of(match, match.step(concat).inputs[0]),
             second = signed_part_of(match, match.step(concat).inputs[1]);
  if (!first || !second || first->x != second->x || first->axis != second->axis) return;
  const Value& x = match.value(first->x);
  const int64_t shift = first->begin;
  const int rank = int(x.dims->size());
  if (counted_from_first(match.node(concat).get_int("axis", 0), x.dims->size()) != size_t(first->axis) ||
      first->end != first->size || second->begin != 0 || second->end != shift || shift == 0 || shift == first->size ||
      !kServed.has(x.type))
    return;
  if (first->negative >= 0 && second->negative >= 0) return;
  const std::string& name = match.node(concat).name();
  const std::vector<int> outputs = match.step(concat).outputs, parts = match.step(concat).inputs;
  std::vector<int> unread;
  for (const int v : parts) unread.push_back(match.maker(v));
  const int negative = std::max(first->negative, second->negative);
  if (negative < 0) {
    std::vector<int> steps{concat};
    Rolled rolled{first->x, {{int(first->axis - rank), shift}}};
    // What is rolled along another axis before, for nobody else.
    if (const int before = match.producer(rolled.from);
        before >= 0 && is_roll(match.step(before)) && !x.is_output &&
        std::ranges::all_of(match.readers(rolled.from), [&](int s) { return std::ranges::count(unread, s) > 0; })) {
      Rolled both = rolled_by(match.step(before));
      if (both.shifts.emplace(*rolled.shifts.begin()).second) {
        rolled = std::move(both);
        steps.push_back(before);
      }
    }
    match.replace(std::move(steps), step_of(match, rolled, name, outputs[0]));
  } else {
    unread.push_back(match.maker(match.step(negative).inputs[0]));
    const int64_t border = first->size - shift;  // between the parts as they are now
    const bool is_first = first->negative >= 0;
    const int signs = add_signs(match, x, first->axis, is_first ? 0 : border, is_first ? border : first->size);
    Value turned = match.value(outputs[0]);
    turned.name += " before its signs";
    turned.is_output = false;
    const int between = match.add(std::move(turned));
    std::vector<Step> made;
    made.push_back(step_of(match, {first->x, {{int(first->axis - rank), shift}}}, name, between));
    made.push_back(match.plan().step({ops::kOnnx, "Mul", 14}, name, {between, signs}, outputs));
    match.replace({negative, concat}, std::move(made));
  }
  for (const int step : unread)
    if (match.is_there(step)) drop_unread(match, step);
}

}  // namespace encore::fuse
