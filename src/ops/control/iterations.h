// What a Loop counts where only the device knows how often it runs.
#pragma once
#include <cstdint>
#include <limits>

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
  int64_t room = std::numeric_limits<int64_t>::max();  // for what is collected
};

void begin_iterations(device::StreamRef stream, const IterationCells& cells, const IterationLimits& limits);
// Puts what an iteration has made behind what those before it have, or before it, if there are `reversed` of them in
// all.
void collect(device::StreamRef stream, const IterationCells& cells, const void* part, void* parts, size_t bytes,
             int64_t reversed = 0);
// Behind each.
void end_iteration(device::StreamRef stream, const IterationCells& cells, const IterationLimits& limits);
// Behind all: how many there were, or -1 if there was no room for another one.
void tell_count(device::StreamRef stream, const IterationCells& cells, const IterationLimits& limits, int64_t* count);

}  // namespace encore::ops
