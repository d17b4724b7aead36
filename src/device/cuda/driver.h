// Functions of the driver's that the runtime has no counterpart of.
#pragma once
#include <cuda_runtime.h>

namespace encore::device::cuda {

// In the form that it had in `version`; null if this driver has none.
template <class F>
F driver_function(const char* name, unsigned version) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t result = cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
  if (result == cudaSuccess && found == cudaDriverEntryPointSuccess) return reinterpret_cast<F>(address);
  cudaGetLastError();
  return nullptr;
}

}  // namespace encore::device::cuda
