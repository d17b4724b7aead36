#include "fuse/region_plan.h"

#include <algorithm>

#include "fuse/layouts.h"
#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

void turn_all(Match& match) {
  Turned turned;
  for (int s = 0; s < match.size(); ++s) {
    auto made = with_channels_last(match.plan().values, match.step(s).node, match.step(s).inputs);
    if (!made) fail(Code::internal, ops::label_of(match.node(s)), " cannot be turned");
    turned.emplace(s, std::move(*made));
  }
  turn(match, std::move(turned));
}

constexpr Pass kTurning{"channels_last", nullptr, nullptr, true, turn_all};

}  // namespace

Plan plan_of_region(const Graph& region, std::vector<int> inputs, std::vector<int> outputs, const Watch& watch) {
  Plan plan = plan_of(region, std::move(inputs), std::move(outputs));
  if (watch) watch(kAsClaimed, plan);
  const bool is_turned =
      std::ranges::any_of(region.nodes, [](const Node& node) { return node.info->domain() == ops::kChannelsLast; });
  for (const Pass& pass : {kTurning, kConvolutions})
    if (!(is_turned && pass.whole) && run(pass, plan) && watch) watch(pass.name, plan);
  return plan;
}

}  // namespace encore::fuse
