// The application's default stream beside Encore's.
#include "device/default_stream.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/graph.h"
#include "kernels.h"

namespace encore::device::tests {
namespace {

TEST(DefaultStream, IsNotWaitedForUnasked) {
  Gate gate;
  const StreamRef application = default_stream(0);
  const Stream stream(0);
  DeviceArray<int> x(std::vector<int>{1});
  gate.close(application);
  EXPECT_EQ(x.download(stream)[0], 1);
  EXPECT_FALSE(application.done());
  gate.open();
  synchronize_default_streams(0);
  EXPECT_TRUE(application.done());
}

TEST(DefaultStream, IsOrderedBeforeAndBehindOthers) {
  Gate gate;
  const StreamRef application = default_stream(0);
  const Stream stream(0);
  const Event event(0);
  DeviceArray<int> x(std::vector<int>{1}), y(1), z(1);
  gate.close(application);
  for_each_index(application, 1, AddTo{x.data(), 41});
  order_default_stream(stream, application, event);
  for_each_index(stream, 1, CopyTo{y.data(), x.data()});
  order_default_stream(application, stream, event);
  for_each_index(application, 1, CopyTo{z.data(), y.data()});
  EXPECT_FALSE(stream.ref().done());
  gate.open();
  application.synchronize();
  EXPECT_EQ(z.download(stream)[0], 42);
  order_default_stream(application, application, event);  // nothing to do
}

TEST(DefaultStream, MayBeUsedWhileThisThreadCaptures) {
  Gate gate;
  const StreamRef application = default_stream(0);
  const Stream capturing(0), other(0);
  const Event event(0);
  DeviceArray<int> x(std::vector<int>{1});
  begin_capture(capturing, CaptureMode::thread_local_);
  for_each_index(capturing, 1, AddTo{x.data(), 1});
  gate.close(application);
  order_default_stream(other, application, event);
  gate.open();
  synchronize_default_streams(0);
  EXPECT_EQ(capturing.ref().capture_status(), CaptureStatus::active);
  const Graph graph = end_capture(capturing);
  EXPECT_EQ(graph.size(), 1u) << "none of it is in the graph";
}

}  // namespace
}  // namespace encore::device::tests
