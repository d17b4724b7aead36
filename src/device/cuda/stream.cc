#include "device/stream.h"

#include <sys/mman.h>
#include <unistd.h>

#include <optional>

#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/device.h"
#include "device/error.h"
#include "device/external_stream.h"
#include "device/graph.h"

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

// A default stream is that of whichever device is current.
struct WhereItIs {
  explicit WhereItIs(StreamRef stream) {
    if (of(stream) == cudaStreamLegacy || of(stream) == cudaStreamPerThread) current.emplace(stream.device());
  }
  std::optional<Current> current;
};

// The driver reads what a handle points to without asking whether it may.
bool is_mapped(void* address) {
  const auto page = uintptr_t(address) / size_t(sysconf(_SC_PAGESIZE)) * size_t(sysconf(_SC_PAGESIZE));
  return msync(reinterpret_cast<void*>(page), 1, MS_ASYNC) == 0;
}
}  // namespace

void StreamRef::synchronize() const {
  const WhereItIs here(*this);
  check(cudaStreamSynchronize(of(*this)), "cudaStreamSynchronize");
}
bool StreamRef::done() const {
  const WhereItIs here(*this);
  return is_done(cudaStreamQuery(of(*this)), "cudaStreamQuery");
}
void StreamRef::wait(EventRef event) const {
  const WhereItIs here(*this);
  check(cudaStreamWaitEvent(of(*this), of(event), cudaEventWaitDefault), "cudaStreamWaitEvent");
}
CaptureStatus StreamRef::capture_status() const {
  const WhereItIs here(*this);
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

StreamRef external_stream(void* native, int device, bool to_capture) {
  require(native != cudaStreamPerThread,
          "cudaStreamPerThread is another stream in every thread; create a stream and give that one");
  if (native == nullptr || native == cudaStreamLegacy) {
    require(
        !to_capture,
        "the default stream can't be captured; create a stream (cudaStreamCreateWithFlags, torch.cuda.Stream()) and "
        "give that one, or do without graphs");
    return {cudaStreamLegacy, device};
  }
  const RelaxedCapture relaxed;
  require(is_mapped(native), native, " is no CUDA stream");
  int home = -1;
  const cudaError_t result = cudaStreamGetDevice(static_cast<cudaStream_t>(native), &home);
  if (result != cudaSuccess) {
    cudaGetLastError();
    fail(Code::invalid_input, native, " is no CUDA stream: ", cudaGetErrorString(result));
  }
  require(home == device, "the stream ", native, " is one of device ", home, ", not of device ", device);
  return {native, device};
}

void EventRef::record(StreamRef stream) const {
  const WhereItIs here(stream);
  check(cudaEventRecord(of(*this), of(stream)), "cudaEventRecord");
}
void EventRef::synchronize() const { check(cudaEventSynchronize(of(*this)), "cudaEventSynchronize"); }
bool EventRef::done() const { return is_done(cudaEventQuery(of(*this)), "cudaEventQuery"); }

Event::Event(int device, Timing timing) {
  Current current(device);
  cudaEvent_t event;
  check(cudaEventCreateWithFlags(&event, timing == Timing::on ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
  ref_ = EventRef(event);
}
Event::~Event() {
  if (ref_.native()) report(cudaEventDestroy(of(ref_)), "cudaEventDestroy");
}

std::optional<double> elapsed_us(EventRef from, EventRef to) {
  float milliseconds = 0;
  const cudaError_t result = cudaEventElapsedTime(&milliseconds, of(from), of(to));
  if (result == cudaErrorInvalidResourceHandle) {
    cudaGetLastError();
    fail(Code::invalid_input, "time elapses between events of a device that have timing and have been recorded");
  }
  if (!is_done(result, "cudaEventElapsedTime")) return std::nullopt;
  return double(milliseconds) * 1e3;
}

}  // namespace encore::device
