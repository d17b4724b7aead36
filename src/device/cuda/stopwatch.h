// Measures work on a stream.
#pragma once
#include <cuda_runtime.h>

#include "device/cuda/check.h"

namespace encore::device::cuda {

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
  // Waits for the work.
  template <class F>
  double microseconds(cudaStream_t stream, F work) const {
    check(cudaEventRecord(start_, stream), "cudaEventRecord");
    work();
    check(cudaEventRecord(stop_, stream), "cudaEventRecord");
    check(cudaEventSynchronize(stop_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_, stop_), "cudaEventElapsedTime");
    return double(milliseconds) * 1e3;
  }

 private:
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

}  // namespace encore::device::cuda
