// Activations of products: a product by tiles does them at its end (ops/matmul/tile_gemm.h), another one behind it.
#include <optional>

#include "fuse/passes.h"
#include "ops/elementwise/program.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr size_t kBias = 2;

bool is_product(const Match& match, int s) {
  if (!match.is_there(s)) return false;
  const NodeInfo& node = match.node(s);
  const bool is_fused = node.op_type() == "FusedMatMul" && node.domain() == ops::kMicrosoft;
  return (is_fused || is_onnx(node, "MatMul") || is_onnx(node, "Gemm")) && node.get_string("activation", "").empty() &&
         match.value(match.step(s).inputs[1]).is_constant &&
         ops::kHalves.has(match.value(match.step(s).inputs[0]).type);
}

std::optional<Ending> biased_gelu_of(const Match& match, int v) {
  const int s = match.only_reader(v);
  if (s < 0 || match.node(s).domain() != ops::kMicrosoft || match.step(s).inputs.size() != 2) return std::nullopt;
  const std::string& op = match.node(s).op_type();
  if (op == "BiasGelu") return Ending{{s}, "Gelu", {}};
  if (op == "FastGelu") return Ending{{s}, "FastGelu", {}};
  return std::nullopt;
}

// An elementwise step that alone reads the value takes what makes it along itself.
bool is_for_elementwise(const Match& match, int v) {
  const int reader = match.only_reader(v);
  return match.plan().settings.fuses_elementwise && reader >= 0 && ops::scalar_call(match.node(reader));
}

}  // namespace

// No path leaves them and comes back: what is between has no other reader, and a Gelu's bias is a constant. What moves
// the elements in between moves them afterwards.
void join_product_activation(Match& match, int product) {
  if (!is_product(match, product)) return;
  const Step& step = match.step(product);
  const int v = step.outputs[0];
  std::optional<Ending> end = ending_behind(match, v);
  const bool has_bias = !end && (end = biased_gelu_of(match, v));
  if (!end) return;
  const Step& last = match.step(end->steps.back());
  if (is_for_elementwise(match, last.outputs[0]))
    return match.note(product, "an elementwise step behind takes the activation along");
  std::vector<int> inputs = step.inputs;
  if (const int bias = has_bias ? last.inputs[1] : -1; bias >= 0) {
    const bool is_taken = inputs.size() > kBias || match.is(product, "Gemm");
    if (last.inputs[0] != v || is_taken || !match.value(bias).is_constant ||
        match.value(bias).type != match.value(v).type)
      return match.note(product, "what the activation adds is no constant, or the product has a bias");
    inputs.push_back(bias);
  }
  Operator ended = operator_of(*step.node);
  ended.attributes["activation"] = end->activation;
  ended.attributes["activation_params"] = end->params;
  Step made = match.plan().step(std::move(ended), step.node->name() + " and " + last.node->name(), std::move(inputs),
                                ended_outputs(match, product, *end));
  end_with(match, product, std::move(made), std::move(*end));
}

}  // namespace encore::fuse
