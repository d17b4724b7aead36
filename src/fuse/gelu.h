// Gelu as exporters spell it out, x * (1 + erf(x / sqrt(2))) / 2 in five nodes: one node.
#pragma once
#include <vector>

#include "fuse/plan.h"

namespace encore::fuse {

// Lists of nodes. No path leaves them and comes back, for nobody else reads what is between.
std::vector<std::vector<int>> find_gelus(const Graph& graph);

// Makes one step of a plan's nodes, if they are a Gelu's.
void join_gelu(Plan& plan);

}  // namespace encore::fuse
