#include "fuse/branches.h"

#include <algorithm>
#include <cstdint>

namespace encore::fuse {
namespace {

constexpr size_t kMostInAll = 4096;  // what comes before what is a bit for each two

// What could run long before it is wanted would only take memory meanwhile: it comes after what lets it run some
// actions sooner than it must.
std::vector<ActionOrder> late_enough(std::span<const ActionOrder> actions) {
  constexpr int kSooner = 2;
  const int count = int(actions.size());
  std::vector<int> depth(actions.size()), height(actions.size());
  int longest = 0;
  for (int a = 0; a < count; ++a) {
    if (actions[size_t(a)].is_on_host) continue;
    for (const int before : actions[size_t(a)].after)
      depth[size_t(a)] = std::max(depth[size_t(a)], depth[size_t(before)] + 1);
    longest = std::max(longest, depth[size_t(a)]);
  }
  for (int a = count - 1; a >= 0; --a)
    for (const int before : actions[size_t(a)].after)
      height[size_t(before)] = std::max(height[size_t(before)], height[size_t(a)] + 1);
  std::vector<ActionOrder> later(actions.begin(), actions.end());
  std::vector<int> latest_at(size_t(longest) + 1, -1);  // by depth
  for (int a = 0; a < count; ++a) {
    if (actions[size_t(a)].is_on_host) continue;
    int at = longest - height[size_t(a)] - 1 - kSooner;
    while (at >= depth[size_t(a)] && latest_at[size_t(at)] < 0) --at;
    if (at >= depth[size_t(a)]) later[size_t(a)].after.push_back(latest_at[size_t(at)]);
    latest_at[size_t(depth[size_t(a)])] = a;
  }
  return later;
}

// Which actions each one comes after, directly or not; those on the host are left out.
class Ancestry {
 public:
  explicit Ancestry(std::span<const ActionOrder> actions)
      : words_((actions.size() + 63) / 64), bits_(words_ * actions.size()) {
    int latest_alone = -1;
    for (size_t a = 0; a < actions.size(); ++a) {
      if (actions[a].is_on_host) continue;
      const auto add = [&](int before) {
        if (before < 0 || actions[size_t(before)].is_on_host) return;
        uint64_t* const own = row(a);
        const uint64_t* const others = row(size_t(before));
        for (size_t w = 0; w < words_; ++w) own[w] |= others[w];
        own[size_t(before) / 64] |= uint64_t(1) << before % 64;
      };
      std::ranges::for_each(actions[a].after, add);
      add(latest_alone);
      if (!actions[a].is_alone) continue;
      for (size_t before = 0; before < a; ++before) add(int(before));
      latest_alone = int(a);
    }
  }
  bool comes_after(size_t a, size_t before) const { return row(a)[before / 64] >> before % 64 & 1; }

 private:
  uint64_t* row(size_t a) { return bits_.data() + a * words_; }
  const uint64_t* row(size_t a) const { return bits_.data() + a * words_; }

  const size_t words_;
  std::vector<uint64_t> bits_;
};

// The actions on the device that come after all earlier ones, and before all later ones.
std::vector<size_t> find_bottlenecks(std::span<const ActionOrder> actions, const Ancestry& ancestry) {
  std::vector<size_t> on_device, before(actions.size()), after(actions.size());
  for (size_t a = 0; a < actions.size(); ++a)
    if (!actions[a].is_on_host) on_device.push_back(a);
  for (size_t later = 0; later < on_device.size(); ++later)
    for (size_t earlier = 0; earlier < later; ++earlier)
      if (ancestry.comes_after(on_device[later], on_device[earlier])) {
        ++before[on_device[later]];
        ++after[on_device[earlier]];
      }
  std::vector<size_t> found;
  for (size_t i = 0; i < on_device.size(); ++i)
    if (before[on_device[i]] == i && after[on_device[i]] == on_device.size() - 1 - i) found.push_back(on_device[i]);
  return found;
}

// Of actions from `first` to before `end`; none if they are a chain.
void add_branches(std::span<const ActionOrder> actions, const Ancestry& ancestry, size_t first, size_t end,
                  std::vector<Branches>& all) {
  Branches branches{first, std::vector<Branches::Action>(end - first)};
  std::vector<size_t> depth(end - first);
  size_t on_device = 0, deepest = 0;
  for (size_t a = first; a < end; ++a) {
    Branches::Action& action = branches.actions[a - first];
    action.is_on_host = actions[a].is_on_host;
    if (action.is_on_host) continue;
    for (size_t before = first; before < a; ++before)
      if (ancestry.comes_after(a, before)) {
        action.before.set(before - first);
        depth[a - first] = std::max(depth[a - first], depth[before - first]);
      }
    deepest = std::max(deepest, ++depth[a - first]);
    ++on_device;
  }
  if (deepest == on_device) return;
  // By way of others it comes after the rest.
  for (Branches::Action& action : branches.actions) {
    Branches::Actions rest = action.before;
    for (size_t before = branches.actions.size(); before-- > 0;)
      if (rest.test(before)) {
        action.after.push_back(int(before));
        rest &= ~branches.actions[before].before;
      }
  }
  all.push_back(std::move(branches));
}

}  // namespace

std::vector<Branches> find_branches(std::span<const ActionOrder> given) {
  std::vector<Branches> all;
  if (given.size() > kMostInAll) return all;
  const std::vector<ActionOrder> actions = late_enough(given);
  const Ancestry ancestry(actions);
  std::vector<size_t> bounds = find_bottlenecks(actions, ancestry);
  bounds.push_back(actions.size());
  size_t first = 0;
  for (const size_t bound : bounds) {
    for (; first < bound; first = std::min(bound, first + Branches::kMost))
      add_branches(actions, ancestry, first, std::min(bound, first + Branches::kMost), all);
    first = bound + 1;
  }
  return all;
}

}  // namespace encore::fuse
