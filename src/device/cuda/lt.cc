#include "device/cuda/lt.h"

#include <array>
#include <mutex>

#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"

namespace encore::device::cuda {
namespace {

Code code_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED: return Code::out_of_memory;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH: return Code::not_supported;
    case CUBLAS_STATUS_INVALID_VALUE: return Code::internal;
    default: return Code::device_failed;
  }
}

}  // namespace

const Lt& lt() {
  static const Lt functions;
  return functions;
}

void check(cublasStatus_t status, const char* call, const std::string& problem) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const cudaError_t cause = cudaGetLastError();
  throw Error(cause == cudaSuccess ? code_of(status) : cuda::code_of(cause),
              text(lt().status_string(status), cause == cudaSuccess ? "" : text(", ", cudaGetErrorString(cause)),
                   problem.empty() ? "" : ": ", problem),
              call);
}

cublasLtHandle_t lt_handle(int device) {
  static std::mutex mutex;
  static std::array<cublasLtHandle_t, kMaxDevices> handles{};
  const auto create = lt().create;
  const Current current(device);
  const RelaxedCapture relaxed;  // a first product may come while this thread captures
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[size_t(device)];
  if (!handle) check(create(&handle), "cublasLtCreate", {});
  return handle;
}

}  // namespace encore::device::cuda
