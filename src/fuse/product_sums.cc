// Residual sums of products: what is added goes to the product, which reads it as it writes its rows.
#include <algorithm>

#include "fuse/joined_products.h"
#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr size_t kBias = 2;

// The same one that takes another input along.
Operator with_residual(const NodeInfo& product) {
  if (is_onnx(product, "Gemm") && product.get_int("transB", 0) != 0)
    return {ops::kMicrosoft, "FusedMatMul", 1, {{"transB", int64_t(1)}}};
  if (is_onnx(product, "Gemm")) return {ops::kOnnx, "MatMul", 13};
  return operator_of(product);
}

// The step that alone reads what the value holds, or -1. Those that read its shape go to `shapes`.
int reader_of_elements(const Match& match, int v, std::vector<int>& shapes) {
  int reader = -1;
  for (const int s : match.readers(v)) {
    if (match.is(s, "Shape"))
      shapes.push_back(s);
    else if (reader >= 0 || !match.is_there(s))
      return -1;
    else
      reader = s;
  }
  return match.value(v).is_output ? -1 : reader;
}

}  // namespace

// What only gives the rows another shape may be between. No path leaves them and comes back: nobody else reads what is
// between, but for its shape, which is for those steps alone.
void join_product_sum(Match& match, int product) {
  if (!is_plain_product(match, product)) return;
  const Step& step = match.step(product);
  std::vector<int> views, shapes;
  int v = step.outputs[0];
  for (int s = reader_of_elements(match, v, shapes); s >= 0 && only_shapes(match, s) && match.step(s).inputs[0] == v;
       s = reader_of_elements(match, v, shapes)) {
    views.push_back(s);
    v = match.step(s).outputs[0];
  }
  const auto is_for_views = [&](int shape) {
    const int dims = match.step(shape).outputs[0];
    return !match.value(dims).is_output && std::ranges::all_of(match.readers(dims), [&](int reader) {
      return std::ranges::find(views, reader) != views.end();
    });
  };
  const int sum = match.only_reader(v, "Add"), residual = residual_of(match, sum, v);
  const int other = sum < 0 ? v : match.other(sum, v);
  if (residual < 0 && other != v && !match.value(other).is_constant)
    return match.note(product, "the terms of the sum may have different shapes");
  if (residual < 0 || is_elementwise_for(match, residual) || !std::ranges::all_of(shapes, is_for_views)) return;
  std::vector<int> inputs = step.inputs;
  inputs.resize(kBias + 1, -1);
  inputs.push_back(residual);
  const NodeInfo& node = *step.node;
  std::vector<Step> made;
  made.push_back(match.plan().step(with_residual(node), node.name() + " and " + match.node(sum).name(),
                                   std::move(inputs), views.empty() ? match.step(sum).outputs : step.outputs));
  std::vector<int> steps{product, sum};
  if (!views.empty()) {
    steps.push_back(views.back());
    made.push_back(match.step(views.back()));
    made.back().outputs = match.step(sum).outputs;
  }
  match.replace(std::move(steps), std::move(made));
}

}  // namespace encore::fuse
