#include "memory/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/device.h"
#include "device/graph.h"
#include "gate.h"
#include "memory/arena.h"
#include "memory/graph_pool.h"
#include "memory/pool_scope.h"

namespace encore::memory {
namespace {

using namespace encore::test;
using device::StreamRef;
using testing::HasSubstr;

// An application's allocator, which counts.
template <int which>
struct App {
  static inline std::mutex mutex;
  static inline std::map<void*, size_t> live;
  static inline int taken = 0, emptied = 0;
  static inline size_t limit_bytes = SIZE_MAX, offset = 0;
  static inline std::function<void()> meanwhile;

  static void* allocate(size_t bytes) {
    if (meanwhile) meanwhile();
    std::lock_guard lock(mutex);
    if (bytes > limit_bytes) return nullptr;
    device::RelaxedCapture relaxed;
    auto* address = static_cast<char*>(device::allocate(0, bytes + offset)) + offset;
    live[address] = bytes;
    ++taken;
    return address;
  }
  static void free(void* address) {
    if (meanwhile) meanwhile();
    std::lock_guard lock(mutex);
    ASSERT_EQ(live.erase(address), 1u);
    device::RelaxedCapture relaxed;
    device::free(0, static_cast<char*>(address) - offset);
  }
  static void empty_cache() { ++emptied; }
  static size_t bytes() {
    std::lock_guard lock(mutex);
    size_t sum = 0;
    for (auto& [address, bytes] : live) sum += bytes;
    return sum;
  }
  static bool owns(void* address) {
    std::lock_guard lock(mutex);
    auto after = live.upper_bound(address);
    return after != live.begin() && address < static_cast<char*>((--after)->first) + after->second;
  }

