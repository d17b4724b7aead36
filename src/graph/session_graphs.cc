#include "graph/session_graphs.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "device/device.h"
#include "device/label.h"
#include "graph/shared_stream.h"
#include "memory/graph_pool.h"
#include "memory/meter.h"
#include "memory/pool_scope.h"
#include "memory/streams.h"

namespace encore::graph {

using device::StreamRef;
using memory::GraphPool;
using memory::PoolScope;

namespace {

// What one annotation id has become.
struct Entry {
  State state = State::warming_up;
  int runs = 0;           // warm-ups that succeeded
  size_t peak_bytes = 0;  // of their memory
  int64_t replays = 0;
  std::string refusal;
  std::shared_ptr<GraphPool> pool;  // outlives the executable
  device::GraphExec exec;
  std::vector<device::GraphNode> nodes;
};

void report_failure(const char* what, const std::exception& e) noexcept {
  std::fprintf(stderr, "encore: %s: %s\n", what, e.what());
}

// The pool waits for the device before it lets go of memory.
void destroy(Entry entry) noexcept {
  try {
    device::RelaxedCapture relaxed;
    entry.exec = {};
    entry.pool.reset();
  } catch (const std::exception& e) {
    report_failure("a graph could not be destroyed", e);
  }
}

thread_local bool thread_captures = false;

void check_no_capture_here(int id) {
  if (thread_captures)
    fail(Code::capture_forbidden, "graph id ", id,
         " cannot run now, because the same thread captures a graph, in which its ",
         "work would be missing; run it in another thread, or run the captured model with gpu_graph_id=-1");
}

// A little more than the warm-ups used, because the graph may pack it differently.
size_t first_chunk_bytes(size_t peak_bytes) { return peak_bytes + peak_bytes / 8; }

}  // namespace

const char* name(State state) {
  switch (state) {
    case State::warming_up: return "warming up";
    case State::capturing: return "capturing";
    case State::ready: return "ready";
    case State::refused: return "refused";
  }
  return "unknown";
}

struct SessionGraphs::Context {
  Context(int device, const SharedStream* shared)
      : own(shared ? device::Stream() : device::Stream(device)), stream(shared ? shared->ref() : own.ref()) {
    if (own.ref()) memory::enlist(own);
  }
  // A shared stream may be gone already, if the thread ends after the session.
  ~Context() {
    if (capturing) {
      device::abandon_capture(stream);
      memory::capture_ends(stream);
      if (thread == std::this_thread::get_id()) thread_captures = false;
    }
    pool_scope.reset();
    meter.reset();
    if (own.ref()) memory::delist(own);  // waits for the stream
    for (auto& [id, entry] : entries) destroy(std::move(entry));
  }

  const device::Stream own;  // none if the session's threads share one
  const StreamRef stream;
  const std::thread::id thread = std::this_thread::get_id();

  // Only the thread itself uses these:
  bool in_run = false, capturing = false;
  bool counts = false;  // the run is a warm-up
  int id = kEagerId;
  std::string refusal;  // why this run cannot be captured
  std::optional<memory::Meter> meter;
  std::optional<PoolScope> pool_scope;

  mutable std::mutex mutex;
  std::map<int, Entry> entries;  // other threads release them
};

struct SessionGraphs::Shared {
  Shared(int device, Settings settings)
      : device(device), settings(std::move(settings)), enabled(this->settings.enabled), serial(next_serial()) {}

  const int device;
  const Settings settings;
  std::atomic<bool> enabled;
  const uint64_t serial;  // of the session; never used again, unlike addresses

  std::mutex mutex;
  std::map<Context*, std::unique_ptr<Context>> contexts;

  static uint64_t next_serial() {
    static std::atomic<uint64_t> serial{0};
    return ++serial;
  }
};

// A context belongs to its session. Whichever ends first, thread or session, takes it out and destroys it.
struct SessionGraphs::Mine {
  struct Place {
    uint64_t session;
    std::weak_ptr<Shared> owner;
    Context* context;  // valid while the session lives
  };
  std::vector<Place> places;
  uint64_t last_session = 0;
  Context* last = nullptr;

