// Norms of rows as exporters spell them out: by the root of the mean square, as language models have them, with the
// mean taken off before or not, and by the length, as attention by cosines has it.
#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/norm/l2_norm.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// A reduction of the last dimension, which stays as 1.
bool is_along_rows(const Match& match, int reduction) {
  const NodeInfo& info = match.node(reduction);
  const auto rank = match.rank(match.step(reduction).inputs[0]);
  if (!rank || *rank == 0 || info.get_int("keepdims", 1) != 1) return false;
  const auto axes = ShapeSymbols(match).axes(match.step(reduction));
  return axes && axes->size() == 1 && (axes->front() == -1 || axes->front() == int64_t(*rank) - 1);
}

// What is squared to make the value; -1 if it is something else.
int root_of(const Match& match, int v) {
  const int made = match.maker(v);
  if (made < 0 || match.only_reader(v) < 0) return -1;
  const std::vector<int>& inputs = match.step(made).inputs;
  if (match.is(made, "Mul") && inputs[0] == inputs[1]) return inputs[0];
  return match.is(made, "Pow") && match.number(match.step(made), 1, match.rank(inputs[0]).value_or(0)) == 2 ? inputs[0]
                                                                                                            : -1;
}

// The steps from a mean square and a small number on that multiply x by one through their root; none if they are
// others.
std::vector<int> normalized_by(const Match& match, int sum, int x) {
  const int root = match.only_reader(match.step(sum).outputs[0], "Sqrt");
  if (root < 0) return {};
  const int deviation = match.step(root).outputs[0];
  if (const int quotient = match.only_reader(deviation, "Div"); quotient >= 0) {
    const Step& step = match.step(quotient);
    if (step.inputs[0] == x && step.inputs[1] == deviation) return {root, quotient};
    if (step.inputs[1] != deviation || match.number(step, 0, match.rank(deviation).value_or(0)) != 1) return {};
    const int product = match.only_reader(step.outputs[0], "Mul");
    return product >= 0 && match.other(product, step.outputs[0]) == x ? std::vector{root, quotient, product}
                                                                      : std::vector<int>();
  }
  const int inverse = match.only_reader(deviation, "Reciprocal");
  const int product = inverse < 0 ? -1 : match.only_reader(match.step(inverse).outputs[0], "Mul");
  return product >= 0 && match.other(product, match.step(inverse).outputs[0]) == x ? std::vector{root, inverse, product}
                                                                                   : std::vector<int>();
}

// A value that is at least a number: the value, and the number.
struct Least {
  int from;
  double number;
};
std::optional<Least> least_by(const Match& match, int s) {
  const Step& step = match.step(s);
  const auto most = match.rank(step.outputs[0]).value_or(0);
  if (match.is(s, "Clip") && step.inputs.size() > 1 && step.inputs[1] >= 0 &&
      (step.inputs.size() == 2 || step.inputs[2] < 0)) {
    if (const auto number = match.number(step, 1, most)) return Least{step.inputs[0], *number};
  } else if (match.is(s, "Max") && step.inputs.size() == 2) {
    for (size_t i = 0; i < 2; ++i)
      if (const auto number = match.number(step, i, most)) return Least{step.inputs[1 - i], *number};
  }
  return std::nullopt;
}

// The step that makes a value which is read once, if it is such an operator; or -1.
int maker_for_one(const Match& match, int v, const char* op) {
  return match.only_reader(v) < 0 ? -1 : match.maker(v, op);
}

}  // namespace

