// Gemm of rows that are in two dimensions for it alone: later passes know products of rows by MatMul and Add.
#include <algorithm>

#include "fuse/joined_products.h"
#include "fuse/links.h"
#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// The dimensions of the product if its rows are not put into two: those of `x`, which is as long as the depth, but for
// the columns. None if `y` has not surely the same rows, whose columns may be in several dimensions.
std::optional<Dims> unflattened(const Match& match, int x, int weights, int y) {
  auto dims = match.value(x).dims;
  const auto &factors = match.value(weights).dims, &made = match.value(y).dims;
  if (!dims || !made || dims->size() < 3 || made->size() < dims->size() || dims->back() < 1 ||
      dims->back() != factors->front())
    return std::nullopt;
  dims->back() = factors->back();
  const auto columns = made->begin() + std::ssize(*dims) - 1;
  constexpr int64_t kUnknown = -1;
  if (!std::equal(made->begin(), columns, dims->begin()) || std::find(made->begin(), columns, kUnknown) != columns)
    return std::nullopt;
  int64_t count = 1;
  for (auto dim = columns; dim != made->end(); ++dim)
    if (*dim < 1 || __builtin_mul_overflow(count, *dim, &count)) return std::nullopt;
  return count == factors->back() ? dims : std::nullopt;
}

}  // namespace

// Rows are as long before the first Reshape as behind it, so that these are the same ones.
void open_flat_gemm(Match& match, int gemm) {
  if (!is_plain_gemm(match, gemm)) return;
  const Step step = match.step(gemm);
  const int rows = step.outputs[0], flat = match.maker(step.inputs[0]), back = match.only_reader(rows);
  if (flat < 0 || back < 0 || !only_shapes(match, flat) || !only_shapes(match, back) ||
      match.step(back).inputs[0] != rows || !match.value(step.inputs[1]).is_constant ||
      !kServed.has(match.value(rows).type))
    return;
  const int x = match.step(flat).inputs[0], y = match.step(back).outputs[0];
  const auto dims = unflattened(match, x, step.inputs[1], y);
  if (!dims) return;
  const bool has_bias = step.inputs.size() > 2 && step.inputs[2] >= 0, is_split = match.value(y).dims != dims;
  const std::string name = match.node(back).name();
  const int sum = is_split ? match.add_like(y, " in rows", dims) : y,
            product = has_bias ? match.add_like(sum, " without its bias") : sum;
  std::vector<Step> made;
  made.push_back(match.plan().step({ops::kOnnx, "MatMul", 13}, step.node->name(), {x, step.inputs[1]}, {product}));
  if (has_bias) made.push_back(match.plan().step({ops::kOnnx, "Add", 13}, name, {product, step.inputs[2]}, {sum}));
  if (is_split) {
    const int shape = match.add_constant(name + "'s shape", own_ints(*Links::kept(match.value(y).dims, dims)));
    made.push_back(match.plan().step({ops::kOnnx, "Reshape", 13}, name, {sum, shape}, {y}));
  }
  if (made.size() > 2) {
    match.insert(std::move(made.front()));
    made.erase(made.begin());
  }
  match.replace({gemm, back}, std::move(made));
  drop_unread(match, flat);
}

}  // namespace encore::fuse
