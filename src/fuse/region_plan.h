// What becomes of a region of convolutions: its pictures have their channels last between its ends.
#pragma once
#include <vector>

#include "fuse/plan.h"

namespace encore::fuse {

// `region` has one region's nodes and no others.
Plan plan_of_region(const Graph& region, std::vector<int> inputs, std::vector<int> outputs, const Watch& watch);

}  // namespace encore::fuse
