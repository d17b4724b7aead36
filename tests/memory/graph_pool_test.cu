#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "device/label.h"
#include "gate.h"
#include "memory/arena.h"
#include "memory/graph_pool.h"
#include "memory/pool_scope.h"

namespace encore::memory {
namespace {

using namespace encore::test;
using testing::HasSubstr;

TEST(GraphPool, serves_the_scope_and_no_one_else) {
  EnlistedStream stream;
  Arena arena(0, {.grow_by_doubling = false}, "test");
  auto pool = std::make_shared<GraphPool>(arena.source(), 4096);
  EXPECT_EQ(pool->held_bytes(), 4096u);
  void *inside, *again, *outside;
  {
    PoolScope scope(pool);
    EXPECT_EQ(PoolScope::current(), pool);
    inside = arena.allocate(1024, stream);
    arena.free(inside);
    again = arena.allocate(1024, stream);
    EXPECT_EQ(again, inside) << "in the same capture memory is reused";
    std::thread([&] {
      EXPECT_EQ(PoolScope::current(), nullptr);
      outside = arena.allocate(1024, stream);
    }).join();
  }
  EXPECT_EQ(PoolScope::current(), nullptr);
  EXPECT_NE(outside, inside);
  arena.free(again);
  void* later = arena.allocate(1024, stream);
  EXPECT_NE(later, inside) << "after the capture nobody gets the memory";
  EXPECT_EQ(arena.stats().driver_allocations_in_capture, 0);
  arena.free(outside);
  arena.free(later);
  EXPECT_EQ(arena.stats().in_use_bytes, 0u);
}

TEST(GraphPool, never_reuses_what_has_no_stream) {
  EnlistedStream stream;
  Arena arena(0, {}, "test");
  for (const size_t first_chunk_bytes : {0, 4096}) {
    PoolScope scope(std::make_shared<GraphPool>(arena.source(), first_chunk_bytes));
    const auto grown = arena.stats().driver_allocations_in_capture;
    void* block = arena.allocate(1024, kNoStream);
    arena.free(block);
    void *other = arena.allocate(1024, kNoStream), *of_stream = arena.allocate(2048, stream);
    EXPECT_NE(other, block);
    EXPECT_EQ(arena.stats().driver_allocations_in_capture > grown, first_chunk_bytes == 0);
    arena.free(other);
    arena.free(of_stream);
  }
}

TEST(GraphPool, says_when_it_grows) {
  EnlistedStream stream;
  Arena arena(0, {}, "test");
  std::vector<std::string> grown;
  PoolScope scope(
      std::make_shared<GraphPool>(arena.source(), 1024, [&](size_t) { grown.push_back(device::Label::current()); }));
  device::Label first("Conv_0");
  void* a = arena.allocate(1024, stream);
  EXPECT_TRUE(grown.empty());
  device::Label second("Conv_1");
  void* b = arena.allocate(1024, stream);
  EXPECT_EQ(grown, std::vector<std::string>{"Conv_1"});
  EXPECT_EQ(arena.stats().driver_allocations_in_capture, 1);
  arena.free(a);
  arena.free(b);
}

TEST(GraphPool, counts_against_the_limit) {
  EnlistedStream stream;
  Arena arena(0, {.max_bytes = 100 << 10, .grow_by_doubling = false}, "session 'a'");
  arena.free(arena.allocate(50 << 10, stream));
  auto pool = std::make_shared<GraphPool>(arena.source(), 0);
  {
    PoolScope scope(pool);
    void* a = arena.allocate(64 << 10, stream);  // the arena's empty chunk makes room
    EXPECT_EQ(arena.stats().held_bytes, 64u << 10);
    EXPECT_THAT(message_of([&] { arena.allocate(50 << 10, stream); }, Code::out_of_memory), HasSubstr("session 'a'"));
    void* b = arena.allocate(36 << 10, stream);
    arena.free(a);
    arena.free(b);
  }
  EXPECT_EQ(arena.stats().held_bytes, 100u << 10);
  pool.reset();
  EXPECT_EQ(arena.stats().held_bytes, 0u);
}

TEST(GraphPool, does_without_a_first_chunk_beyond_the_limit) {
  EnlistedStream stream;
  Arena arena(0, {.max_bytes = 100 << 10, .grow_by_doubling = false}, "session 'a'");
  auto pool = std::make_shared<GraphPool>(arena.source(), 200 << 10);
  PoolScope scope(pool);
  void* a = arena.allocate(64 << 10, stream);
  EXPECT_EQ(arena.stats().held_bytes, 64u << 10);
  EXPECT_EQ(pool->held_bytes(), 64u << 10);
  arena.free(a);
}

TEST(GraphPool, lives_as_long_as_a_tensor_in_it) {
  EnlistedStream stream;
  Arena arena(0, {}, "test");
  auto pool = std::make_shared<GraphPool>(arena.source(), 4096);
  float* block;
  {
    PoolScope scope(pool);
    block = static_cast<float*>(arena.allocate(1024, stream));
  }
  device::for_each_index(stream, 256, Fill{block, 3});
  auto thing = std::make_shared<int>(0);
  pool->keep(thing);
  pool.reset();
  EXPECT_EQ(arena.stats().held_bytes, 4096u);
  EXPECT_EQ(thing.use_count(), 2);
  EXPECT_EQ(read(stream, block, 256), std::vector<float>(256, 3.f));
  arena.free(block);
  EXPECT_EQ(arena.stats().held_bytes, 0u);
  EXPECT_EQ(thing.use_count(), 1);
}

TEST(GraphPool, waits_for_work_on_its_memory) {
  EnlistedStream stream, reader;
  Arena arena(0, {}, "test");
  auto pool = std::make_shared<GraphPool>(arena.source(), 4096);
  float* block;
  {
    PoolScope scope(pool);
    block = static_cast<float*>(arena.allocate(1024, stream));
  }
  device::for_each_index(stream, 256, Fill{block, 3});
  stream->synchronize();
  Counter others;
  Gate gate;
  gate.hold(reader);
  device::for_each_index(reader, 256, CountOther{block, 4, others.get()});
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    gate.open();
  });
  pool.reset();
  arena.free(block);
  EXPECT_EQ(*others, 256) << "the reader was not waited for";
  opener.join();
}

}  // namespace
}  // namespace encore::memory
