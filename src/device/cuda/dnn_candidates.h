// Plans for a convolution, as cuDNN's heuristics propose them.
#pragma once
#include <memory>

#include "device/cuda/dnn_frontend.h"
#include "device/cuda/dnn_handle.h"

namespace encore::device {

using NativePlan = std::shared_ptr<fe::ExecutionPlan>;

// The candidates for a problem in the heuristics' order, built one by one.
class Candidates : fe::graph::Graph {
 public:
  // Throws std::exception with the frontend's words if no engine does it.
  Candidates(cudnnHandle_t handle, const DnnHandle& dnn, const Convolution& p, bool fused, bool deterministic);

  int64_t count() const { return get_execution_plan_count(); }
  // Null if there is none. What the graph was made with need not live as long as the plan.
  NativePlan build(int64_t candidate);
};

}  // namespace encore::device
