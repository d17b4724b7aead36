#include "graph/thread_graphs.h"

#include <algorithm>

#include "device/device.h"
#include "device/error.h"
#include "device/gone.h"
#include "device/label.h"
#include "graph/shared_stream.h"
#include "memory/streams.h"

namespace encore::graph {

namespace {

// A little more than the warm-ups used, because the graph may pack it differently.
constexpr int kCapturesInVain = 3;  // in a row, before a warning

size_t first_chunk_bytes(size_t peak_bytes) { return peak_bytes + peak_bytes / 8; }

device::Stream stream_of_thread(const Policy& policy) {
  if (policy.settings.shared) return {};
  return policy.settings.stream ? policy.settings.stream() : device::Stream(policy.device);
}

}  // namespace

Entry::~Entry() {
  if (!exec && !pool && !retention) return;
  try {
    const device::RelaxedCapture relaxed;
    exec = {};
    pool.reset();
    retention.reset();
  } catch (const std::exception& e) {
    device::complain("a graph could not be destroyed", e);
  }
}

bool Entry::is_stale() const {
  return state == State::ready && ((retention && retention->is_given_back()) || (pool && pool->is_given_back()));
}

void Entry::launch(device::StreamRef stream) const {
  if (timeline) [[unlikely]]
    return timeline->launch(exec, stream);
  exec.launch(stream);
}

ThreadGraphs::Turn::Turn(SharedStream* shared) : shared(shared) {
  if (shared) shared->begin_run();
}
ThreadGraphs::Turn::~Turn() {
  if (shared) shared->end_run();
}

ThreadGraphs::ThreadGraphs(std::shared_ptr<Policy> policy)
    : policy_(std::move(policy)),
      own_(stream_of_thread(*policy_)),
      stream_(policy_->settings.shared ? policy_->settings.shared->ref() : own_.ref()),
      order_(policy_->device, policy_->settings.default_stream) {
  if (own_.ref()) memory::enlist(own_);
}

ThreadGraphs::~ThreadGraphs() {
  run_.reset();
  if (own_.ref()) memory::delist(own_);  // waits for the stream
}

const Entry* ThreadGraphs::find(int id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : found->second.get();
}

OwnedEntry ThreadGraphs::replace(int id, OwnedEntry next) {
  const std::lock_guard lock(mutex_);
  return std::exchange(entries_[id], std::move(next));
}

// ---- runs

void ThreadGraphs::begin_run(int id) {
  leave_run("another run began before its end");
  latest_id_ = id;
  run_.emplace(id, policy_->settings.shared);
  try {
    order_.before_run(stream_);
    start(*run_);
  } catch (...) {
    run_.reset();
    throw;
  }
}

void ThreadGraphs::start(Run& run) {
  if (!policy_->captures(run.id)) return;
  size_t peak_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    OwnedEntry& entry = entries_[run.id];
    if (!entry) entry = std::make_unique<Entry>();
    if (entry->state == State::refused) entry->state = State::warming_up;
    if (entry->state != State::warming_up) return;
    if (entry->runs < policy_->settings.warm_ups) {
      run.phase.emplace<WarmUp>();
      return;
    }
    peak_bytes = entry->peak_bytes;
  }
  begin_capture(run, peak_bytes);
}

// Refuses the id if it fails.
void ThreadGraphs::begin_capture(Run& run, size_t peak_bytes) {
  const auto grew = [policy = policy_, id = run.id, warned = false](size_t bytes) mutable {
    if (std::exchange(warned, true)) return;
    const std::string_view node = device::Label::current();
    policy->settings.warn(text("while graph id ", id, " was captured, ",
                               node.empty() ? "something" : text("node ", node), " allocated ", bytes,
                               " bytes from the driver, more than the warm-up runs had used"));
  };
  const auto retention = std::make_shared<memory::Retention>();
  std::shared_ptr<memory::GraphPool> pool;
  try {
    try {
      pool = std::make_shared<memory::GraphPool>(policy_->settings.memory, first_chunk_bytes(peak_bytes), grew);
    } catch (const Error& e) {
      if (e.code() != Code::out_of_memory) throw;
      pool = std::make_shared<memory::GraphPool>(policy_->settings.memory, 0, grew);  // bit by bit
    }
    Capture& capture = run.phase.emplace<Capture>(stream_, pool, retention);
    if (policy_->is_profiled()) {
      capture.time(policy_->settings.recorder->timeline(stream_, profile::Timeline::Of::graph));
      capture.timeline()->begin({device::kept(text("graph ", run.id)), "Graph"});
    }
  } catch (const Error& e) {
    const Lost lost{e.what()};
    lose(run, lost);
    run.phase.emplace<Eager>();
    give_up(run.id, lost);
    return;
  }
  const std::lock_guard lock(mutex_);
  Entry& entry = *entries_[run.id];
  entry.state = State::capturing;
  entry.pool = std::move(pool);
  entry.retention = retention;
}

