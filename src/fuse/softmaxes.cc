#include <utility>

#include "fuse/passes.h"
#include "ops/norm/softmax.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

bool fits(const Value& mask, const Value& scores) {
  return mask.dims && scores.dims && ops::shares_rows(*mask.dims, *scores.dims, int(scores.dims->size()) - 1);
}

struct Zeroed {
  std::vector<int> steps;  // empty: there is none
  int y = -1;
};
// Where(IsNaN(y), 0, y), if nobody else reads y.
Zeroed zeros_for_nan(const Match& match, int y) {
  if (match.value(y).is_output || match.readers(y).size() != 2) return {};
  for (int is_nan : match.readers(y)) {
    if (!match.is(is_nan, "IsNaN")) continue;
    const int chosen = match.only_reader(match.step(is_nan).outputs[0], "Where");
    if (chosen < 0) return {};
    const Step& where = match.step(chosen);
    if (where.inputs[0] != match.step(is_nan).outputs[0] || where.inputs[2] != y ||
        match.number(where, 1, match.rank(y).value_or(0)) != 0)
      return {};
    return {{is_nan, chosen}, where.outputs[0]};
  }
  return {};
}

}  // namespace

// No path leaves them and comes back, for nobody else reads what is between.
void join_softmax(Match& match, int softmax) {
  if (!is_softmax_of_rows(match, softmax)) return;
  const int sums = match.step(softmax).inputs[0], sum = match.maker(sums, "Add");
  if (sum < 0 || match.only_reader(sums) < 0 || match.node(sum).since_version() < 7) return;
  if (!kServed.has(match.value(sums).type)) return;
  int scores = match.step(sum).inputs[0], mask = match.step(sum).inputs[1];
  if (!fits(match.value(mask), match.value(scores))) std::swap(scores, mask);
  if (!fits(match.value(mask), match.value(scores))) return;
  const int y = match.step(softmax).outputs[0];
  const Zeroed zeroed = zeros_for_nan(match, y);
  std::vector<int> steps{sum, softmax};
  steps.insert(steps.end(), zeroed.steps.begin(), zeroed.steps.end());
  Step made = match.plan().step({kFusions, "MaskedSoftmax", 1, {{ops::kZeros, int64_t(!zeroed.steps.empty())}}},
                                match.node(softmax).name(), {scores, mask}, {zeroed.steps.empty() ? y : zeroed.y});
  made.make = ops::make_masked_softmax;
  match.replace(std::move(steps), std::move(made));
}

}  // namespace encore::fuse
