// Gemm of rows that are in two dimensions for it alone: later passes know products of rows by MatMul and Add.
#include <algorithm>

#include "fuse/joined_products.h"
#include "fuse/links.h"
#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

constexpr int64_t kUnknown = -1;

// How many the elements from the `first` dimension on are; zero where that is not known.
int64_t count_from(const Dims& dims, size_t first) {
  int64_t count = 1;
  for (size_t i = first; i < dims.size(); ++i)
    if (dims[i] < 1 || __builtin_mul_overflow(count, dims[i], &count)) return 0;
  return count;
}
// As many dimensions of rows as leave `columns` elements of each; at least two. Zero if there are none such.
size_t rows_of(const Dims& dims, int64_t columns) {
  for (size_t rows = dims.size() - 1; rows > 1; --rows)
    if (count_from(dims, rows) == columns) return rows;
  return 0;
}

// The dimensions of `x` and of the product if their rows are not put into two. Both may have columns in several
// dimensions. None if `y` has not surely the same rows.
struct Unflattened {
  Dims x, y;
};
std::optional<Unflattened> unflattened(const Match& match, int x, int weights, int y) {
  const auto &dims = match.value(x).dims, &factors = match.value(weights).dims, &made = match.value(y).dims;
  if (!dims || !made || dims->size() < 3) return std::nullopt;
  const size_t rows = rows_of(*dims, factors->front());
  if (rows == 0 || made->size() <= rows || count_from(*made, rows) != factors->back()) return std::nullopt;
  const auto end = dims->begin() + ptrdiff_t(rows);
  if (!std::equal(dims->begin(), end, made->begin()) || std::find(dims->begin(), end, kUnknown) != end)
    return std::nullopt;
  Unflattened both{Dims(dims->begin(), end), Dims(dims->begin(), end)};
  both.x.push_back(factors->front());
  both.y.push_back(factors->back());
  return both;
}

// Dimensions of rows, which come first, stay.
Step reshape(Match& match, const std::string& name, int from, int to) {
  const int shape =
      match.add_constant(name + "'s shape", own_ints(*Links::kept(match.value(to).dims, match.value(from).dims)));
  return match.plan().step({ops::kOnnx, "Reshape", 13}, name, {from, shape}, {to});
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
  int x = match.step(flat).inputs[0];
  const int y = match.step(back).outputs[0];
  const auto dims = unflattened(match, x, step.inputs[1], y);
  if (!dims) return;
  const bool has_bias = step.inputs.size() > 2 && step.inputs[2] >= 0, is_split = match.value(y).dims != dims->y;
  const std::string name = match.node(back).name();
  const int sum = is_split ? match.add_like(y, " in rows", dims->y) : y,
            product = has_bias ? match.add_like(sum, " without its bias") : sum;
  if (match.value(x).dims != dims->x) {
    const int in_rows = match.add_like(match.step(flat).outputs[0], " as they were", dims->x);
    match.insert(reshape(match, match.node(flat).name(), x, in_rows));
    x = in_rows;
  }
  std::vector<Step> made;
  made.push_back(match.plan().step({ops::kOnnx, "MatMul", 13}, step.node->name(), {x, step.inputs[1]}, {product}));
  if (has_bias) made.push_back(match.plan().step({ops::kOnnx, "Add", 13}, name, {product, step.inputs[2]}, {sum}));
  if (is_split) made.push_back(reshape(match, name, sum, y));
  if (made.size() > 2) {
    match.insert(std::move(made.front()));
    made.erase(made.begin());
  }
  match.replace({gemm, back}, std::move(made));
  drop_unread(match, flat);
}

}  // namespace encore::fuse
