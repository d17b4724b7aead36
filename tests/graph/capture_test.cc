#include "graph/capture.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "../memory/gate.h"
#include "memory/source.h"

namespace {
thread_local int allocations_before_one_fails = -1;  // in this thread; none fails below zero
}

// The whole binary's.
void* operator new(size_t bytes) {
  if (allocations_before_one_fails >= 0 && allocations_before_one_fails-- == 0) throw std::bad_alloc();
  if (void* const block = std::malloc(bytes)) return block;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }

namespace encore::graph {
namespace {

using namespace encore::test;
using device::CaptureStatus;

// Does it, failing one allocation; false if it doesn't come so far.
template <class Do>
bool fails_at(int allocation, Do act) {
  allocations_before_one_fails = allocation;
  try {
    act();
  } catch (const std::bad_alloc&) {
    allocations_before_one_fails = -1;
    return true;
  }
  return std::exchange(allocations_before_one_fails, -1) < 0;
}

class CaptureThatLacksMemory : public testing::Test {
 protected:
  // As it is after a capture that is over.
  void expect_free(const char* after, int allocation) {
    EXPECT_EQ(stream->capture_status(), CaptureStatus::none) << after << " it, allocation " << allocation;
    EXPECT_EQ(memory::PoolScope::current(), nullptr);
    EXPECT_FALSE(Capture::may_be_here());
    capture_gate::hold(std::chrono::milliseconds(0));
    capture_gate::let_go();
    Capture(stream, pool, retention).end();
  }

  const std::shared_ptr<memory::GraphPool> pool =
      std::make_shared<memory::GraphPool>(std::make_shared<memory::PoolSource>(0), 0);
  const std::shared_ptr<memory::Retention> retention = std::make_shared<memory::Retention>();
  const EnlistedStream stream;
};

TEST_F(CaptureThatLacksMemory, at_its_beginning_leaves_nothing_behind) {
  int failed = 0;
  while (fails_at(failed, [&] { const Capture capture(stream, pool, retention); })) expect_free("beginning", failed++);
  EXPECT_GT(failed, 0);
}

TEST_F(CaptureThatLacksMemory, at_its_end_leaves_nothing_behind) {
  for (int failed = 0;; ++failed) {
    std::optional<Capture> capture(std::in_place, stream, pool, retention);
    if (!fails_at(failed, [&] { capture->end(); })) break;
    expect_free("ending", failed);
  }
}

}  // namespace
}  // namespace encore::graph
