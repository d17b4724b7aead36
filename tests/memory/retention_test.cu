#include "memory/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "gate.h"
#include "memory/arena.h"
#include "memory/graph_pool.h"
#include "memory/pool_scope.h"

namespace encore::memory {
namespace {

using namespace encore::test;

constexpr size_t kBytes = 1024;

std::unique_ptr<Retention> retained(std::initializer_list<const void*> addresses) {
  auto retention = std::make_unique<Retention>();
  for (const void* address : addresses) retention->note(address);
  return retention;
}

TEST(Retention, keeps_a_freed_block_until_it_lets_go) {
  for (const Reuse reuse : {Reuse::blocks, Reuse::stream_order, Reuse::none}) {
    EnlistedStream stream;
    Arena arena(0, {.reuse = reuse, .grow_by_doubling = false}, "test");
    void* block = arena.allocate(kBytes, stream);
    auto graph = retained({block});
    EXPECT_EQ(graph->bytes(), kBytes);
    arena.free(block);
    EXPECT_EQ(arena.stats().in_use_bytes, 0u);
    EXPECT_EQ(arena.stats().graph_bytes, kBytes);
    ASSERT_EQ(arena.holders().size(), 1u);
    EXPECT_EQ(arena.holders()[0].name, kForGraphs);
    for (int i = 0; i < 3; ++i) {
      void* other = arena.allocate(kBytes, stream);
      EXPECT_NE(other, block);
      arena.free(other);
    }
    arena.shrink();
    EXPECT_EQ(arena.stats().graph_bytes, kBytes);
    graph.reset();
    EXPECT_EQ(arena.stats().graph_bytes, 0u);
    EXPECT_EQ(arena.stats().in_use_bytes, 0u);
    EXPECT_TRUE(arena.holders().empty());
    arena.shrink();
    if (reuse == Reuse::blocks) EXPECT_EQ(arena.stats().held_bytes, 0u);
  }
}

TEST(Retention, finds_the_block_of_any_address_in_it) {
  EnlistedStream stream;
  Arena arena(0, {}, "test");
  char* one = static_cast<char*>(arena.allocate(kBytes, stream));
  char* two = static_cast<char*>(arena.allocate(kBytes, stream));
  auto graph = retained({one + 4, one, one + kBytes - 1});
  EXPECT_EQ(graph->bytes(), kBytes);
  graph->note(one + kBytes);
  EXPECT_EQ(graph->bytes(), two == one + kBytes ? 2 * kBytes : kBytes);
  int elsewhere = 0;
  const size_t before = graph->bytes();
  graph->note(&elsewhere);
  graph->note(nullptr);
  EXPECT_EQ(graph->bytes(), before);
  arena.free(one);
  EXPECT_NE(arena.allocate(kBytes, stream), one);
  graph.reset();
  EXPECT_EQ(arena.allocate(kBytes, stream), one);
}

TEST(Retention, of_several_graphs_lasts_as_long_as_the_last) {
  EnlistedStream stream;
  Arena arena(0, {}, "test");
  void* block = arena.allocate(kBytes, stream);
  auto first = retained({block}), second = retained({block});
  first.reset();
  arena.free(block);
  EXPECT_EQ(arena.stats().graph_bytes, kBytes);
  second.reset();
  EXPECT_EQ(arena.stats().graph_bytes, 0u);
}

TEST(Retention, leaves_a_block_to_the_owner_who_has_not_freed_it) {
  EnlistedStream stream;
  Arena arena(0, {}, "test");
  void* block = arena.allocate(kBytes, stream);
  retained({block}).reset();
  EXPECT_EQ(arena.stats().in_use_bytes, kBytes);
  arena.free(block);
  EXPECT_EQ(arena.stats().in_use_bytes, 0u);
}

TEST(Retention, waits_for_work_on_the_block) {
  EnlistedStream stream, reader;
  Arena arena(0, {}, "test");
  void* block = arena.allocate(kBytes, stream);
  auto graph = retained({block});
  arena.free(block);
  Gate gate;
  gate.hold(reader);
  graph.reset();
  EXPECT_NE(arena.allocate(kBytes, stream), block) << "the reader is not done";
}

TEST(Retention, may_outlive_the_arena) {
  const size_t free_bytes = device::memory_info(0).free_bytes;
  {
    EnlistedStream stream;
    auto arena = std::make_unique<Arena>(0, Settings{.grow_by_doubling = false}, "test");
    void* block = arena->allocate(kBytes, stream);
    auto graph = retained({block});
    arena->free(block);
    testing::internal::CaptureStderr();
    arena.reset();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_LT(device::memory_info(0).free_bytes, free_bytes);
  }
  EXPECT_EQ(device::memory_info(0).free_bytes, free_bytes);
}

TEST(Retention, says_what_is_freed_twice) {
  EnlistedStream stream;
  Arena arena(0, {}, "session 'a'");
  void* block = arena.allocate(kBytes, stream);
  const auto graph = retained({block});
  arena.free(block);
  testing::internal::CaptureStderr();
  arena.free(block);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("session 'a'"));
}

TEST(Retention, leaves_the_graphs_own_memory_to_its_pool) {
  EnlistedStream stream;
  Arena arena(0, {}, "test");
  const auto retention = std::make_shared<Retention>(), other = std::make_shared<Retention>();
  void *own, *outside = arena.allocate(kBytes, stream);
  auto pool = std::make_shared<GraphPool>(arena.source(), 64 << 10);
  {
    const PoolScope scope(pool, retention);
    own = arena.allocate(kBytes, stream);
    PoolScope::note(own);
    PoolScope::note(outside);
    EXPECT_EQ(retention->bytes(), kBytes);
    arena.free(outside);
    arena.free(own);
    EXPECT_EQ(arena.allocate(kBytes, stream), own) << "in the same capture memory is reused";
  }
  PoolScope::note(own);  // outside of captures
  EXPECT_EQ(retention->bytes(), kBytes);

  // Another graph retains it, and with it its pool.
  other->note(own);
  arena.free(own);
  pool.reset();
  EXPECT_GE(arena.stats().graph_bytes, 64u << 10);
}

}  // namespace
}  // namespace encore::memory
