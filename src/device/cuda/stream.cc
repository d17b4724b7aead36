#include "device/stream.h"

#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/device.h"

namespace encore::device {

using cuda::check;
using cuda::report;

namespace {
cudaStream_t of(StreamRef stream) { return static_cast<cudaStream_t>(stream.native()); }
cudaEvent_t of(const EventRef& event) { return static_cast<cudaEvent_t>(event.native()); }

bool is_done(cudaError_t result, const char* call) {
  if (result == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(result, call);
  return true;
}
}  // namespace

void StreamRef::synchronize() const { check(cudaStreamSynchronize(of(*this)), "cudaStreamSynchronize"); }
bool StreamRef::done() const { return is_done(cudaStreamQuery(of(*this)), "cudaStreamQuery"); }
void StreamRef::wait(EventRef event) const {
  check(cudaStreamWaitEvent(of(*this), of(event), cudaEventWaitDefault), "cudaStreamWaitEvent");
}
CaptureStatus StreamRef::capture_status() const {
  cudaStreamCaptureStatus status;
  check(cudaStreamIsCapturing(of(*this), &status), "cudaStreamIsCapturing");
  switch (status) {
    case cudaStreamCaptureStatusActive: return CaptureStatus::active;
    case cudaStreamCaptureStatusInvalidated: return CaptureStatus::invalidated;
    default: return CaptureStatus::none;
  }
}

Stream::Stream(int device) {
  Current current(device);
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  ref_ = StreamRef(stream, device);
}
Stream::~Stream() {
  if (!ref_) return;
  cuda::forget_capture(ref_);
  report(cudaStreamDestroy(of(ref_)), "cudaStreamDestroy");
}

void EventRef::record(StreamRef stream) const { check(cudaEventRecord(of(*this), of(stream)), "cudaEventRecord"); }
void EventRef::synchronize() const { check(cudaEventSynchronize(of(*this)), "cudaEventSynchronize"); }
bool EventRef::done() const { return is_done(cudaEventQuery(of(*this)), "cudaEventQuery"); }

Event::Event(int device) {
  Current current(device);
  cudaEvent_t event;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  ref_ = EventRef(event);
}
Event::~Event() {
  if (ref_.native()) report(cudaEventDestroy(of(ref_)), "cudaEventDestroy");
}

}  // namespace encore::device
