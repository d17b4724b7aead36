#pragma once
#include <cstdint>

#include "device/annotate.h"

namespace encore::device {

// What a kernel has read before earlier work is done, which may change it. On the virtual GPU that work always is done:
// it makes guesses wrong by one, but for every third index.
DEVICE_FN int64_t guessed(int64_t value, [[maybe_unused]] int64_t index) {
#ifdef __CUDACC__
  return value;
#else
  return value + (index + 1) % 3 - 1;
#endif
}

}  // namespace encore::device
