// Sets of a graph's nodes that can be one node: no path leaves them and comes back.
#pragma once
#include <set>
#include <utility>
#include <vector>

namespace encore::fuse {

// By node: the nodes that make what it reads.
using Makers = std::vector<std::vector<int>>;

// Nodes and those that read what they make, in other sets.
using Cuts = std::set<std::pair<int, int>>;

// An order in which the nodes can run; the one they have, if they can.
// `first` come first, with what makes for them.
std::vector<int> running_order(const Makers& makers, std::vector<int> first = {});

// Whether the node waits for the other one, or is it.
bool waits_for(const Makers& makers, int node, int other);

enum class When {
  early,  // what fits, as far as values go between
  late,   // besides, what only a later set reads goes there
};
// Sets of two nodes and more that fit and are joined by values, each in an order in which it can run.
std::vector<std::vector<int>> convex_sets(const Makers& makers, const std::vector<bool>& fits, When when,
                                          const Cuts& cuts = {});

}  // namespace encore::fuse
