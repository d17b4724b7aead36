// Pictures that are resized and put side by side in the channels, which are last: each is made where it belongs, and so
// is one that a product makes.
#include <algorithm>

#include "fuse/joined_products.h"
#include "fuse/links.h"
#include "fuse/passes.h"
#include "ops/matmul/product.h"
#include "ops/nn/resize.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

// The step that resizes a value for this one alone, as constants say; or -1.
int resize_behind(const Match& match, int v, int concat) {
  const int found = v >= 0 && match.only_reader(v) == concat ? match.maker(v) : -1;
  if (found < 0 || !(match.is(found, "Resize") || match.is(found, "Upsample"))) return -1;
  const std::vector<int>& inputs = match.step(found).inputs;
  const auto is_known = [&](int input) { return input < 0 || match.value(input).constant; };
  return std::all_of(inputs.begin() + 1, inputs.end(), is_known) ? found : -1;
}

// The step's node with what is known of its inputs.
std::shared_ptr<const NodeInfo> known_node(const Match& match, const Step& step) {
  return match.plan().step(operator_of(*step.node), step.node->name(), step.inputs, step.outputs).node;
}

// By one matrix, with nothing but a constant added and no activation.
bool is_product(const Match& match, int s) {
  if (!match.is(s, "Gemm") && !(match.is(s, "MatMul") && columns_of(match, match.step(s)) > 0)) return false;
  return match.step(s).inputs.size() <= 3 && !match.node(s).find_string("activation");
}

// A product that makes a value for a step alone, and what only gives its rows another shape.
struct Product {
  int step;
  std::vector<int> views;  // the last one first
};
std::optional<Product> product_behind(const Match& match, int v, int reader) {
  Product found{-1, {}};
  for (; v >= 0 && match.only_reader(v) == reader; v = match.step(reader).inputs[0]) {
    reader = match.maker(v);
    if (is_product(match, reader)) {
      found.step = reader;
      return found;
    }
    if (reader < 0 || !only_shapes(match, reader)) break;
    found.views.push_back(reader);
  }
  return std::nullopt;
}

// The steps that make a piece in its columns of all, if a product makes it and the columns are packs: the product, and
// a Reshape. The last one makes a value like `joined`.
std::vector<Step> steps_in_place(Match& match, const Product& product, int piece, int64_t first, int joined) {
  const Step& step = match.step(product.step);
  const auto &rows = match.value(step.outputs[0]).dims, &own = match.value(piece).dims, &all = match.value(joined).dims;
  if (!rows || !own || !all || rows->back() != own->back() || own->size() != all->size()) return {};
  Dims made = *rows, seen = *own;
  made.back() = seen.back() = all->back();
  const auto numbers = Links::kept(seen, made);
  if (!numbers) return {};
  Operator wider = operator_of(*step.node);
  wider.attributes[ops::kRowWidth] = all->back();
  wider.attributes[ops::kFirstColumn] = first;
  const int wide = match.add_like(step.outputs[0], " in its columns", made);
  std::vector<Step> steps;
  steps.push_back(match.plan().step(std::move(wider), step.node->name(), step.inputs, {wide}));
  if (product.views.empty()) return steps;
  const NodeInfo& view = match.node(product.views.front());
  const int shape = match.add_constant(view.name() + "'s shape", own_ints(*numbers));
  steps.push_back(match.plan().step({ops::kOnnx, "Reshape", 13}, view.name(), {wide, shape},
                                    {match.add_like(joined, " with some columns", seen)}));
  return steps;
}

// Whether the columns of all are known numbers of packs.
bool are_packs(const Match& match, const std::vector<int>& values) {
  return std::ranges::all_of(values, [&](int v) {
    const auto& dims = match.value(v).dims;
    return dims && dims->back() > 0 && size_t(dims->back()) * device::size_bytes(match.value(v).type) % 16 == 0;
  });
}

}  // namespace

// No path leaves them and comes back, for nobody else reads what is between.
void join_resizes(Match& match, int concat) {
  if (!match.is(concat, "Concat")) return;
  const std::vector<int> pieces = match.step(concat).inputs, outputs = match.step(concat).outputs;
  const auto rank = match.rank(outputs[0]);
  if (!rank || *rank < 2 || counted_from_first(match.node(concat).get_int("axis", 1), *rank) != *rank - 1) return;
  std::vector<int> inputs = pieces, steps;
  std::vector<int64_t> resized;
  std::vector<std::shared_ptr<const NodeInfo>> nodes(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int resize = resize_behind(match, pieces[i], concat);
    if (resize < 0) continue;
    inputs[i] = match.step(resize).inputs[0];
    nodes[i] = known_node(match, match.step(resize));
    resized.push_back(int64_t(i));
    steps.push_back(resize);
  }
  if (steps.empty()) return;
  const std::string name = match.node(steps.front()).name() + " and " + match.node(concat).name();
  steps.push_back(concat);

  ops::Attributes attributes{{"resized", std::move(resized)}};
  std::vector<Step> made;
  int64_t first = 0;
  const bool by_packs = !match.value(outputs[0]).is_output && are_packs(match, pieces) && are_packs(match, outputs);
  for (size_t i = 0; by_packs && made.empty() && i < pieces.size(); ++i) {
    const int64_t columns = match.value(pieces[i]).dims->back();
    const auto product = product_behind(match, pieces[i], concat);
    if (product) made = steps_in_place(match, *product, pieces[i], first, outputs[0]);
    if (!made.empty()) {
      attributes[ops::kInPlace] = std::vector<int64_t>{int64_t(i), first, columns};
      inputs[i] = made.back().outputs[0];
      steps.push_back(product->step);
      steps.insert(steps.end(), product->views.begin(), product->views.end());
    }
    first += columns;
  }
  Step& all = made.emplace_back(
      match.plan().step({kFusions, "JoinedResizes", 1, std::move(attributes)}, name, std::move(inputs), outputs));
  all.make = [nodes = std::move(nodes)](const NodeInfo& node) { return ops::make_joined_resizes(node, nodes); };
  match.replace(std::move(steps), std::move(made));
}

}  // namespace encore::fuse
