// Whether any element is so, as exporters ask: bools become numbers, of which the sum or the largest is a bool again.
#include "ops/reduce/any.h"

#include <algorithm>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

// Whether the step says if a number, which is none below zero, is more than that.
bool asks_whether_positive(const Match& match, int s) {
  const Step& step = match.step(s);
  if (match.is(s, "Cast")) return match.value(step.outputs[0]).type == Type::boolean;
  if (!match.is(s, "Greater")) return false;
  // Numbers are integers, or floats.
  const auto most = match.rank(step.inputs[0]);
  const Tensor* const limit = match.plan().constant(step, 1);
  return match.number(step, 1, most.value_or(0)) == 0 ||
         (limit && most && size_t(limit->shape.rank()) <= *most && ShapeSymbols(match).constants(step, 1) == Dims{0});
}

}  // namespace

// No path leaves them and comes back, for the only other inputs are constants.
void ask_for_any(Match& match, int last) {
  if (!asks_whether_positive(match, last)) return;
  const Step& step = match.step(last);
  const int number = step.inputs[0];
  const int sum = match.maker(number, "ReduceSum"), most = match.maker(number, "ReduceMax"), made = std::max(sum, most);
  if (made < 0 || match.only_reader(number) < 0 || (sum >= 0 && match.node(sum).since_version() < 13)) return;
  const Step reduction = match.step(made);
  const int numbers = reduction.inputs[0], cast = match.maker(numbers, "Cast");
  if (cast < 0 || match.only_reader(numbers) < 0) return;
  std::vector<int> inputs = reduction.inputs;
  inputs[0] = match.step(cast).inputs[0];
  const bool has_axes = inputs.size() > 1 && inputs[1] >= 0;
  if (match.value(inputs[0]).type != Type::boolean || (has_axes && !match.value(inputs[1]).is_constant)) return;
  Operator op{ops::kOnnx, "ReduceMax", 20, match.node(made).attributes()};
  match.replace({cast, made, last},
                match.plan().step(std::move(op), match.node(last).name(), std::move(inputs), step.outputs));
}

// No path leaves both and comes back, for nobody else reads what is between.
void ask_for_any_odd(Match& match, int reduction) {
  constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};
  if (!match.is(reduction, "ReduceMax")) return;
  const Step& step = match.step(reduction);
  const int bools = step.inputs[0], test = match.only_reader(bools) < 0 ? -1 : match.maker(bools);
  const bool of_nan = match.is(test, "IsNaN");
  if (!of_nan && !match.is(test, "IsInf")) return;
  const int x = match.step(test).inputs[0];
  const auto rank = match.rank(x);
  if (!rank || !kServed.has(match.value(x).type)) return;
  const bool has_axes = match.node(reduction).find_ints("axes") || (step.inputs.size() > 1 && step.inputs[1] >= 0);
  if (has_axes || match.node(reduction).get_int("noop_with_empty_axes", 0) != 0) {
    const auto axes = ShapeSymbols(match).axes(step);
    if (!axes) return;
    std::vector<bool> reduced(*rank);
    for (const int64_t axis : *axes)
      if (const auto from_first = counted_from_first(axis, *rank)) reduced[*from_first] = true;
    if (std::ranges::count(reduced, false) > 0) return;
  }
  ops::Attributes attributes = match.node(test).attributes();
  attributes["keepdims"] = match.node(reduction).get_int("keepdims", 1);
  attributes[ops::kOfNan] = int64_t(of_nan);
  Step made = match.plan().step({kFusions, "Any", 1, std::move(attributes)},
                                match.node(test).name() + " and " + match.node(reduction).name(), {x}, step.outputs);
  made.make = ops::make_any;
  match.replace({test, reduction}, std::move(made));
}

}  // namespace encore::fuse
