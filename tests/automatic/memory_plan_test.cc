#include "automatic/memory_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace encore::automatic::tests {
namespace {

TEST(MemoryPlan, WhatDoesNotLiveAtTheSameTimeMayLieInOnePlace) {
  const MemoryPlan plan({{0, 1000}, {1, 500}, {0, 0}, {2, 900}, {1, 0}, {2, 0}});
  EXPECT_EQ(plan.bytes(), 1024u + 512u);
  EXPECT_EQ(plan.offset(0), plan.offset(2));
}

TEST(MemoryPlan, WhatIsNotGivenBackLivesToTheEnd) {
  const MemoryPlan plan({{0, 256}, {1, 256}, {1, 0}, {2, 256}});
  EXPECT_EQ(plan.bytes(), 512u);
  EXPECT_NE(plan.offset(0), plan.offset(2));
}

TEST(MemoryPlan, TheSmallestGapIsTaken) {
  // 0 1 2 3 lie one after the other; 0 and 2 go, and the smaller of their places suits best.
  const MemoryPlan plan({{0, 2048}, {1, 1024}, {2, 512}, {3, 256}, {0, 0}, {2, 0}, {4, 256}});
  EXPECT_EQ(plan.bytes(), 2048u + 1024u + 512u + 256u);
  EXPECT_EQ(plan.offset(4), plan.offset(2));
}

TEST(MemoryPlan, WhatIsKeptApartLiesApart) {
  const std::vector<ScratchEvent> events{{0, 256}, {0, 0}, {1, 256}, {1, 0}, {2, 256}, {2, 0}};
  const MemoryPlan plan(events, {{1, 0}});
  EXPECT_EQ(plan.bytes(), 512u);
  EXPECT_NE(plan.offset(0), plan.offset(1));
  EXPECT_EQ(MemoryPlan(events, {{1, 0}, {2, 0}, {2, 1}}).bytes(), 768u);
}

TEST(MemoryPlan, NothingNeedsNoMemory) { EXPECT_EQ(MemoryPlan(std::vector<ScratchEvent>()).bytes(), 0u); }

// Of runs at random: what lives at the same time lies apart, and aligned.
TEST(MemoryPlan, NoTwoLivingBlocksOverlap) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<ScratchEvent> events;
    std::vector<size_t> bytes;
    std::vector<int> live;
    size_t held = 0, peak = 0;
    for (int step = 0; step < 200; ++step) {
      if (!live.empty() && random() % 2) {
        const size_t which = random() % live.size();
        events.push_back({live[which], 0});
        held -= bytes[size_t(live[which])];
        live.erase(live.begin() + ptrdiff_t(which));
      } else {
        bytes.push_back(256 * (1 + random() % 64));
        live.push_back(int(bytes.size()) - 1);
        events.push_back({live.back(), bytes.back()});
        peak = std::max(peak, held += bytes.back());
      }
    }
    const MemoryPlan plan(events);
    EXPECT_GE(plan.bytes(), peak);
    EXPECT_LE(plan.bytes(), peak + peak / 4) << "round " << round;
    live.clear();
    for (const ScratchEvent& event : events) {
      if (!event.bytes) {
        std::erase(live, event.block);
        continue;
      }
      const size_t from = plan.offset(event.block), to = from + event.bytes;
      EXPECT_EQ(from % 256, 0u);
      for (int other : live) EXPECT_TRUE(to <= plan.offset(other) || plan.offset(other) + bytes[size_t(other)] <= from);
      live.push_back(event.block);
    }
  }
}

}  // namespace
}  // namespace encore::automatic::tests
