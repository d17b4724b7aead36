// Attention as exporters spell it out: a product of queries and keys, a scale, a mask, a softmax, perhaps zeros for
// rows that see nothing, and a product with values. It becomes one node, which makes no matrix of scores, with what
// only moves or scales queries, keys and values on their way there, and the transposition behind it. In halves, which
// have tensor cores for it. Rows of which all is masked become zeros.
#pragma once
#include <vector>

#include "fuse/plan.h"
#include "ops/attention/viewed_attention.h"

namespace encore::fuse {

struct Attention {
  std::vector<int> nodes;              // in the graph's order; shapes that only they read are among them
  int q = -1, k = -1, v = -1, y = -1;  // values
  int mask = -1;                       // or none
  ops::ViewedAttention how;
};

// No path leaves their nodes and comes back, for nobody else reads what is between.
std::vector<Attention> find_attentions(const Graph& graph);

// A plan of one step; the graph holds nothing else.
Plan plan_of(const Graph& graph, std::vector<int> inputs, std::vector<int> outputs, Attention attention);

}  // namespace encore::fuse