  App() {
    live.clear();
    taken = emptied = 0;
    limit_bytes = SIZE_MAX;
    offset = 0;
  }
  ~App() { meanwhile = {}; }
  static External external() { return {&allocate, &free, &empty_cache}; }
};

TEST(External, is_called_on_the_device_of_the_memory) {
  if (device::count() < 2) GTEST_SKIP() << "this takes two devices";
  static const device::Stream* there;
  static int launches;
  const device::Stream stream(1);
  there = &stream;
  launches = 0;
  // A launch works on the current device alone.
  const auto launch = [] { device::for_each_index(*there, 1, device::tests::Nothing{}), ++launches; };
  App<0> app;
  app.meanwhile = launch;
  const External external{[](size_t bytes) { return App<0>::meanwhile(), device::allocate(1, bytes); },
                          [](void* address) { App<0>::meanwhile(), device::free(1, address); },
                          [] { App<0>::meanwhile(); }};
  {
    Arena arena(1, {.external = external}, "test");
    arena.free(arena.allocate(1024, kNoStream));
    arena.shrink();
  }
  EXPECT_GE(launches, 3);
}

TEST(External, is_the_only_source) {
  App<0> one;
  App<1> other;
  EnlistedStream stream;
  auto arena = std::make_unique<Arena>(0, Settings{.external = one.external()}, "one");
  Arena second(0, {.external = other.external()}, "other"), third(0, {}, "third");
  auto pool = std::make_shared<GraphPool>(arena->source(), 4096);
  void *block = arena->allocate(1000, stream), *reserved = arena->reserve(1000), *captured;
  {
    PoolScope scope(pool);
    captured = arena->allocate(1 << 20, stream);
  }
  void *others = second.allocate(1000, stream), *thirds = third.allocate(1000, stream);
  for (void* address : {block, reserved, captured}) EXPECT_TRUE(one.owns(address));
  EXPECT_TRUE(other.owns(others));
  EXPECT_FALSE(one.owns(thirds) || other.owns(thirds));
  EXPECT_EQ(one.bytes(), arena->stats().held_bytes);
  EXPECT_EQ(other.bytes(), second.stats().held_bytes);

  arena->free(captured);
  pool.reset();
  EXPECT_FALSE(one.owns(captured));
  arena->free(reserved);
  arena->free(block);
  stream->synchronize();
  EXPECT_EQ(one.emptied, 0);
  arena->shrink();
  EXPECT_EQ(one.emptied, 1);
  EXPECT_EQ(one.bytes(), 0u) << "before the cache was emptied";
  arena->free(arena->allocate(1000, stream));
  arena.reset();
  EXPECT_EQ(one.bytes(), 0u);
  EXPECT_EQ(other.emptied, 0);
  second.free(others);
  third.free(thirds);
}

TEST(External, may_do_what_a_capture_forbids) {
  const External external{[](size_t bytes) { return device::allocate(0, bytes); },
                          [](void* address) { device::free(0, address); }};
  const EnlistedStream stream;
  Arena arena(0, {.external = external}, "test");
  device::begin_capture(stream, device::CaptureMode::thread_local_);
  arena.free(arena.reserve(1024));
  EXPECT_EQ(stream->capture_status(), device::CaptureStatus::active);
  device::abandon_capture(stream);
}

TEST(External, without_an_arena_frees_what_is_idle) {
  App<0> app;
  EnlistedStream stream;
  Arena arena(0, {.reuse = Reuse::none, .external = app.external()}, "test");
  Gate gate;
  void* block = arena.allocate(1000, stream);
  gate.hold(stream);
  arena.free(block);
  EXPECT_TRUE(app.owns(block)) << "work on the stream may still use it";
  gate.open();
  stream->synchronize();
  arena.free(arena.allocate(1000, stream));
  EXPECT_FALSE(app.owns(block));
}

TEST(External, says_what_it_was_refused) {
  App<0> app;
  app.limit_bytes = 1 << 20;
  EnlistedStream stream;
  Arena arena(0, {.external = app.external()}, "the session");
  const std::string said = message_of([&] { arena.allocate(2 << 20, stream); }, Code::out_of_memory);
  EXPECT_THAT(said, HasSubstr("gpu_external_alloc has no 2097152 bytes"));
  EXPECT_THAT(said, HasSubstr("the session"));
  arena.free(arena.allocate(1000, stream));  // it goes on

  App<1> crooked;
  crooked.offset = 64;
  Arena other(0, {.external = crooked.external()}, "test");
  EXPECT_THAT(message_of([&] { other.allocate(1000, stream); }, Code::invalid_input),
              HasSubstr("not aligned to 256 bytes"));
  EXPECT_EQ(crooked.bytes(), 0u) << "what was refused has been freed";
  EXPECT_EQ(other.stats().held_bytes, 0u);
  crooked.offset = 0;
  other.free(other.allocate(1000, stream));
}

// As with Python's lock: the callback waits for a thread which is inside the arena, or about to be.
TEST(External, may_wait_for_other_threads_of_the_arena) {
  App<0> app;
  EnlistedStream stream;
  Arena arena(0, {.external = app.external(), .grow_by_doubling = false}, "test");
  const auto watched = std::make_shared<GraphPool>(arena.source(), 0);
  auto pool = watched;
  std::recursive_mutex python;  // as Python's is
  std::vector<void*> tensors;
  for (int i = 0; i < 300; ++i) tensors.push_back(arena.allocate(1000, stream));
  std::atomic<bool> done{false};
  app.meanwhile = [&] { std::lock_guard lock(python); };
  std::thread frees([&] {
    for (void* tensor : tensors) {
      std::lock_guard lock(python);
      std::this_thread::yield();
      arena.free(tensor);
      arena.stats();
      arena.holders();
      watched->held_bytes();
    }
    done = true;
  });
  for (int i = 0; !done; ++i) {
    void* reserved = arena.reserve(size_t(1) << 14);
    void* block = arena.allocate(size_t(1000 + i % 100 * 1000), stream);
    void* captured;
    {
      PoolScope scope(pool);
      captured = arena.allocate(size_t(1000 + i % 100 * 100), stream);
    }
    arena.free(captured);
    arena.free(block);
    arena.free(reserved);
    if (i % 10 == 0) arena.shrink();
    if (i % 50 == 49) pool = std::make_shared<GraphPool>(arena.source(), 0);
  }
  frees.join();
  stream->synchronize();
}

TEST(Mempool, reuses_in_stream_order_and_holds_nothing_else) {
  EnlistedStream stream, other;
  Arena arena(0, {.max_bytes = 64 << 20, .reuse = Reuse::stream_order}, "test");
  Counter wrong;
  const size_t bytes = 40 << 20;  // twice that is beyond the limit
  const int64_t count = bytes / sizeof(float);
  for (int i = 0; i < 5; ++i) {
    auto* block = static_cast<float*>(arena.allocate(bytes, stream));
    device::for_each_index(stream, count, Fill{block, float(i)});
    device::for_each_index(stream, count, CountOther{block, float(i), wrong.get()});
    arena.free(block);
  }
  EXPECT_EQ(arena.stats().in_use_bytes, 0u);
  void* idle = arena.allocate(1000, kNoStream);
  void* elsewhere = arena.allocate(bytes, other);
  const std::string said = message_of([&] { arena.allocate(bytes, stream); }, Code::out_of_memory);
  EXPECT_THAT(said, HasSubstr("the limit is 67108864 bytes"));
  arena.free(elsewhere);
  arena.free(idle);
  for (StreamRef each : {StreamRef(stream), StreamRef(other)}) each.synchronize();
  arena.shrink();
  EXPECT_EQ(arena.stats().held_bytes, 0u);
  EXPECT_EQ(*wrong, 0);
}

TEST(Mempool, keeps_what_it_is_asked_to) {
  constexpr size_t kBytes = size_t(64) << 20;
  EnlistedStream stream;
  Arena arena(0, {.reuse = Reuse::stream_order, .pool_keeps_bytes = SIZE_MAX, .pool_keeps_on_shrink_bytes = kBytes},
              "test");
  for (void* block : {arena.allocate(kBytes, stream), arena.allocate(kBytes, stream)}) arena.free(block);
  stream->synchronize();
  EXPECT_GE(arena.stats().held_bytes, 2 * kBytes);
  arena.shrink();
  EXPECT_LE(arena.stats().held_bytes, kBytes);
  EXPECT_GE(arena.stats().held_bytes, kBytes / 2);

  Arena forgetful(0, {.reuse = Reuse::stream_order}, "test");
  forgetful.free(forgetful.allocate(kBytes, stream));
  stream->synchronize();
  EXPECT_EQ(forgetful.stats().held_bytes, 0u);
}

TEST(Mempool, frees_during_a_capture_and_after_the_stream) {
  auto stream = std::make_unique<EnlistedStream>();
  Arena arena(0, {.reuse = Reuse::stream_order}, "test");
  auto pool = std::make_shared<GraphPool>(arena.source(), 0);
  void *before = arena.allocate(1000, *stream), *last = arena.allocate(1000, *stream), *inside;
  capture_begins(*stream);
  device::begin_capture(*stream, device::CaptureMode::thread_local_);
  {
    PoolScope scope(pool);
    inside = arena.allocate(1000, *stream);
    arena.free(before);
  }
  EXPECT_EQ(device::end_capture(*stream).size(), 0u) << "the graph takes no part in this";
  capture_ends(*stream);
  arena.free(inside);
  pool.reset();
  stream.reset();
  arena.free(last);
  arena.shrink();
  EXPECT_EQ(arena.stats().in_use_bytes, 0u);
  EXPECT_EQ(arena.stats().held_bytes, 0u);
}

TEST(NoReuse, gives_memory_back_once_it_is_idle) {
  EnlistedStream stream;
  Arena arena(0, {.max_bytes = 8192, .reuse = Reuse::none}, "test");
  Gate gate;
  void* block = arena.allocate(4096, stream);
  EXPECT_EQ(arena.stats().held_bytes, 4096u);
  gate.hold(stream);
  arena.free(block);
  EXPECT_EQ(arena.stats().held_bytes, 4096u);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    gate.open();
  });
  arena.free(arena.allocate(8192, stream));  // has to wait for the other
  opener.join();
  stream->synchronize();
  arena.shrink();
  EXPECT_EQ(arena.stats().held_bytes, 0u);
  EXPECT_EQ(arena.stats().driver_allocations, 2);
}

// What one session gives back, none of the others waits for.
TEST(PoolSource, waits_for_nobodys_work) {
  EnlistedStream busy, stream;
  Arena arena(0, {.grow_by_doubling = false}, "test");
  arena.free(arena.allocate(1 << 20, stream));
  stream->synchronize();
  Gate gate;
  gate.hold(busy);  // hangs if anything below waits for the device
  arena.shrink();
  EXPECT_EQ(arena.stats().held_bytes, 0u);
  arena.free(arena.allocate(1 << 20, stream));
  gate.open();
}

TEST(PoolSource, gives_memory_back_to_the_driver) {
  constexpr size_t kBytes = size_t(256) << 20;
  EnlistedStream stream;
  Arena arena(0, {.grow_by_doubling = false}, "test");
  const size_t before = device::memory_info(0).free_bytes;
  void* block = arena.allocate(kBytes, stream);
  EXPECT_LE(device::memory_info(0).free_bytes + kBytes / 2, before);
  arena.free(block);
  stream->synchronize();
  arena.shrink();
  EXPECT_GE(device::memory_info(0).free_bytes + kBytes / 4, before);
}

}  // namespace
}  // namespace encore::memory
