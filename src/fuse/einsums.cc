// Einsum where it is a product of matrices.
#include <algorithm>
#include <numeric>

#include "fuse/links.h"
#include "fuse/passes.h"
#include "ops/matmul/equation.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using ops::Labels;

bool is_alike_before(const Labels& a, const Labels& b, size_t count) {
  return a.size() == b.size() && std::equal(a.begin(), a.begin() + ptrdiff_t(count), b.begin());
}

bool has_repeated(Labels labels) {
  std::ranges::sort(labels);
  return std::ranges::adjacent_find(labels) != labels.end();
}

}  // namespace

// "bij,bjk->bik" is MatMul; where the second factor is "bkj" it is transposed before.
void make_product_of_einsum(Match& match, int einsum) {
  if (!match.is(einsum, "Einsum") || match.step(einsum).inputs.size() != 2) return;
  const auto equation = ops::parse_equation(match.node(einsum).get_string("equation", ""), 2);
  const Labels &a = equation.inputs[0], &b = equation.inputs[1], &y = equation.output;
  if (a.size() < 2 || std::ranges::count(a, ops::kEllipsis) || has_repeated(a) || has_repeated(b)) return;
  const size_t batch = a.size() - 2;
  if (!is_alike_before(a, b, batch) || !is_alike_before(a, y, batch + 1)) return;
  const int depth = a.back(), column = y.back();
  const bool is_turned = b[batch] == column && b[batch + 1] == depth;
  if (column == depth || std::ranges::count(a, column) || !(is_turned || (b[batch] == depth && b[batch + 1] == column)))
    return;
  const std::string name = match.node(einsum).name();
  const int first = match.step(einsum).inputs[0], y_value = match.step(einsum).outputs[0];
  int second = match.step(einsum).inputs[1];
  // A label may be 1 in one of them.
  const auto& of_first = match.value(first).dims;
  const auto& of_second = match.value(second).dims;
  if (!of_first || !of_second || of_first->size() != a.size() || of_second->size() != b.size()) return;
  if (const int64_t deep = of_first->back(); deep == -1 || deep != (*of_second)[batch + (is_turned ? 1 : 0)]) return;
  if (is_turned) {
    std::vector<int64_t> order(a.size());
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[batch], order[batch + 1]);
    auto dims = match.value(second).dims;
    if (dims && dims->size() == a.size()) dims = permuted(*dims, order);
    const int to = match.add_like(second, " turned", std::move(dims));
    match.insert(transposition(match, order, name, second, to));
    second = to;
  }
  match.replace({einsum}, match.plan().step({ops::kOnnx, "MatMul", 13}, name, {first, second}, {y_value}));
}

}  // namespace encore::fuse
