// The gates of language models, x * sigmoid(x) * y: Sigmoid, Mul and Mul become one node, which reads x and y once.
#pragma once
#include <vector>

#include "fuse/plan.h"

namespace encore::fuse {

// Lists of three nodes, in their order. No path leaves them and comes back, for what is between has no other reader.
std::vector<std::vector<int>> find_gates(const Graph& graph);

// Makes one step of a plan that is such a gate; others stay as they are.
void join_gate(Plan& plan);

}  // namespace encore::fuse
