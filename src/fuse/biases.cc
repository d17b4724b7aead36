#include <algorithm>

#include "fuse/joined_products.h"
#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

}  // namespace

// No path leaves both and comes back, for the sum's other term is a constant.
void join_bias(Match& match, int product) {
  if (!match.is_there(product)) return;
  const Step& rows = match.step(product);
  const NodeInfo& node = *rows.node;
  const bool is_quantized = is_quantized_product(node);
  const size_t bias_input = is_quantized ? 5 : 2;
  if (!(is_quantized || is_onnx(node, "MatMul")) || !kServed.has(match.value(rows.inputs[0]).type)) return;
  if (rows.inputs.size() > bias_input && rows.inputs[bias_input] >= 0) return;
  const int64_t columns = columns_of(match, rows);
  const int y = rows.outputs[0], sum = match.only_reader(y, "Add");
  if (columns == 0 || sum < 0 || match.node(sum).since_version() < 7) return;  // the first that broadcasts as today
  const int bias = match.other(sum, y);
  if (!match.value(rows.inputs[1]).is_constant || match.value(bias).type != match.value(y).type ||
      !is_constant_row(match, bias, columns, match.rank(y).value_or(1)))
    return;
  std::vector<int> inputs = rows.inputs;
  inputs.resize(bias_input, -1);
  inputs.push_back(bias);
  const std::string name = node.name() + " and " + match.node(sum).name();
  match.replace({product, sum}, match.plan().step(operator_of(node), name, std::move(inputs), match.step(sum).outputs));
}

}  // namespace encore::fuse
