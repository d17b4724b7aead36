// Streams and events. StreamRef borrows (ours or a caller's), Stream owns.
#pragma once
#include <optional>
#include <utility>

namespace encore::device {

class EventRef;

enum class CaptureStatus { none, active, invalidated };

// A borrowed stream. `native` is a cudaStream_t on CUDA and a virtual stream otherwise; it is what applications
// see as the compute stream's handle.
class StreamRef {
 public:
  StreamRef() = default;
  StreamRef(void* native, int device) : native_(native), device_(device) {}
  void* native() const { return native_; }
  int device() const { return device_; }
  explicit operator bool() const { return native_ != nullptr; }
  bool operator==(const StreamRef&) const = default;

  void synchronize() const;  // throws Error of anything that failed on the stream; forbidden during capture
  bool done() const;         // forbidden during capture
  void wait(EventRef event) const;
  CaptureStatus capture_status() const;

 private:
  void* native_ = nullptr;
  int device_ = 0;
};

class Stream {
 public:
  Stream() = default;
  explicit Stream(int device);  // never synchronises with the legacy default stream
  ~Stream();                    // waits for nothing: what is enqueued still runs
  Stream(Stream&& other) noexcept : ref_(std::exchange(other.ref_, {})) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(ref_, other.ref_);
    return *this;
  }
  StreamRef ref() const { return ref_; }
  operator StreamRef() const { return ref_; }

 private:
  StreamRef ref_;
};

class EventRef {
 public:
  EventRef() = default;
  explicit EventRef(void* native) : native_(native) {}
  void* native() const { return native_; }
  void record(StreamRef stream) const;
  // Only while the stream captures, and not in a part that a condition decides about: each launch of the graph records
  // the event, which has to live as long. Until then it is as if nothing had been recorded.
  void record_at_launch(StreamRef stream) const;
  void synchronize() const;  // forbidden for an event which was recorded in a capture
  bool done() const;         // an event never recorded is done

 private:
  void* native_ = nullptr;
};

enum class Timing { off, on };

class Event {
 public:
  Event() = default;
  explicit Event(int device, Timing timing = Timing::off);
  ~Event();
  Event(Event&& other) noexcept : ref_(std::exchange(other.ref_, {})) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(ref_, other.ref_);
    return *this;
  }
  EventRef ref() const { return ref_; }
  operator EventRef() const { return ref_; }
  void record(StreamRef stream) const { ref_.record(stream); }
  void synchronize() const { ref_.synchronize(); }
  bool done() const { return ref_.done(); }

 private:
  EventRef ref_;
};

// From one event to the other, both with timing and recorded, or that is an Error{invalid_input}; none as long as one
// of them has yet to happen. As fine as half a microsecond.
std::optional<double> elapsed_us(EventRef from, EventRef to);

}  // namespace encore::device
