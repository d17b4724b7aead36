#include "device/cuda/check.h"

#include <cstdio>

#include "device/forked.h"
#include "device/gone.h"

namespace encore::device::cuda {

Code code_of(cudaError_t result) {
  switch (result) {
    case cudaErrorMemoryAllocation: return Code::out_of_memory;

    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorCapturedEvent: return Code::capture_forbidden;

    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureWrongThread: return Code::capture_failed;

    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorStubLibrary:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice: return Code::no_device;

    default: return Code::device_failed;
  }
}

namespace {

// After these the process can use the device no more.
bool is_fatal(cudaError_t result) {
  switch (result) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable: return true;
    default: return false;
  }
}

// As a process ends.
bool is_gone(cudaError_t result) { return result == cudaErrorCudartUnloading || result == cudaErrorContextIsDestroyed; }

}  // namespace

void raise(cudaError_t result, const std::string& call) {
  cudaGetLastError();
  std::string what = text(cudaGetErrorName(result), ": ", cudaGetErrorString(result));
  if (is_gone(result)) throw Gone(Code::device_failed, what, call);
  if (code_of(result) == Code::capture_forbidden) what += "; a capture under way is now invalid";
  if (is_fatal(result))
    what += "; the device is lost to this process, which has to be started anew (compute-sanitizer finds the cause)";
  if (result == cudaErrorInitializationError) what += text("; perhaps ", kForked);
  if (result == cudaErrorNoKernelImageForDevice) what += "; this build of Encore has no kernels for the device";
  throw Error(code_of(result), what, call);
}

void report(cudaError_t result, const char* call) noexcept {
  if (result == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();
  if (is_gone(result)) return;
  std::fprintf(stderr, "encore: %s failed: %s: %s\n", call, cudaGetErrorName(result), cudaGetErrorString(result));
}

}  // namespace encore::device::cuda
