#include "device/virtual/early.h"

#include <atomic>
#include <memory>
#include <system_error>

#include "device/virtual/architecture.h"
#include "device/virtual/queue.h"

namespace encore::device::virtual_gpu {
namespace {

// One of so many, another one each time.
int64_t some(int64_t count) {
  static std::atomic<uint64_t> turn{0};
  return int64_t((turn.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15u >> 33) % uint64_t(count));
}

}  // namespace

EarlyBlock::EarlyBlock(std::function<void(EarlyBlock&)> run)
    : thread_([this, run = std::move(run)] {
        try {
          run(*this);
        } catch (const GivenUp&) {
        } catch (...) {
          failure_ = std::current_exception();
        }
        waits_.set();
      }) {
  waits_.wait();
}

EarlyBlock::~EarlyBlock() {
  if (!thread_.joinable()) return;
  is_given_up_ = true;
  goes_on_.set();
  thread_.join();
}

void EarlyBlock::finish() {
  goes_on_.set();
  thread_.join();
  if (failure_) std::rethrow_exception(failure_);
}

void EarlyBlock::wait() {
  if (has_waited()) return;
  waits_.set();
  goes_on_.wait();
  if (is_given_up_) throw GivenUp{};
}

void run_phase(int64_t n, Loop loop, const void* f, const EarlyBlock* early) {
  if (!early || early->has_waited()) return run_in_order(n, loop, f);
  const int64_t first = some(n);
  loop(f, first, first + 1, 1);
  run_in_order(first, loop, f);
  struct Behind {
    Loop loop;
    const void* f;
    int64_t first;
  };
  const Behind behind{loop, f, first + 1};
  run_in_order(
      n - first - 1,
      [](const void* at, int64_t begin, int64_t end, int64_t step) {
        const auto& [loop, f, first] = *static_cast<const Behind*>(at);
        loop(f, first + begin, first + end, step);
      },
      &behind);
}

Work launch_of(int64_t count, bool begins_early, std::function<void(int64_t index, EarlyBlock* early)> run) {
  const auto each = std::make_shared<const std::function<void(int64_t, EarlyBlock*)>>(std::move(run));
  Work work([=] { for_each(count, [&](int64_t index) { (*each)(index, nullptr); }); });
  if (!begins_early || architecture().capability < 900) return work;
  work.begin = [=, all = work.run]() -> std::function<void()> {
    const int64_t chosen = some(count);
    try {
      const auto block = std::make_shared<EarlyBlock>([=](EarlyBlock& early) { (*each)(chosen, &early); });
      return
          [=] { for_each(count, [&](int64_t index) { index == chosen ? block->finish() : (*each)(index, nullptr); }); };
    } catch (const std::system_error&) {  // no more threads
      return all;
    }
  };
  return work;
}

}  // namespace encore::device::virtual_gpu
