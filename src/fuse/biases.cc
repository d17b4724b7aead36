#include <algorithm>

#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// One row of so many columns, with no more dimensions than the product has.
bool is_row(const std::optional<std::vector<int64_t>>& dims, int64_t columns, size_t rank) {
  return dims && !dims->empty() && dims->size() <= rank && dims->back() == columns &&
         std::all_of(dims->begin(), dims->end() - 1, [](int64_t dim) { return dim == 1; });
}

}  // namespace

// No path leaves both and comes back, for the sum's other term is a constant.
void join_bias(Match& match, int product) {
  const Step& rows = match.step(product);
  if (!match.is(product, "MatMul") || rows.inputs.size() != 2 || !kServed.has(match.value(rows.inputs[0]).type)) return;
  const int y = rows.outputs[0], sum = match.only_reader(y, "Add"), factor = rows.inputs[1];
  if (sum < 0 || match.node(sum).since_version() < 7) return;  // the first that broadcasts as today
  if (!match.value(factor).is_constant || match.rank(factor) != 2u) return;
  const int bias = match.other(sum, y);
  if (!match.value(bias).is_constant ||
      !is_row(match.value(bias).dims, match.value(factor).dims->back(), match.rank(y).value_or(1)))
    return;
  match.replace({product, sum}, match.plan().step({ops::kOnnx, "MatMul", rows.node->since_version()},
                                                  rows.node->name() + " and " + match.node(sum).name(),
                                                  {rows.inputs[0], factor, bias}, match.step(sum).outputs));
}

}  // namespace encore::fuse
