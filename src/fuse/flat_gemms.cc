// Gemm of rows that are in two dimensions for it alone: later passes know products of rows by MatMul and Add.
#include <algorithm>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// The dimensions of the product if its rows are not put into two; none if they are not surely the same.
std::optional<Dims> unflattened(const Match& match, int x, int weights) {
  auto dims = match.value(x).dims;
  const auto& factors = match.value(weights).dims;
  if (!dims || dims->size() < 3 || dims->back() < 1 || dims->back() != factors->front() || factors->back() < 1)
    return std::nullopt;
  dims->back() = factors->back();
  return dims;
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
  const int x = match.step(flat).inputs[0], y = match.step(back).outputs[0];
  const auto dims = unflattened(match, x, step.inputs[1]);
  constexpr int64_t kUnknown = -1;
  if (!dims || match.value(y).dims != dims || std::ranges::find(*dims, kUnknown) != dims->end()) return;
  const int bias = step.inputs.size() > 2 ? step.inputs[2] : -1;
  const int product = bias < 0 ? y : match.add_like(y, " without its bias");
  std::vector<Step> made;
  made.push_back(match.plan().step({ops::kOnnx, "MatMul", 13}, step.node->name(), {x, step.inputs[1]}, {product}));
  if (bias >= 0)
    made.push_back(match.plan().step({ops::kOnnx, "Add", 13}, match.node(back).name(), {product, bias}, {y}));
  match.replace({gemm, back}, std::move(made));
  drop_unread(match, flat);
}

}  // namespace encore::fuse