// No path leaves them and comes back, for all that is read is x.
void join_spelled_l2_norm(Match& match, int quotient) {
  if (!match.is(quotient, "Div")) return;
  int x = match.step(quotient).inputs[0], length = match.step(quotient).inputs[1];
  std::vector<int> steps{quotient};
  const auto& dims = match.value(x).dims;
  if (!dims || dims != match.value(match.step(quotient).outputs[0]).dims || !kServed.has(match.value(x).type)) return;
  if (const int expand = maker_for_one(match, length, "Expand"); expand >= 0) {
    steps.push_back(expand);
    length = match.step(expand).inputs[0];
  }
  const int limit = match.only_reader(length) < 0 ? -1 : match.maker(length);
  const auto least = limit < 0 ? std::nullopt : least_by(match, limit);
  if (!least || !(least->number >= 0)) return;
  steps.push_back(limit);
  length = least->from;
  int rows = x;
  // Both may be turned on the way, for products of heads.
  if (const int turned = maker_for_one(match, length, "Transpose"); turned >= 0) {
    const int turn = match.maker(x, "Transpose");
    const auto order = match.node(turned).find_ints("perm");
    if (turn < 0 || !order || order != match.node(turn).find_ints("perm") ||
        order->back() != int64_t(order->size()) - 1)
      return;
    steps.push_back(turned);
    length = match.step(turned).inputs[0];
    rows = match.step(turn).inputs[0];
  }
  const int reduction = maker_for_one(match, length, "ReduceL2");
  if (reduction < 0 || match.step(reduction).inputs[0] != rows || !is_along_rows(match, reduction)) return;
  steps.push_back(reduction);
  Step made = match.plan().step({kFusions, "L2Norm", 1, {{"least", float(least->number)}}}, match.node(quotient).name(),
                                {x}, match.step(quotient).outputs);
  made.make = ops::make_l2_norm;
  match.replace(std::move(steps), std::move(made));
}

// No path leaves them and comes back, for the only other input is a constant.
void join_spelled_norm(Match& match, int mean) {
  if (!match.is(mean, "ReduceMean") || !is_along_rows(match, mean)) return;
  const int squares = match.step(mean).inputs[0];
  int x = root_of(match, squares);
  if (x < 0 || !match.value(x).dims) return;
  const int square_mean = match.step(mean).outputs[0], sum = match.only_reader(square_mean, "Add");
  if (sum < 0) return;
  const auto epsilon =
      match.number(match.step(sum), match.step(sum).inputs[0] == square_mean, match.rank(square_mean).value_or(0));
  std::vector<int> steps = normalized_by(match, sum, x);
  if (!epsilon || steps.empty()) return;
  int y = match.step(steps.back()).outputs[0];
  // Halves are made floats before, and halves again behind.
  const int widened = match.maker(x, "Cast");
  if (const int narrowed = match.only_reader(y, "Cast");
      narrowed >= 0 && widened >= 0 && ops::kHalves.has(match.value(match.step(widened).inputs[0]).type) &&
      match.value(match.step(widened).inputs[0]).type == match.value(match.step(narrowed).outputs[0]).type) {
    steps.push_back(narrowed);
    y = match.step(narrowed).outputs[0];
    x = match.step(widened).inputs[0];
  }
  const int product = match.only_reader(y, "Mul");
  if (product < 0) return;
  const int gamma = match.other(product, y);
  const Value &row = match.value(gamma), &rows = match.value(x);
  if (!rows.dims) return;
  if (!row.is_constant || row.type != rows.type || !kServed.has(rows.type) ||
      row.dims != std::vector{rows.dims->back()})
    return match.note(mean, "what the norm is multiplied by is no constant row of its type");
  // A scale in float makes results of floats, of halves, too.
  if (widened >= 0 && match.step(widened).outputs[0] == x &&
      ops::kHalves.has(match.value(match.step(widened).inputs[0]).type))
    x = match.step(widened).inputs[0];
  steps.insert(steps.end(), {match.maker(squares), mean, sum, product});
  match.replace(std::move(steps),
                match.plan().step({ops::kOnnx, "RMSNormalization", 23, {{"epsilon", float(*epsilon)}}},
                                  match.node(product).name(), {x, gamma}, match.step(product).outputs));
  if (widened >= 0) drop_unread(match, widened);
}

// No path leaves them and comes back, for all that is read is x and a constant.
void centre_norm(Match& match, int norm) {
  if (!match.is(norm, "RMSNormalization") || match.node(norm).get_int("axis", -1) != -1) return;
  const int rest = match.step(norm).inputs[0], difference = match.maker(rest, "Sub");
  if (difference < 0 || match.only_reader(rest) < 0 || !kServed.has(match.value(rest).type)) return;
  const int x = match.step(difference).inputs[0], mean = match.maker(match.step(difference).inputs[1], "ReduceMean");
  if (mean < 0 || match.step(mean).inputs[0] != x || !is_along_rows(match, mean)) return;
  std::vector<int> inputs = match.step(norm).inputs;
  inputs[0] = x;
  match.replace({difference, norm},
                match.plan().step({ops::kOnnx, "LayerNormalization", 17, match.node(norm).attributes()},
                                  match.node(norm).name(), std::move(inputs), match.step(norm).outputs));
  drop_unread(match, mean);
}

}  // namespace encore::fuse
