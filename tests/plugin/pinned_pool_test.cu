#include <gtest/gtest.h>

#include "../memory/gate.h"
#include "plugin/session/allocator.h"

namespace encore::plugin {
namespace {

using namespace encore::test;

TEST(PinnedPool, HandsABlockOutAgainWhenNoCopyIsUnderWay) {
  PinnedPool pool;
  EnlistedStream stream;
  Gate gate;
  void* const block = pool.allocate(1000);
  gate.hold(stream);  // before a copy from the block
  pool.free(block);
  void* const other = pool.allocate(1000);
  EXPECT_NE(other, block);
  pool.shrink();
  EXPECT_EQ(pool.stats().held_bytes, 2048u);
  gate.open();
  memory::wait_for(memory::tails());
  EXPECT_EQ(pool.allocate(1000), block);
  pool.free(block);
  pool.free(other);
  memory::wait_for(memory::tails());  // shrinking leaves what a stream may still use
  pool.shrink();
  EXPECT_EQ(pool.stats().held_bytes, 0u);
}

TEST(PinnedPool, LeavesAloneWhatIsNotItsOwn) {
  PinnedPool pool;
  int local = 0;
  pool.free(&local);
  EXPECT_EQ(pool.stats().held_bytes, 0u);
}

}  // namespace
}  // namespace encore::plugin
