#include "memory/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "device/graph.h"
#include "device/label.h"
#ifdef ENCORE_VIRTUAL
#include "device/virtual/control.h"
#endif
#include "gate.h"
#include "memory/graph_pool.h"
#include "memory/meter.h"
#include "memory/pool_scope.h"

namespace encore::memory {
namespace {

using namespace encore::test;
using device::StreamRef;
using testing::HasSubstr;

// Every allocation that does not fit shows as a driver allocation.
Settings exact(size_t max_bytes = SIZE_MAX) { return {.max_bytes = max_bytes, .grow_by_doubling = false}; }

TEST(Arena, aligns_and_counts) {
  EnlistedStream stream;
  Arena arena(0, {}, "test");
  EXPECT_EQ(arena.allocate(0, stream), nullptr);
  arena.free(nullptr);
  void *a = arena.allocate(1, stream), *b = arena.allocate(257, stream);
  EXPECT_EQ(uintptr_t(a) % 256, 0u);
  EXPECT_EQ(uintptr_t(b) % 256, 0u);
  Stats stats = arena.stats();
  EXPECT_EQ(stats.in_use_bytes, 768u);
  EXPECT_EQ(stats.held_bytes, size_t(1) << 20);
  EXPECT_EQ(stats.allocations, 2);
  EXPECT_EQ(stats.driver_allocations, 1);
  arena.free(a);
  arena.free(b);
  stats = arena.stats();
  EXPECT_EQ(stats.in_use_bytes, 0u);
  EXPECT_EQ(stats.peak_in_use_bytes, 768u);
}

TEST(Arena, grows_by_doubling) {
  EnlistedStream stream;
  Arena arena(0, {.first_chunk_bytes = 1024, .largest_growth_bytes = 4096}, "test");
  std::vector<void*> blocks;
  for (int i = 0; i < 15; ++i) blocks.push_back(arena.allocate(1024, stream));
  EXPECT_EQ(arena.stats().driver_allocations, 6);  // 1 + 1 + 2 + 4 + 4 + 4 KiB
  EXPECT_EQ(arena.stats().held_bytes, 16u * 1024);
  for (void* block : blocks) arena.free(block);
}

TEST(Arena, reuses_at_once_in_the_same_stream_only) {
  EnlistedStream one, other;
  Arena arena(0, exact(), "test");
  Gate gate;
  void* block = arena.allocate(1000, one);
  gate.hold(one);
  arena.free(block);
  void* elsewhere = arena.allocate(1000, other);
  void* again = arena.allocate(1000, one);
  EXPECT_EQ(again, block);
  EXPECT_NE(elsewhere, block);
  arena.free(again);
  arena.free(elsewhere);
}

TEST(Arena, waits_for_no_one_but_reuses_only_idle_memory_without_a_stream) {
  EnlistedStream stream;
  Arena arena(0, exact(), "test");
  Gate gate;
  void* block = arena.allocate(1000, kNoStream);
  gate.hold(stream);
  arena.free(block);
  void* meanwhile = arena.allocate(1000, kNoStream);
  EXPECT_NE(meanwhile, block);
  EXPECT_EQ(arena.stats().driver_allocations, 2);
  gate.open();
  stream->synchronize();
  EXPECT_EQ(arena.allocate(1000, kNoStream), block);
  EXPECT_EQ(arena.stats().driver_allocations, 2);
  arena.free(block);
  arena.free(meanwhile);
}

TEST(Arena, without_streams_memory_is_idle_when_freed) {
  Arena arena(0, exact(), "test");
  void* block = arena.allocate(1000, kNoStream);
  arena.free(block);
  EXPECT_EQ(arena.allocate(1000, kNoStream), block);
  arena.free(block);
}

TEST(Arena, waits_when_the_limit_is_reached) {
  EnlistedStream stream;
  Arena arena(0, exact(1024), "test");
  Gate gate;
  void* block = arena.allocate(1024, kNoStream);
  gate.hold(stream);
  arena.free(block);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    gate.open();
  });
  EXPECT_EQ(arena.allocate(1024, kNoStream), block);
  opener.join();
  arena.free(block);
}

