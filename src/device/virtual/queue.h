// What launches need of the virtual GPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <type_traits>

#include "device/graph.h"
#include "device/stream.h"
#include "device/virtual/early.h"

namespace encore::device {
struct Blocks;
}

namespace encore::device::virtual_gpu {

// Appends a task to the stream, or to the graph which the stream captures. It may run many times.
void enqueue(StreamRef stream, std::string_view kernel, Work task);
void check_grid(const Blocks& grid, size_t shared_bytes, int max_threads);
[[noreturn]] void fail_unwaited(std::string_view kernel);
// Fails what a kernel asks of an address that does not suit it.
[[noreturn]] void fail_misaligned();
inline void check_alignment(bool aligned) {
  if (!aligned) fail_misaligned();
}

// In which order the indices of a launch, and the threads of a phase, run. Kernels must not care. `split` runs two
// halves on two threads, for TSan. ENCORE_VIRTUAL_ORDER=forward|reversed|split sets it at start.
enum class Order { forward, reversed, split };
Order order();
void set_order(Order order);

// Runs `loop` over [0, n) in that order.
using Loop = void (*)(const void* f, int64_t first, int64_t end, int64_t step);
void run_in_order(int64_t n, Loop loop, const void* f);
// A phase of a block, which may have begun early.
inline void run_phase(int64_t n, Loop loop, const void* f, EarlyBlock* early) {
  early && !early->has_waited() ? early->run_phase(n, loop, f) : run_in_order(n, loop, f);
}

// All orders share a loop, which is compiled for each launch and each phase.
template <class F>
void loop_of(const void* f, int64_t first, int64_t end, int64_t step) {
  for (int64_t i = first; i != end; i += step) (*static_cast<const F*>(f))(i);
}

// f(i) for every i in [0, n).
template <class F>
void for_each(int64_t n, const F& f) {
  run_in_order(n, loop_of<F>, &f);
}

// A kernel's functor of whatever type, so that what a launch does is compiled once for all of them.
struct Functor {
  const void* at;
  size_t bytes;
  bool has_addresses;
};
template <class F>
Functor functor(const F& f) {
  static_assert(std::is_trivially_copyable_v<F>, "a kernel's functor is copied to the device");
  static_assert(alignof(F) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  return {&f, sizeof f, alignof(F) >= alignof(void*)};
}

void enqueue_loop(StreamRef stream, std::string_view kernel, int64_t n, Functor functor, Loop loop);
std::function<void()> loop_task(int64_t n, const Functor& functor, Loop loop);

// Runs one block of the kernel whose functor is `body`; returns whether each of its threads has waited.
using RunBlock = bool (*)(const void* body, int64_t index, const Blocks& grid, void* shared, std::byte* dynamic,
                          EarlyBlock* early);
void enqueue_blocks(StreamRef stream, std::string_view kernel, const Blocks& grid, Functor body, size_t shared_bytes,
                    bool begins_early, RunBlock run);
void set_blocks(const GraphExec& exec, KernelNode node, std::string_view kernel, const Blocks& grid, Functor body,
                size_t shared_bytes, bool begins_early, RunBlock run);
// What a node of a graph does in launches to come.
void set_node(const GraphExec& exec, KernelNode node, Work work);

}  // namespace encore::device::virtual_gpu
