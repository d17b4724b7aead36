#include "device/stream.h"

#include <dlfcn.h>

#include <deque>
#include <iterator>
#include <system_error>
#include <thread>
#include <unordered_map>

#include "device/capture_stream.h"
#include "device/default_stream.h"
#include "device/device.h"
#include "device/error.h"
#include "device/external_stream.h"
#include "device/label.h"
#include "device/virtual/capture.h"
#include "device/virtual/control.h"
#include "device/virtual/forked.h"
#include "device/virtual/stream_state.h"
#include "device/virtual/trace.h"

namespace encore::device {

namespace virtual_gpu {
namespace {

// Streams that somebody owns. Workers hold their own stream, so that one may be destroyed while it works.
struct Owned {
  std::mutex mutex;
  std::unordered_map<StreamState*, std::shared_ptr<StreamState>> streams;
};
Owned& owned() {
  static auto& owned = *new Owned;  // never destroyed: applications exit with streams alive
  return owned;
}

Traced traced(NodeKind kind) {
  switch (kind) {
    case NodeKind::copy: return Traced::copy;
    case NodeKind::fill: return Traced::fill;
    case NodeKind::allocate: return Traced::allocate;
    case NodeKind::free: return Traced::free;
    case NodeKind::event: return Traced::record;
    case NodeKind::empty: return Traced::wait;
    case NodeKind::graph: return Traced::graph;
    default: return Traced::kernel;
  }
}

// What must happen even on a stream that has failed, so that nobody waits for ever and nothing leaks.
bool runs_after_failure(NodeKind kind) {
  return kind != NodeKind::kernel && kind != NodeKind::copy && kind != NodeKind::fill;
}

}  // namespace

void stay_loaded() {
  static const bool done = [] {
    Dl_info here;
    if (dladdr(reinterpret_cast<void*>(&stay_loaded), &here) && here.dli_fname)
      dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
    return true;
  }();
  (void)done;
}

void run_traced(const void* stream, NodeKind kind, std::string_view name, const std::string& label,
                const std::function<void()>& run) {
  delay();
  if (kind != NodeKind::host) trace(stream, traced(kind), name, label);
  const auto where = [&] { return text(name.empty() ? "a task" : name, label.empty() ? "" : " of node ", label); };
  try {
    run();
  } catch (const std::exception& e) {
    throw Error(Code::device_failed, text(where(), " failed: ", e.what()));
  } catch (...) {
    throw Error(Code::device_failed, text(where(), " failed"));
  }
}

StreamState& state_of(StreamRef stream) {
  check_not_forked();
  check_not_gone();
  if (!stream) fail(Code::internal, "no stream was given");
  StreamState& state = *static_cast<StreamState*>(stream.native());
  check_starts_nothing(state.device);
  return state;
}

void submit(StreamRef ref, NodeKind kind, std::string_view name, Work work) {
  StreamState& stream = state_of(ref);
  std::unique_lock lock(stream.mutex);
  if (Capture* capture = stream.capturing()) return capture->add(stream.lane, kind, name, std::move(work));
  stream.push(lock, {kind, name, Label::current(), std::move(work)});
}

Capture* StreamState::capturing() {
  if (capture && capture->status() == CaptureStatus::none) capture.reset();
  return capture.get();
}

void StreamState::push(std::unique_lock<std::mutex>& held, Task task) {
  if (!started) {
    stay_loaded();
    try {
      std::thread([self = shared_from_this()] { self->work(); }).detach();
    } catch (const std::system_error& e) {
      fail(Code::device_failed, "the worker of a virtual stream could not be started: ", e.what());
    }
    started = true;
  }
  queue.push_back(std::move(task));
  ++submitted;
  const bool wake_up = std::exchange(sleeping, false);
  held.unlock();
  if (wake_up) wake.notify_one();
}

namespace {
// Before the first one runs, if it is a kernel, those behind it that can begin early.
void begin_ahead(std::deque<Task>& tasks) {
  for (size_t t = 0; t < tasks.size() && t <= kBeginsAhead && tasks[t].kind == NodeKind::kernel; ++t)
    if (Work& work = tasks[t].work; t > 0 && work.begin) work = work.begin();
}
}  // namespace

void StreamState::work() {
  std::deque<Task> tasks;
  std::unique_lock lock(mutex);
  for (;;) {
    while (queue.empty() && tasks.empty()) {
      if (closed) return;
      sleeping = true;
      wake.wait(lock);
    }
    sleeping = false;
    tasks.insert(tasks.end(), std::move_iterator(queue.begin()), std::move_iterator(queue.end()));
    queue.clear();
    lock.unlock();
    if (!failed.load(std::memory_order_relaxed)) begin_ahead(tasks);
    const Task& task = tasks.front();
    if (!failed.load(std::memory_order_relaxed) || runs_after_failure(task.kind)) {
      try {
        run_traced(this, task.kind, task.name, task.label, task.work.run);
      } catch (const std::exception& e) {
        std::lock_guard guard(mutex);
        if (!failed.exchange(true)) failure = e.what();
      }
    }
    tasks.pop_front();  // what a task holds is gone when the stream is seen to be done
    finished.fetch_add(1, std::memory_order_release);
    lock.lock();
  }
}

}  // namespace virtual_gpu

using namespace virtual_gpu;

namespace {

StreamRef make_stream(int device, bool for_captures) {
  check_device(device);
  auto state = std::make_shared<StreamState>(device, for_captures);
  const StreamRef made(state.get(), device);
  std::lock_guard lock(owned().mutex);
  owned().streams.emplace(state.get(), std::move(state));
  return made;
}

void release(StreamRef stream) {
  if (!stream || is_forked()) return;
  std::shared_ptr<StreamState> state;
  {
    std::lock_guard lock(owned().mutex);
    auto node = owned().streams.extract(static_cast<StreamState*>(stream.native()));
    state = std::move(node.mapped());
  }
  {
    std::lock_guard lock(state->mutex);
    if (Capture* capture = state->capturing(); capture && capture->origin == state.get()) capture->abandon();
    state->closed = true;
  }
  state->wake.notify_one();
}

}  // namespace

Stream::Stream(int device) : ref_(make_stream(device, false)) {}
Stream::~Stream() { release(ref_); }

CaptureStream::CaptureStream(int device) : ref_(make_stream(device, true)) {}
CaptureStream::~CaptureStream() { release(ref_); }
bool captures_survive_device_waits(int) { return true; }

StreamRef external_stream(void* native, int device, bool to_capture) {
  check_device(device);
  if (native == nullptr || native == default_stream(device).native()) {
    require(!to_capture, "the default stream can't be captured; create a stream and give that one");
    return default_stream(device);
  }
  std::lock_guard lock(owned().mutex);
  const auto found = owned().streams.find(static_cast<StreamState*>(native));
  require(found != owned().streams.end(), native, " is no stream of the virtual GPU");
  const int home = found->second->device;
  require(home == device, "the stream ", native, " is one of device ", home, ", not of device ", device);
  return {native, device};
}

namespace {
void wait_for(StreamState& stream, std::unique_lock<std::mutex>& lock) {
  trace(&stream, Traced::synchronize, {}, Label::current());
  if (stream.finished.load(std::memory_order_acquire) != stream.submitted) {
    auto marker = std::make_shared<Marker>();
    const auto all = stream.submitted + 1;
    stream.push(lock, {NodeKind::host, {}, {}, [marker] { marker->set(); }});
    marker->wait();
    while (stream.finished.load(std::memory_order_acquire) < all)
      std::this_thread::yield();  // counted after it has run
    lock.lock();
  }
  if (stream.failed) throw Error(Code::device_failed, stream.failure, "StreamRef::synchronize");
}
}  // namespace

void StreamRef::synchronize() const {
  StreamState& stream = state_of(*this);
  std::unique_lock lock(stream.mutex);
  if (Capture* capture = stream.capturing()) capture->forbid("synchronizing a stream that captures");
  check_unsafe_call("synchronizing a stream");
  wait_for(stream, lock);
}

void virtual_gpu::synchronize_device(int device) {
  check_device(device);
  check_device_wait(device, "waiting for the whole device");
  std::vector<std::shared_ptr<StreamState>> streams;
  {
    std::lock_guard lock(owned().mutex);
    for (auto& [state, shared] : owned().streams)
      if (state->device == device) streams.push_back(shared);
  }
  for (const auto& stream : streams) {
    std::unique_lock lock(stream->mutex);
    Capture* const capture = stream->capturing();
    if (capture && stream->for_captures) continue;
    if (capture) capture->forbid("waiting for the whole device, of which a stream captures,");
    check_unsafe_call("waiting for the whole device");
    wait_for(*stream, lock);
  }
}

bool StreamRef::done() const {
  StreamState& stream = state_of(*this);
  std::unique_lock lock(stream.mutex);
  if (Capture* capture = stream.capturing()) capture->forbid("querying a stream that captures");
  check_unsafe_call("querying a stream");
  trace(native_, Traced::query, {}, Label::current());
  if (stream.finished.load(std::memory_order_acquire) != stream.submitted) return false;
  if (stream.failed) throw Error(Code::device_failed, stream.failure, "StreamRef::done");
  return true;
}

CaptureStatus StreamRef::capture_status() const {
  StreamState& stream = state_of(*this);
  std::lock_guard lock(stream.mutex);
  Capture* capture = stream.capturing();
  return capture ? capture->status() : CaptureStatus::none;
}

bool clear_error(int device) noexcept {
  if (is_forked()) return false;
  std::lock_guard lock(owned().mutex);
  for (auto& [state, shared] : owned().streams) {
    if (state->device != device) continue;
    std::lock_guard guard(state->mutex);
    state->failed = false;
    state->failure.clear();
  }
  return device >= 0 && device < count();
}

}  // namespace encore::device
