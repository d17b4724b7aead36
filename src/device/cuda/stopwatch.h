// Measures work on a stream, without what the host takes to enqueue it: the device is held until several runs are
// there. A small graph would do the same; but a capture is broken by whoever waits for the whole device meanwhile,
// which an application that never asked for graphs may do.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>

#include "device/cuda/check.h"

namespace encore::device::cuda {

// Keeps the stream busy for so long.
void hold(cudaStream_t stream, double microseconds);

class Stopwatch {
 public:
  Stopwatch() {
    check(cudaEventCreate(&start_), "cudaEventCreate");
    check(cudaEventCreate(&stop_), "cudaEventCreate");
  }
  ~Stopwatch() {
    for (cudaEvent_t event : {start_, stop_})
      if (event) cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;

  // The mean of a few runs, for a first look. Waits for them.
  template <class F>
  double glance(cudaStream_t stream, F run) {
    return mean_us(stream, 3, run);
  }
  // The best of several means; `about` is what a glance said.
  template <class F>
  double measure(cudaStream_t stream, double about, F run) {
    constexpr int kRounds = 3;
    const int runs = std::clamp(int(300 / std::max(about, 1.0)), 3, 20);
    double best = mean_us(stream, runs, run);
    for (int round = 1; round < kRounds; ++round) best = std::min(best, mean_us(stream, runs, run));
    return best;
  }

 private:
  template <class F>
  double mean_us(cudaStream_t stream, int runs, F run) {
    constexpr double kShortestHold = 60, kLongestHold = 4000;
    for (;;) {
      hold(stream, hold_us_);
      check(cudaEventRecord(start_, stream), "cudaEventRecord");
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < runs; ++i) run();
      const std::chrono::duration<double, std::micro> enqueued = std::chrono::steady_clock::now() - begin;
      const bool held = cudaEventQuery(start_) == cudaErrorNotReady;
      cudaGetLastError();
      check(cudaEventRecord(stop_, stream), "cudaEventRecord");
      check(cudaEventSynchronize(stop_), "cudaEventSynchronize");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, start_, stop_), "cudaEventElapsedTime");
      const bool enough = held || hold_us_ >= kLongestHold;
      // What was slow once, as others had the driver, need not be slow again.
      hold_us_ = enough ? std::clamp(2 * enqueued.count(), kShortestHold, std::max(hold_us_, kShortestHold))
                        : std::min(2 * std::max(hold_us_, enqueued.count()), kLongestHold);
      if (enough) return double(milliseconds) * 1e3 / runs;
    }
  }

  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  double hold_us_ = 60;  // longer where that was too short
};

}  // namespace encore::device::cuda
