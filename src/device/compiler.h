// Kernels from source that is made at run time: by NVRTC on CUDA, and on the virtual GPU by the compiler that
// ENCORE_VIRTUAL_COMPILER names. They are for what is captured, which runs often: compiling takes a tenth of a second a
// kernel, in a thread of its own as a rule, and until then the graph does the work another way.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/graph.h"
#include "device/stream.h"

namespace encore::device {

class TuningCache;

// Of one device. What back ends keep is theirs.
class CompiledKernel {
 public:
  enum class State : uint8_t { awaited, ready, failed };
  State state() const { return state_.load(std::memory_order_acquire); }
  bool is_ready() const { return state() == State::ready; }

  struct Code;
  const Code& code() const { return *code_; }  // of one that is ready
  void wait() const { state_.wait(State::awaited, std::memory_order_acquire); }
  void settle(std::shared_ptr<const Code> code);  // none: it has failed

 private:
  std::atomic<State> state_{State::awaited};
  std::shared_ptr<const Code> code_;
};

struct CompilerSettings {
  enum class When : uint8_t { never, in_background, at_once };
  When when = When::in_background;
  std::shared_ptr<TuningCache> kept = {};             // what is compiled is kept for later processes; none: it is not
  std::function<void(const std::string&)> warn = {};  // may be empty
};

// One per session and device; kernels are the process's. Safe to use from many threads.
class Compiler {
 public:
  explicit Compiler(int device, CompilerSettings settings);
  ~Compiler();
  Compiler(const Compiler&) = delete;

  // The source includes what it needs of Encore's headers (cmake/run_time_headers.cmake lists those that are there),
  // and defines in encore::compiled `Arguments`, which are trivially copyable, and
  //   template <class Wait> DEVICE_FN void body(const Arguments&, int64_t index, Wait wait)
  // which says wait() before all but what a body with kBeginsEarly may do (device/launch.h). Null: there will be none.
  std::shared_ptr<const CompiledKernel> find(const std::string& source);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

// A launch of it: body() for every index in [0, count).
struct CompiledLaunch {
  std::shared_ptr<const CompiledKernel> kernel;
  int64_t count;
  std::vector<char> arguments;

  template <class Arguments>
  CompiledLaunch(std::shared_ptr<const CompiledKernel> kernel, int64_t count, const Arguments& arguments)
      : kernel(std::move(kernel)), count(count), arguments(sizeof arguments) {
    static_assert(std::is_trivially_copyable_v<Arguments>);
    std::memcpy(this->arguments.data(), &arguments, sizeof arguments);
  }
};
void launch(StreamRef stream, const CompiledLaunch& launch);  // of a kernel that is ready
// The stream has just captured a kernel that does the same: graphs launch this one instead once it is ready.
void exchange_latest(StreamRef stream, const CompiledLaunch& launch);

}  // namespace encore::device
