#include "fuse/convex.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace encore::fuse {
namespace {

class Search {
 public:
  Search(const Makers& makers, const std::vector<bool>& fits, const Cuts& cuts)
      : makers_(makers),
        fits_(fits),
        cuts_(cuts),
        order_(running_order(makers)),
        levels_(makers.size()),
        leaders_(makers.size()) {
    find_levels();
    join();
  }

  // Sets wait for the first that reads them; the last ones are looked at first.
  void delay() {
    std::vector<int> nodes = order_, latest(makers_.size(), kNever);  // the latter by leader
    std::ranges::stable_sort(nodes, std::ranges::greater(), [&](int n) { return levels_[size_t(n)]; });
    for (size_t first = 0, end = 0; first < nodes.size(); first = end) {
      const int level = levels_[size_t(nodes[first])];
      while (end < nodes.size() && levels_[size_t(nodes[end])] == level) ++end;
      for (size_t i = first; i < end; ++i)
        if (const int late = latest[size_t(leader(nodes[i]))]; fits_[size_t(nodes[i])] && late != kNever)
          levels_[size_t(nodes[i])] = late;
      for (size_t i = first; i < end; ++i)
        for (int from : makers_[size_t(nodes[i])])
          if (leader(from) != leader(nodes[i])) {
            int& late = latest[size_t(leader(from))];
            late = std::min(late, levels_[size_t(nodes[i])] - changes(from, nodes[i]));
          }
    }
    join();
  }

  std::vector<std::vector<int>> sets() {
    std::vector<std::vector<int>> by_leader(makers_.size()), found;
    for (int n : order_)
      if (fits_[size_t(n)]) by_leader[size_t(leader(n))].push_back(n);
    for (std::vector<int>& set : by_leader)
      if (set.size() > 1) found.push_back(std::move(set));
    return found;
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();

  int changes(int from, int to) const { return fits_[size_t(from)] != fits_[size_t(to)] || cuts_.contains({from, to}); }

  // Counts how often a path to the node has changed between nodes that fit and others, or was cut. Nodes that fit, are
  // joined by values and have the same count can be one: a path that leaves them comes to higher counts only.
  void find_levels() {
    for (int n : order_)
      for (int from : makers_[size_t(n)])
        levels_[size_t(n)] = std::max(levels_[size_t(n)], levels_[size_t(from)] + changes(from, n));
  }

  void join() {
    std::iota(leaders_.begin(), leaders_.end(), 0);
    for (int n : order_)
      for (int from : makers_[size_t(n)])
        if (fits_[size_t(n)] && fits_[size_t(from)] && levels_[size_t(n)] == levels_[size_t(from)])
          leaders_[size_t(leader(n))] = leader(from);
  }
  int leader(int n) {
    while (leaders_[size_t(n)] != n) n = leaders_[size_t(n)] = leaders_[size_t(leaders_[size_t(n)])];
    return n;
  }

  const Makers& makers_;
  const std::vector<bool>& fits_;
  const Cuts& cuts_;
  const std::vector<int> order_;
  std::vector<int> levels_, leaders_;  // by node; a leader stands for its set
};

}  // namespace

// Depth first, and not by recursion, for models may be deep.
std::vector<int> running_order(const Makers& makers, std::vector<int> wanted) {
  std::vector<int> order;
  std::vector<bool> done(makers.size());
  std::vector<std::pair<int, size_t>> open;  // nodes and which of their makers comes next
  for (size_t n = 0; n < makers.size(); ++n) wanted.push_back(int(n));
  for (const int n : wanted) {
    open.emplace_back(n, 0);
    while (!open.empty()) {
      auto& [node, next] = open.back();
      const std::vector<int>& from = makers[size_t(node)];
      if (!done[size_t(node)] && next < from.size()) {
        if (const int maker = from[next++]; !done[size_t(maker)]) open.emplace_back(maker, 0);
        continue;
      }
      if (!done[size_t(node)]) order.push_back(node);
      done[size_t(node)] = true;
      open.pop_back();
    }
  }
  return order;
}

bool waits_for(const Makers& makers, int node, int other) {
  std::vector<bool> seen(makers.size());
  std::vector<int> open{node};
  while (!open.empty()) {
    const int n = open.back();
    open.pop_back();
    if (n == other) return true;
    if (seen[size_t(n)]) continue;
    seen[size_t(n)] = true;
    open.insert(open.end(), makers[size_t(n)].begin(), makers[size_t(n)].end());
  }
  return false;
}

std::vector<std::vector<int>> convex_sets(const Makers& makers, const std::vector<bool>& fits, When when,
                                          const Cuts& cuts) {
  Search search(makers, fits, cuts);
  if (when == When::late) search.delay();
  return search.sets();
}

}  // namespace encore::fuse
