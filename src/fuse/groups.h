// Groups of nodes that are better one, of all kinds that are known.
#pragma once
#include <optional>
#include <vector>

#include "fuse/attention.h"
#include "fuse/plan.h"
#include "fuse/regions.h"

namespace encore::fuse {

struct Group {
  std::vector<int> nodes;                   // in an order in which they can run; no path leaves them and comes back
  const char* what;                         // they are
  std::optional<Attention> attention = {};  // if they are one
};

// No node is in two groups: those found are not to be taken any more.
std::vector<Group> find_groups(Graph& graph, const RegionSettings& settings);

// `group` has one group's nodes and no others, and the group is no attention.
Plan plan_of(const Graph& group, std::vector<int> inputs, std::vector<int> outputs);

}  // namespace encore::fuse
