// Compiled by nvcc because only nvcc knows for which architectures this library has kernels.
#include "device/device.h"

#include <cudaTypedefs.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "device/cuda/built_for.h"
#include "device/cuda/check.h"
#include "device/forked.h"
#include "device/graph.h"

namespace encore::device {

const Architectures& cuda::built_for() {
  static const Architectures architectures{.machine = {__CUDA_ARCH_LIST__}, .ptx = {ENCORE_PTX}};
  return architectures;
}

int cuda::capability(int device) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return major * 100 + minor * 10;
}

namespace {

using cuda::built_for;
using cuda::capability;

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
    case cudaErrorInitializationError: return text("CUDA could not be initialized; perhaps ", kForked);
    default: return text("CUDA could not be initialized: ", cudaGetErrorName(result), ": ", cudaGetErrorString(result));
  }
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  cuda::check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

// The same, of what is not zero; the driver is asked once.
template <cudaDeviceAttr which>
int known(int device) {
  static std::array<std::atomic<int>, kMaxDevices> answers;
  if (device < 0 || device >= kMaxDevices) fail(Code::no_device, "there is no device ", device);
  int value = answers[device].load(std::memory_order_relaxed);
  if (value == 0) answers[device].store(value = attribute(which, device));
  return value;
}

// The driver's functions for the contexts of a thread. The runtime has none that puts back what was there before:
// cudaSetDevice() starts the device that it goes back to, and drops an application's own context.
struct Contexts {
  template <class F>
  static F find(const char* name) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult answer;
    cuda::check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &answer),
                "cudaGetDriverEntryPointByVersion");
    if (!found) fail(Code::no_device, "the NVIDIA driver has no ", name);
    return reinterpret_cast<F>(found);
  }
  const PFN_cuCtxGetCurrent_v4000 get = find<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent");
  const PFN_cuCtxSetCurrent_v4000 set = find<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent");
  const PFN_cuCtxPushCurrent_v4000 push = find<PFN_cuCtxPushCurrent_v4000>("cuCtxPushCurrent");
  const PFN_cuCtxPopCurrent_v4000 pop = find<PFN_cuCtxPopCurrent_v4000>("cuCtxPopCurrent");
};
const Contexts& contexts() {
  static const Contexts contexts;
  return contexts;
}

// The driver numbers its errors as the runtime does.
void check(CUresult result, const char* call) { cuda::check(cudaError_t(result), call); }

// The one in which the runtime works. The device is started by the first to ask.
CUcontext primary_context(int device) {
  static std::array<std::atomic<CUcontext>, kMaxDevices> known;
  if (device < 0 || device >= kMaxDevices) fail(Code::no_device, "there is no device ", device);
  if (const CUcontext context = known[device].load(std::memory_order_acquire)) return context;
  CUcontext before = nullptr, found = nullptr;
  check(contexts().get(&before), "cuCtxGetCurrent");
  cuda::check(cudaSetDevice(device), "cudaSetDevice");
  check(contexts().get(&found), "cuCtxGetCurrent");
  check(contexts().set(before), "cuCtxSetCurrent");
  known[device].store(found, std::memory_order_release);
  return found;
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
    const int has = capability(device);
    if (built_for().serve(has)) return devices;
    newest = std::max(newest, has);
  }
  cudaGetLastError();
  if (why) *why = devices == 0 ? reason(cudaErrorNoDevice) : built_for().why_not(newest, "the newest one here");
  return 0;
}

std::string unfit(int device) { return built_for().why_not(capability(device), "this one"); }

Description describe(int device) {
  cudaDeviceProp properties;
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  char bus[32] = "";
  cuda::check(cudaDeviceGetPCIBusId(bus, sizeof(bus), device), "cudaDeviceGetPCIBusId");
  return {.name = properties.name,
          .compute_capability_major = attribute(cudaDevAttrComputeCapabilityMajor, device),
          .compute_capability_minor = attribute(cudaDevAttrComputeCapabilityMinor, device),
          .total_bytes = properties.totalGlobalMem,
          .pci_bus_id = bus};
}

int multiprocessors(int device) { return known<cudaDevAttrMultiProcessorCount>(device); }
int64_t shared_bytes(int device) { return known<cudaDevAttrMaxSharedMemoryPerBlockOptin>(device); }
int64_t cache_bytes(int device) { return known<cudaDevAttrL2CacheSize>(device); }

Current::Current(int device) : previous_(-1) {
  const CUcontext wanted = primary_context(device);
  CUcontext now = nullptr;
  check(contexts().get(&now), "cuCtxGetCurrent");
  if (now == wanted) return;
  // A thread that has none would get this one at its next call of CUDA's runtime.
  if (!now && device == 0) {
    check(contexts().set(wanted), "cuCtxSetCurrent");
  } else {
    check(contexts().push(wanted), "cuCtxPushCurrent");
    previous_ = 0;  // the driver knows which
  }
}
Current::~Current() {
  if (previous_ < 0) return;
  CUcontext popped;
  cuda::report(cudaError_t(contexts().pop(&popped)), "cuCtxPopCurrent");
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
