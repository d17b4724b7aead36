// Lists that a model gives as a tensor, which ONNX wants to be a vector.
#pragma once
#include "ops/op.h"

namespace encore::ops {

// host_ints also takes a scalar and a row: the operators for which models are known that have them use that one.
inline std::vector<int64_t> host_vector(const Tensor& tensor, const char* what) {
  require(tensor.shape.rank() == 1, what, " has shape ", tensor.shape.str(), "; it must be a vector");
  return host_ints(tensor, what);
}

}  // namespace encore::ops
