// Groups of nodes that are better one, of all kinds that are known.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuse/plan.h"
#include "fuse/regions.h"

namespace encore::fuse {

struct Group {
  std::vector<int> nodes;  // in an order in which they can run; no path leaves them and comes back
  const char* what;        // they are
};

// What a whole graph tells of dimensions and a part of it doesn't: of values, by name.
struct KnownDims {
  std::shared_ptr<Symbols> symbols;
  std::map<std::string, std::optional<std::vector<int64_t>>> of;
};

// No node is in two groups. What is known of their values goes to `known`.
std::vector<Group> find_groups(Graph graph, const RegionSettings& settings, KnownDims& known);

// `group` has one group's nodes and no others.
Plan plan_of_group(Graph group, std::vector<int> inputs, std::vector<int> outputs, const KnownDims& known,
                   const Watch& watch);

}  // namespace encore::fuse
