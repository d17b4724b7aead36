#include <algorithm>

#include "fuse/passes.h"
#include "ops/norm/row_norm.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

}  // namespace

bool is_norm_of_rows(const Match& match, int step) {
  if (!match.is(step, "LayerNormalization") && !match.is(step, "RMSNormalization")) return false;
  const NodeInfo& info = match.node(step);
  const auto &inputs = match.step(step).inputs, &outputs = match.step(step).outputs;
  const Value& x = match.value(inputs[0]);
  if (!kServed.has(x.type) || !x.dims || x.dims->size() < 2 || x.dims->back() < 1) return false;
  const int64_t axis = info.get_int("axis", -1);
  if (axis != -1 && axis != int64_t(x.dims->size()) - 1) return false;
  const bool has_scale = inputs.size() > 1 && inputs[1] >= 0;
  if (!has_scale || match.value(outputs[0]).type != x.type) return false;
  const Type type = match.value(inputs[1]).type;
  if (!ops::can_normalize({x.type, type, x.type})) return false;
  const auto is_row = [&](int v) {
    const Value& row = match.value(v);
    return row.is_constant && row.type == type && row.dims == std::vector{x.dims->back()};
  };
  return std::all_of(outputs.begin() + 1, outputs.end(), [](int v) { return v < 0; }) &&
         std::all_of(inputs.begin() + 1, inputs.end(), [&](int v) { return v < 0 || is_row(v); });
}

// No path leaves both and comes back, for the norm's other inputs are constants.
void join_residual(Match& match, int norm) {
  if (!is_norm_of_rows(match, norm)) return;
  std::vector<int> inputs = match.step(norm).inputs;
  const int y = inputs[0], sum = match.maker(y, "Add");
  if (sum < 0) return;
  const Value &a = match.value(match.step(sum).inputs[0]), &b = match.value(match.step(sum).inputs[1]);
  if (a.is_constant || b.is_constant) return;
  if (!a.dims || a.dims != b.dims) return match.note(norm, "the terms of the sum may have different shapes");
  const bool is_read = match.value(y).is_output || match.readers(y).size() > 1;
  const std::vector<int>& terms = match.step(sum).inputs;
  inputs.erase(inputs.begin());
  inputs.insert(inputs.begin(), terms.begin(), terms.end());
  const NodeInfo& info = match.node(norm);
  const char* const name =
      is_onnx(info, "LayerNormalization") ? "SkipLayerNormalization" : "SkipSimplifiedLayerNormalization";
  ops::Attributes attributes{{"epsilon", info.get_float("epsilon", 1e-5f)}};
  if (a.dims->size() > 3) attributes["any_rank"] = int64_t(1);
  match.replace({sum, norm}, match.plan().step({ops::kMicrosoft, name, 1, std::move(attributes)},
                                               match.node(sum).name() + " and " + info.name(), std::move(inputs),
                                               {match.step(norm).outputs[0], -1, -1, is_read ? y : -1}));
}

}  // namespace encore::fuse
