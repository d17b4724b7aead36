// Runs of a session: what the calling thread is in the middle of, where its work goes, and how it is waited for.
#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "device/default_stream.h"
#include "device/device.h"
#include "memory/streams.h"
#include "plugin/host/fence.h"
#include "plugin/options/run_options.h"
#include "plugin/session/completion.h"
#include "plugin/session/ep.h"
#include "plugin/session/stream.h"

namespace encore::plugin {
namespace {

constexpr size_t kMostIdleStreams = 16;  // that a session keeps, with graphs and memory

struct Run {
  Ep* ep = nullptr;
  std::weak_ptr<void> life;  // of the session, which another thread may end, if this one was never told the run's end
  bool failed = false;
  bool captured = false;  // at its beginning
  struct Known {
    void* handle;
    device::StreamRef stream;
    uint64_t uploaded = 0, waited_for = 0;  // its latest upload, and up to which it has waited for those of others
  };
  std::vector<Known> streams;  // where its kernels go
  uint64_t uploads = 0;
  // The stream that memory was made for before a node told its own, and whether nodes are on one of the application's.
  device::StreamRef foreseen;
  bool elsewhere = false;
};

// The calling thread's, one inside the other: a node of one session may run another session.
struct Runs {
  std::vector<Run> kept;  // the first `depth` are under way; the others keep their memory
  size_t depth = 0;
  const Ep* repeat = nullptr;    // the session whose last run has to be repeated, since its capture came to nothing
  const Ep* ending = nullptr;    // the session whose run is over but for onnxruntime's question whether it was captured
  const Ep* replayed = nullptr;  // the session that has launched a graph, for which onnxruntime may ask to wait

