// Compiled by nvcc because only nvcc knows for which architectures this library has kernels.
#include "device/device.h"

#include <algorithm>
#include <cstdlib>

#include "device/cuda/check.h"
#include "device/graph.h"

namespace encore::device {
namespace {

constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};  // 900 is compute capability 9.0
constexpr int kOldest = *std::min_element(std::begin(kArchitectures), std::end(kArchitectures));

std::string version(int number) { return text(number / 1000, ".", number % 1000 / 10); }

// Why cudaGetDeviceCount failed, for a person.
std::string reason(cudaError_t result) {
  int driver = 0;
  cudaDriverGetVersion(&driver);
  switch (result) {
    case cudaErrorInsufficientDriver:
      if (driver == 0) return "no NVIDIA driver was found: libcuda.so.1 could not be opened";
      return text("the NVIDIA driver is too old: it supports CUDA ", version(driver), ", and Encore needs CUDA ",
                  version(CUDART_VERSION), " or newer; update the driver");
    case cudaErrorStubLibrary:
      return "libcuda.so.1 is the stub that is meant for linking; put the driver's own library first in the search "
             "path";
    case cudaErrorNoDevice:
      if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"))
        return text("the NVIDIA driver offers no GPU; CUDA_VISIBLE_DEVICES is \"", visible, "\"");
      return "the NVIDIA driver sees no GPU in this machine or container";
    case cudaErrorSystemDriverMismatch:
      return "libcuda.so.1 and the kernel's NVIDIA driver are of different versions; restart, or align the container "
             "with its host";
    case cudaErrorCompatNotSupportedOnDevice:
      return "the CUDA compatibility library in the search path does not support this GPU; remove it or update the "
             "driver";
    case cudaErrorSystemNotReady:
      return "the GPU system is not ready; on machines with NVSwitch, start NVIDIA Fabric Manager";
    case cudaErrorInitializationError:
      return "CUDA could not be initialized; it cannot be used in a process forked from one that used it (spawn "
             "instead)";
    default: return text("CUDA could not be initialized: ", cudaGetErrorName(result), ": ", cudaGetErrorString(result));
  }
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  cuda::check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

const char* backend() { return "cuda"; }

int count(std::string* why) {
  int devices = 0;
  const cudaError_t result = cudaGetDeviceCount(&devices);
  if (result != cudaSuccess) {
    if (why) *why = reason(result);
    cudaGetLastError();
    return 0;
  }
  devices = std::min(devices, kMaxDevices);
  int newest = 0;
  for (int device = 0; device < devices; ++device) {
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    newest = std::max(newest, major * 100 + minor * 10);
  }
  if (devices == 0 || newest >= kOldest) {
    if (devices == 0 && why) *why = reason(cudaErrorNoDevice);
    return devices;
  }
  cudaGetLastError();
  if (why)
    *why = text("this build of Encore needs a GPU of compute capability ", kOldest / 100, ".", kOldest % 100 / 10,
                " or newer, and the newest one here has ", newest / 100, ".", newest % 100 / 10);
  return 0;
}

Description describe(int device) {
  cudaDeviceProp properties;
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  char bus[32] = "";
  cuda::check(cudaDeviceGetPCIBusId(bus, sizeof(bus), device), "cudaDeviceGetPCIBusId");
  return {.name = properties.name,
          .compute_capability_major = attribute(cudaDevAttrComputeCapabilityMajor, device),
          .compute_capability_minor = attribute(cudaDevAttrComputeCapabilityMinor, device),
          .multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device),
          .total_bytes = properties.totalGlobalMem,
          .pci_bus_id = bus};
}

// cudaSetDevice costs much more than cudaGetDevice, so it is never called for the device that is current already.
Current::Current(int device) {
  cuda::check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ == device)
    previous_ = -1;  // nothing to restore
  else
    cuda::check(cudaSetDevice(device), "cudaSetDevice");
}
Current::~Current() {
  if (previous_ >= 0) cuda::report(cudaSetDevice(previous_), "cudaSetDevice");
}

bool clear_error(int device) noexcept {
  cudaGetLastError();
  try {
    // A dead context answers every call with the error that killed it.
    Current current(device);
    RelaxedCapture relaxed;
    size_t free_bytes, total_bytes;
    cuda::check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    return true;
  } catch (const std::exception&) {
    cudaGetLastError();
    return false;
  }
}

}  // namespace encore::device