bool ThreadGraphs::end_run(bool succeeded) {
  if (!run_) {
    if (!interrupted_) return true;
    const auto [id, lost] = *std::exchange(interrupted_, {});
    return give_up(id, lost);
  }
  struct Over {
    std::optional<Run>& run;
    ~Over() { run.reset(); }
  } over{run_};
  if (const auto* const warm_up = std::get_if<WarmUp>(&run_->phase); warm_up && succeeded) finish(*warm_up);
  if (auto* const capture = std::get_if<Capture>(&run_->phase)) finish(*capture, succeeded);
  const auto* const lost = std::get_if<Lost>(&run_->phase);
  if (lost) return give_up(run_->id, *lost);
  order_.after_run(stream_);
  return true;
}

void ThreadGraphs::finish(const WarmUp& warm_up) {
  const std::lock_guard lock(mutex_);
  Entry& entry = *entries_[run_->id];
  ++entry.runs;
  entry.peak_bytes = std::max(entry.peak_bytes, warm_up.meter.peak_bytes());
}

// The graph is launched, because the capture executed nothing.
void ThreadGraphs::finish(Capture& capture, bool succeeded) {
  const int id = run_->id;
  auto captured = std::make_unique<Entry>();
  {
    const std::lock_guard lock(mutex_);
    const Entry& entry = *entries_[id];
    captured->runs = entry.runs;
    captured->peak_bytes = entry.peak_bytes;
    captured->in_vain = entry.in_vain;
    if (succeeded) {
      captured->pool = entry.pool;
      captured->retention = entry.retention;
    }
  }
  try {
    const device::Graph graph = capture.end();
    if (succeeded) {
      captured->timeline = capture.timeline();
      captured->pool->complete();
      launch(*captured, graph);
    }
  } catch (const Error& e) {
    return lose(*run_, {e.what()});
  }
  OwnedEntry before;
  const std::lock_guard lock(mutex_);
  before = std::exchange(entries_[id], std::move(captured));
  if (!succeeded) return;
  if (policy_->is_profiled() != bool(entries_[id]->timeline)) {  // since the capture began
    captured = forget_capture(id);
    return;
  }
  entries_[id]->state = State::ready;
  promised_ = id;
}

void ThreadGraphs::launch(Entry& entry, const device::Graph& graph) const {
  entry.exec = graph.instantiate();
  entry.exec.upload(stream_);
  entry.launch(stream_);
  entry.nodes = graph.nodes();
}

// The capture ends here: onnxruntime does not tell the end of every run that fails.
void ThreadGraphs::lose(Run& run, Lost lost) {
  run.phase.emplace<Eager>();
  if (!device::clear_error(policy_->device)) lost.why += "; the device cannot be used any more";
  auto refused = std::make_unique<Entry>();
  refused->state = State::refused;
  refused->refusal = lost.why;
  replace(run.id, std::move(refused));
  run.phase.emplace<Lost>(std::move(lost));
}

bool ThreadGraphs::refuse(const std::string& why, Holds holds) {
  if (!run_) return interrupted_.has_value();
  if (std::holds_alternative<Lost>(run_->phase)) return true;
  auto* const capture = std::get_if<Capture>(&run_->phase);
  if (!capture) return false;
  if (policy_->settings.on_error == OnError::eager && capture->is_valid()) {
    try {
      Entry once;
      once.timeline = capture->timeline();
      launch(once, capture->end());
      lose(*run_, {why, holds});
      run_->phase.emplace<Eager>();
      return give_up(run_->id, {why, holds});
    } catch (const Error&) {  // what was captured is lost
    }
  }
  lose(*run_, {why, holds});
  return true;
}

OwnedEntry ThreadGraphs::leave_run(std::string_view why) {
  if (!run_) return nullptr;
  OwnedEntry before;
  if (std::holds_alternative<Capture>(run_->phase)) {
    run_->phase.emplace<Eager>();
    const std::lock_guard lock(mutex_);
    OwnedEntry& entry = entries_[run_->id];
    auto next = std::make_unique<Entry>();
    next->refusal = why;
    if (why.empty()) {
      next->runs = entry->runs;
      next->peak_bytes = entry->peak_bytes;
    } else {
      next->state = State::refused;
      interrupted_.emplace(run_->id, Lost{std::string(why)});
    }
    before = std::exchange(entry, std::move(next));
  } else if (const auto* const lost = std::get_if<Lost>(&run_->phase)) {
    interrupted_.emplace(run_->id, *lost);
  }
  run_.reset();
  return before;
}

void ThreadGraphs::check_run() const {
  const Lost* lost = run_ ? std::get_if<Lost>(&run_->phase) : nullptr;
  if (!run_ && interrupted_) lost = &interrupted_->second;
  if (lost) fail(Code::capture_failed, lost->why);
}

// Throws, or lets the runs that this holds for go on without graphs.
bool ThreadGraphs::give_up(int id, const Lost& lost) {
  const std::string message = text("graph id ", id, " could not be captured: ", lost.why);
  if (policy_->settings.on_error == OnError::fail)
    fail(Code::capture_failed, message,
         ". The session goes on: change this and run again, or run with gpu_graph_id=-1; ep.cuda.graph_on_error=eager "
         "lets it go on eagerly by itself, enable_cuda_graph=0 does without graphs");
  if (policy_->stop(id, lost.holds))
    policy_->settings.warn(message + (lost.holds == Holds::for_model
                                          ? ". The session goes on without graphs"
                                          : ". Runs with this id go on without graphs, until it is released"));
  return false;
}

