#include "plugin/allocator.h"

#include <gtest/gtest.h>

#include "device/error.h"

namespace encore::plugin {
namespace {

TEST(PinnedPool, GivesFreedBlocksOutAgain) {
  PinnedPool pool;
  void* const first = pool.allocate(1000);
  ASSERT_NE(first, nullptr);
  pool.free(first);
  EXPECT_EQ(pool.allocate(600), first);  // both round up to 1024
  void* const second = pool.allocate(600);
  EXPECT_NE(second, first);
  const PinnedPool::Stats stats = pool.stats();
  EXPECT_EQ(stats.in_use_bytes, 2048u);
  EXPECT_EQ(stats.allocations, 3);
  EXPECT_EQ(stats.driver_allocations, 2);
  pool.free(first);
  pool.free(second);
  pool.shrink();
  EXPECT_EQ(pool.stats().held_bytes, 0u);
  EXPECT_EQ(pool.stats().peak_in_use_bytes, 2048u);
}

TEST(PinnedPool, ZeroBytesAreNothingAndTooManyAreAnError) {
  PinnedPool pool;
  EXPECT_EQ(pool.allocate(0), nullptr);
  pool.free(nullptr);
  EXPECT_THROW(pool.allocate(SIZE_MAX), Error);
}

}  // namespace
}  // namespace encore::plugin
