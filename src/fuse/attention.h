// Attention as exporters spell it out: a product of queries and keys, a scale, a mask, a softmax, perhaps zeros for
// rows that see nothing, and a product with values. It becomes one node, which makes no matrix of scores, with what
// only moves or scales queries, keys and values on their way there, and the transposition behind it. In halves, which
// have tensor cores for it. Rows of which all is masked become zeros.
#pragma once
#include <string>
#include <vector>

#include "fuse/plan.h"
#include "fuse/shape_symbols.h"
#include "ops/attention/operators/viewed_attention.h"

namespace encore::fuse {

struct Attention {
  std::vector<int> nodes;        // in the graph's order; shapes that only they read are among them
  std::string q, k, v, mask, y;  // values; there may be no mask
  ops::ViewedAttention how;
};

// No path leaves their nodes and comes back, for nobody else reads what is between. What shapes are asked for is known
// and not read. With `only_own_shapes` nothing that asks for one which others read, too, comes along: a node of the
// host's would wait for a copy of it.
std::vector<Attention> find_attentions(const Graph& graph, const ShapeSymbols& symbols, bool only_own_shapes);

// `graph` has the attention's nodes, whatever else is known of them.
Plan plan_of(const Graph& graph, std::vector<int> inputs, std::vector<int> outputs, const Attention& attention);

}  // namespace encore::fuse
