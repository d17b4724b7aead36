// Kernels as onnxruntime wants them: an OrtKernelImpl around an ops::Op.
#pragma once
#include "ops/registry.h"
#include "plugin/host/api_version.h"

namespace encore::plugin {

// The create function of every kernel registered for a row; `state` is the row.
OrtStatus* create_kernel(void* state, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept;

// MemcpyFromHost and MemcpyToHost, which onnxruntime puts where tensors cross between devices.
OrtStatus* create_memcpy_kernel(void* state, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept;

}  // namespace encore::plugin
