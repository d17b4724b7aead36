// Products by constants to whose rows a constant one is added: one node, which adds it on the way.
#pragma once
#include <vector>

#include "fuse/plan.h"

namespace encore::fuse {

// Lists of nodes, a product and a sum each. No path leaves them and comes back, for a sum's other term is a constant.
std::vector<std::vector<int>> find_biases(const Graph& graph);

// Makes one step of a plan's product and its sum, if it consists of these.
void join_bias(Plan& plan);

}  // namespace encore::fuse
