#include "ops/attention/inputs/last_keys.h"
#include "fuse/passes.h"
#include "fuse/shape_symbols.h"

namespace encore::fuse {
namespace {

// Of rows of integers, which have no other dimensions.
bool sums_rows(const Match& match, int sum) {
  const Step& step = match.step(sum);
  const auto axes = ShapeSymbols(match).axes(step);
  return match.rank(step.inputs[0]) == 2u && match.value(step.inputs[0]).type == Type::i64 && axes &&
         axes->size() == 1 && (axes->front() == 1 || axes->front() == -1) && step.node->get_int("keepdims", 1) == 0;
}

}  // namespace

// No path leaves them and comes back, for nobody else reads what is between.
void join_last_keys(Match& match, int cast) {
  if (!match.is(cast, "Cast") || match.value(match.step(cast).outputs[0]).type != Type::i32) return;
  const int place = match.step(cast).inputs[0], less = match.maker(place, "Sub");
  if (less < 0 || match.only_reader(place) != cast || match.node(less).since_version() < 7) return;
  const int count = match.step(less).inputs[0], sum = match.maker(count, "ReduceSum");
  const Tensor* const by = match.plan().constant(match.step(less), 1);
  if (sum < 0 || match.only_reader(count) != less || !sums_rows(match, sum) || !by || by->type != Type::i64 ||
      by->shape.rank() > 1 || by->count() != 1)
    return;
  const std::string name = match.node(sum).name() + " and " + match.node(cast).name();
  Step made = match.plan().step({kFusions, "LastKeys", 1, {{ops::kLess, *by->as<int64_t>()}}}, name,
                                {match.step(sum).inputs[0]}, match.step(cast).outputs);
  made.make = ops::make_last_keys;
  made.comes_first = true;  // so that nothing else stands between a token's products and attention
  match.replace({sum, less, cast}, std::move(made));
}

}  // namespace encore::fuse