  Run* innermost() {
    while (depth && kept[depth - 1].life.expired()) --depth;
    return depth ? &kept[depth - 1] : nullptr;
  }
  Run* of(const Ep* ep) {
    Run* const run = innermost();
    return run && run->ep == ep ? run : nullptr;
  }
  bool any_of(const Ep* ep) const {
    return std::any_of(kept.begin(), kept.begin() + ptrdiff_t(depth), [&](const Run& run) { return run.ep == ep; });
  }
};
thread_local Runs runs;

// A feed comes on the stream of one of the nodes that read it, and onnxruntime makes only nodes of the same graph wait:
// not those of a body, which have a stream of their own where the CPU runs the Loop, say. So what a stream does next
// comes behind the latest upload of each other one, if it has not waited for that.
void wait_for_upload(device::StreamRef stream, uint64_t waited_for, device::StreamRef other, uint64_t latest) {
  if (latest <= waited_for || other == stream) return;
  if (const memory::Tail tail = memory::tail(other)) stream.wait(*tail);
}

device::StreamRef after_uploads(const Run& run, Run::Known& known) {
  if (known.waited_for == run.uploads) return known.stream;
  for (const Run::Known& other : run.streams)
    wait_for_upload(known.stream, known.waited_for, other.stream, other.uploaded);
  known.waited_for = run.uploads;
  return known.stream;
}

}  // namespace

bool Ep::thread_runs_in(const memory::Arena& arena) {
  const Run* const run = runs.innermost();
  return run && run->ep->arena_.get() == &arena;
}

device::StreamRef Ep::foresee_stream_of_run(const memory::Arena& arena) {
  if (!thread_runs_in(arena)) return {};
  Run& run = *runs.innermost();
  if (!run.elsewhere) run.foreseen = run.ep->own_stream();
  return run.elsewhere ? device::StreamRef() : run.foreseen;
}

device::StreamRef Ep::stream_foreseen_wrongly(const memory::Arena& arena) {
  if (!thread_runs_in(arena)) return {};
  const Run& run = *runs.innermost();
  return run.elsewhere ? run.foreseen : device::StreamRef();
}

// Null if there are several.
device::StreamRef Ep::own_stream() {
  if (graphs_) return graphs_->stream();
  if (shared_) return shared_->ref();
  const std::lock_guard lock(streams_mutex_);
  return streams_.size() == 1 ? streams_.begin()->first->ref() : device::StreamRef();
}

bool Ep::nodes_have_run() const {
  const Run* const run = runs.of(this);
  return run && !run->streams.empty();
}

Ep* Ep::capturing_here() {
  const Run* const run = runs.innermost();
  return run && run->ep->capturing() ? run->ep : nullptr;
}

// Asked at the end of a run; if so, the question below follows. After a capture that came to nothing onnxruntime has to
// be told once more that capture is on: then it repeats the run, which is eager this time.
bool Ep::asks_for_captures() const {
  runs.replayed = nullptr;
  const bool asks = (captures() && graphs_->captures_latest()) || runs.repeat == this;
  if (asks) runs.ending = this;
  return asks;
}

// Asked at the beginning of every run, and after the question above.
bool Ep::is_captured(int id) const {
  if (std::exchange(runs.ending, nullptr) == this) return id >= 0 && graphs_->is_captured_at_end(id);
  const bool captured = graphs_->is_captured_at_begin(id);
  forget_open_runs();
  return id >= 0 && captured;
}

// In other threads than the one that ends the session it has no runs any more, but for those whose end was not told.
void Ep::forget_runs() {
  forget_open_runs();
  if (runs.repeat == this) runs.repeat = nullptr;
  if (runs.ending == this) runs.ending = nullptr;
  if (runs.replayed == this) runs.replayed = nullptr;
}

void Ep::forget_open_runs() const {
  while (const Run* const run = runs.of(this)) {
    for (const auto& known : run->streams) faults_.leave(known.stream);
    --runs.depth;
  }
}

void Ep::note_copy(device::StreamRef stream, bool is_upload) {
  if (graphs_) return;
  if (is_upload && !shared_) {
    const std::lock_guard lock(streams_mutex_);
    for (auto& [mine, uploads] : streams_)
      if (mine->ref() == stream) uploads.latest = ++uploads_;
  }
  Run* const run = runs.of(this);
  if (!run) return;
  compute_stream(stream.native());
  if (is_upload) std::ranges::find(run->streams, stream.native(), &Run::Known::handle)->uploaded = ++run->uploads;
}

void Ep::order_after_run(device::StreamRef later) {
  const Run* const run = runs.innermost();
  if (!run || run->ep->device() != later.device() || run->ep->capturing()) return;
  device::Event done(later.device());
  const auto order = [&](device::StreamRef earlier) {
    done.record(earlier);
    later.wait(done);
  };
  if (run->ep->graphs_) order(run->ep->graphs_->stream());
  for (const auto& known : run->streams) order(known.stream);
}

void Ep::run_failed(const std::string& why, Code code) {
  if (Run* const run = runs.of(this)) run->failed = true;
  // Bad input fails the run alone: the next one is captured again.
  if (!capturing() || code == Code::invalid_input || code == Code::not_supported) return;
  graphs_->refuse(why, code == Code::capture_forbidden ? graph::Holds::for_model : graph::Holds::for_id);
}

void Ep::end_run_here(const std::string& why, Code code) {
  Run* const run = runs.innermost();
  if (!run) return;
  Ep& ep = *run->ep;
  const bool by_itself = code == Code::invalid_input || code == Code::not_supported || code == Code::out_of_memory;
  if (ep.graphs_ && !by_itself) ep.graphs_->refuse(why);
  ep.leave_run_here();
}

// The innermost run of the calling thread is over, and is the session's. Its end may still be told, or may not.
void Ep::leave_run_here() {
  for (const auto& known : runs.innermost()->streams) faults_.leave(known.stream);
  --runs.depth;
  if (graphs_)
    graphs_->leave_run();
  else if (shared_)
    shared_->end_run();
}

void Ep::enlist(SyncStream* stream) {
  const std::lock_guard lock(streams_mutex_);
  streams_.try_emplace(stream);
}
void Ep::delist(SyncStream* stream) {
  const std::lock_guard lock(streams_mutex_);
  streams_.erase(stream);
}

std::shared_ptr<device::Stream> Ep::lend_stream() {
  {
    const std::lock_guard lock(streams_mutex_);
    if (!idle_streams_.empty()) {
      auto stream = std::move(idle_streams_.back());
      idle_streams_.pop_back();
      return stream;
    }
  }
  auto stream = std::make_shared<device::Stream>(device());
  memory::enlist(*stream);
  return stream;
}

void Ep::take_back(std::shared_ptr<device::Stream> stream) noexcept {
  try {
    const memory::Tail tail = memory::tail(*stream);
    if (tail && memory::wait_for({tail})) {
      const std::lock_guard lock(streams_mutex_);
      if (idle_streams_.size() < kMostIdleStreams) return idle_streams_.push_back(std::move(stream));
    }
  } catch (const std::exception&) {  // then it is of no use
  }
  memory::delist(*stream);
}

device::Stream Ep::give_stream() {
  const std::shared_ptr<device::Stream> stream = lend_stream();
  memory::delist(*stream);
  return std::move(*stream);
}

graph::SharedStream::Turn Ep::turn() const {
  // Older hosts don't tell whether a run has several threads, which would wait for each other.
  return shared_ && (graphs_ || host_has(kExecutionModeApi)) ? shared_->turn() : graph::SharedStream::Turn();
}

device::StreamRef Ep::compute_stream(void* handle, const OrtKernelContext* context) {
  Run* const run = runs.of(this);
  if (!run) {
    has_stray_work_ = true;
    const device::StreamRef stream = begin_work(handle, context);
    wait_for_uploads(stream);
    return stream;
  }
  if (run->captured) graphs_->check_run();
  const auto seen = std::ranges::find(run->streams, handle, &Run::Known::handle);
  if (seen != run->streams.end()) return after_uploads(*run, *seen);
  Run::Known& known = run->streams.emplace_back(handle, begin_work(handle, context));
  faults_.enter(known.stream);
  return after_uploads(*run, known);
}

void Ep::wait_for_uploads(device::StreamRef stream) {
  const std::lock_guard lock(streams_mutex_);
  if (!uploads_) return;
  const auto mine = std::ranges::find(streams_, stream, [](const auto& each) { return each.first->ref(); });
  if (mine == streams_.end() || mine->second.waited_for == uploads_) return;
  for (const auto& [other, uploads] : streams_)
    wait_for_upload(stream, mine->second.waited_for, other->ref(), uploads.latest);
  mine->second.waited_for = uploads_;
}

// With graphs a run begins by itself on the stream of its thread.
device::StreamRef Ep::begin_work(void* handle, const OrtKernelContext* context) {
  const device::StreamRef stream = find_stream(handle, context);
  if (!graphs_ || stream != graphs_->stream()) order_.before_run(stream);
  return stream;
}

device::StreamRef Ep::find_stream(void* handle, const OrtKernelContext* context) {
  device::StreamRef given;
  bool own = false;
  if (context && host_has(kKernelSyncStreamApi)) {
    OrtSyncStream* stream = nullptr;
    check(ort().api->KernelContext_GetSyncStream(context, &stream));
    const SyncStream* const mine = SyncStream::from(stream);
    own = mine && mine->ep() == this;
    if (mine) given = mine->ref();
  } else {
    if (const auto found = SyncStream::of_application(handle)) given = *found;
    const std::lock_guard lock(streams_mutex_);
    own = std::ranges::any_of(streams_, [&](const auto& mine) { return mine.first->handle() == handle; });
  }
  if (shared_ && handle == shared_->ref().native()) own = true;
  if (own) return graphs_ ? graphs_->stream() : device::StreamRef(handle, device());

  require(bool(given),
          "the run was given a stream (RunOptionsSetSyncStream) that is none of Encore's: make it with "
          "CreateSyncStreamForEpDevice for Encore's device, or give it as the provider option user_compute_stream");
  require(given.device() == device(), "the run was given a stream of device ", given.device(),
          " and the session is on ", device());
  constexpr const char* kWhy =
      "the run was given a stream (RunOptionsSetSyncStream), and a graph is captured and replayed on the session's "
      "own; give the stream as the provider option user_compute_stream instead";
  if (capturing() && graphs_->refuse(kWhy)) fail(Code::capture_forbidden, kWhy);
  ran_elsewhere_ = true;
  if (Run* const run = runs.of(this); run && !run->elsewhere) {
    run->elsewhere = true;
    if (const memory::Tail tail = run->foreseen ? memory::tail(run->foreseen) : nullptr) given.wait(*tail);
  }
  return given;
}

void Ep::start_run(const OrtRunOptions* options) {
  runs.repeat = runs.ending = nullptr;
  if (graphs_)
    graphs_->begin_run(captures() ? graph_id_of(options) : graph::kEagerId);
  else if (shared_)
    shared_->begin_run();
  if (runs.depth == runs.kept.size()) runs.kept.emplace_back();
  Run& run = runs.kept[runs.depth++];
  run.ep = this;
  run.life = life_;
  run.failed = false;
  run.captured = capturing();
  run.streams.clear();
  run.uploads = 0;
  run.foreseen = {};
  run.elsewhere = false;
}

void Ep::end_run(const OrtRunOptions* options, bool synchronous) {
  // Runs within this one whose end nobody told.
  while (runs.any_of(this) && !runs.of(this)) runs.innermost()->ep->leave_run_here();
  Run* const run = runs.of(this);
  const std::span<const Run::Known> used = run ? run->streams : std::span<const Run::Known>();
  if (run) --runs.depth;  // what it used is still there
  for (const auto& known : used) faults_.leave(known.stream);
  if (graphs_ && !graphs_->end_run(run && !run->failed)) {
    runs.repeat = this;
    return;
  }
  const auto is_the_threads = [&](device::StreamRef stream) { return graphs_ && stream == graphs_->stream(); };
  // The stream's turn goes to others whatever fails; a failed copy may have ended it before.
  const auto end_turn = [](graph::SharedStream* shared) { shared->end_run(); };
  std::unique_ptr<graph::SharedStream, decltype(end_turn)> turn(!graphs_ && run ? shared_.get() : nullptr, end_turn);
  Completion* const completion = synchronous ? nullptr : completion_of(options);
  // Of a run that is spread over threads this one doesn't know the streams, and a replay tells nothing of its end.
  const bool knows_streams = run && !graphs_ && !has_stray_work_;
  if (completion && !knows_streams) synchronous = true;
  for (const auto& known : used)
    if (!is_the_threads(known.stream)) order_.after_run(known.stream, completion);
  if (completion && knows_streams) {
    std::vector<device::StreamRef> streams;
    for (const auto& known : used) streams.push_back(known.stream);
    completion->write(streams, faults_);
  }
  turn.reset();
  // The streams' Flush, which follows, waits too; but nobody hears what it finds.
  if (!synchronous) return;
  if (!knows_streams) synchronize();
  for (const auto& known : used)
    if (!is_the_threads(known.stream)) wait_for(known.stream);
  for (const auto& known : used) faults_.check(known.stream);
}

void Ep::replay(int id) {
  graphs_->replay(id);
  runs.replayed = this;
  if (ort().minor < int(kSyncAfterReplayHost)) synchronize();
}

void Ep::synchronize_as_asked() {
  if (std::exchange(runs.replayed, nullptr) != this) device::synchronize_default_streams(device());
  synchronize();
}

void Ep::wait_for(device::StreamRef stream) {
  if (shared_ && stream == shared_->ref())
    shared_->wait();
  else
    stream.synchronize();
}

void Ep::synchronize() {
  if (graphs_) return faults_.check(graphs_->synchronize());
  if (shared_) {
    shared_->wait();
    return faults_.check(shared_->ref());
  }
  std::vector<std::pair<device::StreamRef, memory::Tail>> streams;
  {
    const std::lock_guard lock(streams_mutex_);
    for (const auto& [stream, uploads] : streams_) streams.emplace_back(stream->ref(), memory::tail(stream->ref()));
  }
  for (const auto& [stream, tail] : streams)
    if (tail) tail->synchronize();
  for (const auto& [stream, tail] : streams) faults_.check_unless_in_run(stream);
}

}  // namespace encore::plugin
