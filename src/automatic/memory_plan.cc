#include "automatic/memory_plan.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>

#include "memory/block_index.h"

namespace encore::automatic {

namespace {

struct Life {
  size_t bytes = 0, from = 0, to = 0;  // from one event to another
  size_t offset = 0;
  std::vector<const Life*> apart = {};  // besides those that live at the same time

  bool may_lie_where(const Life& other) const {
    return (other.to <= from || to <= other.from) && !std::ranges::count(apart, &other);
  }
};

}  // namespace

// The largest first, each into the smallest gap that those leave which may not lie where it does.
MemoryPlan::MemoryPlan(const std::vector<ScratchEvent>& events, const std::vector<BlocksApart>& apart) {
  std::vector<Life> lives;
  for (size_t e = 0; e < events.size(); ++e) {
    if (events[e].bytes)
      lives.push_back({memory::whole_units(events[e].bytes), e, events.size()});
    else
      lives[size_t(events[e].block)].to = e;
  }
  for (const auto& [block, from] : apart) {
    lives[size_t(block)].apart.push_back(&lives[size_t(from)]);
    lives[size_t(from)].apart.push_back(&lives[size_t(block)]);
  }
  std::vector<Life*> by_size(lives.size()), placed;
  std::iota(by_size.begin(), by_size.end(), lives.data());
  std::ranges::stable_sort(by_size, std::greater(), &Life::bytes);
  for (Life* const life : by_size) {
    size_t end = 0, best_gap = SIZE_MAX, best = SIZE_MAX;
    for (const Life* const other : placed) {  // by offset
      if (life->may_lie_where(*other)) continue;
      const size_t gap = other->offset > end ? other->offset - end : 0;
      if (gap >= life->bytes && gap < best_gap) best_gap = gap, best = end;
      end = std::max(end, other->offset + other->bytes);
    }
    life->offset = best == SIZE_MAX ? end : best;
    bytes_ = std::max(bytes_, life->offset + life->bytes);
    placed.insert(std::ranges::upper_bound(placed, life->offset, {}, &Life::offset), life);
  }
  for (const Life& life : lives) offsets_.push_back(life.offset);
}

}  // namespace encore::automatic
