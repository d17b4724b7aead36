// What is legal while a stream captures, as a table that both back ends must show alike. The rules were first observed
// on CUDA 13. The test prints the table, so that two runs can be compared.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <thread>

#include "device/graph.h"
#include "kernels.h"

namespace encore::device::tests {
namespace {

constexpr size_t kBytes = 4096;

// A fresh one for every row. `capturing` captures; the capture has a node already.
struct World {
  Stream capturing{0}, other{0}, third{0};
  Event event{0}, second_event{0}, recorded_outside{0}, never_recorded{0};
  DeviceArray<int> x{kBytes / 4}, y{kBytes / 4};
  PinnedArray<int> pinned{kBytes / 4};
  std::vector<int> pageable = std::vector<int>(kBytes / 4);
  Graph graph;
  KernelNode node;
  GraphExec exec;
  MemoryPool pool{0, 0};
  void* pooled;
  void* of_driver = allocate(0, kBytes);
  void* of_pinned = allocate_pinned(kBytes);

  World() {
    pooled = allocate_async(other, kBytes);
    begin_capture(other, CaptureMode::relaxed);
    block_kernel<NoShared>(other, {1, 64}, AddBlocks{x.data(), y.data(), 1});
    node = latest_kernel(other);
    graph = end_capture(other);
    exec = graph.instantiate();
    recorded_outside.record(other);
    other.ref().synchronize();
  }
  ~World() {
    for (StreamRef stream : {capturing.ref(), other.ref(), third.ref()})
      if (stream) abandon_capture(stream);
    if (pooled) free_async(third, pooled);
    for (StreamRef stream : {capturing.ref(), other.ref(), third.ref()})
      if (stream) stream.synchronize();
    if (of_driver) free(0, of_driver);
    if (of_pinned) free_pinned(of_pinned);
  }
  void kernel(StreamRef stream) { for_each_index(stream, 4, AddTo{x.data(), 1}); }
  void set_kernel() { set_block_kernel<NoShared>(exec, node, {1, 64}, AddBlocks{y.data(), x.data(), 1}); }
  void fork() {
    event.record(capturing);
    other.ref().wait(event);
  }
  void invalidate() { EXPECT_THROW(capturing.ref().synchronize(), Error); }
};

struct Outcome {
  bool allowed;
  CaptureStatus after;  // of the capturing stream
  const char* error;    // null: none, or back ends may differ
};
const char* const kCaptureForbidden = encore::name(Code::capture_forbidden);
const char* const kCaptureFailed = encore::name(Code::capture_failed);
const Outcome kAllowed{true, CaptureStatus::active, nullptr};
const Outcome kForbidden{false, CaptureStatus::invalidated, kCaptureForbidden};
const Outcome kRefused{false, CaptureStatus::active, nullptr};  // and the capture goes on
const Outcome kAlreadyInvalid{false, CaptureStatus::invalidated, kCaptureFailed};
const Outcome kFailedAndGone{false, CaptureStatus::none, kCaptureFailed};

const char* name(CaptureStatus status) {
  return status == CaptureStatus::none ? "none" : status == CaptureStatus::active ? "active" : "invalidated";
}
const char* name(CaptureMode mode) {
  return mode == CaptureMode::global ? "global" : mode == CaptureMode::thread_local_ ? "thread" : "relaxed";
}
std::string shown(const Outcome& outcome) {
  return text(outcome.allowed ? "allowed" : outcome.error ? outcome.error : "refused", ", ", name(outcome.after));
}

Outcome outcome_of(const std::function<void()>& action, World& world) {
  bool allowed = true;
  const char* failure = nullptr;
  try {
    action();
  } catch (const Error& error) {
    allowed = false;
    failure = encore::name(error.code());
  }
  return {allowed, world.capturing.ref() ? world.capturing.ref().capture_status() : CaptureStatus::none, failure};
}

void expect_outcome(const std::string& row, Outcome seen, const Outcome& expected) {
  if (!expected.error) seen.error = nullptr;
  std::printf("| %-62s | %-38s |%s\n", row.c_str(), shown(seen).c_str(),
              shown(seen) == shown(expected) ? "" : " <- not as expected");
  EXPECT_EQ(shown(seen), shown(expected)) << row;
}

struct Row {
  const char* action;
  std::function<void(World&)> act;
  Outcome expected;
};

// Legal or not whoever does it, in every mode.
const Row kAlways[] = {
    {"launch a kernel", [](World& w) { w.kernel(w.capturing); }, kAllowed},
    {"launch a kernel on another stream", [](World& w) { w.kernel(w.other); }, kAllowed},
    {"synchronize the stream", [](World& w) { w.capturing.ref().synchronize(); }, kForbidden},
    {"query the stream", [](World& w) { w.capturing.ref().done(); }, kForbidden},
    {"synchronize an event of the capture", [](World& w) { w.event.record(w.capturing), w.event.synchronize(); },
     kForbidden},
    {"query an event of the capture", [](World& w) { w.event.record(w.capturing), w.event.done(); }, kForbidden},
    {"record an event", [](World& w) { w.event.record(w.capturing); }, kAllowed},
    {"record an event on another stream", [](World& w) { w.event.record(w.other); }, kAllowed},
    {"record an event at launches", [](World& w) { w.event.ref().record_at_launch(w.capturing); }, kAllowed},
    {"record an event at launches on a stream without a capture",
     [](World& w) { w.event.ref().record_at_launch(w.other); },
     {false, CaptureStatus::active, encore::name(Code::invalid_input)}},
    {"wait for an event recorded outside", [](World& w) { w.capturing.ref().wait(w.recorded_outside); }, kForbidden},
    {"wait for an event never recorded", [](World& w) { w.capturing.ref().wait(w.never_recorded); }, kAllowed},
    {"wait for an event recorded outside, on another stream", [](World& w) { w.third.ref().wait(w.recorded_outside); },
     kAllowed},
    {"fork to another stream", [](World& w) { w.fork(); }, kAllowed},
    {"allocate in the stream", [](World& w) { allocate_async(w.capturing, 64); }, kAllowed},
    {"allocate and free in the stream", [](World& w) { free_async(w.capturing, allocate_async(w.capturing, 64)); },
     kAllowed},
    {"allocate and free in the stream, from a pool of its own",
     [](World& w) { free_async(w.capturing, w.pool.allocate(w.capturing, 64)); }, kAllowed},
    {"free in the stream what was allocated outside", [](World& w) { free_async(w.capturing, w.pooled); }, kRefused},
    {"fill", [](World& w) { fill(w.capturing, w.x.data(), 0, kBytes); }, kAllowed},
    {"copy from device to device", [](World& w) { copy(w.capturing, w.x.data(), w.y.data(), kBytes); }, kAllowed},
    {"copy from pinned to device", [](World& w) { copy(w.capturing, w.x.data(), w.pinned.data(), kBytes); }, kAllowed},
    {"copy from device to pinned", [](World& w) { copy(w.capturing, w.pinned.data(), w.x.data(), kBytes); }, kAllowed},
    {"copy from pageable to device", [](World& w) { copy(w.capturing, w.x.data(), w.pageable.data(), kBytes); },
     kForbidden},
    {"copy from device to pageable", [](World& w) { copy(w.capturing, w.pageable.data(), w.x.data(), kBytes); },
     kForbidden},
    {"copy from pinned to device on another stream",
     [](World& w) { copy(w.other, w.x.data(), w.pinned.data(), kBytes); }, kAllowed},
    {"ask for a place", [](World& w) { place_of(w.x.data()); }, kAllowed},
    {"ask for memory info", [](World&) { memory_info(0); }, kAllowed},
    {"make a stream", [](World&) { Stream stream(0); }, kAllowed},
    {"make an event", [](World&) { Event event(0); }, kAllowed},
    {"destroy another stream", [](World& w) { w.other = {}; }, kAllowed},
    {"destroy an event of the capture", [](World& w) { w.event.record(w.capturing), w.event = {}; }, kAllowed},
    {"begin a capture on the stream", [](World& w) { begin_capture(w.capturing, CaptureMode::thread_local_); },
     kForbidden},
    {"begin and end a capture on another stream",
     [](World& w) { begin_capture(w.other, CaptureMode::thread_local_), end_capture(w.other); }, kAllowed},
    {"end a capture on a stream without one",
     [](World& w) { end_capture(w.other); },
     {false, CaptureStatus::active, kCaptureFailed}},
    {"abandon a capture on a stream without one", [](World& w) { abandon_capture(w.other); }, kAllowed},
    {"launch a graph into the stream", [](World& w) { w.exec.launch(w.capturing); }, kForbidden},
    {"upload a graph to the stream", [](World& w) { w.exec.upload(w.capturing); }, kForbidden},
    {"launch a graph on another stream", [](World& w) { w.exec.launch(w.other); }, kAllowed},
    {"upload a graph on another stream", [](World& w) { w.exec.upload(w.other); }, kAllowed},
    {"give a graph's kernel another functor", [](World& w) { w.set_kernel(); }, kAllowed},
    {"release an executable graph", [](World& w) { w.exec = {}; }, kAllowed},
    {"release a graph", [](World& w) { w.graph = {}; }, kAllowed},
    // Once is well-defined; in a loop beside captures it makes the driver of CUDA 13.0 crash.
    {"wait for the whole device", [](World&) { synchronize_device(0); }, kForbidden},
    {"destroy the stream", [](World& w) { w.capturing = {}; }, {true, CaptureStatus::none, nullptr}},
};

// What CUDA calls potentially unsafe: forbidden to the thread that captures, unless the capture or the thread is
// relaxed; and with a global capture, forbidden to every thread.
const Row kUnsafe[] = {
    {"synchronize another stream", [](World& w) { w.third.ref().synchronize(); }, kForbidden},
    {"query another stream", [](World& w) { w.third.ref().done(); }, kForbidden},
    {"synchronize an event recorded outside", [](World& w) { w.recorded_outside.synchronize(); }, kForbidden},
    {"query an event recorded outside", [](World& w) { w.recorded_outside.done(); }, kForbidden},
    {"query an event never recorded", [](World& w) { w.never_recorded.done(); }, kForbidden},
    {"allocate", [](World&) { free(0, allocate(0, 64)); }, kForbidden},
    {"free", [](World& w) { free(0, w.of_driver), w.of_driver = nullptr; }, kForbidden},
    {"allocate pinned memory", [](World&) { free_pinned(allocate_pinned(64)); }, kForbidden},
    {"free pinned memory", [](World& w) { free_pinned(w.of_pinned), w.of_pinned = nullptr; }, kForbidden},
    {"allocate in another stream", [](World& w) { free_async(w.third, allocate_async(w.third, 64)); }, kForbidden},
    {"free in another stream", [](World& w) { free_async(w.third, w.pooled), w.pooled = nullptr; }, kForbidden},
    {"trim the pool", [](World&) { trim_pool(0, 0); }, kForbidden},
    {"allocate in another stream, from a pool of its own",
     [](World& w) { free_async(w.third, w.pool.allocate(w.third, 64)); }, kForbidden},
    {"trim a pool of its own", [](World& w) { w.pool.trim(0); }, kForbidden},
    {"instantiate a graph", [](World& w) { w.graph.instantiate(); }, kForbidden},
};

enum class Who { same_thread, other_thread, relaxed_scope };
const char* name(Who who) {
  return who == Who::same_thread ? "same thread" : who == Who::other_thread ? "other thread" : "relaxed scope";
}

void run_row(const Row& row, CaptureMode mode, Who who, const Outcome& expected) {
  World world;
  begin_capture(world.capturing, mode);
  world.kernel(world.capturing);
  Outcome seen = kAllowed;
  const auto act = [&] { seen = outcome_of([&] { row.act(world); }, world); };
  if (who == Who::other_thread) {
    std::thread(act).join();
  } else if (who == Who::relaxed_scope) {
    RelaxedCapture relaxed;
    act();
  } else {
    act();
  }
  expect_outcome(text(name(mode), ", ", name(who), ": ", row.action), seen, expected);
}

constexpr CaptureMode kModes[] = {CaptureMode::global, CaptureMode::thread_local_, CaptureMode::relaxed};
constexpr Who kWhos[] = {Who::same_thread, Who::other_thread, Who::relaxed_scope};

TEST(CaptureRules, Always) {
  for (const Row& row : kAlways)
    for (CaptureMode mode : kModes)
      for (Who who : kWhos) run_row(row, mode, who, row.expected);
}

TEST(CaptureRules, UnsafeCalls) {
  for (const Row& row : kUnsafe)
    for (CaptureMode mode : kModes)
      for (Who who : kWhos) {
        const bool forbidden = (mode == CaptureMode::global && who != Who::relaxed_scope) ||
                               (mode == CaptureMode::thread_local_ && who == Who::same_thread);
        run_row(row, mode, who, forbidden ? row.expected : kAllowed);
      }
}

// Each begins its own captures.
const Row kForks[] = {
    {"a fork without work may stay unjoined",
     [](World& w) { w.fork(), end_capture(w.capturing); },
     {true, CaptureStatus::none, nullptr}},
    {"a fork with work may not", [](World& w) { w.fork(), w.kernel(w.other), end_capture(w.capturing); },
     kFailedAndGone},
    {"nor may work after the join",
     [](World& w) {
       w.fork();
       w.kernel(w.other);
       w.second_event.record(w.other);
       w.kernel(w.other);
       w.capturing.ref().wait(w.second_event);
       end_capture(w.capturing);
     },
     kFailedAndGone},
    {"a joined fork may",
     [](World& w) {
       w.fork();
       w.kernel(w.other);
       w.second_event.record(w.other);
       w.capturing.ref().wait(w.second_event);
       end_capture(w.capturing);
     },
     {true, CaptureStatus::none, nullptr}},
    {"a joined fork may be destroyed",
     [](World& w) {
       w.fork();
       w.kernel(w.other);
       w.second_event.record(w.other);
       w.capturing.ref().wait(w.second_event);
       w.other = {};
       end_capture(w.capturing);
     },
     {true, CaptureStatus::none, nullptr}},
    {"end the capture on the fork",
     [](World& w) { w.fork(), end_capture(w.other); },
     {false, CaptureStatus::invalidated, kCaptureFailed}},
    {"synchronize the fork", [](World& w) { w.fork(), w.other.ref().synchronize(); }, kForbidden},
    {"query the fork", [](World& w) { w.fork(), w.other.ref().done(); }, kForbidden},
    {"launch a graph into the fork", [](World& w) { w.fork(), w.exec.launch(w.other); }, kForbidden},
    {"copy pageable memory in the fork",
     [](World& w) { w.fork(), copy(w.other, w.x.data(), w.pageable.data(), kBytes); }, kForbidden},
    {"fork into a stream with work of its own", [](World& w) { w.kernel(w.other), w.fork(); }, kAllowed},
    {"wait for an event of another capture",
     [](World& w) {
       begin_capture(w.other, CaptureMode::thread_local_);
       w.event.record(w.other);
       w.capturing.ref().wait(w.event);
     },
     kForbidden},
    {"end in another thread",
     [](World& w) {
       std::exception_ptr thrown;
       std::thread([&] {
         try {
           end_capture(w.capturing);
         } catch (...) {
           thrown = std::current_exception();
         }
       }).join();
       if (thrown) std::rethrow_exception(thrown);
     },
     kFailedAndGone},
    {"after invalidation: launch a kernel", [](World& w) { w.invalidate(), w.kernel(w.capturing); }, kAlreadyInvalid},
    {"after invalidation: record", [](World& w) { w.invalidate(), w.event.record(w.capturing); }, kAlreadyInvalid},
    {"after invalidation: record at launches",
     [](World& w) { w.invalidate(), w.event.ref().record_at_launch(w.capturing); }, kAlreadyInvalid},
    {"after invalidation: wait", [](World& w) { w.invalidate(), w.capturing.ref().wait(w.never_recorded); },
     kAlreadyInvalid},
    {"after invalidation: fill", [](World& w) { w.invalidate(), fill(w.capturing, w.x.data(), 0, 4); },
     kAlreadyInvalid},
    {"after invalidation: copy pageable memory",
     [](World& w) { w.invalidate(), copy(w.capturing, w.x.data(), w.pageable.data(), 4); }, kAlreadyInvalid},
    {"after invalidation: allocate in the stream", [](World& w) { w.invalidate(), allocate_async(w.capturing, 64); },
     kAlreadyInvalid},
    {"after invalidation: begin a capture",
     [](World& w) { w.invalidate(), begin_capture(w.capturing, CaptureMode::thread_local_); }, kAlreadyInvalid},
    {"after invalidation: synchronize", [](World& w) { w.invalidate(), w.capturing.ref().synchronize(); }, kForbidden},
    {"after invalidation: allocate", [](World& w) { w.invalidate(), free(0, allocate(0, 64)); }, kForbidden},
    {"after invalidation: end", [](World& w) { w.invalidate(), end_capture(w.capturing); }, kFailedAndGone},
    {"after invalidation: abandon",
     [](World& w) { w.invalidate(), abandon_capture(w.capturing); },
     {true, CaptureStatus::none, nullptr}},
    {"after the end: allocate",
     [](World& w) { end_capture(w.capturing), free(0, allocate(0, 64)); },
     {true, CaptureStatus::none, nullptr}},
    {"after the end: synchronize",
     [](World& w) { end_capture(w.capturing), w.capturing.ref().synchronize(); },
     {true, CaptureStatus::none, nullptr}},
    {"after the end: query an event of the capture",
     [](World& w) { w.event.record(w.capturing), end_capture(w.capturing), w.event.done(); },
     {false, CaptureStatus::none, nullptr}},
    {"after the end: synchronize an event of the capture",
     [](World& w) { w.event.record(w.capturing), end_capture(w.capturing), w.event.synchronize(); },
     {false, CaptureStatus::none, nullptr}},
    {"after the end: wait for an event of the capture",
     [](World& w) { w.event.record(w.capturing), end_capture(w.capturing), w.other.ref().wait(w.event); },
     {false, CaptureStatus::none, nullptr}},
    {"after the end: record an event of the capture anew",
     [](World& w) {
       w.event.record(w.capturing);
       end_capture(w.capturing);
       w.event.record(w.other);
       w.event.synchronize();
     },
     {true, CaptureStatus::none, nullptr}},
};

TEST(CaptureRules, ForksAndEnds) {
  for (const Row& row : kForks) run_row(row, CaptureMode::thread_local_, Who::same_thread, row.expected);
}

TEST(CaptureRules, WaitForAnotherCaptureInvalidatesBoth) {
  World world;
  begin_capture(world.capturing, CaptureMode::thread_local_);
  begin_capture(world.other, CaptureMode::thread_local_);
  world.event.record(world.other);
  EXPECT_ERROR(world.capturing.ref().wait(world.event), Code::capture_forbidden);
  EXPECT_EQ(world.capturing.ref().capture_status(), CaptureStatus::invalidated);
  EXPECT_EQ(world.other.ref().capture_status(), CaptureStatus::invalidated);
}

// Whatever went wrong, both streams can be used and captured again.
TEST(CaptureRules, StreamsRecover) {
  for (const Row& row : kForks) {
    World world;
    begin_capture(world.capturing, CaptureMode::thread_local_);
    world.kernel(world.capturing);
    outcome_of([&] { row.act(world); }, world);
    abandon_capture(world.capturing);
    if (!world.other.ref()) continue;  // the row destroyed it
    abandon_capture(world.other);
    world.capturing.ref().synchronize();
    world.other.ref().synchronize();
    for (StreamRef stream : {world.capturing.ref(), world.other.ref()}) {
      EXPECT_EQ(stream.capture_status(), CaptureStatus::none) << row.action;
      world.x.upload(stream, std::vector<int>(kBytes / 4, 5));
      begin_capture(stream, CaptureMode::thread_local_);
      world.kernel(stream);
      end_capture(stream).instantiate().launch(stream);
      EXPECT_EQ(world.x.download(stream)[0], 6) << row.action;
    }
  }
}

}  // namespace
}  // namespace encore::device::tests
