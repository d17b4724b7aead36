#include "device/default_stream.h"

#include <cuda_runtime.h>

#include "device/cuda/check.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"

namespace encore::device {

namespace {

// Asking does a capture no harm.
bool may_be_used(StreamRef stream) {
  const Current current(stream.device());
  cudaStreamCaptureStatus status;
  const cudaError_t result = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native()), &status);
  if (result == cudaErrorStreamCaptureImplicit) {
    cudaGetLastError();
    return false;
  }
  cuda::check(result, "cudaStreamIsCapturing");
  return true;
}

}  // namespace

StreamRef default_stream(int device) { return {cudaStreamLegacy, device}; }

void order_default_stream(StreamRef later, StreamRef earlier, EventRef event) {
  if (later == earlier || !may_be_used(default_stream(later.device()))) return;
  event.record(earlier);
  later.wait(event);
}

void synchronize_default_streams(int device) {
  const RelaxedCapture relaxed;  // what they hold is no part of this thread's capture
  for (const cudaStream_t native : {cudaStreamLegacy, cudaStreamPerThread}) {
    const StreamRef stream(native, device);
    if (may_be_used(stream)) stream.synchronize();
  }
}

}  // namespace encore::device
