#include "plugin/session/allocator.h"

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

TEST(MemorySettings, AreTheArenasDefaultsUnlessSaid) { EXPECT_EQ(memory_settings(Options()), memory::Settings()); }

TEST(MemorySettings, FollowTheOptions) {
  Options options;
  options.gpu_mem_limit = 1;
  options.use_arena = options.grow_by_doubling = false;
  options.initial_chunk_bytes = 2;
  options.initial_growth_bytes = 3;
  options.largest_growth_bytes = 4;
  options.dead_bytes_per_chunk = 5;
  options.mempool_release_threshold = 6;
  options.mempool_keep_on_shrink = 7;
  const memory::Settings expected{.max_bytes = 1,
                                  .reuse = memory::Reuse::none,
                                  .grow_by_doubling = false,
                                  .first_chunk_bytes = 2,
                                  .growth_after_shrink_bytes = 3,
                                  .largest_growth_bytes = 4,
                                  .dead_bytes = 5,
                                  .pool_keeps_bytes = 6,
                                  .pool_keeps_on_shrink_bytes = 7};
  EXPECT_EQ(memory_settings(options), expected);
  options.use_mempool = true;
  EXPECT_EQ(memory_settings(options).reuse, memory::Reuse::stream_order);
}

}  // namespace
}  // namespace encore::plugin
