#include "device/compiler.h"

#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "device/compiled_code.h"
#include "device/error.h"
#include "device/tuning_cache.h"

namespace encore::device {

void CompiledKernel::settle(std::shared_ptr<const Code> code) {
  code_ = std::move(code);
  state_.store(code_ ? State::ready : State::failed, std::memory_order_release);
  state_.notify_all();
}

struct Compiler::State {
  State(int device, CompilerSettings settings)
      : device(device),
        when(settings.when),
        target(when == CompilerSettings::When::never ? "" : compile_target(device)),
        kept(std::move(settings.kept), {}),
        warn_(std::move(settings.warn)) {}

  const int device;
  const CompilerSettings::When when;
  const std::string target;  // empty: nothing is compiled
  SessionTuning kept;

  std::string key_of(const std::string& source) const {
    return text("compiled for ", target, " with ", hash_of_run_time_headers(), ": ", source);
  }

  void warn(const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (warn_) warn_(message);
  }
  // The session ends, perhaps before what it has asked for is compiled.
  void be_silent() {
    const std::lock_guard lock(mutex_);
    warn_ = nullptr;
  }

 private:
  std::mutex mutex_;
  std::function<void(const std::string&)> warn_;  // guarded by it
};

namespace {

// The process's kernels, and the thread that compiles them.
class Workshop {
 public:
  struct Job {
    std::shared_ptr<CompiledKernel> kernel;
    std::function<std::shared_ptr<const CompiledKernel::Code>()> make;
  };

  static Workshop& get() {
    static auto& workshop = *new Workshop;  // destructors of other statics may still use it
    return workshop;
  }

  // Null: there are too many.
  std::pair<std::shared_ptr<CompiledKernel>, bool> find(int device, const std::string& source) {
    const std::lock_guard lock(mutex_);
    const auto found = kernels_.find({device, source});
    if (found != kernels_.end()) return {found->second, false};
    if (kernels_.size() == kMostKernels) return {nullptr, false};
    return {kernels_.emplace(std::pair(device, source), std::make_shared<CompiledKernel>()).first->second, true};
  }

  void ask(int device, Job job) {
    const std::lock_guard lock(mutex_);
    if (is_over_) return job.kernel->settle(nullptr);
    jobs_.push_back(std::move(job));
    if (!thread_.joinable()) start(device);
    wanted_.notify_one();
  }

 private:
  static constexpr size_t kMostKernels = 2048;

  void start(int device) {
    // Not in the other thread: NVRTC crashes if the process ends meanwhile. Later on the end waits for that thread,
    // before NVRTC's own.
    try {
      open_compiler(device);
    } catch (const std::exception&) {  // each job fails by itself
    }
    try {
      std::atexit([] { get().end(); });
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error&) {  // the process may have no more threads
      give_up();
    }
  }
  void give_up() {
    is_over_ = true;
    for (const Job& job : std::exchange(jobs_, {})) job.kernel->settle(nullptr);
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wanted_.wait(lock, [&] { return is_over_ || !jobs_.empty(); });
      if (is_over_) break;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      auto code = job.make();
      job.make = nullptr;  // with what it keeps of its session
      job.kernel->settle(std::move(code));
      lock.lock();
    }
    give_up();
  }
  void end() {
    if (process_ != getpid()) return;  // the thread is in the one that this was forked from
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    wanted_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;  // guards the rest
  std::condition_variable wanted_;
  std::map<std::pair<int, std::string>, std::shared_ptr<CompiledKernel>> kernels_;
  std::deque<Job> jobs_;
  std::thread thread_;
  bool is_over_ = false;
};

// None if what was kept is no use.
std::optional<std::shared_ptr<const CompiledKernel::Code>> loaded(int device, const std::string& binary) {
  try {
    return load(device, binary);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

Compiler::Compiler(int device, CompilerSettings settings)
    : state_(std::make_shared<State>(device, std::move(settings))) {}
Compiler::~Compiler() { state_->be_silent(); }

std::shared_ptr<const CompiledKernel> Compiler::find(const std::string& source) {
  if (state_->target.empty()) return nullptr;
  const auto [kernel, is_new] = Workshop::get().find(state_->device, source);
  const std::string key = state_->key_of(source);
  if (is_new) {
    const RelaxedCapture relaxed;  // this thread may be capturing
    if (auto code = state_->kept.find(key, [&](const std::string& kept) { return loaded(state_->device, kept); })) {
      kernel->settle(std::move(*code));
      return kernel;
    }
    Workshop::get().ask(state_->device,
                        {kernel, [state = state_, source, key]() -> std::shared_ptr<const CompiledKernel::Code> {
                           const RelaxedCapture relaxed_too;  // or the captures of others would be invalid
                           try {
                             const std::string binary = compile(state->target, source);
                             auto code = load(state->device, binary);
                             state->kept.keep(key, binary);
                             return code;
                           } catch (const Error& error) {
                             if (error.code() != Code::library_missing) state->warn(error.what());
                           } catch (const std::exception&) {
                           }
                           return nullptr;
                         }});
  } else {
    state_->kept.share(key);
  }
  if (kernel && state_->when == CompilerSettings::When::at_once) {
    // The other thread may have to load what it has compiled.
    const RelaxedCapture relaxed;
    kernel->wait();
  }
  return kernel && kernel->state() != CompiledKernel::State::failed ? kernel : nullptr;
}

}  // namespace encore::device
