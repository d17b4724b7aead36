#include "device/virtual/queue.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <string_view>
#include <thread>

#include "device/cluster.h"
#include "device/error.h"
#include "device/launch.h"
#include "device/persistent.h"
#include "device/virtual/address_space.h"
#include "device/virtual/architecture.h"
#include "device/virtual/stream_state.h"

namespace encore::device::virtual_gpu {

namespace {

Order order_at_start() {
  const char* given = std::getenv("ENCORE_VIRTUAL_ORDER");
  const std::string_view wanted = given ? given : "";
  if (wanted == "reversed") return Order::reversed;
  if (wanted == "split") return Order::split;
  require(wanted.empty() || wanted == "forward", "ENCORE_VIRTUAL_ORDER must be forward, reversed or split, not ",
          wanted);
  return Order::forward;
}

std::atomic<Order>& current_order() {
  static std::atomic<Order> order{order_at_start()};
  return order;
}

// A second thread for second halves.
class Second {
 public:
  Second() : shared_(std::make_shared<Shared>()) {
    stay_loaded();
    std::thread([shared = shared_] { serve(*shared); }).detach();
  }
  ~Second() { hand_over(kStop, nullptr); }

  void start(const std::function<void()>& work) { hand_over(kWork, &work); }
  void finish() {
    shared_->state.wait(kWork, std::memory_order_acquire);
    if (shared_->failure) std::rethrow_exception(std::exchange(shared_->failure, nullptr));
  }

