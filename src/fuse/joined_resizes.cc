// Pictures that are resized and put side by side in the channels, which are last: each is made where it belongs.
#include <algorithm>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/nn/resize.h"

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
  const NodeInfo& node = *step.node;
  const Operator same{node.domain(), node.op_type(), node.since_version(), node.attributes()};
  return match.plan().step(same, node.name(), step.inputs, step.outputs).node;
}

}  // namespace

// No path leaves them and comes back, for nobody else reads what is between.
void join_resizes(Match& match, int concat) {
  if (!match.is(concat, "Concat")) return;
  const Step& step = match.step(concat);
  const auto rank = match.rank(step.outputs[0]);
  if (!rank || *rank < 2 || counted_from_first(match.node(concat).get_int("axis", 1), *rank) != *rank - 1) return;
  std::vector<int> inputs = step.inputs, steps;
  std::vector<int64_t> resized;  // pieces
  std::vector<std::shared_ptr<const NodeInfo>> nodes(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int resize = resize_behind(match, inputs[i], concat);
    if (resize < 0) continue;
    inputs[i] = match.step(resize).inputs[0];
    nodes[i] = known_node(match, match.step(resize));
    resized.push_back(int64_t(i));
    steps.push_back(resize);
  }
  if (steps.empty()) return;
  const std::string name = match.node(steps.front()).name() + " and " + match.node(concat).name();
  Step made =
      match.plan().step({kFusions, "JoinedResizes", 1, {{"resized", std::move(resized)}}}, name, inputs, step.outputs);
  made.make = [nodes = std::move(nodes)](const NodeInfo&) { return ops::make_joined_resizes(nodes); };
  steps.push_back(concat);
  match.replace(std::move(steps), std::move(made));
}

}  // namespace encore::fuse
