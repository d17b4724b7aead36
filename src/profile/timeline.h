// Where in a stream the work of one node ends and that of the next one begins: events with timing, recorded between the
// nodes as their work is enqueued, or by each launch of the graph that it is captured in.
#pragma once
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/graph.h"
#include "device/stream.h"

namespace encore::profile {

using Clock = std::chrono::steady_clock;

class Recorder;

// On whose behalf work is enqueued. Texts that live as long as the process (device::kept()).
struct Node {
  const char* name;  // null: what is known of it by other means, and is no part of the node around
  const char* op;
};

class Timeline : public std::enable_shared_from_this<Timeline> {
 public:
  enum class Of { run, graph };
  // As a rule made by Recorder. Of a graph: while the stream captures.
  Timeline(std::shared_ptr<Recorder> recorder, device::StreamRef stream, Of of);
  ~Timeline();
  Timeline(const Timeline&) = delete;

  // None of these throws: what can't be recorded is missing.
  void begin(const Node& node);  // inside of what has begun and not ended
  void end() noexcept;
  void next(const Node& node);  // ends one and begins the next, with nothing between
  void finish() noexcept;       // ends all; nothing begins from now on

  // Of a graph: launches it. Waits for the launch before, of which the time has yet to be read.
  void launch(const device::GraphExec& exec, device::StreamRef stream);

  // Of the work that the calling thread enqueues; null as long as nobody wants to know, or it can't be told.
  static Timeline* here() { return here_; }
  class Scope;

 private:
  friend class Recorder;
  static constexpr size_t kMostMarks = 1 << 16;
  struct Lap {
    Node node;
    int begin, end;  // marks
    int outer;       // the lap that it is inside of, or -1
  };

  int mark() noexcept;  // -1 if there is none
  void begin_at(int mark, const Node& node);
  void end_at(int mark) noexcept;

  const std::shared_ptr<Recorder> recorder_;
  device::StreamRef stream_;
  const Of of_;
  Clock::time_point begun_ = Clock::now();  // on the host; of a graph its latest launch
  std::vector<device::Event> marks_;
  std::vector<Lap> laps_;
  std::vector<int> open_;  // laps, the innermost last; -1 for what is lost
  bool is_finished_ = false, has_lost_ = false;

  std::mutex mutex_;  // of a graph: guards the rest
  device::Event launched_;
  int launches_ = 0, read_ = 0;  // whose times have been read

  static inline thread_local Timeline* here_ = nullptr;
};

class Timeline::Scope {
 public:
  explicit Scope(Timeline* timeline) : before_(here_) { here_ = timeline; }
  ~Scope() { here_ = before_; }
  Scope(const Scope&) = delete;

 private:
  Timeline* const before_;
};

// Nodes one behind the other, on the timeline that there is here, if there is one.
class Steps {
 public:
  Steps() : timeline_(Timeline::here()) {}
  ~Steps() { end(); }
  Steps(const Steps&) = delete;
  void next(const Node& node) {
    if (timeline_) [[unlikely]]
      std::exchange(has_begun_, true) ? timeline_->next(node) : timeline_->begin(node);
  }
  void end() {
    if (timeline_ && std::exchange(has_begun_, false)) [[unlikely]]
      timeline_->end();
  }

 private:
  Timeline* const timeline_;
  bool has_begun_ = false;
};

}  // namespace encore::profile
