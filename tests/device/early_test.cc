// Kernels that begin early on the virtual GPU.
#ifdef ENCORE_VIRTUAL
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "device/device.h"
#include "device/graph.h"
#include "in_order.h"
#include "kernels.h"

namespace encore::device::tests {
namespace {

using virtual_gpu::Order;

struct BeginEarly {
  static constexpr bool kBeginsEarly = true;
  int* y;
  int waiting;  // so many threads do
  void operator()(Block<NoShared>& b, const NoShared&) const {
    b.threads([&](int t, NoShared&) {
      if (t < waiting) b.wait();
      y[t] = t;
    });
  }
};

// On CUDA such a thread might write what earlier work still reads.
TEST(VirtualOrder, EveryThreadOfAKernelThatBeginsEarlyWaits) {
  Stream stream(0);
  DeviceArray<int> y(64);
  block_kernel<NoShared>(stream, {2, 32}, BeginEarly{y.data(), 32});
  stream.ref().synchronize();
  block_kernel<NoShared>(stream, {2, 32}, BeginEarly{y.data(), 31});
  EXPECT_ERROR(stream.ref().synchronize(), Code::device_failed);
  clear_error(0);
}

// A block of 32 threads each.
struct CopyEarly {
  static constexpr bool kBeginsEarly = true;
  const int* x;
  int* y;
  bool reads_early;
  void operator()(Block<NoShared>& b, const NoShared&) const {
    b.threads([&](int t, NoShared&) {
      const int64_t i = b.index() * 32 + t;
      const int early = reads_early ? x[i] : 0;
      b.wait();
      y[i] = reads_early ? early : x[i];
    });
  }
};

// How many see what was there before other kernels have written; behind so many of them.
std::ptrdiff_t old_values(bool reads_early, int kernels, bool late, bool in_graph) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>(64, 0)), y(64);
  const auto enqueue = [&] {
    for (int k = 1; k <= kernels; ++k) for_each_index(stream, 64, Set{x.data(), k});
    block_kernel<NoShared>(stream, {2, 32, 0, late}, CopyEarly{x.data(), y.data(), reads_early});
  };
  Gate gate;
  Graph graph;
  GraphExec exec;
  if (in_graph) {
    begin_capture(stream, CaptureMode::thread_local_);
    enqueue();
    graph = end_capture(stream);
    exec = graph.instantiate();
    exec.launch(stream);
  } else {
    gate.close(stream);  // they are all there before the first one runs
    enqueue();
    gate.open();
  }
  const auto seen = y.download(stream);
  return std::ranges::count_if(seen, [&](int value) { return value != kernels; });
}

// One block of 32 threads, or one thread where sanitizers watch, in each order.
TEST(VirtualOrder, WhatIsReadTooEarlyIsOld) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kOld = 1;
#else
  constexpr int kOld = 32;
#endif
  for (Order order : {Order::forward, Order::reversed, Order::split})
    for (bool in_graph : {false, true}) {
      InOrder in(order);
      EXPECT_EQ(old_values(true, 1, false, in_graph), kOld);
      EXPECT_EQ(old_values(true, 3, false, in_graph), kOld);
      EXPECT_EQ(old_values(true, 1, true, in_graph), 0);
      EXPECT_EQ(old_values(false, 3, false, in_graph), 0);
    }
}

struct Fail {
  void operator()(int64_t) const { fail(Code::internal, "as it was to"); }
};

TEST(VirtualOrder, WhatHasBegunEarlyEndsBehindAFailure) {
  Stream stream(0);
  DeviceArray<int> x(std::vector<int>(64, 0)), y(std::vector<int>(64, 7));
  Gate gate;
  gate.close(stream);
  for_each_index(stream, 1, Fail{});
  block_kernel<NoShared>(stream, {2, 32}, CopyEarly{x.data(), y.data(), false});
  gate.open();
  EXPECT_ERROR(stream.ref().synchronize(), Code::device_failed);
  clear_error(0);
  Stream other(0);
  EXPECT_EQ(y.download(other), std::vector<int>(64, 7));
}

}  // namespace
}  // namespace encore::device::tests
#endif
