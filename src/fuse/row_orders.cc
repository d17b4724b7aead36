// Rows in another order on their way through a product: it does not matter to the product in which they come, so they
// are turned where others turn them anyway. torch's attention has sequences first inside, and batches outside.
#include <algorithm>
#include <numeric>

#include "fuse/joined_products.h"
#include "fuse/links.h"
#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

// A transposition that leaves rows as they are.
std::optional<std::vector<int64_t>> order_of_rows(const Match& match, int turn) {
  auto order = match.is(turn, "Transpose") ? match.node(turn).find_ints("perm") : std::nullopt;
  if (!order || order->size() < 3 || order->back() != std::ssize(*order) - 1 || std::ranges::is_sorted(*order))
    return std::nullopt;
  return order;
}

int reshape_of_numbers(const Match& match, int v) {
  const int made = match.maker(v, "Reshape");
  return made >= 0 && match.only_reader(v) >= 0 ? made : -1;
}

// The step again, of other values.
Step again(const Match& match, int s, int from, int to) {
  const Step& step = match.step(s);
  const NodeInfo& node = *step.node;
  std::vector<int> inputs = step.inputs;
  inputs[match.value(inputs[0]).is_constant ? 1 : 0] = from;
  return match.plan().step(operator_of(node), node.name(), std::move(inputs), {to});
}

// Whether all readers only move elements.
bool is_moved_on(const Match& match, int v) {
  const Links links(match);
  return !match.value(v).is_output && !match.readers(v).empty() && std::ranges::all_of(match.readers(v), [&](int s) {
    if (!match.is_there(s) || match.step(s).inputs[0] != v) return false;
    const auto link = links.to(match.step(s).outputs[0]);
    return link && link->view && link->from == v;
  });
}

// Before a product whose rows are moved anyway.
bool turn_behind(Match& match, int first, const std::vector<int64_t>& order) {
  const int x = match.step(first).inputs[0], product = match.only_reader(match.step(first).outputs[0], "MatMul");
  if (product < 0 || columns_of(match, match.step(product)) == 0 || match.step(product).inputs.size() != 2 ||
      match.step(product).inputs[0] != match.step(first).outputs[0] || !match.value(x).dims)
    return false;
  const int p = match.step(product).outputs[0], sum = match.only_reader(p, "Add");
  Dims dims = *match.value(x).dims;
  dims.back() = columns_of(match, match.step(product));
  const bool is_biased = sum >= 0 && is_constant_row(match, match.other(sum, p), dims.back(), dims.size());
  const int y = is_biased ? match.step(sum).outputs[0] : p;
  if (!is_moved_on(match, y)) return false;
  std::vector<int> steps{first, product};
  std::vector<Step> made;
  const int rows = match.add_like(p, " before it is turned", dims);
  made.push_back(again(match, product, x, rows));
  int before = rows;
  if (is_biased) {
    before = match.add_like(y, " before it is turned", dims);
    made.push_back(again(match, sum, rows, before));
    steps.push_back(sum);
  }
  made.push_back(transposition(match, order, match.node(first).name(), before, y));
  match.replace(std::move(steps), std::move(made));
  return true;
}

// [a * b, ..] of [a, b, ..], whose other dimensions are known.
bool are_rows_of(const Dims& dims, const Dims& rows) {
  if (dims.size() < 3 || rows.size() != 2) return false;
  int64_t width = 1;
  for (size_t i = 2; i < dims.size(); ++i) {
    if (dims[i] < 1) return false;
    width *= dims[i];
  }
  return width == rows[1];
}
// As both have as many rows, one dimension tells the other.
bool have_same_batch(const Dims& a, const Dims& b) { return (a[0] > 0 && a[0] == b[0]) || (a[1] > 0 && a[1] == b[1]); }

