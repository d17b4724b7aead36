// Where plans for convolutions are timed.
#pragma once
#include <cuda_runtime.h>

#include <memory>
#include <optional>

#include "device/cuda/clock.h"
#include "device/cuda/dnn_handle.h"
#include "device/cuda/dnn_plan.h"
#include "device/stream.h"

namespace encore::device {

// A thread's: a handle and memory of its own, and a stream that others use, too.
class Bench {
 public:
  Bench(cudnnHandle_t handle, const DnnSettings& settings, StreamRef stream);
  ~Bench();
  Bench(const Bench&) = delete;

  // Nothing if the plan does not run, or there is no memory for it.
  std::optional<double> glance(const Convolution& problem, const ConvolutionPlan& plan);
  std::optional<double> measure(const Convolution& problem, const ConvolutionPlan& plan, double about);
  // Whether there is memory for the problem's tensors.
  bool has_room(const Convolution& problem);
  void let_go();

  double load_s = 0, time_s = 0;  // spent in first runs, and in timing

 private:
  struct Block {
    std::shared_ptr<void> memory;
    size_t bytes = 0;
    bool holds(Bench& bench, size_t wanted);
  };

  cudaStream_t native() const { return static_cast<cudaStream_t>(stream_.native()); }
  template <class F>
  std::optional<double> timed(const Convolution& problem, const ConvolutionPlan& plan, F time);

  const cudnnHandle_t handle_;
  const DnnSettings& settings_;
  const StreamRef stream_;
  Block inputs_, output_, workspace_;
};

}  // namespace encore::device
