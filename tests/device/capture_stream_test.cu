#include "device/capture_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "device/device.h"
#include "kernels.h"

namespace encore::device::tests {
namespace {

// Of kernels, copies and fills, which run on another stream.
TEST(CaptureStream, SurvivesWaitsForTheWholeDevice) {
  ASSERT_TRUE(captures_survive_device_waits(0));
  const Current current(0);
  const CaptureStream capturing(0);
  const Stream stream(0);
  constexpr int kRounds = 500, kSize = 1000;
  DeviceArray<int> x(std::vector<int>(kSize, 0)), y(std::vector<int>(kSize, 0));
  std::atomic<bool> stop{false};
  std::atomic<int> waits{0};
  std::thread other([&] {
    for (; !stop; ++waits) synchronize_device(0);
  });
  for (int round = 0; round < kRounds || waits == 0; ++round) {
    begin_capture(capturing, CaptureMode::thread_local_);
    fill(capturing, y.data(), 0, kSize * sizeof(int));
    for (int i = 0; i < 10; ++i) for_each_index(capturing, kSize, AddTo{y.data(), round});
    copy(capturing, x.data(), y.data(), kSize * sizeof(int));
    for_each_index(capturing, kSize, AddTo{x.data(), 1});
    const Graph graph = end_capture(capturing);
    const GraphExec exec = graph.instantiate();
    for (int i = 0; i < 2; ++i) exec.launch(stream);
    if (round % 50 == 0) ASSERT_EQ(x.download(stream), std::vector<int>(kSize, 10 * round + 1));
  }
  stop = true;
  other.join();
  stream.ref().synchronize();
}

TEST(CaptureStream, RecordsEventsAtLaunches) {
  const Current current(0);
  const CaptureStream capturing(0);
  const Stream stream(0);
  DeviceArray<int> x(std::vector<int>(1000, 0));
  const Event begin(0, Timing::on), end(0, Timing::on);
  begin_capture(capturing, CaptureMode::thread_local_);
  begin.ref().record_at_launch(capturing);
  for_each_index(capturing, 1000, AddTo{x.data(), 1});
  copy(capturing, x.data() + 500, x.data(), 500 * sizeof(int));
  end.ref().record_at_launch(capturing);
  const GraphExec exec = end_capture(capturing).instantiate();
  for (int launch = 0; launch < 2; ++launch) {
    exec.launch(stream);
    stream.ref().synchronize();
    EXPECT_GT(elapsed_us(begin, end).value(), 0);
  }
}

}  // namespace
}  // namespace encore::device::tests
