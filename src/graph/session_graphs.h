// Capture and replay policy of one session: for each thread a stream and a set of graphs by annotation id, each going
// through warming up -> capturing -> ready, or refused. Threads that share a stream take turns.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/graph.h"
#include "device/stream.h"
#include "graph/policy.h"
#include "graph/report.h"
#include "graph/settings.h"

namespace encore::graph {

class ThreadGraphs;

class SessionGraphs {
 public:
  SessionGraphs(int device, Settings settings);
  ~SessionGraphs();  // drops every thread's graphs, after their last launch has run
  SessionGraphs(const SessionGraphs&) = delete;

  // Whether runs are being captured at all: false once a refusal that holds for the model has switched it off.
  bool enabled() const;
  // The same of runs with the id that the calling thread ran or replayed last: false after an eager one.
  bool captures_latest() const;
  // The calling thread's stream in this session, made on first use; the shared one if there is one.
  device::StreamRef stream();
  // True between begin_run and end_run in this thread.
  bool in_run() const;
  // True while this thread captures in this session.
  bool capturing() const;

  // Around every run that is not a replay. begin_run starts the capture when the warm-ups of this id are done. end_run
  // ends it: on success the graph is instantiated, uploaded and launched once, so that the run's outputs are there. If
  // the capture failed, or refuse() was called, it throws the reason with the way out, and the id warms up anew; in
  // mode `eager` it warns, stops capturing what the reason holds for and returns false: the run did nothing and must be
  // repeated. A run that fails by itself, inside a valid capture, ends it quietly: the next run of the id captures
  // again. Beginning a run, or replaying, ends what this thread captures here or in another session: it would lack
  // that work, or has been left by a run whose end nobody told.
  void begin_run(int id);
  bool end_run(bool succeeded);
  // From inside a run: this run cannot be captured. Keeps the first reason. True if the run is lost: the caller then
  // fails. False if the caller may just go on, because nothing captures, or because in mode `eager` what was captured
  // so far has been launched, and the rest of the run is eager.
  bool refuse(const std::string& why, Holds holds = Holds::for_id);
  // The run is over. end_run() may follow, and says why a capture was lost, or it may not.
  void leave_run();
  // Throws if the run is lost.
  void check_run() const;

  // What this thread is told at the beginning of a run binds until it has replayed the graph and asked again at the
  // end, or begins another run; and what it has captured, until it has asked at the end. Without that, asking comes to
  // nothing. Asking at the beginning of a run also ends one that is still under way in this thread.
  bool is_captured_at_begin(int id);
  bool is_captured_at_end(int id);
  bool is_captured(int id) const;  // by the calling thread; binds nobody
  void replay(int id);             // enqueues only
  // In every thread, once its last launch has run; elsewhere not before that thread is through with what it was told.
  // A no-op if there is none, or none yet. Runs with the id may be captured again.
  void release(int id);
  // In every thread: what is captured is captured again.
  void forget_captures();
  // Of what the calling thread captures; null if it is not timed.
  std::shared_ptr<profile::Timeline> timeline() const;
  std::vector<Report> reports() const;  // of the calling thread
  std::vector<device::GraphNode> nodes(int id) const;

  // Waits for the calling thread's stream only, and returns it; none if the thread has none yet.
  device::StreamRef synchronize();

  // Ends what the calling thread captures, in whichever session.
  static void end_capture_here(std::string_view why);

 private:
  struct Shared;
  struct Mine;  // the calling thread's part of all sessions
  static Mine& mine();
  ThreadGraphs* find() const;  // the calling thread's; null if it has none yet
  ThreadGraphs& context();

  std::shared_ptr<Shared> state_;
};

}  // namespace encore::graph
