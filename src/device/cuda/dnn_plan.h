// A plan of cuDNN's for a convolution, and for what follows it; dnn_candidates.cc has the rest of it.
#pragma once
#include <cudnn.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/dnn.h"

namespace cudnn_frontend {
class ExecutionPlan_v8;
}

namespace encore::device {

// Tensors by their id; addresses are handed over in this order.
enum ConvolutionId : int64_t {
  kConvolutionX = 1,
  kConvolutionW,
  kConvolutionResidual,
  kConvolutionBias,
  kConvolutionY
};

using NativePlan = std::shared_ptr<cudnn_frontend::ExecutionPlan_v8>;

struct ConvolutionPlan {
  NativePlan native;
  std::vector<int64_t> ids;  // of what it reads and writes, in their order
  TunedConvolution tuned;
  std::shared_ptr<void> zeros = {};  // for a bias that the problem has not

  size_t workspace_bytes() const;
  bool is_compiled() const;  // cuDNN had no kernel for it
};
// Says why it failed, if it did.
std::optional<std::string> execute(cudnnHandle_t handle, const ConvolutionPlan& plan, std::vector<void*>& addresses,
                                   void* workspace);
// The same, as nodes of an empty graph.
std::optional<std::string> populate(cudaGraph_t graph, cudnnHandle_t handle, const ConvolutionPlan& plan,
                                    std::vector<void*>& addresses, void* workspace);

// Whether the plan for the convolution with what follows it adds a bias. cuDNN has compiled engines for a bias and a
// Relu; without the bias it would compile each candidate, which takes it a third of a second and more, and gains
// nothing.
bool adds_bias(const Convolution& problem);
// Whether it compiles each candidate of the same: there are no compiled engines for a residual without a bias, or for
// other activations.
bool compiles(const Convolution& problem);

// Of the plan for the convolution with what follows it, or for it alone.
std::vector<int64_t> ids_of(const Convolution& problem, bool fused);

size_t bytes_of(const std::vector<int64_t>& dims, Type type);

}  // namespace encore::device
