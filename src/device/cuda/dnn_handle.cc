#include "device/cuda/dnn_handle.h"

#include <map>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/library.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"

// The frontend looks its symbols up here.
namespace cudnn_frontend {
extern void* cudnn_dlhandle;
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace encore::device {
namespace {

// Handles that no Dnn has at present, by device. cuDNN 9 leaks some 20 KB of host memory with each that it destroys, so
// they serve again, and are never destroyed.
struct IdleHandles {
  std::mutex mutex;
  std::map<int, std::vector<cudnnHandle_t>> of;

  cudnnHandle_t take(int device) {  // null if there is none
    const std::lock_guard lock(mutex);
    auto& handles = of[device];
    if (handles.empty()) return nullptr;
    const cudnnHandle_t handle = handles.back();
    handles.pop_back();
    return handle;
  }
  void put(int device, cudnnHandle_t handle) {
    const std::lock_guard lock(mutex);
    of[device].push_back(handle);
  }
};
IdleHandles& idle_handles() {
  static auto& handles = *new IdleHandles;
  return handles;
}

std::string status_text(cudnnStatus_t status) {
  return cuda::cudnn().find<decltype(cudnnGetErrorString)>("cudnnGetErrorString")(status);
}

}  // namespace

DnnHandle::~DnnHandle() {
  attention.reset();
  if (handle) idle_handles().put(device, handle);
}

bool DnnHandle::opened() {
  if (tried) return handle;
  tried = true;
  try {
    open();
    return true;
  } catch (const Error& error) {
    missing = error.what();
    return false;
  }
}

void DnnHandle::open() {
  if (!settings.wanted) fail(Code::library_missing, kDnnSwitchedOff);
  const cuda::Library& library = cuda::cudnn();
  cudnn_frontend::cudnn_dlhandle = library.handle();
  const Description description = describe(device);
  sm_version = description.compute_capability_major * 10 + description.compute_capability_minor;
  if ((handle = idle_handles().take(device))) return;
  const Current current(device);
  const RelaxedCapture relaxed;
  const cudnnStatus_t status = library.find<decltype(cudnnCreate)>("cudnnCreate")(&handle);
  if (status == CUDNN_STATUS_SUCCESS) return;
  handle = nullptr;
  cudaGetLastError();
  throw Error(status == CUDNN_STATUS_ALLOC_FAILED ? Code::out_of_memory : Code::library_missing,
              text("cuDNN at ", library.path(), " could not be started: ", status_text(status)), "cudnnCreate");
}

void DnnHandle::use(StreamRef wanted) {
  if (stream == wanted) return;  // dear: cuDNN asks the driver much about a stream
  const cudnnStatus_t status = set_stream(handle, static_cast<cudaStream_t>(wanted.native()));
  if (status != CUDNN_STATUS_SUCCESS) throw Error(Code::device_failed, status_text(status), "cudnnSetStream");
  stream = wanted;
}

BorrowedHandle::BorrowedHandle(int device) : device_(device) {
  if (device < 0 || (handle_ = idle_handles().take(device))) return;
  const auto create = cuda::cudnn().find<decltype(cudnnCreate)>("cudnnCreate");
  if (create(&handle_) != CUDNN_STATUS_SUCCESS) handle_ = nullptr;
}

BorrowedHandle::~BorrowedHandle() {
  if (handle_) idle_handles().put(device_, handle_);
}

cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  static const auto set = cuda::cudnn().find<decltype(cudnnSetStream)>("cudnnSetStream");
  return set(handle, stream);
}

void raise_execution_failure(const std::string& problem, const std::string& failure) {
  const cudaError_t cause = cudaGetLastError();
  throw Error(cause == cudaSuccess ? Code::device_failed : cuda::code_of(cause),
              text(problem, ": ", failure, cause == cudaSuccess ? "" : text(", ", cudaGetErrorString(cause))),
              "cudnnBackendExecute");
}

}  // namespace encore::device
