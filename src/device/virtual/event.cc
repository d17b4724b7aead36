// Events. Recording makes a new marker and enqueues it; waiting makes the other stream's worker wait for the marker
// that was the newest at the time of the call. In a capture an event is a set of nodes instead, or one that makes a
// marker at each launch.
#include <chrono>
#include <mutex>

#include "device/error.h"
#include "device/label.h"
#include "device/stream.h"
#include "device/virtual/capture.h"
#include "device/virtual/control.h"
#include "device/virtual/forked.h"
#include "device/virtual/stream_state.h"
#include "device/virtual/trace.h"

namespace encore::device {

namespace virtual_gpu {
namespace {

struct Happening : Marker {
  void set() {
    when = std::chrono::steady_clock::now();
    Marker::set();
  }
  std::chrono::steady_clock::time_point when;  // once it is set
};

struct Recorded {
  std::shared_ptr<Happening> marker;  // null if never recorded, or recorded in a capture
  const void* stream = nullptr;       // where the marker is
  std::shared_ptr<Capture> capture;   // in which it was recorded
  std::vector<int> nodes;             // after which it happens there
};

struct EventState {
  EventState(int device, Timing timing) : device(device), timing(timing) {}
  const int device;
  const Timing timing;
  std::mutex mutex;
  Recorded recorded;
};
// What an event's handle points to; graphs that record the event see whether it has gone.
using Held = std::shared_ptr<EventState>;

// As cudaEventRecord wants it.
void check_device_of(const EventState& event, const StreamState& stream) {
  require(event.device == stream.device, "an event of device ", event.device,
          " can't be recorded on a stream of device ", stream.device);
}

EventState& event_state(EventRef event) {
  check_not_forked();
  check_not_gone();
  if (!event.native()) fail(Code::internal, "no event was given");
  return **static_cast<Held*>(event.native());
}

Recorded recorded(EventRef event) {
  EventState& state = event_state(event);
  std::lock_guard lock(state.mutex);
  return state.recorded;
}

// Where a capturing stream waits, or where any stream waits for an event of a capture. The stream's mutex is held.
void wait_in_capture(StreamState& stream, const Recorded& event) {
  Capture* capture = stream.capturing();
  if (capture) capture->check();
  if (!event.capture && !event.marker) return;  // never recorded
  if (!event.capture) capture->forbid("waiting for an event that was not recorded in the same capture");
  if (!capture) {
    event.capture->check();
    stream.lane = event.capture->fork(event.nodes);
    stream.capture = event.capture;
  } else if (capture == event.capture.get()) {
    capture->join(stream.lane, event.nodes);
  } else {
    event.capture->invalidate("another capture's wait for an event of this one");
    capture->forbid("waiting for an event of another capture");
  }
}

// An event of a capture happens at each replay, so it can be neither queried nor waited for on the host.
void check_host_call(const Recorded& event, std::string_view what) {
  if (!event.capture) return check_unsafe_call(what);
  if (event.capture->status() != CaptureStatus::none) event.capture->forbid(what);
  throw Error(Code::capture_forbidden, text(what, " is forbidden: it was last recorded in a capture"));
}

}  // namespace
}  // namespace virtual_gpu

using namespace virtual_gpu;

Event::Event(int device, Timing timing) {
  check_device(device);
  ref_ = EventRef(new Held(std::make_shared<EventState>(device, timing)));
}
Event::~Event() { delete static_cast<Held*>(ref_.native()); }

void EventRef::record(StreamRef ref) const {
  EventState& event = event_state(*this);
  StreamState& stream = state_of(ref);
  check_device_of(event, stream);
  Recorded recorded;
  {
    std::unique_lock lock(stream.mutex);
    if (Capture* capture = stream.capturing()) {
      recorded.nodes = capture->tail(stream.lane);
      recorded.capture = stream.capture;
    } else {
      recorded.marker = std::make_shared<Happening>();
      recorded.stream = &stream;
      stream.push(lock, {NodeKind::event, {}, Label::current(), [marker = recorded.marker] { marker->set(); }});
    }
  }
  std::lock_guard lock(event.mutex);
  event.recorded = std::move(recorded);
}

void EventRef::record_at_launch(StreamRef ref) const {
  StreamState& stream = state_of(ref);
  check_device_of(event_state(*this), stream);
  std::lock_guard lock(stream.mutex);
  Capture* const capture = stream.capturing();
  require(capture, "an event is to be recorded at launches of a graph, and the stream captures none");
  capture->add(stream.lane, NodeKind::event, {}, [event = std::weak_ptr(*static_cast<const Held*>(native_))] {
    const Held state = event.lock();
    if (!state) fail(Code::internal, "the graph records an event that has gone");
    Recorded recorded;
    recorded.marker = std::make_shared<Happening>();
    recorded.marker->set();
    std::lock_guard lock(state->mutex);
    state->recorded = std::move(recorded);
  });
}

std::optional<double> elapsed_us(EventRef from, EventRef to) {
  const Recorded ends[] = {recorded(from), recorded(to)};
  for (const Recorded& end : ends) check_host_call(end, "asking for the time between events");
  const auto has_time = [](EventRef event, const Recorded& recorded) {
    return event_state(event).timing == Timing::on && recorded.marker;
  };
  require(has_time(from, ends[0]) && has_time(to, ends[1]) && event_state(from).device == event_state(to).device,
          "time elapses between events of a device that have timing and have been recorded");
  if (!ends[0].marker->is_set() || !ends[1].marker->is_set()) return std::nullopt;
  return std::chrono::duration<double, std::micro>(ends[1].marker->when - ends[0].marker->when).count();
}

void EventRef::synchronize() const {
  const Recorded event = recorded(*this);
  check_host_call(event, "synchronizing an event");
  trace(event.stream, Traced::synchronize_event, {}, Label::current());
  if (event.marker) event.marker->wait();
}

bool EventRef::done() const {
  const Recorded event = recorded(*this);
  check_host_call(event, "querying an event");
  trace(event.stream, Traced::query, {}, Label::current());
  return !event.marker || event.marker->is_set();
}

void StreamRef::wait(EventRef ref) const {
  StreamState& stream = state_of(*this);
  const Recorded event = recorded(ref);
  std::unique_lock lock(stream.mutex);
  if (stream.capturing() || (event.capture && event.capture->status() != CaptureStatus::none))
    return wait_in_capture(stream, event);
  if (event.capture) fail(Code::capture_forbidden, "waiting for an event of a capture that has ended is forbidden");
  if (!event.marker || event.stream == &stream) return;
  if (event.marker->is_set() && !is_tracing()) return;  // a trace shows every wait
  stream.push(lock, {NodeKind::empty, {}, Label::current(), [marker = event.marker] { marker->wait(); }});
}

}  // namespace encore::device
