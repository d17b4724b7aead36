// Plans for a convolution, as cuDNN's heuristics propose them.
#pragma once
#include <memory>
#include <string>

#include "device/cuda/dnn_handle.h"
#include "device/cuda/dnn_plan.h"

namespace encore::device {

// The candidates for a problem in the heuristics' order, built one by one.
class Candidates {
 public:
  // Throws std::exception with the frontend's words if no engine does it.
  Candidates(cudnnHandle_t handle, const DnnHandle& dnn, const Convolution& p, bool fused, bool deterministic);
  ~Candidates();

  int64_t count() const;
  // Null if there is none. What the graph was made with need not live as long as the plan.
  NativePlan build(int64_t candidate);

 private:
  struct Graph;  // cudnn-frontend's
  std::unique_ptr<Graph> graph_;
};

std::string engine_of(const NativePlan& plan);
// A plan as text, and of such a text; null if cuDNN does not take it. Both throw std::exception.
std::string written(const NativePlan& plan);
NativePlan read_plan(cudnnHandle_t handle, const std::string& text);

}  // namespace encore::device
