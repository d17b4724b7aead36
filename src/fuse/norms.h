// The norms of language models, whose rows are multiplied by quantized weights: norm and product become one operator,
// which norms few rows on the way. The product may be a gate's, which comes along then.
#pragma once
#include <vector>

#include "fuse/plan.h"

namespace encore::fuse {

bool is_quantized_product(const NodeInfo& info);

// The norm whose rows nobody but these products reads, or -1.
int norm_before(const Graph& graph, const std::vector<int>& producers, const std::vector<std::vector<int>>& consumers,
                const std::vector<int>& products);

// Lists of nodes, a norm and a product each. No path leaves them and comes back, for a product has no other input that
// is computed.
std::vector<std::vector<int>> find_norms(const Graph& graph);

// Makes one step of a plan's norm and its product, if it has both.
void join_norm(Plan& plan);

}  // namespace encore::fuse