// Behind a product of rows in two dimensions, [a * b, ..], that were [a, b, ..] and are so again.
void turn_before(Match& match, int last, const std::vector<int64_t>& order) {
  if (order != std::vector<int64_t>{1, 0, 2}) return;
  const int back = reshape_of_numbers(match, match.step(last).inputs[0]);
  if (back < 0) return;
  const int product = match.maker(match.step(back).inputs[0], "Gemm");
  if (product < 0 || match.only_reader(match.step(back).inputs[0]) != back ||
      match.node(product).get_int("transA", 0) != 0 || !match.value(match.step(product).inputs[1]).is_constant)
    return;
  const auto& factors = match.step(product).inputs;
  if (const auto& dims = match.value(match.step(product).outputs[0]).dims;
      factors.size() > 2 && factors[2] >= 0 &&
      !(dims && is_constant_row(match, factors[2], dims->back(), dims->size())))
    return;
  const int flat = reshape_of_numbers(match, factors[0]);
  if (flat < 0) return;
  const int z = match.step(flat).inputs[0], y = match.step(last).outputs[0];
  // Copies, as there will be more values.
  const auto of_z = match.value(z).dims, of_rows = match.value(factors[0]).dims,
             of_made = match.value(match.step(product).outputs[0]).dims,
             of_back = match.value(match.step(last).inputs[0]).dims;
  if (!of_z || !of_rows || !of_made || !of_back || !are_rows_of(*of_z, *of_rows) || !are_rows_of(*of_back, *of_made) ||
      !have_same_batch(*of_z, *of_back))
    return;
  std::vector<int64_t> of_all(of_z->size());
  std::iota(of_all.begin(), of_all.end(), 0);
  std::swap(of_all[0], of_all[1]);
  const std::string name = match.node(last).name();
  const bool is_first_known = (*of_back)[0] > 0;
  const Dims to{is_first_known ? -1 : (*of_back)[1], is_first_known ? (*of_back)[0] : -1, of_back->back()};
  const int turned_z = match.add_like(z, " with its rows turned", permuted(*of_z, of_all)),
            rows = match.add_like(factors[0], " with its rows turned"),
            made_rows = match.add_like(match.step(product).outputs[0], " with its rows turned");
  std::vector<Step> made;
  made.push_back(transposition(match, of_all, name, z, turned_z));
  made.push_back(view(match, {{ops::ViewStep::reshape, {-1, of_rows->back()}}}, name, turned_z, rows));
  made.push_back(again(match, product, rows, made_rows));
  made.push_back(view(match, {{ops::ViewStep::reshape, to}}, name, made_rows, y));
  match.replace({flat, product, back, last}, std::move(made));
}

}  // namespace

void turn_rows_elsewhere(Match& match, int step) {
  if (const auto order = order_of_rows(match, step))
    if (!turn_behind(match, step, *order)) turn_before(match, step, *order);
}

// RoFormer's rotations become so by onnxruntime, which turns a product with cosines, and pairs for that with sines.
void turn_operand_ahead(Match& match, int turn) {
  if (!match.is(turn, "Transpose")) return;
  const int v = match.step(turn).inputs[0], made = match.only_reader(v) < 0 ? -1 : match.maker(v);
  const auto order = match.node(turn).find_ints("perm");
  if (made < 0 || !order || !broadcasts(match.node(made)) || match.step(made).inputs.size() != 2) return;
  for (size_t i = 0; i < 2; ++i) {
    const int x = match.step(made).inputs[i], constant = match.step(made).inputs[1 - i];
    if (!match.value(constant).is_constant || match.rank(constant) != order->size() || match.rank(x) != order->size() ||
        match.value(x).dims != match.value(v).dims)
      continue;
    const auto turns_alike = [&](int s) {
      return match.is(s, "Transpose") && match.node(s).find_ints("perm") == order;
    };
    const auto other = std::ranges::find_if(match.readers(x), turns_alike);
    if (other == match.readers(x).end()) continue;
    const int turned = match.add_like(constant, " turned", permuted(*match.value(constant).dims, *order));
    std::vector<int> inputs{match.step(*other).outputs[0], turned};
    if (i == 1) std::swap(inputs[0], inputs[1]);
    const std::string name = match.node(made).name();
    match.replace({made, turn}, std::vector{transposition(match, *order, name, constant, turned),
                                            match.plan().step(operator_of(match.node(made)), name, std::move(inputs),
                                                              match.step(turn).outputs)});
    return;
  }
}

}  // namespace encore::fuse
