// Capture and replay policy of one session: for each thread a stream and a set of graphs by annotation id, each going
// through warming up -> capturing -> ready, or refused. Threads that share a stream take turns.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/error.h"
#include "device/graph.h"
#include "device/stream.h"
#include "memory/source.h"

namespace encore::graph {

inline constexpr int kEagerId = -1;

class SharedStream;

enum class OnError { fail, eager };
struct Settings {
  bool enabled = false;
  int warm_ups = 2;  // eager runs before the capture
  OnError on_error = OnError::fail;
  std::function<void(const std::string&)> warn = [](const std::string&) {};
  SharedStream* shared = nullptr;  // where all threads work, if not on streams of their own; outlives the session
  std::shared_ptr<memory::Source> memory = {};  // where graphs get theirs; null: from a pool of their own
};

enum class State { warming_up, capturing, ready, refused };
const char* name(State state);

struct Report {
  int id = 0;
  State state = State::warming_up;
  size_t nodes = 0, held_bytes = 0;
  int64_t replays = 0;
  std::string refusal;  // why, if refused; a refused id warms up again at its next run
};

class SessionGraphs {
 public:
  SessionGraphs(int device, Settings settings);
  ~SessionGraphs();  // drops every thread's graphs, after their last launch has run
  SessionGraphs(const SessionGraphs&) = delete;

  // Whether runs are being captured at all: false once a refusal in mode `eager` has switched it off.
  bool enabled() const;
  // The calling thread's stream in this session, made on first use; the shared one if there is one.
  device::StreamRef stream();
  // True between begin_run and end_run in this thread.
  bool in_run() const;
  // True while this thread captures in this session.
  bool capturing() const;

  // Around every run that is not a replay. begin_run starts the capture when the warm-ups of this id are done. end_run
  // ends it: on success the graph is instantiated, uploaded and launched once, so that the run's outputs are there. If
  // the capture failed, or refuse() was called, it throws the reason with the way out, and the id warms up anew; in
  // mode `eager` it warns, disables capture for the session and returns false: the run did nothing and must be
  // repeated. A run that fails by itself, inside a valid capture, ends it quietly: the next run of the id captures
  // again. Beginning a run while this thread captures, here or in another session, is an error: the graph would lack
  // its work. If it captures here, that capture is ended.
  void begin_run(int id);
  bool end_run(bool succeeded);
  // From inside a run: this run cannot be captured. Keeps the first reason. True if the run is lost: the caller then
  // fails. False if the caller may just go on, because nothing captures, or because in mode `eager` what was captured
  // so far has been launched, capture is switched off and the rest of the run is eager.
  bool refuse(const std::string& why);

  bool is_captured(int id) const;  // by the calling thread; false once capture is switched off
  void replay(int id);             // enqueues only
  // In every thread, once its last launch has run; a no-op if there is none, or none yet.
  void release(int id);
  std::vector<Report> reports() const;  // of the calling thread
  std::vector<device::GraphNode> nodes(int id) const;

  // Waits for the calling thread's stream only, and returns it; none if the thread has none yet.
  device::StreamRef synchronize();

 private:
  struct Context;  // of one thread
  struct Shared;
  struct Mine;  // the contexts of one thread
  static Mine& mine();
  Context* find() const;  // the calling thread's; null if it has none yet
  Context& context();
  void start(Context& context, int id);
  void begin_capture(Context& context, size_t peak_bytes);
  device::Graph leave_capture(Context& context);
  device::GraphExec launch_once(Context& context, const device::Graph& graph);
  void mark_refused(Context& context);
  bool give_up(Context& context);

  std::shared_ptr<Shared> state_;
};

}  // namespace encore::graph
