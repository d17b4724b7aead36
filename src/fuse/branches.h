// Parts of a program whose actions need not all wait for one another. In a graph they are branches, which run side by
// side: the heads of a detector, the resolutions of a pose network, the shortcut of a residual block.
#pragma once
#include <bitset>
#include <cstddef>
#include <span>
#include <vector>

namespace encore::fuse {

// What is known of an action: which earlier ones it comes after.
struct ActionOrder {
  std::vector<int> after = {};
  bool is_on_host = false;  // nothing waits for it in a graph
  bool is_alone = false;    // everything before it comes before, and everything behind it after
};

// Between an action that all of it comes after, and one that comes after all of it.
struct Branches {
  static constexpr size_t kMost = 512;  // of more actions there are several
  using Actions = std::bitset<kMost>;   // counted from the first one
  struct Action {
    std::vector<int> after = {};  // which ones it comes after at least
    Actions before = {};          // these, and which they come after
    bool is_on_host = false;
  };

  size_t first = 0;
  std::vector<Action> actions = {};
};

// In the order of the program. There are none where each action comes after the one before it anyway.
std::vector<Branches> find_branches(std::span<const ActionOrder> actions);

}  // namespace encore::fuse
