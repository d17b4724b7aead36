// The gates of language models, x * sigmoid(x) * y: Sigmoid, Mul and Mul, or Swish and Mul, become one node, which
// reads x and y once; SwiGLU is one. If these are products of the same rows by constants, and nobody else reads them,
// they come along: as one product by both constants, whose columns alternate. So does a norm that makes these rows for
// no one else.
#pragma once
#include <vector>

#include "fuse/plan.h"

namespace encore::fuse {

// Lists of nodes, in the graph's order. No path leaves them and comes back, for what is between has no other reader.
std::vector<std::vector<int>> find_gates(const Graph& graph);

// Makes one step or two of such a gate's steps, which are in any order; others stay as they are.
void join_gate(Plan& plan);

}  // namespace encore::fuse