TEST(Arena, moves_other_streams_empty_chunks_when_the_limit_is_reached) {
  EnlistedStream one, other;
  Arena arena(0, exact(4096), "test");
  void* chunk = arena.allocate(4096, one);
  arena.free(chunk);
  void* block = arena.allocate(2048, other);
  EXPECT_EQ(block, chunk);
  EXPECT_EQ(arena.stats().driver_allocations, 1);
  arena.free(block);
  EXPECT_EQ(arena.allocate(4096, other), chunk) << "it is the other stream's now";
  arena.free(chunk);
}

TEST(Arena, gives_up_other_streams_small_chunks_for_a_large_one) {
  EnlistedStream one, other;
  Arena arena(0, exact(4096), "test");
  void *a = arena.allocate(2048, one), *b = arena.allocate(2048, one);
  arena.free(a);
  arena.free(b);
  arena.free(arena.allocate(4096, other));
  EXPECT_EQ(arena.stats().held_bytes, 4096u);
}

TEST(Arena, lends_what_is_free_in_a_chunk_that_is_in_use) {
  EnlistedStream one, other;
  Arena arena(0, exact(4096), "test");
  void* chunk = arena.allocate(4096, one);
  arena.free(chunk);
  void* in_use = arena.allocate(1024, one);
  Gate gate;
  gate.hold(one);  // not idle: the lender has to be waited for
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    gate.open();
  });
  void* lent = arena.allocate(3072, other);
  opener.join();
  EXPECT_EQ(lent, static_cast<char*>(chunk) + 1024);
  EXPECT_EQ(arena.stats().driver_allocations, 1);
  Gate busy;
  busy.hold(other);
  arena.free(lent);
  std::thread other_opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    busy.open();
  });
  EXPECT_EQ(arena.allocate(3072, one), lent) << "once the borrower is done with it";
  other_opener.join();
  arena.free(lent);
  arena.free(in_use);
}

// Every stream in turn needs nearly all there is, while others still run on it.
TEST(Arena, serves_many_streams_from_a_little_memory) {
  Arena arena(0, {.max_bytes = 256 << 10, .first_chunk_bytes = 1 << 14}, "test");
  Counter wrong;
  std::vector<std::thread> threads;
  std::mutex turn;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      EnlistedStream stream;
      for (int round = 0; round < 40; ++round) {
        const int64_t count = 1000 * (1 + (round * 7 + t) % 20);
        std::lock_guard lock(turn);
        auto* small = static_cast<float*>(arena.allocate(4096, stream));
        auto* large = static_cast<float*>(arena.allocate(size_t(count) * sizeof(float), stream));
        device::for_each_index(stream, 1024, Fill{small, 1});
        device::for_each_index(stream, count, Fill{large, float(t)});
        device::for_each_index(stream, count, CountOther{large, float(t), wrong.get()});
        device::for_each_index(stream, 1024, CountOther{small, 1, wrong.get()});
        arena.free(large);
        arena.free(small);
      }
      stream->synchronize();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(*wrong, 0);
  EXPECT_LE(arena.stats().held_bytes, 256u << 10);
}

TEST(Arena, grows_otherwise_after_a_shrink) {
  EnlistedStream stream;
  Arena arena(0, {.first_chunk_bytes = 1024, .growth_after_shrink_bytes = 8192}, "test");
  arena.free(arena.allocate(256, stream));
  EXPECT_EQ(arena.stats().held_bytes, 1024u);
  stream->synchronize();
  arena.shrink();
  EXPECT_EQ(arena.stats().held_bytes, 0u);
  arena.free(arena.allocate(256, stream));
  EXPECT_EQ(arena.stats().held_bytes, 8192u);
  EXPECT_EQ(arena.stats().shrinks, 1);
}

TEST(Arena, hands_out_whole_what_would_leave_dead_bytes) {
  EnlistedStream stream;
  Arena arena(0, {.first_chunk_bytes = 2048, .dead_bytes = 512}, "test");
  void* whole = arena.allocate(1536, stream);
  void* other = arena.allocate(512, stream);
  EXPECT_EQ(arena.stats().driver_allocations, 2) << "the 512 bytes left over are dead";
  EXPECT_EQ(arena.stats().in_use_bytes, 2048u) << "dead bytes are in use by nobody";
  arena.free(whole);
  arena.free(other);
  EXPECT_EQ(arena.stats().in_use_bytes, 0u);
}

