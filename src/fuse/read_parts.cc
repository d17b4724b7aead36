// Convolutions of some channels of a wider picture, which are last: they read them there.
#include "fuse/links.h"
#include "fuse/passes.h"
#include "ops/nn/convolve.h"
#include "ops/nn/convolve_tiles.h"
#include "ops/registry.h"

namespace encore::fuse {

// No path leaves them and comes back, for nobody else reads the part.
void read_part(Match& match, int conv) {
  if (!match.is_there(conv) || match.node(conv).domain() != ops::kChannelsLast) return;
  const NodeInfo& node = match.node(conv);
  const std::string& op = node.op_type();
  if ((op != "Conv" && op != "FusedConv") || node.get_int(ops::kTakesPlanes, 0) != 0) return;
  const Step& step = match.step(conv);
  const int x = step.inputs[0];
  const auto part = match.only_reader(x) == conv ? part_of(match, x) : std::nullopt;
  if (!part || part->axis + 1 != int(*match.rank(part->x)) || part->begin == part->end) return;
  auto reading = std::make_shared<Variant>(step.node);
  reading->set(ops::kFirstChannel, part->begin);
  reading->set(ops::kLastChannel, part->end);
  reading->inputs()[0].dims = match.value(part->x).dims;
  const int cut = match.producer(x);
  Step made{std::move(reading), step.inputs, step.outputs};
  made.inputs[0] = part->x;
  match.replace({conv}, std::move(made));
  drop_unread(match, cut);
}

}  // namespace encore::fuse
