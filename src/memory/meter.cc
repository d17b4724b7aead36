#include "memory/meter.h"

#include <algorithm>

namespace encore::memory {

void Meter::add(size_t bytes) {
  Scope::with_current([&](Count& count) { count.peak_bytes = std::max(count.peak_bytes, count.bytes += bytes); });
}

void Meter::free(uint64_t meter, size_t bytes) {
  if (meter == here.meter) Scope::with_current([&](Count& count) { count.bytes -= bytes; });
}

}  // namespace encore::memory
