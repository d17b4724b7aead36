#include "device/branches.h"

#include "device/error.h"
#include "device/virtual/capture.h"
#include "device/virtual/stream_state.h"

namespace encore::device {

using namespace virtual_gpu;

namespace {

template <class F>
auto in_capture(StreamRef ref, const F& f) {
  StreamState& stream = state_of(ref);
  std::lock_guard lock(stream.mutex);
  Capture* const capture = stream.capturing();
  if (!capture) fail(Code::internal, "branches are captured, and the stream captures nothing");
  return f(stream, *capture);
}

}  // namespace

bool may_branch(StreamRef ref) {
  StreamState& stream = state_of(ref);
  std::lock_guard lock(stream.mutex);
  const Capture* const capture = stream.capturing();
  return capture && !capture->is_body && capture->status() == CaptureStatus::active;
}

CaptureEnd capture_end(StreamRef ref) {
  return in_capture(ref, [](StreamState& stream, Capture& capture) {
    const std::vector<int> nodes = capture.tail(stream.lane);
    return CaptureEnd{{nodes.begin(), nodes.end()}};
  });
}

void go_on_after(StreamRef ref, const CaptureEnd& end) {
  in_capture(ref, [&](StreamState& stream, Capture& capture) {
    stream.lane = capture.go_on(stream.lane, {end.nodes.begin(), end.nodes.end()});
  });
}

}  // namespace encore::device
