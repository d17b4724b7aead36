#include "graph/capture_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include "device/error.h"

namespace encore::graph::tests {
namespace {

using namespace std::chrono_literals;

void capture() { const capture_gate::Pass pass; }

TEST(CaptureGate, CapturesPassWhereNobodyHoldsThemBack) { const capture_gate::Pass one, beside; }

TEST(CaptureGate, HoldWaitsForCapturesUnderWay) {
  std::optional<capture_gate::Pass> pass(std::in_place);
  std::atomic<bool> held{false};
  std::thread holder([&] {
    capture_gate::hold();
    held = true;
    capture_gate::let_go();
  });
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(held);
  pass.reset();
  holder.join();
  EXPECT_TRUE(held);
}

TEST(CaptureGate, CapturesWaitUntilAllHaveLetGo) {
  capture_gate::hold();
  capture_gate::hold();
  auto other = std::async(std::launch::async, capture);
  capture_gate::let_go();
  EXPECT_EQ(other.wait_for(20ms), std::future_status::timeout);
  capture_gate::let_go();
  other.get();
}

TEST(CaptureGate, ACaptureThatDoesNotEndIsNotWaitedForForEver) {
  const capture_gate::Pass pass;
  std::thread([] { EXPECT_THROW(capture_gate::hold(10ms), Error); }).join();
  capture();  // nothing is held
}

TEST(CaptureGate, WhoHoldsCapturesBackCannotCapture) {
  capture_gate::hold();
  EXPECT_THROW(capture(), Error);
  capture_gate::let_go();
  capture();
}

TEST(CaptureGate, NothingToLetGoIsAnError) { EXPECT_THROW(capture_gate::let_go(), Error); }

}  // namespace
}  // namespace encore::graph::tests
