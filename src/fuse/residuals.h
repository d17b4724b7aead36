// Residual sums and the layer norms that read them: one node each, which gives the sum too.
#pragma once
#include <vector>

#include "fuse/plan.h"
#include "fuse/shape_symbols.h"

namespace encore::fuse {

// Lists of nodes, a sum and a norm each. No path leaves them and comes back, for the norm's other inputs are constants.
std::vector<std::vector<int>> find_residuals(const Graph& graph, const ShapeSymbols& symbols);

// Makes one step of a plan's sum and norm, if it consists of these.
void join_residual(Plan& plan);

}  // namespace encore::fuse
