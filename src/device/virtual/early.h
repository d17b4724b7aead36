// Kernels that begin early (device/launch.h). One of a launch's blocks gets as far as its wait before the kernels ahead
// have run, so that it sees what it should not have read there: what was there before.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "device/virtual/marker.h"

namespace encore::device::virtual_gpu {

// What a task does. What can be begun early has `begin`, which returns what does the rest, as often as it is called.
struct Work {
  Work() = default;
  template <class F>
  requires std::is_invocable_v<F&> Work(F run) : run(std::move(run)) {}

  std::function<void()> run;
  std::function<std::function<void()>()> begin = {};
};

// So many kernels ahead, for each lets the next one begin.
inline constexpr int kBeginsAhead = 3;

// A block, or a cluster of them, on a thread of its own.
class EarlyBlock {
 public:
  // Goes on to where it waits.
  explicit EarlyBlock(std::function<void(EarlyBlock&)> run);
  ~EarlyBlock();  // what is not finished ends where it waits
  EarlyBlock(EarlyBlock&&) = delete;
  // Goes on to its end; throws what it has thrown.
  void finish();

  // In its thread:
  bool has_waited() const { return waits_.is_set(); }
  void wait();  // from the second time on does nothing
  // Its first phase: loop(f, ...) for each of so many threads, which are fibers until all of them wait. Sanitizers know
  // of none, so there one thread, another one each time, waits before the others begin.
  void run_phase(int64_t threads, void (*loop)(const void* f, int64_t first, int64_t end, int64_t step), const void* f);

 private:
  struct GivenUp {};
  Marker waits_, goes_on_;
  bool is_given_up_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

// A launch of so many blocks, or clusters. `run` runs one of them, perhaps early; it fails if that does not wait.
Work launch_of(int64_t count, bool begins_early, std::function<void(int64_t index, EarlyBlock* early)> run);

}  // namespace encore::device::virtual_gpu
