// Turns CUDA results into Error.
#pragma once
#include <cuda_runtime.h>

#include <string>

#include "device/error.h"

namespace encore::device::cuda {

Code code_of(cudaError_t result);
// Throws Error with CUDA's own name and words for `result`, and clears the thread's last error.
[[noreturn]] void raise(cudaError_t result, const std::string& call);

inline void check(cudaError_t result, const char* call) {
  if (result != cudaSuccess) [[unlikely]]
    raise(result, call);
}
// For destructors: prints a failure to stderr, unless the process is ending and the runtime is already gone.
void report(cudaError_t result, const char* call) noexcept;

}  // namespace encore::device::cuda
