// What a Loop counts where only the device knows how often it runs.
#pragma once
#include <cstdint>

#include "device/stream.h"

namespace encore::ops {

// In device memory.
struct IterationCells {
  int64_t* number;
  bool* goes_on;
  bool* next;  // as the body makes it
};
// What is not on the device is on the host.
struct IterationLimits {
  const int64_t* count = nullptr;
  const bool* condition = nullptr;  // of the first one
  int64_t count_on_host;
  bool condition_on_host;
};

void begin_iterations(device::StreamRef stream, const IterationCells& cells, const IterationLimits& limits);
// Behind each.
void end_iteration(device::StreamRef stream, const IterationCells& cells, const IterationLimits& limits);

}  // namespace encore::ops
