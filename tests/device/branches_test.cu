#include "device/branches.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "device/graph.h"
#include "kernels.h"

namespace encore::device::tests {
namespace {

constexpr int kSize = 1000, kBranches = 3;

struct AddAll {
  const int* x;  // of each branch, one behind the other
  int* y;
  DEVICE_FN void operator()(int64_t i) const {
    for (int b = 0; b < kBranches; ++b) y[i] += x[b * kSize + i];
  }
};

TEST(Branches, AreJoined) {
  const Stream stream(0);
  DeviceArray<int> x(std::vector<int>(kSize, 0)), y(std::vector<int>(kBranches * kSize, 0)),
      z(std::vector<int>(kSize, 0));
  begin_capture(stream, CaptureMode::thread_local_);
  ASSERT_TRUE(may_branch(stream));
  for_each_index(stream, kSize, AddTo{x.data(), 1});
  const CaptureEnd begin = capture_end(stream);
  CaptureEnd all;
  for (int b = 0; b < kBranches; ++b) {
    go_on_after(stream, begin);
    for_each_index(stream, kSize, CopyTo{y.data() + b * kSize, x.data()});
    for (int i = 0; i < 4; ++i) for_each_index(stream, kSize, AddTo{y.data() + b * kSize, b});
    if (b == 1) copy(stream, y.data() + kSize, x.data(), kSize / 2 * sizeof(int));
    if (b == 2) fill(stream, y.data() + 2 * kSize, 0, kSize / 2 * sizeof(int));
    all.add(capture_end(stream));
  }
  EXPECT_EQ(all.nodes.size(), kBranches);
  go_on_after(stream, all);
  for_each_index(stream, kSize, AddAll{y.data(), z.data()});
  for_each_index(stream, kSize, MultiplyBy{z.data(), 2});
  const Graph graph = end_capture(stream);
  EXPECT_EQ(graph.size(), 1 + 5 * kBranches + 2 + 2);
  const GraphExec exec = graph.instantiate();
  int expected[2] = {};  // in the first half, and in the second
  for (int launch = 1; launch <= 20; ++launch) {
    exec.launch(stream);
    expected[0] = 2 * (expected[0] + launch + launch);
    expected[1] = 2 * (expected[1] + 3 * launch + 4 + 8);
    const std::vector<int> found = z.download(stream);
    ASSERT_EQ(std::ranges::count(found, expected[0]), kSize / 2) << launch;
    ASSERT_EQ(std::ranges::count(found, expected[1]), kSize / 2) << launch;
    if (launch == 10) break;
  }
}

TEST(Branches, BeginWithTheGraphAndNeedNoEnd) {
  const Stream stream(0);
  DeviceArray<int> x(std::vector<int>(kSize, 0)), y(std::vector<int>(kSize, 0));
  begin_capture(stream, CaptureMode::relaxed);
  const CaptureEnd begin = capture_end(stream);
  EXPECT_TRUE(begin.nodes.empty());
  for_each_index(stream, kSize, AddTo{x.data(), 1});
  go_on_after(stream, begin);
  for_each_index(stream, kSize, AddTo{y.data(), 2});
  const GraphExec exec = end_capture(stream).instantiate();
  exec.launch(stream);
  EXPECT_EQ(x.download(stream), std::vector<int>(kSize, 1));
  EXPECT_EQ(y.download(stream), std::vector<int>(kSize, 2));
}

TEST(Branches, AreOfCapturesAlone) {
  const Stream stream(0);
  EXPECT_FALSE(may_branch(stream));
  begin_capture(stream, CaptureMode::thread_local_);
  EXPECT_TRUE(may_branch(stream));
  EXPECT_THROW(stream.ref().synchronize(), Error);
  EXPECT_FALSE(may_branch(stream));
  EXPECT_THROW(capture_end(stream), Error);
  abandon_capture(stream);
}

}  // namespace
}  // namespace encore::device::tests
