#include "device/capture_stream.h"

#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/cuda/green_context.h"
#include "device/device.h"

namespace encore::device {

CaptureStream::CaptureStream(int device) {
  const Current current(device);
  cudaStream_t made = cuda::make_green_stream(device);
  if (!made) cuda::check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  ref_ = StreamRef(made, device);
}

CaptureStream::~CaptureStream() {
  if (!ref_) return;
  cuda::forget_capture(ref_);
  cuda::report(cudaStreamDestroy(static_cast<cudaStream_t>(ref_.native())), "cudaStreamDestroy");
}

// Seen with the drivers of CUDA 13; what older ones do is not known.
bool captures_survive_device_waits(int device) {
  int version = 0;
  cuda::check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  const Current current(device);
  return version >= 13000 && cuda::has_green_streams(device);
}

}  // namespace encore::device
