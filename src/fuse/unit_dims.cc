// Dimensions of one, which masks get before they meet scores, as a rule: what makes a mask has them from the beginning,
// and so the shape of what else is done to it.
#include <algorithm>

#include "fuse/passes.h"
#include "fuse/rolls.h"
#include "fuse/shape_symbols.h"

namespace encore::fuse {
namespace {

// Whether the one differs from the other in dimensions of one at most.
bool are_alike(const std::optional<Dims>& a, const std::optional<Dims>& b) {
  if (!a || !b) return false;
  Dims one = *a, other = *b;
  for (Dims* const dims : {&one, &other}) std::erase(*dims, 1);
  return one == other && std::ranges::count(one, -1) == 0;
}

// What one step makes of another's parts, or of what it puts together, is read where it is.
bool is_read_where_it_is(const Match& match, int v) {
  const int made = match.producer(v);
  return made >= 0 &&
         (match.is(made, "Slice") || match.is(made, "Split") || match.is(made, "Concat") || is_roll(match.step(made)));
}

// The only input that is no number, if it is as large as what the elementwise step makes.
std::optional<size_t> large_input(const Match& match, int s) {
  const Step& step = match.step(s);
  if (!is_for_programs(match, s) || step.outputs.size() != 1) return std::nullopt;
  std::optional<size_t> large;
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    if (match.number(step, i, 0) || match.integer(step, i, 0)) continue;
    if (large || step.inputs[i] < 0) return std::nullopt;
    large = i;
  }
  const auto is_one_of_many = [&](int v) {
    return match.value(v).dims == match.value(step.outputs[0]).dims && !match.value(v).is_constant;
  };
  return large && is_one_of_many(step.inputs[*large]) && !is_read_where_it_is(match, step.inputs[*large])
             ? large
             : std::nullopt;
}

}  // namespace

// As often as there is an elementwise step before.
void move_unit_dims(Match& match, int reshape) {
  const auto is_reshape = [&] {
    return match.is(reshape, "Reshape") || match.is(reshape, "Unsqueeze") || match.is(reshape, "Squeeze");
  };
  while (is_reshape()) {
    const Step last = match.step(reshape);
    const int v = last.inputs[0], y = last.outputs[0], first = match.only_reader(v) < 0 ? -1 : match.maker(v);
    const auto large = first < 0 ? std::nullopt : large_input(match, first);
    const auto is_elementwise = [&](int s) { return is_for_programs(match, s); };
    if (!large || !are_alike(match.value(v).dims, match.value(y).dims) || match.value(y).is_output ||
        !std::ranges::any_of(match.readers(y), is_elementwise))
      return;
    const Step call = match.step(first);
    const int x = call.inputs[*large], seen = match.add_like(x, " as " + match.value(y).name, match.value(y).dims);
    std::vector<int> before = last.inputs, inputs = call.inputs;
    before[0] = x, inputs[*large] = seen;
    const auto like = [&](const Step& step, std::vector<int> read, int made) {
      return match.plan().step(operator_of(*step.node), step.node->name(), std::move(read), {made});
    };
    match.replace({first, reshape}, std::vector{like(last, std::move(before), seen), like(call, std::move(inputs), y)});
    reshape = match.producer(seen);
  }
}

}  // namespace encore::fuse
