#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {

// GroupQueryAttention takes queries, keys and values side by side as well as apart.
void pack_heads(Match& match, int attention) {
  if (!match.is_there(attention) || match.node(attention).domain() != ops::kMicrosoft ||
      match.node(attention).op_type() != "GroupQueryAttention")
    return;
  std::vector<int> inputs = match.step(attention).inputs;
  if (inputs[1] < 0 || inputs[2] < 0) return;  // side by side already
  const int split = match.maker(inputs[0], "Split");
  if (split < 0 || match.step(split).outputs.size() != 3) return;
  int64_t widths[3];
  for (size_t i = 0; i < 3; ++i) {
    const int part = match.step(split).outputs[i];
    const auto& dims = part < 0 ? std::nullopt : match.value(part).dims;
    if (inputs[i] != part || match.only_reader(part) != attention || !dims || dims->size() != 3)
      return match.note(attention, "what is split is in another order, or others read it, too");
    widths[i] = dims->back();
  }
  const int64_t axis = match.node(split).get_int("axis", 0);
  const int64_t heads = match.node(attention).get_int("num_heads", 0);
  const int64_t kv_heads = match.node(attention).get_int("kv_num_heads", 0);
  if ((axis != 2 && axis != -1) || heads <= 0 || kv_heads <= 0 || widths[0] <= 0 || widths[0] % heads != 0 ||
      widths[1] != widths[0] / heads * kv_heads || widths[2] != widths[1])
    return match.note(attention, "what is split is no heads of one size");
  inputs[0] = match.step(split).inputs[0], inputs[1] = inputs[2] = -1;
  const NodeInfo& node = match.node(attention);
  match.replace({split, attention},
                match.plan().step(operator_of(node), node.name(), std::move(inputs), match.step(attention).outputs));
}

}  // namespace encore::fuse
