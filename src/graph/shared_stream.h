// One stream for all threads of a session: the application's, which several sessions may have in common, or its own.
#pragma once
#include <memory>

#include "device/stream.h"

namespace encore::graph {

// What one thread enqueues while another captures would land in the graph. So a thread has the stream's turn from the
// beginning of a run to its end, and whenever else it enqueues.
class SharedStream {
 public:
  explicit SharedStream(int device);  // makes and owns the stream
  // The application's, which has to live as long as this; `keeper`, if any, sees to that.
  explicit SharedStream(device::StreamRef stream, std::shared_ptr<void> keeper = nullptr);
  ~SharedStream();  // waits for what is enqueued
  SharedStream(const SharedStream&) = delete;

  device::StreamRef ref() const { return ref_; }

  class Turn;
  // Waits until no other thread has it. A thread may have it several times.
  Turn turn() const;
  // From the beginning of a run to its end. Throws if the application captures the stream itself: its graph would use
  // memory that later runs use as well. Without a begin_run() before it in the same thread, end_run() does nothing.
  void begin_run();
  void end_run() noexcept;
  void check_not_captured() const;  // by anybody
  // Waits for all that was enqueued before the current turn. Not for its end: whoever has it may need what this thread
  // holds, such as Python's lock, or be at the beginning of a long run.
  void wait() const;

 private:
  struct Turns;
  static std::shared_ptr<Turns> turns_of(device::StreamRef stream);

  const std::shared_ptr<void> keeper_;
  const device::Stream own_;
  const device::StreamRef ref_;
  const std::shared_ptr<Turns> turns_;  // of all sessions on the stream
};

class SharedStream::Turn {
 public:
  Turn() = default;
  ~Turn();
  Turn(Turn&&) = default;

 private:
  friend class SharedStream;
  Turn(std::shared_ptr<Turns> turns, device::StreamRef stream);
  std::shared_ptr<Turns> turns_;  // null: there is nothing to take turns at
};

}  // namespace encore::graph
