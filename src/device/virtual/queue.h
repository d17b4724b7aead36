// What launches need of the virtual GPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "device/stream.h"

namespace encore::device {
struct Blocks;
}

namespace encore::device::virtual_gpu {

// Appends a task to the stream, or to the graph which the stream captures. It may run many times.
void enqueue(StreamRef stream, std::string_view kernel, std::function<void()> task);
void check_grid(const Blocks& grid, size_t shared_bytes, int max_threads);
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

// f(i) for every i in [0, n). All orders share a loop, which is compiled for each launch and each phase.
template <class F>
void for_each(int64_t n, const F& f) {
  run_in_order(
      n,
      [](const void* f, int64_t first, int64_t end, int64_t step) {
        for (int64_t i = first; i != end; i += step) (*static_cast<const F*>(f))(i);
      },
      &f);
}

}  // namespace encore::device::virtual_gpu
