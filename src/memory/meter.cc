#include "memory/meter.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "memory/here.h"

namespace encore::memory {

namespace {

struct Count {
  size_t bytes = 0, peak_bytes = 0;
};
struct Open {
  std::mutex mutex;
  std::unordered_map<uint64_t, Count> counts;  // by meter
  uint64_t last = 0;
};
Open& open() {
  static auto& open = *new Open;
  return open;
}

uint64_t add() {
  const std::lock_guard lock(open().mutex);
  open().counts.emplace(++open().last, Count());
  return open().last;
}

template <class Change>
void change(const Change& change) {
  const std::lock_guard lock(open().mutex);
  const auto found = open().counts.find(here.meter);
  if (found != open().counts.end()) change(found->second);
}

}  // namespace

Meter::Meter() : serial_(memory::add()), previous_(std::exchange(here.meter, serial_)) {}
Meter::~Meter() {
  if (here.meter == serial_) here.meter = previous_;
  const std::lock_guard lock(open().mutex);
  open().counts.erase(serial_);
}

size_t Meter::peak_bytes() const {
  const std::lock_guard lock(open().mutex);
  return open().counts.at(serial_).peak_bytes;
}

uint64_t Meter::current() { return here.meter; }

void Meter::add(size_t bytes) {
  if (!here.meter) return;
  change([&](Count& count) { count.peak_bytes = std::max(count.peak_bytes, count.bytes += bytes); });
}

void Meter::free(uint64_t meter, size_t bytes) {
  if (!meter || meter != here.meter) return;
  change([&](Count& count) { count.bytes -= bytes; });
}

}  // namespace encore::memory
