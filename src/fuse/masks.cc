// Masks of scores on their way to a softmax, as attention reads them: one that is added.
#include <algorithm>
#include <span>

#include "fuse/bounds.h"
#include "fuse/own_tensor.h"
#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};
constexpr double kHides = -1e4;  // what is at most this has no part in a softmax
constexpr int64_t kMostNumbers = int64_t(1) << 22;

// A multiple of a product, which nobody else reads.
bool is_of_product(const Match& match, int v) {
  for (int made = match.maker(v); made >= 0 && match.only_reader(v) >= 0; made = match.maker(v)) {
    if (match.is(made, "MatMul")) return true;
    const auto by = match.scaled(made);
    if (!by) return false;
    v = by->from;
  }
  return false;
}

// The dimensions of a sum.
std::optional<Dims> broadcast(const Dims& a, const Dims& b) {
  const Dims &longer = a.size() < b.size() ? b : a, &shorter = a.size() < b.size() ? a : b;
  Dims made = longer;
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& dim = made[made.size() - 1 - i];
    const int64_t other = shorter[shorter.size() - 1 - i];
    if (dim == 1)
      dim = other;
    else if (other != 1 && (other != dim || dim == -1))
      return std::nullopt;
  }
  return made;
}

// Scores and what is added to them; which input that is.
struct Masked {
  int scores;
  size_t mask;
};
std::optional<Masked> masked_by(const Match& match, int sum) {
  for (size_t i = 0; i < 2; ++i)
    if (is_of_product(match, match.step(sum).inputs[i])) return Masked{match.step(sum).inputs[i], 1 - i};
  return std::nullopt;
}

// Whether the rows go to a softmax, and nothing but their type and what is before them changes.
bool is_softmaxed_as_it_is(const Match& match, int v) {
  for (int more = 0; more < 3; ++more) {
    const int reader = match.only_reader(v);
    if (reader < 0 || is_softmax_of_rows(match, reader)) return reader >= 0;
    const int made = match.step(reader).outputs[0];
    const auto &from = match.value(v).dims, &to = match.value(made).dims;
    const bool keeps_rows = match.is(reader, "Reshape") && from && to && !from->empty() && !to->empty() &&
                            from->back() == to->back() && to->back() != -1;
    if (!keeps_rows && !match.is(reader, "Cast")) return false;
    v = made;
  }
  return false;
}

}  // namespace

bool goes_to_a_softmax(const Match& match, int v) {
  for (int more = 0; more < 6; ++more) {
    const int reader = match.only_reader(v);
    if (reader < 0) return false;
    if (match.is(reader, "Softmax")) return true;
    const bool is_chosen = match.is(reader, "Where") && match.step(reader).inputs[2] == v;
    if (!is_chosen && !match.is(reader, "Add") && !match.is(reader, "Reshape") && !match.is(reader, "Cast"))
      return false;
    v = match.step(reader).outputs[0];
  }
  return false;
}

bool is_softmax_of_rows(const Match& match, int s) {
  if (!match.is(s, "Softmax")) return false;
  const auto rank = match.rank(match.step(s).inputs[0]);
  if (!rank || *rank == 0) return false;
  const int64_t axis = match.node(s).get_int("axis", match.node(s).since_version() < 13 ? 1 : -1);
  return axis == -1 || axis == int64_t(*rank) - 1;
}

// Not ahead of another mask: where that hides what this one has left, the softmax is of what both have hidden.
void add_chosen_mask(Match& match, int where) {
  if (!match.is(where, "Where")) return;
  const Step& step = match.step(where);
  const Tensor* const hides = match.plan().constant(step, 0);
  const int scores = step.inputs[2], y = step.outputs[0];
  const auto& dims = match.value(scores).dims;
  const Type type = match.value(scores).type;
  if (!hides || hides->type != Type::boolean || hides->shape.rank() == 0 || hides->count() == 0 ||
      hides->count() > kMostNumbers || !dims || dims != match.value(y).dims || !kServed.has(type) ||
      match.value(y).is_output)
    return;
  const auto number = match.number(step, 1, dims->size());
  if (!number || !(*number <= kHides)) return;
  if (!is_softmaxed_as_it_is(match, y)) return;
  const std::span hidden(hides->as<const bool>(), size_t(hides->count()));
  if (std::ranges::count(hidden, true) == 0) {
    match.substitute(y, scores);
    return drop_unread(match, where);
  }
  const size_t width = size_t(hides->shape.back());
  std::vector<double> numbers;
  for (size_t row = 0; row < hidden.size(); row += width) {
    if (std::ranges::count(hidden.subspan(row, width), false) == 0) return;  // all of it are as likely
    for (const bool is_hidden : hidden.subspan(row, width)) numbers.push_back(is_hidden ? *number : 0);
  }
  const int mask =
      match.add_constant(match.value(step.inputs[0]).name + " as numbers", own_numbers(type, hides->shape, numbers));
  match.replace({where}, match.plan().step({ops::kOnnx, "Add", 14}, step.node->name(), {scores, mask}, {y}));
}

// No path leaves both and comes back, unless the second mask were made of the first sum, which nobody else reads.
void join_masks(Match& match, int second) {
  if (!match.is(second, "Add")) return;
  const Step& outer = match.step(second);
  for (size_t i = 0; i < 2; ++i) {
    const int v = outer.inputs[i], first = match.only_reader(v) < 0 ? -1 : match.maker(v, "Add");
    const auto masked = first < 0 ? std::nullopt : masked_by(match, first);
    if (!masked || !goes_to_a_softmax(match, outer.outputs[0])) continue;
    const Step& inner = match.step(first);
    const int a = inner.inputs[masked->mask], b = outer.inputs[1 - i], y = outer.outputs[0];
    const auto &of_a = match.value(a).dims, &of_b = match.value(b).dims, &of_scores = match.value(masked->scores).dims;
    const auto dims = of_a && of_b ? broadcast(*of_a, *of_b) : std::nullopt;
    if (!dims || !of_scores || of_scores != match.value(y).dims || broadcast(*of_scores, *dims) != of_scores) return;
    const auto of_first = bounds_of(match, inner, masked->mask), of_second = bounds_of(match, outer, 1 - i);
    if (!of_first || !of_second || !sum(match.value(y).type, *of_first, *of_second))
      return match.note(second, "two masks together may be infinite where neither is");
    const std::string name = match.node(second).name(), inner_name = match.node(first).name();
    const int both = match.add_like(b, " and " + match.value(a).name, *dims);
    match.replace({first, second},
                  std::vector{match.plan().step({ops::kOnnx, "Add", 14}, inner_name, {b, a}, {both}),
                              match.plan().step({ops::kOnnx, "Add", 14}, name, {masked->scores, both}, {y})});
    return;
  }
}

}  // namespace encore::fuse