// ---- graphs

OwnedEntry ThreadGraphs::take_back_promise() {
  const auto promised = std::exchange(promised_, {});
  if (!promised) return nullptr;
  const auto found = entries_.find(*promised);
  if (found == entries_.end() || found->second->state != State::releasing) return nullptr;
  OwnedEntry gone = std::move(found->second);
  entries_.erase(found);
  return gone;
}

bool ThreadGraphs::begin_question(int id) {
  OwnedEntry gone, stale;
  bool ready = false;
  {
    const std::lock_guard lock(mutex_);
    gone = take_back_promise();
    const Entry* const entry = find(id);
    if (!entry || entry->state != State::ready || !policy_->captures()) return false;
    if (entry->is_stale()) {
      stale = forget_capture(id);
    } else {
      promised_ = id;
      latest_id_ = id;
      ready = true;
    }
  }
  if (stale && stale->replays == 0 && stale->in_vain == kCapturesInVain) warn_of_captures_in_vain(id);
  return ready;
}

// The memory that the graph was captured with is its callers' no more: they have other inputs and outputs by now. The
// next run captures them.
OwnedEntry ThreadGraphs::forget_capture(int id) {
  OwnedEntry& entry = entries_[id];
  auto next = std::make_unique<Entry>();
  next->runs = entry->runs;
  next->peak_bytes = entry->peak_bytes;
  next->in_vain = entry->replays ? 0 : entry->in_vain + 1;
  return std::exchange(entry, std::move(next));
}

void ThreadGraphs::warn_of_captures_in_vain(int id) const {
  policy_->settings.warn(
      text("graph id ", id,
           " is captured anew at each run, which is slower than to run without graphs: after each, "
           "inputs or outputs that it was captured with are freed. Keep the binding and its OrtValues from run to run "
           "(update_inplace), or run with gpu_graph_id=-1"));
}

bool ThreadGraphs::end_question(int id) {
  OwnedEntry gone;
  const std::lock_guard lock(mutex_);
  const Entry* const entry = find(id);
  const bool captured =
      entry && (entry->state == State::ready || entry->state == State::releasing) && policy_->captures();
  gone = take_back_promise();
  return captured;
}

bool ThreadGraphs::is_captured(int id) const {
  const std::lock_guard lock(mutex_);
  const Entry* const entry = find(id);
  return entry && entry->state == State::ready && !entry->is_stale() && policy_->captures();
}

// The lock keeps the graph alive until it is launched.
void ThreadGraphs::replay(int id) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  Entry* const entry = found == entries_.end() ? nullptr : found->second.get();
  if (!entry || (entry->state != State::ready && entry->state != State::releasing))
    fail(Code::invalid_input, "graph id ", id,
         " cannot be replayed: this thread has not captured it, or it was released; ",
         "every thread captures its own graphs by running the session with this gpu_graph_id");
  order_.before_run(stream_);
  entry->launch(stream_);
  order_.after_run(stream_);
  ++entry->replays;
}

OwnedEntry ThreadGraphs::release(int id) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  const State state = found->second->state;
  if (state != State::ready && state != State::releasing) return nullptr;
  if (promised_ == id && thread_ != std::this_thread::get_id()) {
    found->second->state = State::releasing;
    return nullptr;
  }
  OwnedEntry gone = std::move(found->second);
  entries_.erase(found);
  return gone;
}

// What the thread has been told is captured it replays once more.
void ThreadGraphs::forget_captures(std::vector<OwnedEntry>& gone) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, entry] : entries_) {
    if (entry->state != State::ready) continue;
    if (promised_ == id)
      entry->state = State::releasing;
    else
      gone.push_back(forget_capture(id));
  }
}

std::shared_ptr<profile::Timeline> ThreadGraphs::timeline() const {
  const auto* const capture = run_ ? std::get_if<Capture>(&run_->phase) : nullptr;
  return capture ? capture->timeline() : nullptr;
}

std::vector<Report> ThreadGraphs::reports() const {
  std::vector<Report> reports;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : entries_)
    reports.push_back({.id = id,
                       .state = entry->is_stale() ? State::stale : entry->state,
                       .nodes = entry->nodes.size(),
                       .held_bytes = entry->pool ? entry->pool->held_bytes() : 0,
                       .retained_bytes = entry->retention ? entry->retention->bytes() : 0,
                       .replays = entry->replays,
                       .refusal = entry->refusal});
  return reports;
}

std::vector<device::GraphNode> ThreadGraphs::nodes(int id) const {
  const std::lock_guard lock(mutex_);
  const Entry* const entry = find(id);
  return entry ? entry->nodes : std::vector<device::GraphNode>();
}

}  // namespace encore::graph
