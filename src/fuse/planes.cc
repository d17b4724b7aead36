// Pictures whose few channels become the last for a convolution alone: it does that itself, as it likes them best.
#include <algorithm>

#include "fuse/passes.h"
#include "ops/nn/convolve_tiles.h"
#include "ops/registry.h"

namespace encore::fuse {

void take_planes(Match& match, int turn) {
  if (!match.is(turn, "Transpose")) return;
  const int x = match.step(turn).inputs[0], turned = match.step(turn).outputs[0], conv = match.only_reader(turned);
  if (!match.is_there(conv) || match.node(conv).domain() != ops::kChannelsLast) return;
  const NodeInfo& node = match.node(conv);
  const Step& step = match.step(conv);
  if ((node.op_type() != "Conv" && node.op_type() != "FusedConv") || step.inputs[0] != turned) return;
  const auto &dims = match.value(x).dims, &weights = match.value(step.inputs[1]).dims;
  if (!ops::has_tiles(match.value(x).type, match.plan().settings.use_tf32) || !dims || !weights || dims->size() != 4 ||
      weights->size() != 4 || !match.value(step.inputs[1]).is_constant || std::max((*weights)[2], (*weights)[3]) < 2)
    return;
  const bool are_few = (*dims)[1] > 1 && (*dims)[1] <= ops::kFilledChannels && (*weights)[1] == (*dims)[1];
  if (!are_few || node.get_int("group", 1) != 1 ||
      match.node(turn).find_ints("perm") != std::vector<int64_t>{0, 2, 3, 1})
    return;
  auto taking = std::make_shared<Variant>(step.node);
  taking->set(ops::kTakesPlanes, int64_t(1));
  taking->inputs()[0].dims = dims;
  Step made{std::move(taking), step.inputs, step.outputs};
  made.inputs[0] = x;
  match.replace({turn, conv}, std::move(made));
}

}  // namespace encore::fuse
