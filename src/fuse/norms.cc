#include <algorithm>

#include "fuse/passes.h"
#include "ops/matmul/normed_product.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr size_t kSum = 3;  // an output

bool adds_a_skip(const NodeInfo& info) {
  return info.op_type() == "SkipSimplifiedLayerNormalization" && info.domain() == ops::kMicrosoft;
}

// One that takes the root of the mean square along the last dimension.
bool is_norm(const NodeInfo& info) {
  return adds_a_skip(info) || ((is_onnx(info, "SimplifiedLayerNormalization") || is_onnx(info, "RMSNormalization")) &&
                               info.get_int("axis", -1) == -1);
}

// Of halves and by a constant row, with no other outputs than the rows and their sum.
bool suits(const Match& match, const Step& norm, int64_t width) {
  const size_t gamma = adds_a_skip(*norm.node) ? 2 : 1;
  if (norm.inputs.size() <= gamma || norm.inputs[gamma] < 0) return false;
  for (size_t i = 1; i < norm.outputs.size(); ++i)
    if (i != kSum && norm.outputs[i] >= 0) return false;
  const Value& row = match.value(norm.inputs[gamma]);
  return row.is_constant && ops::kHalves.has(row.type) && row.type == match.value(norm.inputs[0]).type &&
         row.dims == std::vector{width};
}

// A product by one matrix, whose other inputs are constants, too.
bool is_product(const Match& match, int s) {
  const Step& step = match.step(s);
  const bool is_gated = is_gated_product(*step.node);
  if (!is_gated && !match.is_there(s)) return false;
  const bool is_plain = is_gated || (is_onnx(*step.node, "MatMul") && match.rank(step.inputs[1]) == 2u);
  return (is_plain || is_quantized_product(*step.node)) &&
         std::all_of(step.inputs.begin() + 1, step.inputs.end(),
                     [&](int v) { return v < 0 || match.value(v).is_constant; });
}

// How many values of a row it sums over.
int64_t depth_of(const Match& match, const Step& product) {
  return is_quantized_product(*product.node) ? product.node->get_int("K", 0)
                                             : match.value(product.inputs[1]).dims->front();
}

}  // namespace

bool is_quantized_product(const NodeInfo& info) {
  return info.op_type() == "MatMulNBits" && info.domain() == ops::kMicrosoft;
}

// No path leaves both and comes back, for the product has no other input that is computed.
void join_norm(Match& match, int product) {
  if (!is_product(match, product)) return;
  const Step& step = match.step(product);
  const int rows = step.inputs[0], found = match.maker(rows);
  if (found < 0 || match.readers(rows).size() != 1 || match.value(rows).is_output ||
      match.step(found).outputs[0] != rows)
    return;
  const Step& norm = match.step(found);
  if (!is_norm(*norm.node) || !suits(match, norm, depth_of(match, step))) return;
  std::vector<int> inputs = norm.inputs, outputs{step.outputs[0]};
  inputs.insert(inputs.end(), step.inputs.begin() + 1, step.inputs.end());
  if (norm.outputs.size() > kSum && norm.outputs[kSum] >= 0) outputs.push_back(norm.outputs[kSum]);
  Step both = match.plan().step({kFusions, norm.node->op_type() + " and " + step.node->op_type()},
                                norm.node->name() + " and " + step.node->name(), std::move(inputs), std::move(outputs));
  both.make = [of_norm = norm.node, of_product = step.node](const NodeInfo&) {
    return ops::make_normed_product(*of_norm, *of_product);
  };
  match.replace({found, product}, std::move(both));
}

}  // namespace encore::fuse
