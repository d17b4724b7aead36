// What one thread has in one session: a stream, graphs by annotation id, and perhaps a run that is under way.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "device/graph.h"
#include "device/stream.h"
#include "graph/capture.h"
#include "graph/default_stream_order.h"
#include "graph/policy.h"
#include "graph/report.h"
#include "memory/graph_pool.h"
#include "memory/meter.h"
#include "memory/retention.h"

namespace encore::graph {

// What an annotation id has become. Its end waits for the device, and lets go of memory: not with a lock held.
struct Entry {
  State state = State::warming_up;
  int runs = 0;           // warm-ups that succeeded
  size_t peak_bytes = 0;  // of their memory
  int64_t replays = 0;
  int in_vain = 0;  // captures of the id before this, one after the other, that went stale before they were replayed
  std::string refusal;
  std::shared_ptr<memory::GraphPool> pool;
  std::shared_ptr<memory::Retention> retention;
  std::shared_ptr<profile::Timeline> timeline;  // null if it was captured while nobody profiled
  device::GraphExec exec;
  std::vector<device::GraphNode> nodes;

  Entry() = default;
  ~Entry();
  bool is_stale() const;
  void launch(device::StreamRef stream) const;
};
using OwnedEntry = std::unique_ptr<Entry>;

// All of it is for the thread itself, but for what says otherwise.
class ThreadGraphs {
 public:
  explicit ThreadGraphs(std::shared_ptr<Policy> policy);
  ~ThreadGraphs();
  ThreadGraphs(const ThreadGraphs&) = delete;

  device::StreamRef stream() const { return stream_; }
  int latest_id() const { return latest_id_; }
  bool in_run() const { return run_.has_value(); }
  bool capturing() const { return run_ && std::holds_alternative<Capture>(run_->phase); }

  // As SessionGraphs has them:
  void begin_run(int id);
  bool end_run(bool succeeded);
  bool refuse(const std::string& why, Holds holds);
  // The run that is under way, if any, is over, whether or not end_run() follows. If it captures, the id is refused; or
  // if no reason is given, the next run captures.
  OwnedEntry leave_run(std::string_view why);
  void check_run() const;

  bool begin_question(int id);
  bool end_question(int id);
  void replay(int id);
  bool is_captured(int id) const;
  OwnedEntry release(int id);                           // in any thread
  void forget_captures(std::vector<OwnedEntry>& gone);  // likewise; they are captured again
  std::shared_ptr<profile::Timeline> timeline() const;  // of what is captured; null if it is not timed
  std::vector<Report> reports() const;
  std::vector<device::GraphNode> nodes(int id) const;

 private:
  struct Eager {};
  struct WarmUp {
    memory::Meter meter;
  };
  struct Lost {  // its capture came to nothing
    std::string why;
    Holds holds = Holds::for_id;
  };
  struct Turn {  // of a stream that threads share
    explicit Turn(SharedStream* shared);
    ~Turn();
    SharedStream* const shared;
  };
  struct Run {
    Run(int id, SharedStream* shared) : id(id), turn(shared) {}
    const int id;
    const Turn turn;
    std::variant<Eager, WarmUp, Capture, Lost> phase;
  };

  void start(Run& run);
  void begin_capture(Run& run, size_t peak_bytes);
  void finish(const WarmUp& warm_up);
  void finish(Capture& capture, bool succeeded);
  void launch(Entry& entry, const device::Graph& graph) const;
  void lose(Run& run, Lost lost);
  bool give_up(int id, const Lost& lost);
  OwnedEntry replace(int id, OwnedEntry next);
  const Entry* find(int id) const;    // with the mutex
  OwnedEntry take_back_promise();     // with the mutex
  OwnedEntry forget_capture(int id);  // with the mutex
  void warn_of_captures_in_vain(int id) const;

  const std::shared_ptr<Policy> policy_;
  const device::Stream own_;  // none if the session's threads share one
  const device::StreamRef stream_;
  DefaultStreamOrder order_;
  const std::thread::id thread_ = std::this_thread::get_id();

  std::optional<Run> run_;
  std::optional<std::pair<int, Lost>> interrupted_;  // a run that was left with its capture, for its end
  int latest_id_ = kEagerId;

  mutable std::mutex mutex_;  // guards the rest, which other threads release
  std::map<int, OwnedEntry> entries_;
  std::optional<int> promised_;  // what the thread has been told is captured, and has yet to replay or to hear of again
};

}  // namespace encore::graph
