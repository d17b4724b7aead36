// If, Loop and Scan: onnxruntime runs their bodies, and asks here for what has to happen on the device.
#pragma once
#include "plugin/host/api_version.h"

namespace encore::plugin {

// The create function of their kernels; `state` is the row.
OrtStatus* create_control_flow_kernel(void* state, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept;

}  // namespace encore::plugin