  ~Mine() {
    for (Place& place : places) {
      const auto owner = place.owner.lock();
      if (!owner) continue;
      decltype(owner->contexts)::node_type gone;  // destroyed after the lock is given back
      std::lock_guard lock(owner->mutex);
      gone = owner->contexts.extract(place.context);
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
  decltype(state_->contexts) gone;
  {
    std::lock_guard lock(state_->mutex);
    gone.swap(state_->contexts);
  }
}

SessionGraphs::Context* SessionGraphs::find() const {
  Mine& here = mine();
  if (here.last_session == state_->serial) return here.last;
  for (auto& place : here.places) {
    if (place.session != state_->serial) continue;
    here.last_session = place.session;
    return here.last = place.context;
  }
  return nullptr;
}

SessionGraphs::Context& SessionGraphs::context() {
  if (Context* found = find()) return *found;
  Mine& here = mine();
  std::erase_if(here.places, [](const auto& place) { return place.owner.expired(); });
  auto made = std::make_unique<Context>(state_->device, state_->settings.shared);
  Context* context = made.get();
  std::lock_guard lock(state_->mutex);
  here.places.push_back({state_->serial, state_, context});
  state_->contexts.emplace(context, std::move(made));
  return *context;
}

bool SessionGraphs::enabled() const { return state_->enabled.load(std::memory_order_relaxed); }
StreamRef SessionGraphs::stream() { return context().stream; }
bool SessionGraphs::in_run() const {
  const Context* context = find();
  return context && context->in_run;
}
bool SessionGraphs::capturing() const {
  const Context* context = find();
  return context && context->capturing;
}

void SessionGraphs::begin_run(int id) {
  Context& c = context();
  if (c.capturing) {
    c.refusal = "another run of the session began in the thread that captures it";
    leave_capture(c);
    mark_refused(c);
    c.in_run = false;  // end_run of the lost run still says why
  } else {
    c.refusal.clear();
  }
  check_no_capture_here(id);
  if (!c.refusal.empty())
    fail(Code::capture_forbidden, "a run cannot begin while the same thread captures graph id ", c.id,
         " of this session; that capture has been ended. Finish one run before the next, or use another thread");
  SharedStream* const shared = state_->settings.shared;
  if (shared) shared->begin_run();
  try {
    start(c, id);
  } catch (...) {
    if (shared) shared->end_run();
    throw;
  }
  c.in_run = true;
}

void SessionGraphs::start(Context& c, int id) {
  c.id = id;
  c.counts = false;
  c.meter.reset();
  if (enabled() && id != kEagerId) {
    std::unique_lock lock(c.mutex);
    Entry& entry = c.entries[id];
    if (entry.state == State::refused) entry.state = State::warming_up;
    if (entry.state == State::warming_up) {
      c.counts = entry.runs < state_->settings.warm_ups;
      if (c.counts) {
        c.meter.emplace();
      } else {
        const size_t peak_bytes = entry.peak_bytes;
        lock.unlock();
        begin_capture(c, peak_bytes);
      }
    }
  }
}

// Refuses the id if it fails.
void SessionGraphs::begin_capture(Context& c, size_t peak_bytes) {
  const auto grew = [&settings = state_->settings, id = c.id, warned = false](size_t bytes) mutable {
    if (std::exchange(warned, true)) return;
    const std::string_view node = device::Label::current();
    settings.warn(text("while graph id ", id, " was captured, ", node.empty() ? "something" : text("node ", node),
                       " allocated ", bytes, " bytes from the driver, more than the warm-up runs had used"));
  };
  std::shared_ptr<GraphPool> pool;
  try {
    try {
      pool = std::make_shared<GraphPool>(state_->settings.memory, first_chunk_bytes(peak_bytes), grew);
    } catch (const Error& e) {
      if (e.code() != Code::out_of_memory) throw;
      pool = std::make_shared<GraphPool>(state_->settings.memory, 0, grew);  // what the arena can spare, bit by bit
    }
    memory::capture_begins(c.stream);
    device::begin_capture(c.stream, device::CaptureMode::thread_local_);
  } catch (const Error& e) {
    memory::capture_ends(c.stream);
    c.refusal = e.what();
    give_up(c);
    return;
  }
  c.capturing = thread_captures = true;
  c.pool_scope.emplace(pool);
  std::lock_guard lock(c.mutex);
  Entry& entry = c.entries[c.id];
  entry.state = State::capturing;
  entry.pool = std::move(pool);
}

// What was captured; empty, with the reason in `refusal`, if it cannot be used.
device::Graph SessionGraphs::leave_capture(Context& c) {
  device::Graph graph;
  c.pool_scope.reset();
  try {
    graph = device::end_capture(c.stream);
  } catch (const Error& e) {
    if (c.refusal.empty()) c.refusal = e.what();
    device::abandon_capture(c.stream);
    if (!device::clear_error(state_->device)) c.refusal += "; the device cannot be used any more";
  }
  c.capturing = thread_captures = false;
  memory::capture_ends(c.stream);
  return graph;
}

// Because the capture executed nothing. Null, with the reason in `refusal`, if it cannot be.
device::GraphExec SessionGraphs::launch_once(Context& c, const device::Graph& graph) {
  try {
    device::GraphExec exec = graph.instantiate();
    exec.upload(c.stream);
    exec.launch(c.stream);
    return exec;
  } catch (const Error& e) {
    c.refusal = e.what();
    if (!device::clear_error(state_->device)) c.refusal += "; the device cannot be used any more";
    return {};
  }
}

bool SessionGraphs::end_run(bool succeeded) {
  Context* found = find();
  if (!found) return true;
  Context& c = *found;
  struct End {
    SharedStream* shared;
    ~End() {
      if (shared) shared->end_run();
    }
  } end{state_->settings.shared};
  if (!std::exchange(c.in_run, false)) return c.refusal.empty() || give_up(c);
  if (std::exchange(c.counts, false) && succeeded) {
    std::lock_guard lock(c.mutex);
    Entry& entry = c.entries[c.id];
    ++entry.runs;
    entry.peak_bytes = std::max(entry.peak_bytes, c.meter->peak_bytes());
  }
  c.meter.reset();
  if (c.capturing) {
    const device::Graph graph = leave_capture(c);
    device::GraphExec exec;
    if (c.refusal.empty() && succeeded) exec = launch_once(c, graph);
    if (c.refusal.empty()) {
      Entry dropped;  // after the lock
      std::lock_guard lock(c.mutex);
      Entry& entry = c.entries[c.id];
      entry.state = succeeded ? State::ready : State::warming_up;
      if (succeeded) {
        entry.exec = std::move(exec);
        entry.nodes = graph.nodes();
        entry.refusal.clear();
      } else {
        dropped.pool = std::move(entry.pool);
      }
    }
  }
  return c.refusal.empty() || give_up(c);
}

bool SessionGraphs::refuse(const std::string& why) {
  Context* found = find();
  if (!found || !found->in_run) return false;
  Context& c = *found;
  if (!c.capturing) return !c.refusal.empty();
  if (c.refusal.empty()) c.refusal = why;
  if (state_->settings.on_error == OnError::fail) return true;
  if (c.stream.capture_status() != device::CaptureStatus::active) return true;
  const std::string reason = c.refusal;
  const device::Graph graph = leave_capture(c);
  if (!graph || !launch_once(c, graph)) return true;
  c.refusal = reason;
  give_up(c);
  return false;
}

void SessionGraphs::mark_refused(Context& c) {
  Entry dropped;
  {
    std::lock_guard lock(c.mutex);
    Entry& entry = c.entries[c.id];
    dropped = std::exchange(entry, {.state = State::refused, .refusal = c.refusal});
  }
  destroy(std::move(dropped));
}

// Settles the refusal: throws it, or lets the session go on without graphs.
bool SessionGraphs::give_up(Context& c) {
  mark_refused(c);
  const std::string why = std::exchange(c.refusal, {});
  const std::string message = text("graph id ", c.id, " could not be captured: ", why);
  if (state_->settings.on_error == OnError::fail)
    fail(Code::capture_failed, message,
         ". The session goes on: change this and run again, or run with gpu_graph_id=-1; ep.cuda.graph_on_error=eager "
         "lets ",
         "it go on eagerly by itself, enable_cuda_graph=0 does without graphs");
  state_->enabled = false;
  state_->settings.warn(message + ". The session goes on without graphs");
  return false;
}

bool SessionGraphs::is_captured(int id) const {
  const Context* c = find();
  if (!c || !enabled()) return false;
  std::lock_guard lock(c->mutex);
  const auto found = c->entries.find(id);
  return found != c->entries.end() && found->second.state == State::ready;
}

// The lock keeps the graph alive until it is launched.
void SessionGraphs::replay(int id) {
  check_no_capture_here(id);
  const SharedStream* const shared = state_->settings.shared;
  const auto turn = shared ? shared->turn() : SharedStream::Turn();
  if (shared) shared->check_not_captured();
  if (Context* c = find()) {
    std::lock_guard lock(c->mutex);
    const auto found = c->entries.find(id);
    if (found != c->entries.end() && found->second.state == State::ready) {
      found->second.exec.launch(c->stream);
      ++found->second.replays;
      return;
    }
  }
  fail(Code::invalid_input, "graph id ", id,
       " cannot be replayed: this thread has not captured it, or it was released; ",
       "every thread captures its own graphs by running the session with this gpu_graph_id");
}

void SessionGraphs::release(int id) {
  std::vector<Entry> gone;
  {
    std::lock_guard lock(state_->mutex);
    for (auto& [context, owned] : state_->contexts) {
      std::lock_guard context_lock(context->mutex);
      const auto found = context->entries.find(id);
      if (found == context->entries.end() || found->second.state != State::ready) continue;
      gone.push_back(std::move(found->second));
      context->entries.erase(found);
    }
  }
  for (Entry& entry : gone) destroy(std::move(entry));
}

std::vector<Report> SessionGraphs::reports() const {
  std::vector<Report> reports;
  const Context* c = find();
  if (!c) return reports;
  std::lock_guard lock(c->mutex);
  for (auto& [id, entry] : c->entries)
    reports.push_back({.id = id,
                       .state = entry.state,
                       .nodes = entry.nodes.size(),
                       .held_bytes = entry.pool ? entry.pool->held_bytes() : 0,
                       .replays = entry.replays,
                       .refusal = entry.refusal});
  return reports;
}

std::vector<device::GraphNode> SessionGraphs::nodes(int id) const {
  const Context* c = find();
  if (!c) return {};
  std::lock_guard lock(c->mutex);
  const auto found = c->entries.find(id);
  return found == c->entries.end() ? std::vector<device::GraphNode>() : found->second.nodes;
}

StreamRef SessionGraphs::synchronize() {
  Context* const c = find();
  if (!c) return {};
  if (const SharedStream* const shared = state_->settings.shared)
    shared->wait();
  else
    c->stream.synchronize();
  return c->stream;
}

}  // namespace encore::graph
