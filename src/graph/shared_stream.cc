#include "graph/shared_stream.h"

#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "device/error.h"
#include "memory/streams.h"

namespace encore::graph {

struct SharedStream::Turns {
  std::recursive_mutex mutex;
  std::atomic<std::thread::id> runner{};  // the thread in a run
  int depth = 0;                          // of its runs
};

SharedStream::SharedStream(int device) : own_(device), ref_(own_), turns_(turns_of(ref_)) { memory::enlist(ref_); }
SharedStream::SharedStream(device::StreamRef stream, std::shared_ptr<void> keeper)
    : keeper_(std::move(keeper)), ref_(stream), turns_(turns_of(ref_)) {
  memory::enlist(ref_);
}
SharedStream::~SharedStream() { memory::delist(ref_); }

std::shared_ptr<SharedStream::Turns> SharedStream::turns_of(device::StreamRef stream) {
  static std::mutex mutex;
  static auto& all = *new std::map<void*, std::weak_ptr<Turns>>;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& each) { return each.second.expired(); });
  if (const auto found = all.find(stream.native()); found != all.end())
    if (auto turns = found->second.lock()) return turns;
  auto turns = std::make_shared<Turns>();
  all[stream.native()] = turns;
  return turns;
}

SharedStream::Turn SharedStream::turn() const { return Turn(turns_->mutex); }

void SharedStream::begin_run() {
  Turn turn(turns_->mutex);
  check_not_captured();
  turns_->runner = std::this_thread::get_id();
  ++turns_->depth;
  turn.release();
}

void SharedStream::end_run() noexcept {
  if (turns_->runner != std::this_thread::get_id()) return;
  if (--turns_->depth == 0) turns_->runner = std::thread::id();
  turns_->mutex.unlock();
}

void SharedStream::check_not_captured() const {
  if (ref_.capture_status() == device::CaptureStatus::none) return;
  fail(
      Code::capture_forbidden,
      "the stream given as user_compute_stream is being captured by the application, whose graph would use memory that "
      "later runs use as well; run outside of the capture, or let Encore capture the model (enable_cuda_graph=1)");
}

}  // namespace encore::graph
