// Turns CUDA results into Error.
#pragma once
#include <cuda_runtime.h>

#include <string>

#include "device/error.h"

namespace encore::device::cuda {

Code code_of(cudaError_t result);
// Throws, and clears the thread's last error, unless `result` is success.
void check(cudaError_t result, const char* call);

}  // namespace encore::device::cuda
