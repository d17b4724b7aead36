// What sessions do that come and go while other threads capture: none of it may break a capture.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "device/blas.h"
#include "device/device.h"
#include "device/dnn.h"
#include "device/graph.h"
#include "on_device.h"

namespace encore::device::tests {
namespace {

struct Held final : Workspace {
  void* at_least(size_t bytes) override {
    if (!memory) memory = std::make_unique<DeviceArray<char>>(bytes);
    return memory->data();
  }
  std::unique_ptr<DeviceArray<char>> memory;
};

// Captures fills, and launches them, until told to stop; how often that failed.
void capture_on_and_on(const std::atomic<bool>& stop, std::atomic<int>& captured, std::atomic<int>& failed) {
  const Current current(0);
  const Stream stream(0);
  const DeviceArray<char> x(4096);
  while (!stop) {
    try {
      begin_capture(stream, CaptureMode::thread_local_);
      for (int i = 0; i < 20; ++i) fill(stream, x.data(), static_cast<unsigned char>(i), 4096);
      const Graph graph = end_capture(stream);
      const GraphExec exec = graph.instantiate();
      exec.launch(stream);
      stream.ref().synchronize();
      ++captured;
    } catch (const std::exception& e) {
      abandon_capture(stream);
      if (failed++ == 0) ADD_FAILURE() << e.what();
    }
  }
}

void beside_captures(int times, const std::function<void()>& act) {
  act();
  std::atomic<bool> stop{false};
  std::atomic<int> captured{0}, failed{0};
  std::thread first([&] { capture_on_and_on(stop, captured, failed); });
  std::thread second([&] { capture_on_and_on(stop, captured, failed); });
  for (int i = 0; i < times; ++i) {
    act();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the driver's locks are not fair
  }
  while (captured == 0 && failed == 0) std::this_thread::yield();  // a busy machine may not have begun
  stop = true;
  first.join();
  second.join();
  EXPECT_EQ(failed, 0);
  EXPECT_GT(captured, 0);
}

void multiply() {
  const Current current(0);
  const Stream stream(0);
  const DeviceArray<float> a(64), b(64), c(64);
  Held workspace;
  Blas blas(0);
  blas.gemm(stream, {.m = 8, .n = 8, .k = 8, .lda = 8, .ldb = 8, .ldc = 8}, a.data(), b.data(), c.data(), nullptr,
            workspace);
  stream.ref().synchronize();
}

TEST(BesideCaptures, ProductsOfSessionsThatComeAndGo) { beside_captures(200, multiply); }

TEST(BesideCaptures, ConvolutionLibrariesOfSessionsThatComeAndGo) {
  beside_captures(20, [] {
    const Current current(0);
    const Stream stream(0);
    Dnn dnn(0, {.search = DnnSearch::heuristics});
    if (!dnn.available()) return;  // the virtual GPU has none
    const Convolution problem{.type = Type::f16,
                              .x = {1, 8, 8, 8},
                              .w = {8, 8, 3, 3},
                              .y = {1, 8, 8, 8},
                              .pads_begin = {1, 1},
                              .pads_end = {1, 1},
                              .strides = {1, 1},
                              .dilations = {1, 1}};
    const auto prepared = dnn.prepare(stream, problem);
    ASSERT_TRUE(prepared);
    const DeviceArray<char> x(1024), w(1152), y(1024), workspace(std::max<size_t>(prepared->workspace_bytes, 1));
    dnn.run(stream, problem, x.data(), w.data(), nullptr, nullptr, y.data(), workspace.data());
    stream.ref().synchronize();
  });
}

TEST(BesideCaptures, MemoryStreamsAndGraphs) {
  beside_captures(200, [] {
    const Current current(0);
    const Stream stream(0);
    const MemoryPool pool(0, 0);
    void* const block = pool.allocate(stream, 1 << 16);
    const DeviceArray<char> x(4096);
    const PinnedArray<char> pinned(4096);
    copy(stream, x.data(), pinned.data(), 4096);
    free_async(stream, block);
    stream.ref().synchronize();
    memory_info(0);
    begin_capture(stream, CaptureMode::thread_local_);
    fill(stream, x.data(), 1, 4096);
    end_capture(stream).instantiate().launch(stream);
    stream.ref().synchronize();
  });
}

}  // namespace
}  // namespace encore::device::tests
