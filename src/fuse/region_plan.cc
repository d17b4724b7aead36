#include "fuse/region_plan.h"

#include "fuse/passes.h"

namespace encore::fuse {
Plan plan_of_region(const Graph& region, std::vector<int> inputs, std::vector<int> outputs, const Watch& watch) {
  Plan plan = plan_of(region, std::move(inputs), std::move(outputs));
  if (watch) watch(kAsClaimed, plan);
  constexpr Pass kTurning{"channels_last", nullptr, nullptr, true, turn_all_pictures};
  for (const Pass& pass : {kTurning, kConvolutions})
    if (run(pass, plan) && watch) watch(pass.name, plan);
  return plan;
}

}  // namespace encore::fuse
