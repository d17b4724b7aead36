#include "device/virtual/early.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <system_error>
#include <vector>

#include "device/error.h"
#include "device/virtual/architecture.h"
#include "device/virtual/queue.h"

namespace encore::device::virtual_gpu {
namespace {

// One of so many, another one each time.
int64_t some(int64_t count) {
  static std::atomic<uint64_t> turn{0};
  return int64_t((turn.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15u >> 33) % uint64_t(count));
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasFibers = false;
#else
constexpr bool kHasFibers = true;
#endif

// Stacks for all threads of a block, used again and again.
class Stacks {
 public:
  static constexpr size_t kBytes = size_t(256) << 10, kMost = 1024;

  Stacks() : all_(taken()) {}
  ~Stacks() {
    const std::lock_guard lock(mutex());
    spare().push_back(all_);
  }
  Stacks(Stacks&&) = delete;
  char* of(int64_t thread) const { return all_ + size_t(thread) * kBytes; }

 private:
  static char* taken() {
    {
      const std::lock_guard lock(mutex());
      if (!spare().empty()) {
        char* const all = spare().back();
        spare().pop_back();
        return all;
      }
    }
    void* const all = mmap(nullptr, kMost * kBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (all == MAP_FAILED) fail(Code::out_of_memory, "the virtual GPU has no stacks for a kernel that begins early");
    return static_cast<char*>(all);
  }
  static std::mutex& mutex() {
    static auto& only = *new std::mutex;
    return only;
  }
  static std::vector<char*>& spare() {
    static auto& all = *new std::vector<char*>;
    return all;
  }

  char* const all_;
};

// Threads of a phase, which pause once each. What is not resumed is dropped.
class Fibers {
 public:
  Fibers(int64_t threads, Loop loop, const void* f) : loop_(loop), f_(f), fibers_(size_t(threads)) {
    for (size_t t = 0; t < fibers_.size(); ++t) {
      ucontext_t& context = fibers_[t].context;
      getcontext(&context);
      context.uc_stack.ss_sp = stacks_.of(int64_t(t));
      context.uc_stack.ss_size = Stacks::kBytes;
      context.uc_link = &resumer_;
      makecontext(
          &context, [] { running_->run(); }, 0);
    }
  }
  // Each to where it pauses, or to its end; throws what the first of them has thrown.
  void resume() {
    running_ = this;
    for (size_t i = 0; i < fibers_.size(); ++i) {
      current_ = order() == Order::reversed ? fibers_.size() - 1 - i : i;  // split on two threads they would not pause
      if (!fibers_[current_].is_over) swapcontext(&resumer_, &fibers_[current_].context);
    }
    running_ = nullptr;
    if (failure_) std::rethrow_exception(failure_);
  }

  // Of this thread, if one of its fibers runs.
  static Fibers* running() { return running_; }
  void pause() { swapcontext(&fibers_[current_].context, &resumer_); }

 private:
  struct Fiber {
    ucontext_t context;
    bool is_over = false;
  };
  void run() {
    try {
      loop_(f_, int64_t(current_), int64_t(current_) + 1, 1);
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
    fibers_[current_].is_over = true;
  }

  static thread_local Fibers* running_;
  const Loop loop_;
  const void* const f_;
  const Stacks stacks_;
  std::vector<Fiber> fibers_;
  ucontext_t resumer_;
  size_t current_ = 0;
  std::exception_ptr failure_;
};
thread_local Fibers* Fibers::running_ = nullptr;

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
  if (Fibers* const fibers = Fibers::running()) return fibers->pause();
  waits_.set();
  goes_on_.wait();
  if (is_given_up_) throw GivenUp{};
}

void EarlyBlock::run_phase(int64_t threads, Loop loop, const void* f) {
  if (kHasFibers) {
    Fibers fibers(threads, loop, f);
    fibers.resume();
    wait();
    return fibers.resume();
  }
  const int64_t first = some(threads);
  loop(f, first, first + 1, 1);
  for_each(threads, [&](int64_t t) {
    if (t != first) loop(f, t, t + 1, 1);
  });
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
