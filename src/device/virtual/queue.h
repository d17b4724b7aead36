// What launches need of the virtual GPU.
#pragma once
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
void check_grid(const Blocks& grid);

// In which order the indices of a launch, and the threads of a phase, run. Kernels must not care. `split` runs two
// halves on two threads, for TSan. ENCORE_VIRTUAL_ORDER=forward|reversed|split sets it at start.
enum class Order { forward, reversed, split };
Order order();
void set_order(Order order);

// Runs both on two threads and waits for them.
void run_both(const std::function<void()>& first, const std::function<void()>& second);

template <class F>
void for_each(int64_t n, const F& f) {
  switch (order()) {
    case Order::forward:
      for (int64_t i = 0; i < n; ++i) f(i);
      break;
    case Order::reversed:
      for (int64_t i = n; i-- > 0;) f(i);
      break;
    case Order::split:
      run_both(
          [&] {
            for (int64_t i = 0; i < n / 2; ++i) f(i);
          },
          [&] {
            for (int64_t i = n / 2; i < n; ++i) f(i);
          });
      break;
  }
}

}  // namespace encore::device::virtual_gpu
