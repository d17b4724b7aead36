// What kernels report of bad values.
#include "device/fault.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "kernels.h"

namespace encore::device::tests {

struct Pick {
  const int* x;
  const int64_t* indices;
  int* y;
  int64_t limit;
  FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const { y[i] = x[fault.checked_index(indices[i], limit)]; }
};

struct DivideAll {
  int* x;
  int by;
  FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const {
    if (by == 0) {
      fault.report(FaultKind::divide_by_zero, i, 0);
      x[i] = 0;
    } else {
      x[i] /= by;
    }
  }
};

namespace {

TEST(Fault, GoodIndicesReportNothing) {
  Stream stream(0);
  PinnedArray<FaultCell> cell(1);
  DeviceArray<int> x(std::vector<int>{10, 11, 12, 13}), y(5);
  DeviceArray<int64_t> indices(std::vector<int64_t>{0, 3, -1, -4, 2});
  for_each_index(stream, 5, Pick{x.data(), indices.data(), y.data(), 4, {cell.data(), 9}});
  EXPECT_EQ(y.download(stream), (std::vector<int>{10, 13, 13, 10, 12}));
  EXPECT_EQ(cell[0].node, 0);
  EXPECT_EQ(cell[0].kind, 0);
}

TEST(Fault, BadIndicesAreMadeSafeAndReported) {
  Stream stream(0);
  for (int64_t bad : {int64_t(4), int64_t(-5), INT64_MAX, INT64_MIN}) {
    PinnedArray<FaultCell> cell(1);
    DeviceArray<int> x(std::vector<int>{10, 11, 12, 13}), y(3);
    DeviceArray<int64_t> indices(std::vector<int64_t>{1, bad, 2});
    for_each_index(stream, 3, Pick{x.data(), indices.data(), y.data(), 4, {cell.data(), 9}});
    EXPECT_EQ(y.download(stream), (std::vector<int>{11, 10, 12}));
    EXPECT_EQ(cell[0].node, 9);
    EXPECT_EQ(cell[0].kind, int(FaultKind::index_out_of_range));
    EXPECT_EQ(cell[0].value, bad);
    EXPECT_EQ(cell[0].limit, 4);
  }
}

TEST(Fault, TheFirstReportWins) {
  Stream stream(0);
  PinnedArray<FaultCell> cell(1);
  DeviceArray<int> x(std::vector<int>(10'000, 1));
  for_each_index(stream, 1, DivideAll{x.data(), 0, {cell.data(), 3}});
  for_each_index(stream, 10'000, DivideAll{x.data(), 0, {cell.data(), 4}});
  stream.ref().synchronize();
  EXPECT_EQ(cell[0].node, 3);
  EXPECT_EQ(cell[0].kind, int(FaultKind::divide_by_zero));
  EXPECT_EQ(cell[0].value, 0);
}

TEST(Fault, NobodyNeedListen) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>{1, 2, 3}), y(1);
  DeviceArray<int64_t> indices(std::vector<int64_t>{7});
  for_each_index(stream, 1, Pick{x.data(), indices.data(), y.data(), 3, {}});
  EXPECT_EQ(y.download(stream)[0], 1);
}

#ifndef ENCORE_VIRTUAL
TEST(FaultDeathTest, AnIllegalAddressLosesTheDeviceAndSaysSo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fork could not use CUDA
  const auto fail_and_tell = [] {
    try {
      Stream stream(0);
      for_each_index(stream, 1, Set{reinterpret_cast<int*>(16), 1});
      stream.ref().synchronize();
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(fail_and_tell(), testing::ExitedWithCode(3), "the device is lost to this process");
}
#endif

}  // namespace
}  // namespace encore::device::tests
