#include "graph/session_graphs.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "graph/shared_stream.h"
#include "graph/thread_graphs.h"

namespace encore::graph {

using device::StreamRef;

struct SessionGraphs::Shared {
  Shared(int device, Settings settings) : policy(std::make_shared<Policy>(device, std::move(settings))) {}

  const std::shared_ptr<Policy> policy;
  const uint64_t serial = next_serial();  // of the session; never used again, unlike addresses

  std::mutex mutex;
  std::map<ThreadGraphs*, std::unique_ptr<ThreadGraphs>> threads;

  static uint64_t next_serial() {
    static std::atomic<uint64_t> serial{0};
    return ++serial;
  }
};

namespace {

// A thread may end while the process does: who joins a thread of Python's does not wait until what is thread_local has
// gone. CUDA goes, too, so the end of the process waits for those that are at it, and later ones leave all as it is.
class ThreadEnds {
 public:
  static ThreadEnds& get() {
    static auto& ends = *[] {
      auto* const made = new ThreadEnds;  // which ends after statics' destructors may still ask
      std::atexit([] { get().stop(); });
      return made;
    }();
    return ends;
  }
  // Holds the end of the process up, if that has not begun.
  class One {
   public:
    explicit One(ThreadEnds& all) : all_(all) { ++all_.under_way_; }
    ~One() { --all_.under_way_; }
    One(One&&) = delete;
    bool comes_in_time() const { return !all_.are_over_; }

   private:
    ThreadEnds& all_;
  };

 private:
  void stop() {
    if (process_ != getpid()) return;  // others than the threads of this one were under way
    are_over_ = true;
    // An application's allocator may want what the process has no more: Python's lock, say.
    for (int ms = 0; ms < 2000 && under_way_ > 0; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  const pid_t process_ = getpid();
  std::atomic<int> under_way_{0};
  std::atomic<bool> are_over_{false};
};

}  // namespace

// A thread's graphs belong to their session. Whichever ends first, thread or session, takes them out and destroys them.
struct SessionGraphs::Mine {
  struct Place {
    uint64_t session;
    std::weak_ptr<Shared> owner;
    ThreadGraphs* graphs;  // valid while the session lives
  };
  std::vector<Place> places;
  uint64_t last_session = 0;
  ThreadGraphs* last = nullptr;