TEST(Arena, names_the_largest_holders) {
  EnlistedStream stream;
  Arena arena(0, exact(1 << 20), "the session");
  std::vector<void*> blocks{arena.reserve(5000), arena.allocate(300, stream), arena.allocate(300, kNoStream)};
  {
    device::Label label("conv_1");
    for (int i = 0; i < 3; ++i) blocks.push_back(arena.allocate(100 << 10, stream));
  }
  const std::string same("conv_1");
  {
    device::Label label(same.c_str());
    blocks.push_back(arena.allocate(1 << 10, stream));
  }
  auto pool = std::make_shared<GraphPool>(arena.source(), 64 << 10);
  {
    PoolScope scope(pool);
    device::Label label("gemm");
    blocks.push_back(arena.allocate(20 << 10, stream));
  }
  const auto holders = arena.holders();
  ASSERT_EQ(holders.size(), 5u);
  EXPECT_EQ(holders[0].name, "conv_1");
  EXPECT_EQ(holders[0].bytes, 301u << 10);
  EXPECT_EQ(holders[0].blocks, 4);
  EXPECT_EQ(holders[1].name, "gemm");
  EXPECT_EQ(holders[2].name, kReserved);
  EXPECT_EQ(arena.stats().graph_bytes, 64u << 10);
  const std::string said = message_of([&] { arena.allocate(1 << 20, stream); }, Code::out_of_memory);
  EXPECT_THAT(said, HasSubstr("the largest holders: conv_1 with 308224 bytes in 4 blocks, gemm with 20480 bytes in 1 "
                              "block, weights with 5120 bytes in 1 block"));
  EXPECT_THAT(said, HasSubstr("65536 bytes kept for captured graphs"));
  for (void* block : blocks) arena.free(block);
  EXPECT_TRUE(arena.holders().empty());
}

TEST(Arena, says_what_is_exhausted) {
  EnlistedStream stream;
  Arena arena(0, exact(4096), "session 'resnet'");
  void* block = arena.allocate(3072, stream);
  const std::string limit = message_of([&] { arena.allocate(2000, stream); }, Code::out_of_memory);
  EXPECT_THAT(limit, HasSubstr("session 'resnet'"));
  EXPECT_THAT(limit, HasSubstr("2048 bytes wanted"));
  EXPECT_THAT(limit, HasSubstr("3072 bytes held"));
  EXPECT_THAT(limit, HasSubstr("the limit is 4096 bytes"));
  EXPECT_THAT(limit, HasSubstr("raise the limit"));
  EXPECT_THAT(message_of([&] { arena.reserve(2000); }, Code::out_of_memory), HasSubstr("2048 bytes"));
  arena.free(arena.allocate(1024, stream));  // it goes on
  arena.free(block);

  Arena unlimited(0, {}, "test");
  for (size_t bytes : {SIZE_MAX, SIZE_MAX - 256, size_t(1) << 62})
    EXPECT_THAT(message_of([&] { unlimited.allocate(bytes, stream); }, Code::out_of_memory),
                HasSubstr("limit is none"));
  EXPECT_EQ(unlimited.stats().held_bytes, 0u);
  EXPECT_EQ(unlimited.stats().in_use_bytes, 0u);
}

TEST(Arena, reserves_exactly_and_gives_back) {
  Arena arena(0, {}, "test");
  void* block = arena.reserve(5000);
  EXPECT_EQ(arena.stats().held_bytes, 5120u);
  EXPECT_EQ(arena.stats().in_use_bytes, 5120u);
  arena.free(block);
  EXPECT_EQ(arena.stats().held_bytes, 0u);
  EXPECT_EQ(arena.reserve(0), nullptr);
}

