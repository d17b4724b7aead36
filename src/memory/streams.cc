#include "memory/streams.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "device/error.h"
#include "device/gone.h"
#include "device/graph.h"

namespace encore::memory {

using device::CaptureStatus;
using device::Event;
using device::StreamRef;

namespace {

struct Enlisted {
  StreamRef stream;
  int count = 0;
  bool capturing = false, broken = false;
  Tail before_capture;
};
struct Register {
  std::mutex mutex;
  std::vector<Enlisted> streams;  // few

  Enlisted* find(StreamRef stream) {
    const auto found = std::ranges::find(streams, stream, &Enlisted::stream);
    return found == streams.end() ? nullptr : &*found;
  }
};
Register& all() {
  static auto& all = *new Register;  // threads that end late still use it
  return all;
}

struct Listeners {
  std::mutex mutex;
  std::vector<std::weak_ptr<StreamListener>> all;
};
Listeners& listeners() {
  static auto& listeners = *new Listeners;
  return listeners;
}

// One enlistment; true if it was the last.
bool drop(StreamRef stream) {
  std::lock_guard lock(all().mutex);
  Enlisted* found = all().find(stream);
  if (!found || --found->count > 0) return false;
  all().streams.erase(all().streams.begin() + (found - all().streams.data()));
  return true;
}

Tail record(StreamRef stream) {
  if (stream.capture_status() != CaptureStatus::none) return {};
  auto event = std::make_shared<Event>(stream.device());
  event->record(stream);
  return event;
}

// A stream that fails, because the application has destroyed it, say, holds no work that could be waited for; that of
// others still can.
Tail tail_of(Enlisted& enlisted, bool only_if_busy) noexcept {
  if (enlisted.capturing) return enlisted.before_capture;
  try {
    if (only_if_busy && enlisted.stream.capture_status() == CaptureStatus::none && enlisted.stream.done()) return {};
    return record(enlisted.stream);
  } catch (const std::exception& e) {
    if (!std::exchange(enlisted.broken, true))
      device::complain(text("a stream of device ", enlisted.stream.device(), " can't be waited for"), e);
    return {};
  }
}

}  // namespace

void enlist(StreamRef stream) {
  if (!stream) fail(Code::internal, "no stream was given to enlist");
  std::lock_guard lock(all().mutex);
  if (Enlisted* found = all().find(stream))
    ++found->count;
  else
    all().streams.push_back({.stream = stream, .count = 1});
}

void delist(StreamRef stream) noexcept {
  try {
    wait_for({tail(stream)});
    if (!drop(stream)) return;
    std::vector<std::shared_ptr<StreamListener>> hear;
    {
      std::lock_guard lock(listeners().mutex);
      for (const auto& each : listeners().all)
        if (auto listener = each.lock()) hear.push_back(std::move(listener));
    }
    for (const auto& listener : hear) listener->stream_is_gone(stream);
  } catch (const std::exception& e) {
    device::complain("a stream could not be delisted", e);
  }
}

bool is_enlisted(StreamRef stream) {
  std::lock_guard lock(all().mutex);
  return all().find(stream);
}

void listen(std::weak_ptr<StreamListener> listener) {
  std::lock_guard lock(listeners().mutex);
  std::erase_if(listeners().all, [](const auto& each) { return each.expired(); });
  listeners().all.push_back(std::move(listener));
}

void capture_begins(StreamRef stream) {
  std::lock_guard lock(all().mutex);
  Enlisted* found = all().find(stream);
  if (!found) fail(Code::internal, "a stream that is not enlisted cannot capture");
  found->before_capture = record(stream);
  found->capturing = true;
}

void capture_ends(StreamRef stream) noexcept {
  std::lock_guard lock(all().mutex);
  Enlisted* found = all().find(stream);
  if (!found) return;
  found->capturing = false;
  found->before_capture.reset();
}

Tail tail(StreamRef stream) {
  const device::RelaxedCapture relaxed;
  std::lock_guard lock(all().mutex);
  Enlisted* const found = all().find(stream);
  return found ? tail_of(*found, false) : record(stream);
}

std::vector<Tail> tails(std::optional<int> device, StreamRef but) {
  const device::RelaxedCapture relaxed;
  std::vector<Tail> tails;
  std::lock_guard lock(all().mutex);
  for (Enlisted& enlisted : all().streams) {
    if ((device && enlisted.stream.device() != *device) || (but && enlisted.stream == but)) continue;
    if (Tail tail = tail_of(enlisted, true)) tails.push_back(std::move(tail));
  }
  return tails;
}

bool is_done(const std::vector<Tail>& tails) noexcept {
  if (tails.empty()) return true;
  try {
    device::RelaxedCapture relaxed;
    return std::ranges::all_of(tails, [](const Tail& tail) { return !tail || tail->done(); });
  } catch (const std::exception&) {
    return false;
  }
}

bool is_idle(StreamRef stream) noexcept {
  try {
    device::RelaxedCapture relaxed;
    std::lock_guard lock(all().mutex);
    const Enlisted* found = all().find(stream);
    if (found && found->capturing) return !found->before_capture || found->before_capture->done();
    return stream.capture_status() == CaptureStatus::none && stream.done();
  } catch (const std::exception&) {
    return false;
  }
}

bool wait_for(const std::vector<Tail>& tails) noexcept {
  if (tails.empty()) return true;
  try {
    device::RelaxedCapture relaxed;
    for (const Tail& tail : tails)
      if (tail) tail->synchronize();
    return true;
  } catch (const std::exception& e) {
    device::complain("waiting for a stream failed", e);
    return false;
  }
}

}  // namespace encore::memory
