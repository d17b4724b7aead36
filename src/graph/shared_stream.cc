#include "graph/shared_stream.h"

#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "device/error.h"
#include "device/gone.h"
#include "device/graph.h"
#include "memory/streams.h"

namespace encore::graph {

using device::StreamRef;

struct SharedStream::Turns {
  explicit Turns(int device) : before(device) {}

  std::recursive_mutex mutex;
  int held = 0;  // how often the thread has it that has it
  std::thread::id latest;
  std::atomic<std::thread::id> runner{};  // the thread in a run
  int depth = 0;                          // of its runs

  // Once other threads are seen, each turn begins by marking what was enqueued before it.
  std::atomic<bool> has_others{false}, marked{false};
  device::Event before;

  void take(StreamRef stream) {
    mutex.lock();
    if (++held > 1) return;
    const auto me = std::this_thread::get_id(), before_me = std::exchange(latest, me);
    if (before_me != me && before_me != std::thread::id()) has_others = true;
    mark(stream);
  }
  void mark(StreamRef stream) noexcept {
    try {
      if (!has_others || stream.capture_status() != device::CaptureStatus::none) return;
      before.record(stream);
      marked = true;
    } catch (const std::exception& e) {  // then others wait for the end of the turn
      device::complain("a stream that threads share", e);
    }
  }
  void give() noexcept {
    if (--held == 0) marked = false;
    mutex.unlock();
  }
};

SharedStream::Turn::Turn(std::shared_ptr<Turns> turns, StreamRef stream) : turns_(std::move(turns)) {
  turns_->take(stream);
}
SharedStream::Turn::~Turn() {
  if (turns_) turns_->give();
}

SharedStream::SharedStream(int device) : own_(device), ref_(own_), turns_(turns_of(ref_)) { memory::enlist(ref_); }
SharedStream::SharedStream(StreamRef stream, std::shared_ptr<void> keeper)
    : keeper_(std::move(keeper)), ref_(stream), turns_(turns_of(ref_)) {
  memory::enlist(ref_);
}
SharedStream::~SharedStream() { memory::delist(ref_); }

std::shared_ptr<SharedStream::Turns> SharedStream::turns_of(StreamRef stream) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<void*, int>, std::weak_ptr<Turns>>;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& each) { return each.second.expired(); });
  const std::pair key(stream.native(), stream.device());
  if (const auto found = all.find(key); found != all.end())
    if (auto turns = found->second.lock()) return turns;
  auto turns = std::make_shared<Turns>(stream.device());
  all[key] = turns;
  return turns;
}

SharedStream::Turn SharedStream::turn() const { return {turns_, ref_}; }

void SharedStream::begin_run() {
  turns_->take(ref_);
  try {
    check_not_captured();
  } catch (...) {
    turns_->give();
    throw;
  }
  turns_->runner = std::this_thread::get_id();
  ++turns_->depth;
}

void SharedStream::end_run() noexcept {
  if (turns_->runner != std::this_thread::get_id()) return;
  if (--turns_->depth == 0) turns_->runner = std::thread::id();
  turns_->give();
}

void SharedStream::wait() const {
  memory::Tail all;
  while (!all && !turns_->marked) {
    const std::unique_lock mine(turns_->mutex, std::try_to_lock);
    if (!mine) {
      turns_->has_others = true;
      std::this_thread::yield();
      continue;
    }
    check_not_captured();
    if (!turns_->has_others && turns_->latest == std::this_thread::get_id()) return ref_.synchronize();
    turns_->has_others = true;
    if (!(all = memory::tail(ref_))) return ref_.synchronize();  // which says why
  }
  {
    const device::RelaxedCapture relaxed;
    (all ? *all : turns_->before).synchronize();
  }
  const std::unique_lock mine(turns_->mutex, std::try_to_lock);
  if (mine && ref_.capture_status() == device::CaptureStatus::none) ref_.done();  // throws what has failed
}

void SharedStream::check_not_captured() const {
  if (ref_.capture_status() == device::CaptureStatus::none) return;
  fail(
      Code::capture_forbidden,
      "the stream given as user_compute_stream is being captured by the application, whose graph would use memory that "
      "later runs use as well; run outside of the capture, or let Encore capture the model (enable_cuda_graph=1)");
}

}  // namespace encore::graph