TEST(Arena, shrinks) {
  EnlistedStream stream;
  Arena arena(0, exact(), "test");
  void *a = arena.allocate(1024, stream), *b = arena.allocate(2048, stream), *c = arena.allocate(512, kNoStream);
  arena.free(b);
  arena.free(c);
  stream->synchronize();
  arena.shrink();
  EXPECT_EQ(arena.stats().held_bytes, 1024u);
  arena.free(a);
  arena.shrink();
  EXPECT_EQ(arena.stats().held_bytes, 0u);
}

TEST(Arena, wants_streams_enlisted) {
  device::Stream stream(0);
  Arena arena(0, {}, "test");
  EXPECT_THAT(message_of([&] { arena.allocate(1, stream); }, Code::internal), HasSubstr("not enlisted"));
}

TEST(Arena, hands_the_memory_of_a_delisted_stream_to_others) {
  Arena arena(0, exact(), "test");
  EnlistedStream other;
  void *freed, *in_use;
  {
    EnlistedStream stream;
    freed = arena.allocate(1000, stream);
    in_use = arena.allocate(1000, stream);
    device::for_each_index(stream, 250, Fill{static_cast<float*>(freed), 1});
    arena.free(freed);
  }
  EXPECT_EQ(arena.allocate(1000, other), freed);
  Gate gate;
  gate.hold(other);
  arena.free(in_use);  // by which stream it is used now is not known
  void* meanwhile = arena.allocate(1000, other);
  EXPECT_NE(meanwhile, in_use);
  gate.open();
  other->synchronize();
  EXPECT_EQ(arena.allocate(1000, other), in_use);
  for (void* block : {freed, in_use, meanwhile}) arena.free(block);
}

TEST(Arena, counts_enlistments) {
  device::Stream stream(0);
  enlist(stream);
  enlist(stream);
  delist(stream);
  Arena arena(0, {}, "test");
  arena.free(arena.allocate(1, stream));
  delist(stream);
  EXPECT_THROW(arena.allocate(1, stream), Error);
}

TEST(Arena, keeps_memory_in_use_when_it_goes) {
  EnlistedStream stream;
  auto arena = std::make_unique<Arena>(0, exact(), "session 'a'");
  auto* kept = static_cast<float*>(arena->allocate(1024, stream));
  arena->free(arena->allocate(4096, stream));
  device::for_each_index(stream, 256, Fill{kept, 7});
  testing::internal::CaptureStderr();
  arena.reset();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("session 'a': 1 blocks (1024 bytes) were still in use"));
  EXPECT_EQ(read(stream, kept, 256), std::vector<float>(256, 7.f));
  device::free_async(stream, kept);  // a chunk of its own
}

TEST(Arena, reports_a_wrong_free) {
  Arena arena(0, {}, "session 'a'");
  int no_block;
  testing::internal::CaptureStderr();
  arena.free(&no_block);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("is not in use"));
}

TEST(Arena, frees_without_a_stream_while_others_capture) {
  EnlistedStream stream, capturing;
  Arena arena(0, exact(), "test");
  Gate gate;
  void* block = arena.allocate(1024, kNoStream);
  gate.hold(capturing);  // work from before the capture
  capture_begins(capturing);
  device::begin_capture(capturing, device::CaptureMode::thread_local_);
  arena.free(block);
  void* meanwhile = arena.allocate(1024, kNoStream);
  EXPECT_NE(meanwhile, block) << "what came before the capture still runs";
  gate.open();
  wait_for(tails(0));
  EXPECT_EQ(arena.allocate(1024, kNoStream), block);
  void* third = arena.allocate(2048, stream);  // from the driver, in a thread that captures
  arena.free(third);
  arena.shrink();
  EXPECT_EQ(capturing->capture_status(), device::CaptureStatus::active);
  EXPECT_EQ(device::end_capture(capturing).size(), 0u);
  capture_ends(capturing);
  arena.free(block);
  arena.free(meanwhile);
}

