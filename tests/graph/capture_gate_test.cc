#include "graph/capture_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "device/error.h"

namespace encore::graph::tests {
namespace {

using namespace std::chrono_literals;

void capture() {
  capture_gate::enter();
  capture_gate::leave();
}

TEST(CaptureGate, CapturesPassWhereNobodyHoldsThemBack) {
  capture_gate::enter();
  capture_gate::enter();  // side by side
  capture_gate::leave();
  capture_gate::leave();
}

TEST(CaptureGate, HoldWaitsForCapturesUnderWay) {
  capture_gate::enter();
  std::atomic<bool> held{false};
  std::thread holder([&] {
    capture_gate::hold();
    held = true;
    capture_gate::let_go();
  });
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(held);
  capture_gate::leave();
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
  capture_gate::enter();
  std::thread([] { EXPECT_THROW(capture_gate::hold(10ms), Error); }).join();
  capture();  // nothing is held
  capture_gate::leave();
}

TEST(CaptureGate, WhoHoldsCapturesBackCannotCapture) {
  capture_gate::hold();
  EXPECT_THROW(capture_gate::enter(), Error);
  capture_gate::let_go();
  capture();
}

TEST(CaptureGate, NothingToLetGoIsAnError) { EXPECT_THROW(capture_gate::let_go(), Error); }

}  // namespace
}  // namespace encore::graph::tests
