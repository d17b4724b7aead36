// Norms of rows that a product by a constant makes for them alone, with the residual sum between: the norm can add up
// what a product leaves in parts.
#include <algorithm>

#include "fuse/joined_products.h"
#include "fuse/passes.h"
#include "ops/matmul/product_norm.h"
#include "ops/norm/row_norm.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr const char* kProductNorm = "ProductNorm";

// What a norm reads and makes; -1 for what is not there.
struct Norm {
  int residual = -1, gamma = -1, beta = -1, added = -1, sum = -1;
  bool centred;
  float epsilon;
};

// One that adds two inputs of the same shape, of which `v` is one, and perhaps a constant.
std::optional<Norm> norm_of_sum(const Match& match, int s, int v) {
  const NodeInfo& info = match.node(s);
  const bool is_centred = info.op_type() == "SkipLayerNormalization";
  if (info.domain() != ops::kMicrosoft || !(is_centred || info.op_type() == "SkipSimplifiedLayerNormalization"))
    return std::nullopt;
  const Step& step = match.step(s);
  const auto at = [](const std::vector<int>& values, size_t i) { return i < values.size() ? values[i] : -1; };
  const Norm norm{.residual = step.inputs[step.inputs[0] == v ? 1 : 0],
                  .gamma = at(step.inputs, 2),
                  .beta = is_centred ? at(step.inputs, 3) : -1,
                  .added = at(step.inputs, is_centred ? 4 : 3),
                  .sum = at(step.outputs, 3),
                  .centred = is_centred,
                  .epsilon = info.get_float("epsilon", 1e-12f)};
  const Value &one = match.value(v), &other = match.value(norm.residual);
  const bool is_known = one.dims && std::ranges::count(*one.dims, -1) == 0;
  if (!is_known || one.dims != other.dims || one.type != other.type || at(step.outputs, 1) >= 0 ||
      at(step.outputs, 2) >= 0)
    return std::nullopt;
  return norm;
}

std::optional<Norm> norm_of(const Match& match, int s, int v) {
  if (auto norm = norm_of_sum(match, s, v)) return norm;
  const std::vector<int>& inputs = match.step(s).inputs;
  if (!is_norm_of_rows(match, s) || inputs[0] != v) return std::nullopt;
  const NodeInfo& info = match.node(s);
  const bool is_centred = is_onnx(info, "LayerNormalization");
  return Norm{.gamma = inputs[1],
              .beta = is_centred && inputs.size() > 2 ? inputs[2] : -1,
              .centred = is_centred,
              .epsilon = info.get_float("epsilon", 1e-5f)};
}

// Of rows, each of which is multiplied by the same matrix, and nothing else is done to it.
bool multiplies_rows(const Match& match, int s) {
  if (!is_plain_product(match, s)) return false;
  const NodeInfo& node = match.node(s);
  const std::vector<int>& inputs = match.step(s).inputs;
  for (const char* other : {"transA", "transBatchA", "transBatchB"})
    if (node.get_int(other, 0) != 0) return false;
  return node.get_string("activation", "").empty() && match.rank(inputs[1]) == 2u &&
         match.rank(inputs[0]).value_or(0) >= 2;
}

}  // namespace

bool is_product_norm(const NodeInfo& info) { return info.domain() == kFusions && info.op_type() == kProductNorm; }

// What only gives the rows another shape may be between, if the residual has that, too. No path leaves them and comes
// back: nobody else reads what is between.
void join_product_norm(Match& match, int product) {
  if (!multiplies_rows(match, product)) return;
  const Step& step = match.step(product);
  const NodeInfo& node = *step.node;
  int v = step.outputs[0], s = match.only_reader(v);
  const auto& rows = match.value(v).dims;
  if (!rows || rows->empty()) return;
  const int64_t columns = rows->back();
  std::vector<int> steps{product};
  for (; s >= 0 && only_shapes(match, s) && match.step(s).inputs[0] == v; s = match.only_reader(v)) {
    steps.push_back(s);
    v = match.step(s).outputs[0];
  }
  const auto norm = s < 0 ? std::nullopt : norm_of(match, s, v);
  if (!norm || columns < 1 || match.value(v).dims->back() != columns || (norm->residual < 0 && steps.size() > 1))
    return;
  if (norm->gamma < 0) return;
  const Type type = match.value(v).type, of_norm = match.value(norm->gamma).type;
  const auto is_row = [&](int row, Type of) {
    return row < 0 || (match.value(row).type == of && is_constant_row(match, row, columns, 1));
  };
  if (!ops::can_normalize({type, of_norm, type}) || !is_row(norm->gamma, of_norm) || !is_row(norm->beta, of_norm) ||
      !is_row(norm->added, type))
    return match.note(product, "what the norm multiplies or adds is no constant row of its type");
  const int bias = step.inputs.size() > 2 ? step.inputs[2] : -1;
  if (bias >= 0 && (norm->added >= 0 || !is_constant_row(match, bias, columns, rows->size())))
    return match.note(product, "its bias is no constant row, or the norm adds one, too");
  steps.push_back(s);
  ops::Attributes attributes{{ops::kCentred, int64_t(norm->centred)}, {"epsilon", norm->epsilon}};
  if (const float alpha = node.get_float("alpha", 1); alpha != 1) attributes["alpha"] = alpha;
  if (node.get_int("transB", 0) != 0) attributes["transB"] = int64_t(1);
  std::vector<int> outputs{match.step(s).outputs[0]};
  if (norm->sum >= 0) outputs.push_back(norm->sum);
  Step made = match.plan().step(
      {kFusions, kProductNorm, 1, std::move(attributes)}, node.name() + " and " + match.node(s).name(),
      {step.inputs[0], step.inputs[1], bias, norm->residual, norm->gamma, norm->beta, norm->added}, std::move(outputs));
  made.make = ops::make_product_norm;
  match.replace(std::move(steps), std::move(made));
}

}  // namespace encore::fuse