  ~Mine() {
    const ThreadEnds::One end(ThreadEnds::get());
    if (!end.comes_in_time()) return;
    for (Place& place : places) {
      const auto owner = place.owner.lock();
      if (!owner) continue;
      decltype(owner->threads)::node_type gone;  // destroyed after the lock is given back
      std::lock_guard lock(owner->mutex);
      gone = owner->threads.extract(place.graphs);
    }
  }
};

SessionGraphs::Mine& SessionGraphs::mine() {
  thread_local Mine mine;
  return mine;
}

SessionGraphs::SessionGraphs(int device, Settings settings) {
  if (!settings.memory) settings.memory = std::make_shared<memory::PoolSource>(device);
  state_ = std::make_shared<Shared>(device, std::move(settings));
}

SessionGraphs::~SessionGraphs() {
  decltype(state_->threads) gone;
  {
    std::lock_guard lock(state_->mutex);
    gone.swap(state_->threads);
  }
}

ThreadGraphs* SessionGraphs::find() const {
  Mine& here = mine();
  if (here.last_session == state_->serial) return here.last;
  for (auto& place : here.places) {
    if (place.session != state_->serial) continue;
    here.last_session = place.session;
    return here.last = place.graphs;
  }
  return nullptr;
}

ThreadGraphs& SessionGraphs::context() {
  if (ThreadGraphs* found = find()) return *found;
  Mine& here = mine();
  ThreadEnds::get();  // before the first thread ends
  std::erase_if(here.places, [](const auto& place) { return place.owner.expired(); });
  auto made = std::make_unique<ThreadGraphs>(state_->policy);
  ThreadGraphs* graphs = made.get();
  std::lock_guard lock(state_->mutex);
  here.places.push_back({state_->serial, state_, graphs});
  state_->threads.emplace(graphs, std::move(made));
  return *graphs;
}

bool SessionGraphs::enabled() const { return state_->policy->captures(); }
bool SessionGraphs::captures_latest() const {
  const ThreadGraphs* mine = find();
  return mine ? state_->policy->captures(mine->latest_id()) : enabled();
}
StreamRef SessionGraphs::stream() { return context().stream(); }
bool SessionGraphs::in_run() const {
  const ThreadGraphs* mine = find();
  return mine && mine->in_run();
}
bool SessionGraphs::capturing() const {
  const ThreadGraphs* mine = find();
  return mine && mine->capturing();
}

void SessionGraphs::end_capture_here(std::string_view why) {
  if (!Capture::may_be_here()) return;
  for (Mine::Place& place : mine().places) {
    const auto owner = place.owner.lock();
    if (!owner) continue;
    OwnedEntry gone;  // destroyed after the lock is given back
    std::lock_guard lock(owner->mutex);
    const auto found = owner->threads.find(place.graphs);
    if (found != owner->threads.end() && found->second->capturing()) gone = found->second->leave_run(why);
  }
  Capture::none_is_here();
}

void SessionGraphs::begin_run(int id) {
  end_capture_here("another run began in the thread that captures it");
  context().begin_run(id);
}

bool SessionGraphs::end_run(bool succeeded) {
  ThreadGraphs* mine = find();
  return !mine || mine->end_run(succeeded);
}

bool SessionGraphs::refuse(const std::string& why, Holds holds) {
  ThreadGraphs* mine = find();
  return mine && mine->refuse(why, holds);
}

void SessionGraphs::leave_run() {
  if (ThreadGraphs* mine = find()) mine->leave_run({});
}

void SessionGraphs::check_run() const {
  if (const ThreadGraphs* mine = find()) mine->check_run();
}

bool SessionGraphs::is_captured_at_begin(int id) {
  ThreadGraphs* mine = find();
  if (!mine) return false;
  mine->leave_run("the run did not end, or another one began within it");
  return mine->begin_question(id);
}

bool SessionGraphs::is_captured_at_end(int id) {
  ThreadGraphs* mine = find();
  if (!mine) return false;
  return mine->end_question(id);
}

bool SessionGraphs::is_captured(int id) const {
  const ThreadGraphs* mine = find();
  return mine && mine->is_captured(id);
}

void SessionGraphs::replay(int id) {
  end_capture_here("a graph was replayed in the thread that captures it");
  const SharedStream* const shared = state_->policy->settings.shared;
  const auto turn = shared ? shared->turn() : SharedStream::Turn();
  if (shared) shared->check_not_captured();
  context().replay(id);
}

void SessionGraphs::release(int id) {
  state_->policy->resume(id);
  std::vector<OwnedEntry> gone;  // after the lock
  std::lock_guard lock(state_->mutex);
  for (auto& [graphs, owned] : state_->threads) gone.push_back(graphs->release(id));
}

void SessionGraphs::forget_captures() {
  std::vector<OwnedEntry> gone;  // after the lock
  std::lock_guard lock(state_->mutex);
  for (auto& [graphs, owned] : state_->threads) graphs->forget_captures(gone);
}

std::shared_ptr<profile::Timeline> SessionGraphs::timeline() const {
  const ThreadGraphs* mine = find();
  return mine ? mine->timeline() : nullptr;
}

std::vector<Report> SessionGraphs::reports() const {
  const ThreadGraphs* mine = find();
  return mine ? mine->reports() : std::vector<Report>();
}

std::vector<device::GraphNode> SessionGraphs::nodes(int id) const {
  const ThreadGraphs* mine = find();
  return mine ? mine->nodes(id) : std::vector<device::GraphNode>();
}

StreamRef SessionGraphs::synchronize() {
  ThreadGraphs* const mine = find();
  if (!mine) return {};
  if (const SharedStream* const shared = state_->policy->settings.shared)
    shared->wait();
  else
    mine->stream().synchronize();
  return mine->stream();
}

}  // namespace encore::graph
