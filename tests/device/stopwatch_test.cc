// Measuring: what the host takes to enqueue work is no part of it.
#ifdef ENCORE_CUDA
#include "device/cuda/stopwatch.h"

#include <gtest/gtest.h>

#include <iostream>
#include <thread>

#include "on_device.h"

namespace encore::device {
namespace {

template <class F>
double measured_us(const Stream& stream, F run) {
  cuda::Stopwatch watch;
  const auto native = static_cast<cudaStream_t>(stream.ref().native());
  return watch.measure(native, watch.glance(native, run), run);
}

TEST(StopwatchTest, WhatTheHostTakesDoesNotCount) {
  const Stream stream(0);
  DeviceArray<char> memory(4096);
  const auto run = [&](std::chrono::microseconds before) {
    return [&memory, &stream, before] {
      std::this_thread::sleep_for(before);
      fill(stream, memory.data(), 0, memory.size());
    };
  };
  const double at_once = measured_us(stream, run(std::chrono::microseconds(0)));
  const double slowly = measured_us(stream, run(std::chrono::microseconds(60)));
  std::cout << "  a small fill takes " << at_once << " us, and if the host is slow " << slowly << "\n";
  EXPECT_LT(slowly, 30);
}

TEST(StopwatchTest, WhatTheDeviceTakesDoes) {
  const Stream stream(0);
  DeviceArray<char> memory(size_t{512} << 20);
  const auto fills = [&](int count) {
    return [&memory, &stream, count] {
      for (int i = 0; i < count; ++i) fill(stream, memory.data(), 0, memory.size());
    };
  };
  const double one = measured_us(stream, fills(1)), three = measured_us(stream, fills(3));
  EXPECT_GT(one, 20);
  EXPECT_NEAR(three / one, 3, 0.6);
}

}  // namespace
}  // namespace encore::device
#endif
