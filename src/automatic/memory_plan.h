// Where a run's scratch lies in one block of memory: planned from what an earlier run of the same shapes took and gave
// back.
#pragma once
#include <cstddef>
#include <vector>

namespace encore::automatic {

// In the order of the run. Blocks are counted as they are taken.
struct ScratchEvent {
  int block;
  size_t bytes;  // zero: it is given back

  bool operator==(const ScratchEvent&) const = default;
};

// Two that work goes on with at a time, though the events have one after the other.
struct BlocksApart {
  int block, from;
};

class MemoryPlan {
 public:
  MemoryPlan() = default;
  explicit MemoryPlan(const std::vector<ScratchEvent>& events, const std::vector<BlocksApart>& apart = {});

  size_t bytes() const { return bytes_; }
  size_t offset(int block) const { return offsets_[size_t(block)]; }

 private:
  std::vector<size_t> offsets_;
  size_t bytes_ = 0;
};

}  // namespace encore::automatic
