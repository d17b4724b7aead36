#include "device/default_stream.h"

#include <array>
#include <mutex>

#include "device/device.h"
#include "device/graph.h"
#include "device/virtual/stream_state.h"

namespace encore::device {

using namespace virtual_gpu;

namespace {

bool is_idle(StreamRef stream) {
  StreamState& state = state_of(stream);
  const std::lock_guard lock(state.mutex);
  return state.finished.load(std::memory_order_acquire) == state.submitted;
}

}  // namespace

StreamRef default_stream(int device) {
  check_device(device);
  static auto& streams = *new std::array<Stream, kMaxDevices>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Stream& stream = streams[size_t(device)];
  if (!stream.ref()) stream = Stream(device);
  return stream;
}

// What is idle has no work to wait for, and no worker yet, perhaps, to be started for it.
void order_default_stream(StreamRef later, StreamRef earlier, EventRef event) {
  if (later == earlier || is_idle(earlier)) return;
  event.record(earlier);
  later.wait(event);
}

// A virtual GPU has no stream for each thread.
void synchronize_default_streams(int device) {
  const RelaxedCapture relaxed;
  const StreamRef stream = default_stream(device);
  if (!is_idle(stream)) stream.synchronize();
}

}  // namespace encore::device