TEST(Arena, reuses_what_is_freed_for_all_when_other_streams_are_done_with_it) {
  EnlistedStream maker, reader;
  Arena arena(0, exact(), "test");
  Gate gate;
  void* block = arena.allocate(1024, maker);
  gate.hold(reader);  // which may be about to read the block
  arena.free(block, false);
  void* meanwhile = arena.allocate(1024, maker);
  EXPECT_NE(meanwhile, block);
  gate.open();
  wait_for(tails(0));
  EXPECT_EQ(arena.allocate(1024, maker), block);
  reader->synchronize();  // it may yet be about to say that it has come to its end
  arena.free(meanwhile, false);
  EXPECT_EQ(arena.allocate(1024, maker), meanwhile) << "no other stream is busy";
  arena.free(block);
  arena.free(meanwhile);
}

#ifdef ENCORE_VIRTUAL  // on CUDA the device would be lost
struct Fail {
  void operator()(int64_t) const { throw std::runtime_error("as a fault on the device"); }
};

TEST(Arena, serves_others_when_a_stream_has_failed) {
  Arena arena(0, exact(), "test");
  EnlistedStream bad;
  void *block = arena.allocate(1024, kNoStream), *of_bad = arena.allocate(1024, bad);
  device::for_each_index(bad, 1, Fail{});
  EXPECT_THROW(bad->synchronize(), Error);
  testing::internal::CaptureStderr();
  arena.free(block);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("a stream of device 0 can't be waited for"));
  EXPECT_EQ(arena.allocate(1024, kNoStream), block);
  arena.free(block);
  arena.free(of_bad);
  EXPECT_EQ(arena.stats().in_use_bytes, 0u);
}

// As a process ends: there is nothing to wait for, and nobody to complain to.
TEST(Arena, is_silent_where_the_device_has_gone_before_it) {
  auto arena = std::make_unique<Arena>(0, exact(), "test");
  {
    EnlistedStream stream;
    void* const block = arena->allocate(1024, stream);
    arena->free(arena->allocate(2048, stream));
    testing::internal::CaptureStderr();
    device::virtual_gpu::set_gone(true);
    arena->free(block, false);
    arena.reset();
  }
  device::virtual_gpu::set_gone(false);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}
#endif

// Blocks are written, checked and freed without ever waiting. On the virtual GPU, TSan sees reuse that is not ordered.
TEST(Arena, is_right_with_many_threads) {
  Arena arena(0, {.first_chunk_bytes = 1 << 14}, "test");
  Counter wrong;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      EnlistedStream stream;
      std::mt19937 random{unsigned(t)};
      struct Held {
        float *data, value;
        int64_t count;
      };
      std::vector<Held> held;
      const auto check_and_free = [&](Held& block) {
        device::for_each_index(stream, block.count, CountOther{block.data, block.value, wrong.get()});
        arena.free(block.data);
      };
      for (int step = 0; step < 400; ++step) {
        if (held.size() < 8 && random() % 5 < 3) {
          const int64_t count = 1 + int64_t(random() % 2000);
          const bool with_stream = random() % 8 != 0;
          auto* data = static_cast<float*>(
              arena.allocate(size_t(count) * sizeof(float), with_stream ? StreamRef(stream) : StreamRef()));
          held.push_back({data, float(t * 10000 + step), count});
          device::for_each_index(stream, count, Fill{data, held.back().value});
        } else if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          check_and_free(held.back());
          held.pop_back();
        }
        if (step % 100 == 99) arena.shrink();
      }
      for (Held& block : held) check_and_free(block);
      stream->synchronize();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(*wrong, 0);
  arena.shrink();
  EXPECT_EQ(arena.stats().in_use_bytes, 0u);
  EXPECT_EQ(arena.stats().held_bytes, 0u);
}

TEST(Meter, measures_the_threads_peak) {
  EnlistedStream stream;
  Arena arena(0, {}, "test");
  void* before = arena.allocate(4096, stream);
  Meter meter;
  void* a = arena.allocate(1024, stream);
  arena.free(before);  // not of the metered
  arena.free(a);
  a = arena.allocate(512, stream);
  void* b = arena.allocate(768, kNoStream);
  std::thread([&] { arena.free(arena.allocate(8192, stream)); }).join();
  EXPECT_EQ(meter.peak_bytes(), 1280u);
  arena.free(a);
  arena.free(b);
}

}  // namespace
}  // namespace encore::memory