 private:
  enum : int { kIdle, kWork, kStop };
  struct Shared {
    std::atomic<int> state{kIdle};
    const std::function<void()>* work = nullptr;
    std::exception_ptr failure;
  };
  void hand_over(int state, const std::function<void()>* work) {
    shared_->work = work;
    shared_->state.store(state, std::memory_order_release);
    shared_->state.notify_one();
  }
  static void serve(Shared& shared) {
    for (;;) {
      shared.state.wait(kIdle, std::memory_order_acquire);
      if (shared.state.load(std::memory_order_acquire) == kStop) return;
      try {
        (*shared.work)();
      } catch (...) {
        shared.failure = std::current_exception();
      }
      shared.state.store(kIdle, std::memory_order_release);
      shared.state.notify_one();
    }
  }
  std::shared_ptr<Shared> shared_;
};

// Runs both on two threads and waits for them.
void run_both(const std::function<void()>& first, const std::function<void()>& second) {
  // One for each depth: while a launch's second half runs, its first half splits its phases.
  thread_local std::deque<Second> seconds;
  thread_local size_t depth = 0;
  if (seconds.size() == depth) seconds.emplace_back();
  Second& other = seconds[depth++];
  struct Leave {
    ~Leave() { --depth; }
  } leave;
  other.start(second);
  try {
    first();
  } catch (...) {
    try {
      other.finish();  // before the second half's data goes out of scope
    } catch (...) {    // the first half's failure is reported
    }
    throw;
  }
  other.finish();
}

// As its kernel gets it; CUDA copies functors byte by byte, too.
std::shared_ptr<const std::byte[]> launched(const Functor& functor) {
  auto copy = std::make_unique_for_overwrite<std::byte[]>(functor.bytes);  // aligned as new does, to 16
  std::memcpy(copy.get(), functor.at, functor.bytes);
  if (functor.has_addresses) follow_all(copy.get(), functor.bytes);
  return copy;
}

// Filled with NaN.
std::unique_ptr<std::byte[]> shared_memory(size_t bytes) {
  auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::memset(memory.get(), 0xff, bytes);
  return memory;
}

}  // namespace

Order order() { return current_order().load(std::memory_order_relaxed); }
void set_order(Order order) { current_order().store(order, std::memory_order_relaxed); }

void run_in_order(int64_t n, Loop loop, const void* f) {
  switch (order()) {
    case Order::forward: return loop(f, 0, n, 1);
    case Order::reversed: return loop(f, n - 1, -1, -1);
    case Order::split: return run_both([&] { loop(f, 0, n / 2, 1); }, [&] { loop(f, n / 2, n, 1); });
  }
}

void enqueue(StreamRef stream, std::string_view kernel, Work task) {
  require(stream.device() == current_device(), kernel, " cannot be launched on a stream of device ", stream.device(),
          " while device ", current_device(), " is current");
  submit(stream, NodeKind::kernel, kernel, std::move(task));
}

std::function<void()> loop_task(int64_t n, const Functor& functor, Loop loop) {
  return [n, f = launched(functor), loop] { run_in_order(n, loop, f.get()); };
}
void enqueue_loop(StreamRef stream, std::string_view kernel, int64_t n, Functor functor, Loop loop) {
  enqueue(stream, kernel, loop_task(n, functor, loop));
}

namespace {
Work blocks_work(std::string_view kernel, const Blocks& grid, const Functor& body, size_t shared_bytes,
                 bool begins_early, RunBlock run) {
  return launch_of(
      grid.blocks, begins_early && !grid.late, [=, body = launched(body)](int64_t index, EarlyBlock* early) {
        const auto shared = shared_memory(shared_bytes), dynamic = shared_memory(size_t(grid.dynamic_bytes));
        const bool waited = run(body.get(), index, grid, shared.get(), dynamic.get(), early);
        if (begins_early && !waited) fail_unwaited(kernel);
      });
}
}  // namespace

void enqueue_blocks(StreamRef stream, std::string_view kernel, const Blocks& grid, Functor body, size_t shared_bytes,
                    bool begins_early, RunBlock run) {
  enqueue(stream, kernel, blocks_work(kernel, grid, body, shared_bytes, begins_early, run));
}

void set_blocks(const GraphExec& exec, KernelNode node, std::string_view kernel, const Blocks& grid, Functor body,
                size_t shared_bytes, bool begins_early, RunBlock run) {
  require(grid.blocks > 0, "a kernel of a graph cannot have ", grid.blocks, " blocks");
  set_node(exec, node, blocks_work(kernel, grid, body, shared_bytes, begins_early, run));
}

void check_grid(const Blocks& grid, size_t of_shared, int max_threads) {
  require(grid.threads >= 32 && grid.threads <= 1024 && grid.threads % 32 == 0, "a block cannot have ", grid.threads,
          " threads: it takes a multiple of 32, at most 1024");
  require(grid.threads <= max_threads, "a block of this kernel cannot have ", grid.threads,
          " threads: it has registers for ", max_threads);
  require(grid.blocks <= 0x7fffffff, "a launch cannot have ", grid.blocks, " blocks");
  const int64_t free = architecture().shared_bytes - kLanesBytes - int64_t(of_shared);
  require(grid.dynamic_bytes >= 0 && grid.dynamic_bytes <= free, "a block cannot have ", grid.dynamic_bytes,
          " bytes of dynamic shared memory: the virtual GPU has ", free, " of them for this kernel");
}

void fail_unwaited(std::string_view kernel) {
  fail(Code::internal, kernel, " begins early, and has threads that do not wait");
}
void fail_misaligned() { fail(Code::internal, "a pack is at an address that is not aligned to it"); }

void check_clusters(const Clusters& grid, size_t shared_bytes, int64_t dynamic_bytes, int max_threads) {
  const int most = most_in_cluster();
  require(grid.blocks >= 1 && grid.blocks <= most && (grid.blocks & (grid.blocks - 1)) == 0, "a cluster cannot have ",
          grid.blocks, " blocks: it takes a power of two, at most ", most, " on this GPU");
  require(grid.dynamic_bytes >= 0 && grid.dynamic_bytes <= dynamic_bytes, "a cluster's blocks have ", dynamic_bytes,
          " bytes of dynamic shared memory, and not ", grid.dynamic_bytes);
  check_grid({std::min<int64_t>(grid.clusters, int64_t(1) << 40) * grid.blocks, grid.threads, dynamic_bytes},
             shared_bytes, max_threads);
}

void check_persistent(const Persistent& grid, size_t shared_bytes, int max_threads) {
  check_grid({grid.blocks, grid.threads, grid.dynamic_bytes}, shared_bytes, max_threads);
  const int64_t most = architecture().multiprocessors;
  require(grid.blocks <= most, grid.blocks, " blocks cannot run at the same time: the virtual GPU has ", most,
          " multiprocessors");
}

void fail_unput(int64_t i, int64_t step) {
  fail(Code::internal, "a block waits for value ", i, " of step ", step, ", which nobody has put");
}

}  // namespace encore::device::virtual_gpu
